"""Random graphs of operators that IEEE 754 rounds correctly, each with NumPy's results, node by node.

All values are known while a graph is drawn. So a node whose result no standard defines isn't drawn: a minimum
or a maximum of two zeros of different signs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import numpy as np

from jangin.ir.dtype import BOOL, F32, F64, I32, DType
from jangin.ir.expr import ExprLike, binary, call, cast, const, maximum, minimum, select
from jangin.ir.graph import Array, Graph
from jangin.ops.builder import Builder
from jangin.ops.quantized import dequantize, quantize
from jangin.ops.values import Tensor

SHAPE = (3, 4, 37)
"""The shape of the results: two vectors and a rest, for machines of any width."""
NUMBERS = (
    0.0, -0.0, 1.0, -1.0, 2.0, 0.25, 3.0, 1 / 3, 0.1, 1e30, 1e-30, 12582912.0, -12582912.0, 12582915.0,
    4097.0, 255.0,
)  # fmt: skip
"""Constants. 1.5 * 2**23 rounds a number when it is added and subtracted, and 4097 splits a number in two."""
BINARY: Sequence[tuple[Callable[..., ExprLike], Callable[..., Array]]] = (
    (lambda v, w: v + w, np.add),
    (lambda v, w: v - w, np.subtract),
    (lambda v, w: v * w, np.multiply),
    (lambda v, w: v / w, np.divide),
    (minimum, np.minimum),
    (maximum, np.maximum),
)
UNARY: Sequence[tuple[str, Callable[..., Array]]] = (
    ("neg", np.negative),
    ("abs", np.abs),
    ("sqrt", np.sqrt),
    ("floor", np.floor),
    ("ceil", np.ceil),
    ("round", np.rint),
    ("trunc", np.trunc),
)


class ExactNet:
    """A graph that is drawn by a seed. `known` has the values of all tensors, and `feeds` those of the
    inputs."""

    def __init__(self, seed: int, dtype: DType = F32) -> None:
        self.b, self.r, self.dtype = Builder(f"exact{seed}", {}), Random(seed), dtype
        self.numbers = np.random.default_rng(seed)
        self.known: dict[str, Array] = {}
        self.feeds: dict[str, Array] = {}
        self.drawn = [self.input() for _ in range(3)]

    def input(self) -> Tensor:
        """Add an input with numbers of all sizes, mostly near 1, and some special ones."""
        reach = self.r.choice((1, 1, 1, 1, 1, 2, 30, 140))
        size = 2.0 ** self.numbers.integers(-reach, min(reach, 126) + 1, SHAPE)
        array = (self.numbers.standard_normal(SHAPE) * size).astype(self.dtype.numpy)
        special = self.numbers.choice([0.0, -0.0, 1.0, 0.5, 1e-45, np.inf, -np.inf, np.nan], SHAPE)
        array = np.where(self.numbers.random(SHAPE) < 0.02, special, array).astype(self.dtype.numpy)
        t = self.b.input(f"x{len(self.feeds)}", self.dtype, tuple(map(const, SHAPE)))
        self.feeds[t.name] = array
        return self.keep(t, array)

    def constant(self, array: Array) -> Tensor:
        array = np.asarray(array, self.dtype.numpy)
        return self.keep(self.b.const(array), array)

    def map(self, body: Callable[..., ExprLike], numpy: Callable[..., Array], *xs: Tensor) -> Tensor:
        """Add a node of one operation."""
        with np.errstate(all="ignore"):
            return self.keep(self.b.map(body, *xs), np.asarray(numpy(*(self.known[x.name] for x in xs))))

    def keep(self, t: Tensor, array: Array) -> Tensor:
        assert t.dtype.numpy == array.dtype, f"{t} is {array.dtype} in NumPy"
        self.known[t.name] = array
        return t

    def value(self) -> Tensor:
        """Return one of the drawn values, mostly the last."""
        last = len(self.drawn) - 1
        return self.drawn[last - min(last, int(self.r.expovariate(0.6)))]

    def operand(self) -> Tensor:
        """Return a value, or a constant of one element or of one for each entry of an axis."""
        if self.r.random() < 0.55:
            return self.value()
        shape = self.r.choice(((), (), (SHAPE[-1],), (SHAPE[1], 1)))
        array = self.numbers.choice(NUMBERS, shape)
        if self.r.random() < 0.4:
            array = self.numbers.standard_normal(shape) * 3
        return self.constant(array)

    def step(self) -> None:
        kinds = (self.two, self.one, self.moved, self.chosen, self.other)
        (kind,) = self.r.choices(kinds, (10, 1, 1, 1, 1))
        drawn = kind()
        if drawn is not None:
            self.drawn.append(drawn)

    def two(self) -> Tensor | None:
        ((body, numpy),) = self.r.choices(BINARY, (6, 3, 6, 2, 1, 1))
        pair = [self.value(), self.operand()]
        self.r.shuffle(pair)
        a, c = (self.known[t.name] for t in pair)
        zeros = (a == 0) & (c == 0) & (np.signbit(a) != np.signbit(c))
        if numpy in (np.minimum, np.maximum) and zeros.any():
            return None
        return self.map(body, numpy, *pair)

    def one(self) -> Tensor:
        fn, numpy = self.r.choice(UNARY)
        return self.map(partial(call, fn), numpy, self.value())

    def moved(self) -> Tensor:
        """Return a value that is read at other places: transposed, cut or padded with 0."""
        x = self.value()
        array = self.known[x.name]
        if self.r.random() < 0.3:
            y = self.b.reshape(self.b.transpose(x, (2, 1, 0)), map(const, SHAPE))
            return self.keep(y, array.transpose(2, 1, 0).reshape(SHAPE))
        at = self.r.randrange(1, SHAPE[-1])
        part = self.b.slice(x, (0, 0, at), (*SHAPE[:-1], SHAPE[-1] - at), (1, 1, 1))
        padded = self.b.pad(part, (0, 0, 0, 0, 0, at))
        return self.keep(padded, np.pad(array[..., at:], ((0, 0), (0, 0), (0, at))))

    def chosen(self) -> Tensor:
        a, c, x, y = self.value(), self.operand(), self.value(), self.value()
        below = self.b.map(lambda v, w: v < w, a, c)
        assert below.dtype is BOOL
        made = np.where(self.known[a.name] < self.known[c.name], self.known[x.name], self.known[y.name])
        return self.keep(self.b.map(select, below, x, y), made)

    def other(self) -> Tensor | None:
        """Add a node that several operators make together: a sum of two, a square, numbers in 8 bits, or
        another type."""
        x = self.value()
        array, numpy = self.known[x.name], self.dtype.numpy
        kind = self.r.choice(("sum", "square", "quantized", "whole", "wide"))
        if kind == "sum":  # a sum of two terms has only one order
            y = self.b.reduce(
                "sum", self.b.reshape(x, (*map(const, (3, 2, 2)), const(SHAPE[-1]))), (2,), True
            )
            two = array.reshape(3, 2, 2, -1)
            total = (two[:, :, 0] + two[:, :, 1] + numpy.type(0))[:, :, None]
            spread = self.b.expand(y, (3, 2, 2, SHAPE[-1]))
            shaped = self.b.reshape(spread, map(const, SHAPE))
            return self.keep(shaped, np.broadcast_to(total, two.shape).reshape(SHAPE).astype(numpy))
        if kind == "square":
            return self.map(lambda v: binary("pow", v, 2.0), np.square, x)
        if kind == "wide":
            other = F64 if self.dtype is F32 else F32
            there = self.b.cast(self.b.cast(x, other), self.dtype)
            return self.keep(there, array.astype(other.numpy).astype(numpy))
        if not np.isfinite(array).all() or np.abs(array).max() > 1e9:
            return None
        if kind == "whole":
            return self.map(lambda v: cast(v.dtype, cast(I32, v)), lambda v: v.astype("i4").astype(numpy), x)
        if self.dtype is not F32:
            return None
        step, zero = np.float32(self.r.choice((0.05, 0.125, 3.1))), np.uint8(self.r.choice((0, 3, 128)))
        scale, origin = self.b.const(step), self.b.const(zero)
        small = quantize(self.b, x, scale, origin, dtype=self.b.const(zero).dtype)
        made = np.clip(np.rint(array / step) + np.float32(zero), 0, 255).astype(np.uint8)
        back = dequantize(self.b, small, scale, origin)
        return self.keep(back, (made.astype(np.float32) - np.float32(zero)) * step)

    def done(self) -> tuple[Graph, dict[str, Array]]:
        """Return the graph of all values that no node reads, with their numbers."""
        read = {name for n in self.b.nodes for name in n.inputs}
        last = [t for t in self.drawn[3:] if t.name not in read and t.name not in self.b.constants]
        graph = self.b.graph(last, [f"y{n}" for n in range(len(last))])
        return graph, {f"y{n}": self.known[t.name] for n, t in enumerate(last)}


def exact_net(seed: int, steps: int) -> tuple[Graph, dict[str, Array], dict[str, Array]]:
    """Return a graph of about `steps` nodes, its inputs, and its results."""
    net = ExactNet(seed, F64 if seed % 5 == 4 else F32)
    with np.errstate(all="ignore"):
        while len(net.drawn) < steps + 3:
            net.step()
    graph, results = net.done()
    return graph, net.feeds, results
