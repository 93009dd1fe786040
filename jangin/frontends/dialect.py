"""The operators that a model is written in, and how they become core operators: the protocol `Dialect`.

A format (`frontends.format`) loads a model as an imported graph of a dialect's operators; `frontends.lower`
lowers them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    """A model as its format has it, nothing interpreted yet.

    `graph` has nodes whose `op` is "domain.Name". The `source` of a node is its name by the model's author. A
    node "function" stands for the graph in its attribute `body`, which has names of its own. Constants may
    lie in the model's file or bytes. `metadata` is the model's own description, under the names of
    `jangin.onnxruntime.ModelMetadata`. `ones` are symbols that the model's own runtime takes to be 1, unless
    the runtime is told otherwise. `hints` are places whose symbols have equal names, but may have different
    values in the model's own runtime.
    """

    graph: Graph
    dialect: Dialect
    metadata: Mapping[str, Any] = field(default_factory=dict)
    ones: frozenset[Var] = frozenset()
    hints: frozenset[Place] = frozenset()


Scope = Mapping[str, Item | None]
"""Values by the names that they have in an imported graph; None for those that aren't computed."""
Inputs = Sequence[Item | None]
"""A node's inputs, None for an absent one."""
Outputs = Item | Sequence[Item | None]
"""A node's outputs, or its only one; None for one that can't be given."""
Run = Callable[[Builder, Graph, Scope], list[Item]]
"""Lowers a sub-graph into a builder, given the values that it sees by name, and gives its results."""


class Bodies(Protocol):
    """How the lowering of a node has graphs lowered."""

    def run(self, b: Builder, graph: Graph, scope: Scope) -> list[Item]:
        """The results of a sub-graph (see `Run`). What is around the node in hand is `b.scope`."""

    def expand(self, b: Builder, graph: Graph, inputs: Inputs) -> Sequence[Item | None]:
        """The results of a graph on names of its own that stands for the node in hand."""


Lowering = Callable[[Builder, Node, Inputs, Bodies], Outputs]
"""Lowers one node to core operators. Raises CompileError with the reason where that can't be done; the node,
its inputs and their types are put before it."""


class Dialect(Protocol):
    """The operators of one or more formats. A class of its own derives from this one, for its defaults."""

    domain: str
    """Of operators that have no other domain: their nodes' `op` is "domain.Name"."""

    def lowering(self, node: Node) -> Lowering | None:
        """How a node is lowered, by whatever is its key in the dialect; None where it isn't supported."""

    def remedy(self, node: Node) -> str:
        """Why a node is not supported, and the nearest way round."""
        return "there is no such operator: give your own with operators=[...] (see jangin.custom)"

    def attributes(self, node: Node) -> Mapping[str, Any]:
        """A node's attributes as a caller's own operator takes them: without the dialect's own remarks."""
        return node.of(ImportedAttributes)

    def rewrite(self, graph: Graph) -> Graph:
        """The imported graph with patterns of several nodes that mean one operator replaced by it."""
        return graph
