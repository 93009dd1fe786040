"""The parts of a model that can be computed in smaller numbers: products with constant weights.

A convolution's part has the bias behind it, and an activation that only cuts off: rounding to integers of the
range that is left does the same. What only moves numbers, or picks the largest, keeps their scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from jangin.ir.core import Conv, Map, MatMul, Pool, Reshape, Slice, Transpose
from jangin.ir.dtype import F32
from jangin.ir.expr import Binary, Const, Expr, Var
from jangin.ir.graph import Array, CompileError, Graph, Node
from jangin.ir.records import dataclass
from jangin.passes.batchnorm import batchnorm
from jangin.passes.dce import dce
from jangin.passes.partition import has_steps

MOVES = (Reshape, Slice, Transpose)


@dataclass(frozen=True)
class Part:
    """`node`: the product; `bias` and `clamp`: the maps behind a convolution that go with it; `result`: the
    value that comes of all of them; `low` and `high`: where the clamp cuts off."""

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
        """The weights: a convolution's [O, C/groups, ...], a product's [terms, columns]."""
        w = graph.constants[self.w]
        return w.T if isinstance(self.node.attrs, MatMul) and self.node.attrs.transpose_b else w

    def with_weights(self, graph: Graph, w: Array) -> Array:
        """Weights as `weights` gives them, as the graph has them."""
        return w.T if isinstance(self.node.attrs, MatMul) and self.node.attrs.transpose_b else w

    @property
    def axis(self) -> int:
        """Of its weights, the axis of the result's channels."""
        return 0 if self.is_conv else 1

    def bias_name(self) -> str | None:
        """The constant that its bias adds."""
        if self.bias is None:
            return None
        return next(n for n in self.bias.inputs if n != self.node.outputs[0])


def prepared(graph: Graph) -> Graph:
    """A lowered graph with batch normalization in its weights. CompileError for a program of steps."""
    if has_steps(graph):
        raise CompileError(
            f"{graph.name or 'the model'} runs in steps (branches, loops, sizes that depend on data); only "
            "models that are one graph of tensors can be quantized"
        )
    return dce(batchnorm(graph))


def find_parts(graph: Graph) -> list[Part]:
    """The parts of a prepared graph, in order."""
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


def _part(graph: Graph, node: Node, users: Mapping[str, Sequence[Node]]) -> Part:
    part = Part(node, node.outputs[0])
    if not part.is_conv:
        return part
    after = _only_map(graph, part.result, users)
    if after is not None and _adds_bias(graph, after, part.result):
        part = replace(part, bias=after, result=after.outputs[0])
        after = _only_map(graph, part.result, users)
    if after is not None and len(after.inputs) == 1 and isinstance(after.attrs, Map):
        ends = clamped(after.attrs.body)
        if ends is not None and ends[0] <= 0 <= ends[1]:
            part = replace(part, clamp=after, result=after.outputs[0], low=ends[0], high=ends[1])
    return part


def _only_map(graph: Graph, name: str, users: Mapping[str, Sequence[Node]]) -> Node | None:
    """The map that alone reads a value, which is no output."""
    readers = users.get(name, ())
    if name in graph.outputs or len(readers) != 1 or not isinstance(readers[0].attrs, Map):
        return None
    return readers[0]


def _adds_bias(graph: Graph, node: Node, x: str) -> bool:
    """Whether a map adds a constant of one number for each channel."""
    assert isinstance(node.attrs, Map)
    body = node.attrs.body
    adds = isinstance(body, Binary) and body.op == "add" and {body.a, body.b} == {_x(0), _x(1)}
    if not adds or len(node.inputs) != 2 or node.inputs.count(x) != 1:
        return False
    other = graph.constants.get(node.inputs[1 - node.inputs.index(x)])
    rank = len(graph.shape(x))
    if other is None or graph.shape(node.outputs[0]) != graph.shape(x):
        return False
    shape = (1,) * (rank - other.ndim) + other.shape
    return all(d == 1 for i, d in enumerate(shape) if i != 1)


def _x(i: int) -> Var:
    return Var(f"x{i}", F32)


def clamped(body: Expr) -> tuple[float, float] | None:
    """(low, high), if a body holds x0 between constants and does nothing else."""
    if body == _x(0):
        return -np.inf, np.inf
    if not isinstance(body, Binary) or body.op not in ("min", "max"):
        return None
    inner, end = (body.a, body.b) if isinstance(body.b, Const) else (body.b, body.a)
    found = clamped(inner)
    if found is None or not isinstance(end, Const):
        return None
    cut = max if body.op == "max" else min
    return cut(found[0], float(end.value)), cut(found[1], float(end.value))


def bias_of(graph: Graph, part: Part) -> Array | None:
    """A convolution's bias, [channels] f32."""
    name = part.bias_name()
    if name is None:
        return None
    channels = graph.constants[part.w].shape[0]
    return np.broadcast_to(graph.constants[name].reshape(-1), channels).astype(np.float32)


def moved(graph: Graph, name: str, makers: Mapping[str, Node]) -> list[str]:
    """A value, and what it is made of by moving alone, back to where its numbers come from."""
    found = [name]
    while (node := makers.get(found[-1])) is not None:
        pools = isinstance(node.attrs, Pool) and node.attrs.combiner == "max"
        if not pools and not isinstance(node.attrs, MOVES):
            break
        if node.inputs[0] in graph.constants:
            break
        found.append(node.inputs[0])
    return found


def observed(graph: Graph, parts: Iterable[Part]) -> list[str]:
    """The values whose ranges decide how the parts' numbers become integers: where those that the parts read
    come from, and convolutions' results."""
    makers = graph.producers()
    found = [v for p in parts for v in (moved(graph, p.x, makers)[-1], *([p.result] if p.is_conv else []))]
    return list(dict.fromkeys(found))
