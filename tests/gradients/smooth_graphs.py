"""Random graphs of core operators in float64, whose functions have slopes wherever they are looked at."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from jangin.ir.core import Conv
from jangin.ir.dtype import F64
from jangin.ir.expr import call, const
from jangin.ir.graph import Array, Graph, static_shape
from jangin.ops import index, scan, scatter
from jangin.ops.builder import Builder
from jangin.ops.core_window import window_extent
from jangin.ops.values import Tensor

LARGEST = 300
"""Elements of a value, so that the interpreter is quick."""


class Net:
    """A graph that grows. `pool`: its values so far."""

    def __init__(self, seed: int) -> None:
        self.r, self.b = Random(seed), Builder("smooth", {}, unchecked=True)
        self.pool: list[Tensor] = []

    def shape(self, x: Tensor) -> list[int]:
        return list(static_shape(x.shape) or ())

    def weight(self, *shape: int) -> Tensor:
        rng = np.random.default_rng(len(self.b.constants))
        return self.b.const(rng.uniform(-1, 1, shape))

    def axes(self, x: Tensor) -> list[int]:
        return sorted(self.r.sample(range(x.rank), self.r.randint(1, x.rank)))


def unary(t: Net, x: Tensor) -> Tensor:
    bodies: list[Callable[[Any], Any]] = [
        lambda v: call("tanh", v), lambda v: call("sigmoid", v) * v, lambda v: call("exp", v * -0.5),
        lambda v: call("sqrt", v * v + 1.0), lambda v: call("log1p", v * v), lambda v: call("sin", v) + v,
        lambda v: v * v * 0.5, lambda v: call("erf", v), lambda v: call("atan2", v, v * v + 1.0),
    ]  # fmt: skip
    return t.b.map(t.r.choice(bodies), x)


def binary(t: Net, x: Tensor) -> Tensor:
    y = t.r.choice([y for y in t.pool if y.shape == x.shape] or [x])
    if x.rank and t.r.random() < 0.4:
        y = t.b.reduce("sum", y, [t.r.randrange(x.rank)], True)
    bodies: list[Callable[[Any, Any], Any]] = [
        lambda v, w: v + w, lambda v, w: v * w, lambda v, w: v / (w * w + 1.0), lambda v, w: v - w * 0.5,
    ]  # fmt: skip
    return t.b.map(t.r.choice(bodies), *((x, y) if t.r.random() < 0.5 else (y, x)))


def reduce(t: Net, x: Tensor) -> Tensor:
    combiner = t.r.choice(("sum", "sum", "max", "min", "prod"))
    return t.b.reduce(combiner, x, t.axes(x), t.r.random() < 0.5) if x.rank else x


def rows(t: Net, x: Tensor) -> Tensor:
    if not x.rank:
        return x
    if t.r.random() < 0.5:
        return t.b.softmax(x, t.r.randrange(x.rank), t.r.random() < 0.5)
    return t.b.normalize(x, t.axes(x), 0.1, t.r.random() < 0.5)


def matmul(t: Net, x: Tensor) -> Tensor:
    if x.rank < 2:
        return x
    if t.r.random() < 0.4:
        first = t.r.random() < 0.5
        return t.b.matmul(x, x, transpose_a=first, transpose_b=not first)
    depth, columns, turned = t.shape(x)[-1], t.r.randint(1, 4), t.r.random() < 0.5
    return t.b.matmul(x, t.weight(*((columns, depth) if turned else (depth, columns))), transpose_b=turned)


def window(t: Net, x: Tensor) -> Tensor:
    if x.rank not in (3, 4):
        return x
    spatial, rank = t.shape(x)[2:], x.rank - 2
    kernel = [t.r.randint(1, 3) for _ in range(rank)]
    strides, dilations = ([t.r.randint(1, 2) for _ in range(rank)] for _ in range(2))
    pads = [t.r.randint(0, k - 1) for k in kernel + kernel]
    reach = [d + pads[i] + pads[i + rank] - dilations[i] * (kernel[i] - 1) for i, d in enumerate(spatial)]
    if min(reach) < 1:
        return x
    if t.r.random() < 0.5:
        channels = t.shape(x)[1]
        groups = t.r.choice([g for g in (1, 2, channels) if channels % g == 0])
        w = t.weight(groups * t.r.randint(1, 2), channels // groups, *kernel)
        attrs = tuple(kernel), tuple(strides), tuple(dilations), tuple(pads), groups
        return t.b.node(Conv(*attrs), [x, w])
    combiner, average = t.r.choice((("max", ""), ("sum", ""), ("sum", "valid"), ("sum", "all")))
    extents = [
        window_extent(const(d), k, s, dilation, pads[i] + pads[i + rank])
        for i, (d, k, s, dilation) in enumerate(zip(spatial, kernel, strides, dilations, strict=True))
    ]
    return t.b.pool(
        x, combiner=combiner, kernel=kernel, strides=strides, dilations=dilations, pads=pads,
        extents=extents, average=average,
    )  # fmt: skip


def move(t: Net, x: Tensor) -> Tensor:
    if not x.rank:
        return t.b.expand(x, [2])
    shape, axis, choice = t.shape(x), t.r.randrange(x.rank), t.r.randrange(7)
    if choice == 0:
        return t.b.transpose(x, t.r.sample(range(x.rank), x.rank))
    if choice == 1:
        return t.b.reshape(x, [math.prod(shape)])
    if choice == 2:
        return t.b.concat([x, x], axis)
    if choice == 3:
        step = t.r.choice((1, 1, -1, 2)) if shape[axis] > 2 else 1
        starts = [shape[axis] - 1 if step < 0 and i == axis else 0 for i in range(x.rank)]
        sizes = [1 + (d - 1) // abs(step) if i == axis else d for i, d in enumerate(shape)]
        return t.b.slice(x, starts, sizes, [step if i == axis else 1 for i in range(x.rank)])
    if choice == 4:
        mode = t.r.choice(("constant", "edge", "reflect", "wrap"))
        return t.b.pad(x, [t.r.randint(0, max(0, min(2, d - 1))) for d in shape * 2], mode, 0.5)
    if choice == 5:
        taken = [t.r.randint(-shape[axis], shape[axis] - 1) for _ in range(t.r.randint(1, 4))]
        return t.b.gather(x, t.b.const(np.array(taken)), axis)
    return t.b.expand(t.b.reshape(x, [1, *shape]), [2, *shape])


def loops(t: Net, x: Tensor) -> Tensor:
    """Loop nests: no tensor expression says the same."""
    if not x.rank:
        return x
    axis, shape = t.r.randrange(x.rank), t.shape(x)
    if t.r.random() < 0.6:
        combiner, flags = t.r.choice(("sum", "sum", "prod")), (t.r.random() < 0.5, t.r.random() < 0.5)
        return scan.cumulate(t.b, x, combiner, axis=axis, exclusive=flags[0], reverse=flags[1])
    places = np.array([[t.r.randrange(shape[axis])] * math.prod(shape)]).reshape(shape)
    how = t.r.choice(("none", "add", "mul"))
    return scatter.scatter_elements(t.b, x, t.b.const(places), unary(t, x), axis=axis, reduction=how)


def picked(t: Net, x: Tensor) -> Tensor:
    """Elements at indices that the run computes."""
    if not x.rank:
        return x
    axis = t.r.randrange(x.rank)
    places = t.b.map(lambda v: v * 0 + 0.5, x)
    whole = t.b.node(_floor(), [places])
    return index.take_along(t.b, x, whole, axis)


def _floor() -> Any:
    from jangin.ir.core import Map
    from jangin.ir.dtype import I64
    from jangin.ir.expr import Var, cast

    return Map(cast(I64, Var("x0", F64)))


OPS = (unary, unary, binary, binary, reduce, rows, matmul, window, window, move, move, loops, picked)


def smooth_graph(seed: int, length: int) -> Graph:
    """A graph of up to `length` operators over two inputs, whose output "y" is their last value."""
    t = Net(seed)
    for i in range(2):
        rank = t.r.choice((1, 2, 3, 4))
        t.pool.append(t.b.input(f"x{i}", F64, tuple(const(t.r.randint(1, 4)) for _ in range(rank))))
    for _ in range(length):
        x = t.r.choice((*t.pool[-2:], *t.pool[-1:]))
        made = t.r.choice(OPS)(t, x)
        if made.rank <= 5 and math.prod(t.shape(made)) <= LARGEST:
            t.pool.append(made)
    total = t.b.reduce("sum", t.b.map(lambda v: call("tanh", v), t.pool[-1]), range(t.pool[-1].rank))
    return t.b.graph([total], ["y"])


def feeds(graph: Graph, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {n: rng.uniform(-1, 1, static_shape(graph.shape(n)) or ()) for n in graph.inputs}
