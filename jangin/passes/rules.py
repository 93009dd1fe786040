"""What a simplification rule sees of the graph being rewritten, and adds to it."""

from __future__ import annotations

from dataclasses import replace

from jangin.ir.core import CoreAttributes, Reshape
from jangin.ir.dtype import DType, from_numpy
from jangin.ir.expr import const
from jangin.ir.graph import Array, Graph, Node, Shape, Value
from jangin.ir.simplify import simplify
from jangin.ops.core import core_op


class State:
    """One sweep over a graph: the nodes emitted so far, and which values stand for others."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = dict(graph.values)
        self.constants: dict[str, Array] = dict(graph.constants)
        self.renamed: dict[str, str] = {}
        self.changed = False
        self._made: dict[str, Node] = {}
        self._uses: dict[str, int] = dict.fromkeys(graph.outputs, 1)
        for node in graph.nodes:
            for name in node.inputs:
                self._uses[name] = self._uses.get(name, 0) + 1

    def shape(self, name: str) -> Shape:
        shape = self.values[name].shape
        assert shape is not None, f"{name} has no shape yet"
        return shape

    def dtype(self, name: str) -> DType:
        dtype = self.values[name].dtype
        assert dtype is not None, f"{name} has no dtype yet"
        return dtype

    def producer(self, name: str, operator: type[CoreAttributes]) -> Node | None:
        """The node that gives the value, if it is of that operator."""
        node = self._made.get(name)
        return node if node is not None and isinstance(node.attrs, operator) else None

    def single_use(self, name: str) -> bool:
        """Whether nothing but the node in hand reads the value."""
        return self._uses.get(name, 0) == 1 and name not in self.renamed.values()

    def emit(self, node: Node) -> None:
        self.nodes.append(node)
        self._made |= dict.fromkeys(node.outputs, node)

    def add(self, node: Node) -> str:
        """Emit a new node (its output is named here and its type inferred); gives its output."""
        out = self.fresh(node.name)
        dtype, shape = core_op(node).infer([self.values[n] for n in node.inputs], node.attrs)
        shape = tuple(simplify(d, self.graph.symbols) for d in shape)
        self.values[out] = Value(out, dtype, shape)
        self.emit(replace(node, name=out, outputs=(out,)))
        return out

    def constant(self, array: Array, hint: str) -> str:
        name = self.fresh(hint)
        self.constants[name] = array
        self.values[name] = Value(name, from_numpy(array.dtype), tuple(const(d) for d in array.shape))
        return name

    def reshaped(self, x: str, shape: Shape, node: Node) -> str:
        """`x` in another shape, for the sake of `node`."""
        if self.shape(x) == shape:
            return x
        return self.add(Node(f"{node.name}.shaped", (x,), (), Reshape(shape), node.source))

    def fresh(self, hint: str) -> str:
        name, count = hint, 0
        while name in self.values:
            count += 1
            name = f"{hint}.{count}"
        return name
