"""The state of simplification rules: the graph being rewritten, and the nodes that they add to it."""

from __future__ import annotations

from jangin.ir.core import CoreAttributes, Reshape
from jangin.ir.graph import Graph, Node, Shape
from jangin.ops.editor import Editor


class State(Editor):
    """One sweep over a graph. `renamed` maps values to the values that replace them."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph.symbols, graph.values, graph.constants)
        self.graph = graph
        self.renamed: dict[str, str] = {}
        self.changed = False
        self._made: dict[str, Node] = {}
        self._uses: dict[str, int] = dict.fromkeys(graph.outputs, 1)
        for node in graph.nodes:
            for name in node.inputs:
                self._uses[name] = self._uses.get(name, 0) + 1

    def producer(self, name: str, operator: type[CoreAttributes]) -> Node | None:
        """Return the node that gives the value, if it is of this operator; else None."""
        node = self._made.get(name)
        return node if node is not None and isinstance(node.attrs, operator) else None

    def single_use(self, name: str) -> bool:
        """Return whether nothing but the current node reads the value."""
        return self._uses.get(name, 0) == 1 and name not in self.renamed.values()

    def emit(self, node: Node) -> None:
        super().emit(node)
        self._made |= dict.fromkeys(node.outputs, node)

    def reshaped(self, x: str, shape: Shape, node: Node) -> str:
        """Return the value `x` in another shape, which is made for the node `node` if it differs."""
        if self.shape(x) == shape:
            return x
        return self.add(Reshape(shape), [x], f"{node.name}.shaped", node.source)
