"""Find the parts of a model that can be quantized: products with constant weights.

A convolution's part includes its bias and an activation that only clamps. Rounding to integers of the clamped
range has the same effect as the activation. Operators that only move numbers, or take a maximum, keep their
input's scale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from jangin.frontends.tails import Users, tail
from jangin.ir.core import Conv, Map, MatMul, Pool, Reshape, Slice, Transpose
from jangin.ir.dtype import F32
from jangin.ir.expr import Var
from jangin.ir.graph import Array, CompileError, Graph, Node
from jangin.ir.program import IN_STEPS
from jangin.ir.records import dataclass
from jangin.passes.algebra.batchnorm import batchnorm
from jangin.passes.algebra.dce import dce
from jangin.passes.partition import has_steps

MOVES = (Reshape, Slice, Transpose)


@dataclass(frozen=True)
class Part:
    """A quantizable part: the product `node`, and the maps `bias` and `clamp` after a convolution.

    `result` is the value after all of them. `low` and `high` are the bounds of the clamp."""

    node: Node
    result: str
    bias: Node | None = None
    clamp: Node | None = None
    low: float = -np.inf
    high: float = np.inf

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def x(self) -> str:
        return self.node.inputs[0]

    @property
    def w(self) -> str:
        return self.node.inputs[1]

    @property
    def is_conv(self) -> bool:
        return isinstance(self.node.attrs, Conv)

    def weights(self, graph: Graph) -> Array:
        """Return the weights in one layout: [O, C/groups, ...] for a convolution, [terms, columns] for a
        product."""
        w = graph.constants[self.w]
        return w.T if isinstance(self.node.attrs, MatMul) and self.node.attrs.transpose_b else w

    def with_weights(self, graph: Graph, w: Array) -> Array:
        """Convert weights from the layout of `weights` to the graph's layout, and return them."""
        return w.T if isinstance(self.node.attrs, MatMul) and self.node.attrs.transpose_b else w

    @property
    def axis(self) -> int:
        """The weights' axis of the result's channels."""
        return 0 if self.is_conv else 1

    @property
    def terms(self) -> int:
        """The weights' axis that is summed. In a convolution, this is the axis of its input channels."""
        return 1 if self.is_conv else 0

    def bias_name(self) -> str | None:
        """Return the name of the constant that is added as a bias, or None without a bias."""
        if self.bias is None:
            return None
        return next(n for n in self.bias.inputs if n != self.node.outputs[0])


def prepared(graph: Graph) -> Graph:
    """Return a lowered graph with batch normalization folded into its weights. Raises CompileError for a
    model that runs in steps."""
    if has_steps(graph):
        raise CompileError(f"{graph.name or 'the model'} can't be quantized: {IN_STEPS}")
    return dce(batchnorm(graph))


def find_parts(graph: Graph) -> list[Part]:
    """Return the quantizable parts of a graph that `prepared` returned, in the order of its nodes."""
    users = graph.consumers()
    return [_part(graph, node, users) for node in graph.nodes if _fits(graph, node)]


def _fits(graph: Graph, node: Node) -> bool:
    if not isinstance(node.attrs, (Conv, MatMul)) or graph.dtype(node.outputs[0]) is not F32:
        return False
    w = graph.constants.get(node.inputs[1])
    fits = w is not None and w.dtype == np.float32 and node.inputs[0] not in graph.constants
    if isinstance(node.attrs, MatMul):
        return fits and w is not None and w.ndim == 2 and not node.attrs.transpose_a
    return fits and node.attrs.layout == "first"


def _part(graph: Graph, node: Node, users: Users) -> Part:
    y = node.outputs[0]
    if not isinstance(node.attrs, Conv):
        return Part(node, y)
    behind = tail(graph, y, users, 1)
    return Part(node, behind.result, behind.bias, behind.clamp, behind.low, behind.high)


def bias_of(graph: Graph, part: Part) -> Array | None:
    """Return a convolution's bias, [channels] f32, or None if it has none."""
    name = part.bias_name()
    if name is None:
        return None
    channels = graph.constants[part.w].shape[0]
    return np.broadcast_to(graph.constants[name].reshape(-1), channels).astype(np.float32)


def moved(graph: Graph, name: str, makers: Mapping[str, Node]) -> list[str]:
    """Return the names of a value and of the values that it comes from unchanged. The last is the one whose
    numbers are computed. Reshape, Slice, Transpose and maximum pooling count as no change."""
    chain = [name]
    while (node := makers.get(chain[-1])) is not None:
        pools = isinstance(node.attrs, Pool) and node.attrs.combiner == "max"
        if not pools and not isinstance(node.attrs, MOVES):
            break
        if node.inputs[0] in graph.constants:
            break
        chain.append(node.inputs[0])
    return chain


def observed(graph: Graph, parts: Iterable[Part]) -> list[str]:
    """Return the names of the values whose ranges decide the quantization of the parts.

    They are the origins of the values that parts read, and the results of convolutions and of layers on
    single rows. Sums of two images are included too."""
    makers, rows = graph.producers(), scores(graph, parts)
    wanted = [v for p in parts for v in (moved(graph, p.x, makers)[-1], *([p.result] if p.is_conv else []))]
    return list(dict.fromkeys((*wanted, *rows.values(), *sums(graph))))


def scores(graph: Graph, parts: Iterable[Part]) -> dict[str, str]:
    """Return the results of layers on single rows, after their bias and clamp, by the part's name. Such a
    layer is a matrix product with a result of two axes."""
    users = graph.consumers()
    rows = [p for p in parts if not p.is_conv and len(graph.shape(p.result)) == 2]
    return {p.name: tail(graph, p.result, users, -1).result for p in rows}


def sums(graph: Graph) -> list[str]:
    """Return the names of sums of two images, after their clamp. An image is a value of four axes that isn't
    constant."""
    users = graph.consumers()
    return [
        tail(graph, n.outputs[0], users).result
        for n in graph.nodes
        if isinstance(n.attrs, Map)
        and n.attrs.body == Var("x0", F32) + Var("x1", F32)
        and all(len(graph.shape(x)) == 4 and x not in graph.constants for x in n.inputs)
    ]
