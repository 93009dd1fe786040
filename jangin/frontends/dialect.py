"""The protocol `Dialect`: the operators in which a model is written, and their lowering to core operators.

A format (`frontends.format`) loads a model as an imported graph of a dialect's operators. `frontends.lower`
lowers them one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from jangin.ir.expr import Var
from jangin.ir.graph import Graph, ImportedAttributes, Node
from jangin.ir.records import dataclass
from jangin.ops.builder import Builder
from jangin.ops.nontensor import Item

Place = tuple[str, int]
"""An input and one of its axes."""


@dataclass(frozen=True)
class Imported:
    """A model in the operators of its format, before they are lowered.

    `graph` has nodes whose `op` is "domain.Name". The `source` of a node is the name that the model's author
    gave it. A node "function" stands for the graph in its attribute `body`, which has its own names.
    Constants may be views of the model's file or bytes. `metadata` is the model's own description, under the
    names of `jangin.onnxruntime.ModelMetadata`.

    The model's own runtime takes the symbols `ones` to be 1, unless told otherwise. `hints` are axes whose
    symbols have equal names, but may have different values in the model's own runtime."""

    graph: Graph
    dialect: Dialect
    metadata: Mapping[str, Any] = field(default_factory=dict)
    ones: frozenset[Var] = frozenset()
    hints: frozenset[Place] = frozenset()


Scope = Mapping[str, Item | None]
"""Values by their names in an imported graph. A value that isn't computed is None."""
Inputs = Sequence[Item | None]
"""A node's inputs. An absent input is None."""
Outputs = Item | Sequence[Item | None]
"""A node's outputs in order, or the only output. An output that can't be computed is None."""
Run = Callable[[Builder, Graph, Scope], list[Item]]
"""A function that lowers a sub-graph into a builder and returns its results. The scope has the values that
the sub-graph reads."""


class Bodies(Protocol):
    """The interface through which a node's lowering can have graphs lowered."""

    def run(self, b: Builder, graph: Graph, scope: Scope) -> list[Item]:
        """Lower a sub-graph, and return its results (see `Run`). The values around the current node are
        `b.scope`."""

    def expand(self, b: Builder, graph: Graph, inputs: Inputs) -> Sequence[Item | None]:
        """Lower a graph that replaces the current node, and return its results. The graph has its own
        names."""


Lowering = Callable[[Builder, Node, Inputs, Bodies], Outputs]
"""A function that lowers one node to core operators. It raises CompileError with the reason of a failure; the
caller adds the node, its inputs and their types."""


OWN = "give your own with operators=[...] (see jangin.custom)"
"""The remedy for an operator that isn't supported, or not in the way in which a model uses it."""

FIXED = "fix sizes with shapes=, or export the model with fixed sizes"
"""The remedy for an operator that needs sizes that aren't known while compiling."""


def near(name: str, known: Iterable[str], least: float = 0.8) -> str:
    """Return a remark on the most similar supported name, or "". `least` is the least similarity, on
    difflib's scale to 1."""
    import difflib  # for errors alone

    close = difflib.get_close_matches(name, [*known], 1, least)
    return f" ({close[0]} is)" if close else ""


class Dialect(Protocol):
    """The operators of one or more formats. A custom dialect derives from this class to inherit its
    defaults."""

    domain: str
    """The domain of operators without another domain. Nodes have the `op` "domain.Name"."""

    def lowering(self, node: Node) -> Lowering | None:
        """Return the lowering of a node, or None if the node isn't supported."""

    def remedy(self, node: Node) -> str:
        """Return the reason why an unsupported node isn't supported, and the nearest remedy."""
        return f"there is no such operator: {OWN}"

    def attributes(self, node: Node) -> Mapping[str, Any]:
        """Return the attributes that a caller's own operator gets: the node's, without those that the
        importer added."""
        return node.of(ImportedAttributes)

    def rewrite(self, graph: Graph) -> Graph:
        """Return the imported graph with patterns of several nodes that mean one operator replaced by the
        operator."""
        return graph
