"""Makes nodes: unique names, inferred result types, and folded constants if asked.

The front ends' `ops.builder.Builder` is an editor, and each pass rewrites a graph with one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jangin.ir import limits
from jangin.ir.core import CoreAttributes, Kernel
from jangin.ir.dtype import DType, from_numpy
from jangin.ir.expr import Const, Var, const
from jangin.ir.graph import MAX_RANK, Array, CompileError, Graph, Node, Shape, Value
from jangin.ir.simplify import Range, simplify
from jangin.ir.sources import NO_SOURCE, Sources
from jangin.ops.core import CORE
from jangin.ops.folding import folded
from jangin.ops.operands import Typed, typed


class Editor:
    """The nodes of a graph under construction, in order, with its values and constants."""

    def __init__(
        self,
        symbols: Mapping[Var, Range],
        values: Mapping[str, Value] | None = None,
        constants: Mapping[str, Array] | None = None,
    ) -> None:
        self.symbols = dict(symbols)
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = dict(values or {})
        self.constants: dict[str, Array] = dict(constants or {})
        self._count = 0

    def shape(self, name: str) -> Shape:
        return self.typed(name)[1]

    def dtype(self, name: str) -> DType:
        return self.typed(name)[0]

    def typed(self, name: str) -> Typed:
        return typed(self.values[name])

    def fresh(self, hint: str) -> str:
        """Return a name that isn't in use: the hint, followed by a number if the hint is taken."""
        name = hint
        while name in self.values:
            self._count += 1
            name = f"{hint}.{self._count}"
        return name

    def declare(self, hint: str, dtype: DType, shape: Shape) -> str:
        """Add a new value, which a later node must compute. Return its name, made from the hint."""
        name = self.fresh(hint)
        self.values[name] = Value(name, dtype, shape)
        return name

    def constant(self, array: Array, hint: str) -> str:
        """Add a new constant. Return its name, made from the hint."""
        name = self.declare(hint, from_numpy(array.dtype), tuple(const(d) for d in array.shape))
        self.constants[name] = array
        return name

    def infer(self, attrs: CoreAttributes, inputs: Sequence[str]) -> Typed:
        """Return the type of a core operator's result. Raises CompileError if it has a negative size or too
        many axes."""
        tensors = [self.values[n] for n in inputs]
        dtype, shape = CORE[attrs.op].infer(tensors, attrs)
        if len(shape) > MAX_RANK:
            raise CompileError(f"{attrs.op} would have {len(shape)} axes; a tensor has {MAX_RANK} at most")
        shape = tuple(simplify(d, self.symbols) for d in shape)
        if any(isinstance(d, Const) and int(d.value) < 0 for d in shape):
            operands = ", ".join(map(str, tensors))
            raise CompileError(f"{attrs.op} of {operands} would have shape [{', '.join(map(str, shape))}]")
        return dtype, shape

    def add(
        self,
        attrs: CoreAttributes,
        inputs: Sequence[str],
        hint: str,
        source: Sources = NO_SOURCE,
        *,
        known: Typed | None = None,
        fold: bool = False,
    ) -> str:
        """Append a core node and return the name of its result, made from the hint.

        `known`: the result's type, if it needn't be inferred. `fold`: a node of small constants becomes a
        constant.
        """
        out = self.declare(hint, *(known or self.infer(attrs, inputs)))
        node = Node(out, tuple(inputs), (out,), attrs, source)
        value = folded(node, self.constants, self.values, self.symbols) if fold else None
        if value is None:
            self.emit(node)
        else:
            self.constants[out] = value
        return out

    def emit(self, node: Node) -> None:
        """Append a node whose results are declared already."""
        limits.at(node.source)
        self.nodes.append(node)

    def kernel(self, attrs: CoreAttributes, inputs: Sequence[str], out: str, source: Sources) -> Node:
        """Return a kernel of one core node, whose result is the value `out`."""
        node = Node(out, tuple(inputs), (out,), attrs, source)
        values = {n: self.values[n] for n in (*inputs, out)}
        return kernel_node(Graph(out, node.inputs, (out,), (node,), {}, values, self.symbols), source)

    def rewritten(self, graph: Graph) -> Graph:
        """Return the graph with these nodes, values and constants. Values and constants that nothing mentions
        are dropped."""
        return graph.with_nodes(self.nodes, values=self.values, constants=self.constants)


def kernel_node(body: Graph, source: Sources) -> Node:
    """Return a node that is one kernel, named after the graph that it computes."""
    return Node(body.name, body.inputs, body.outputs, Kernel(body), source)
