"""Folds scales and shifts by output channel into the weights of the contraction before them.

At inference, batch normalization scales and shifts each channel. The new weights and biases are computed in
f64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from jangin.ir.arithmetic import apply
from jangin.ir.core import Conv, Map, MatMul
from jangin.ir.dtype import F64
from jangin.ir.expr import Binary, Call, Const, Expr, Var
from jangin.ir.graph import Array, Graph, Node
from jangin.ir.records import dataclass
from jangin.ir.sources import Sources
from jangin.ir.traversal import children
from jangin.ops.editor import Editor

Affine = tuple[Array, Array]
"""(scale, shift) in f64, each broadcastable."""
NEARLY_ALL = 2.0**-16
"""A shift isn't folded if, in any channel, less than this share of the shift before it would be left. An f32
has 24 bits, of which such a remainder would keep only 8."""


def batchnorm(graph: Graph) -> Graph:
    """Return the graph with scales and shifts folded. Each chain of a contraction and constant scales and
    shifts becomes one contraction and at most one addition."""
    return _Pass(graph).run()


@dataclass(frozen=True)
class _Chain:
    """The affine maps after a contraction, and their total scale and shift."""

    maps: tuple[Node, ...]
    scale: Array
    shift: Array


class _Pass(Editor):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph.symbols, graph.values, graph.constants)
        self.graph = graph
        self.users = graph.consumers()

    def run(self) -> Graph:
        replaced: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            chain = self._chain(node) if self._weights(node) is not None else None
            if chain is not None and (len(chain.maps) > 1 or not np.all(chain.scale == 1)):
                replaced[node.outputs[0]] = self._merge(node, chain)
                replaced |= {m.outputs[0]: [] for m in chain.maps}
        for node in self.graph.nodes:
            for new in replaced.get(node.outputs[0], [node]):
                self.emit(new)
        return self.rewritten(self.graph)

    def _weights(self, node: Node) -> Array | None:
        """Return the constant weights of a float contraction, else None."""
        if not isinstance(node.attrs, (Conv, MatMul)) or not self.graph.dtype(node.outputs[0]).is_float:
            return None
        return self.graph.constants.get(node.inputs[1])

    def _chain(self, node: Node) -> _Chain | None:
        """Return the longest chain of maps after `node` that scale and shift each channel, or None if there
        are none. Nothing else reads the values between them."""
        axis = _channel_axis(node, len(self.graph.shape(node.outputs[0])))
        out = node.outputs[0]
        scale: Array = np.ones(1)
        shift: Array = np.zeros(1)
        maps: list[Node] = []
        while out not in self.graph.outputs and len(self.users.get(out, ())) == 1:
            (user,) = self.users[out]
            step = self._affine(user, out, axis)
            if step is None or _cancels(shift * step[0], step[1]):
                break
            scale, shift = scale * step[0], shift * step[0] + step[1]
            maps.append(user)
            out = user.outputs[0]
        return _Chain(tuple(maps), scale, shift) if maps else None

    def _affine(self, node: Node, x: str, axis: int) -> Affine | None:
        """Return (scale, shift) by channel of a map of `x` and constants, or None for any other map."""
        shape, size = self.graph.shape(x), len(self.graph.shape(x))
        if (
            not isinstance(node.attrs, Map)
            or node.inputs.count(x) != 1
            or self.graph.shape(node.outputs[0]) != shape
        ):
            return None
        if self.graph.dtype(node.outputs[0]) != self.graph.dtype(x):
            return None
        known: dict[str, Array] = {}
        for i, name in enumerate(node.inputs):
            array = self.graph.constants.get(name)
            if name != x:
                flat = None if array is None else _by_channel(array, size, axis)
                if flat is None:
                    return None
                known[f"x{i}"] = flat
        return affine(node.attrs.body, f"x{node.inputs.index(x)}", known)

    def _merge(self, node: Node, chain: _Chain) -> list[Node]:
        """Return the contraction with scaled weights, and the addition of the shift if there is one."""
        weights = self.graph.constants[node.inputs[1]]
        out = chain.maps[-1].outputs[0]
        dtype, shape = self.graph.dtype(out), self.graph.shape(out)
        scaled = weights.astype(np.float64) * _along(chain.scale, node, weights.ndim)
        w = self.constant(scaled.astype(weights.dtype), f"{node.inputs[1]}.scaled")
        source = Sources.joined(n.source for n in (node, *chain.maps))
        if not chain.shift.any():
            return [replace(node, inputs=(node.inputs[0], w), outputs=(out,), source=source)]
        axis = _channel_axis(node, len(shape))
        bias = chain.shift.reshape(-1, *(1,) * (len(shape) - 1 - axis)).astype(dtype.numpy)
        b = self.constant(bias, f"{out}.bias")
        body = Var("x0", dtype) + Var("x1", dtype)
        add = Node(chain.maps[-1].name, (node.outputs[0], b), (out,), Map(body), source)
        return [replace(node, inputs=(node.inputs[0], w), source=source), add]


def _cancels(before: Array, more: Array) -> bool:
    """Return whether a shift cancels nearly all of another. With a large c, a model may use x + c - c to
    round x. Other models cancel to 2**-16 by chance in few channels alone."""
    return bool(np.any(np.abs(before + more) < NEARLY_ALL * np.abs(before)))


def _channel_axis(node: Node, rank: int) -> int:
    return 1 if isinstance(node.attrs, Conv) and node.attrs.layout == "first" else rank - 1


def _by_channel(array: Array, rank: int, axis: int) -> Array | None:
    """Return a broadcast operand as a vector over the channels (or of one element), in f64. Return None if it
    varies along another axis."""
    if array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if any(d != 1 for i, d in enumerate(shape) if i != axis):
        return None
    return array.reshape(-1).astype(np.float64)


def _along(scale: Array, node: Node, rank: int) -> Array:
    """Return a vector over the output channels, reshaped to multiply the weights."""
    if isinstance(node.attrs, MatMul):
        return scale.reshape(-1, 1) if node.attrs.transpose_b else scale
    return scale.reshape(-1, *(1,) * (rank - 1))


def affine(body: Expr, x: str, known: Mapping[str, Array]) -> Affine | None:
    """Return (scale, shift), in f64, if `body` is scale * x + shift for known values of the other operands.
    Return None if it isn't."""
    if isinstance(body, Var):
        if body.name == x:
            return np.ones(1), np.zeros(1)
        return (np.zeros(1), known[body.name]) if body.name in known else None
    if isinstance(body, Const):
        return np.zeros(1), np.full(1, float(body.value))
    if not isinstance(body, (Binary, Call)) or not body.dtype.is_float:
        return None
    parts = [affine(k, x, known) for k in children(body)]
    if any(p is None for p in parts):
        return None
    (s, h), *rest = [p for p in parts if p is not None]
    fn = body.op if isinstance(body, Binary) else body.fn
    if not any(scale.any() for scale, _ in ((s, h), *rest)):
        return np.zeros(1), apply(fn, tuple(p[1] for p in ((s, h), *rest)), F64)
    if fn == "neg":
        return -s, -h
    if fn not in ("add", "sub", "mul", "div"):
        return None
    ((t, g),) = rest
    if fn in ("add", "sub"):
        sign = 1 if fn == "add" else -1
        return s + sign * t, h + sign * g
    if not t.any():
        return (s * g, h * g) if fn == "mul" else (s / g, h / g)
    return (t * h, g * h) if fn == "mul" and not s.any() else None
