"""Joins kernels that read one another into one kernel of several stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jangin.ir.core import Kernel
from jangin.ir.graph import Graph, Node
from jangin.ir.records import dataclass
from jangin.ir.sources import Sources
from jangin.ops.editor import kernel_node
from jangin.passes.fusion.stages import is_opaque


@dataclass(frozen=True)
class Kernels:
    """A fused graph, its kernels that aren't loop nests (by result), and the readers of each value."""

    graph: Graph
    by_result: Mapping[str, Node]
    users: Mapping[str, Sequence[Node]]

    def only(self, name: str, reader: Node) -> Node | None:
        """Return the kernel that makes `name`, if only the kernel `reader` reads the value; else None."""
        readers = [n.outputs for n in self.users.get(name, ())]
        alone = name not in self.graph.outputs and readers == [reader.outputs]
        return self.by_result.get(name) if alone else None


Chain = Callable[[Kernels, Node], Sequence[Node] | None]
"""`fn(kernels, last)`: the kernels to join that end with `last`, in order; None if there are none."""


def join(graph: Graph, chain: Chain) -> Graph:
    """Return the fused graph with each chain merged into one kernel."""
    kernels = {n.outputs[0]: n for n in graph.nodes if isinstance(n.attrs, Kernel) and not is_opaque(n)}
    around = Kernels(graph, kernels, graph.consumers())
    merged: dict[str, Node] = {}
    gone: set[str] = set()
    for last in kernels.values():
        links = chain(around, last)
        if links:
            merged[last.outputs[0]] = merge(graph, links)
            gone |= {n.outputs[0] for n in links[:-1]}
    nodes = [merged.get(n.outputs[0], n) for n in graph.nodes if n.outputs[0] not in gone]
    return graph.with_nodes(nodes) if merged else graph


def merge(graph: Graph, chain: Sequence[Node], results: Sequence[str] = ()) -> Node:
    """Return one kernel made of the kernels of a chain.

    Without `results`, it replaces the last kernel and has the last one's result. With `results`, it replaces
    the first kernel and has all of `results`.
    """
    bodies = [n.of(Kernel).body for n in chain]
    inner = {n.outputs[0] for n in chain}
    inputs = tuple(dict.fromkeys(i for n in chain for i in n.inputs if i not in inner))
    nodes = tuple(n for b in bodies for n in b.nodes)
    constants = {k: v for b in bodies for k, v in b.constants.items()}
    values = {k: v for b in bodies for k, v in b.values.items()}
    named, outputs = (chain[0], tuple(results)) if results else (chain[-1], chain[-1].outputs)
    body = Graph(named.name, inputs, outputs, nodes, constants, values, graph.symbols)
    source = Sources.joined(n.source for n in chain)
    return kernel_node(body, source)
