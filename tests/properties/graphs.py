"""Random graphs of core operators.

Functions of floats are continuous and bounded, so that a rounding error stays one. A seed decides everything.
Fewer operators of the same seed are the beginning of the same graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import numpy as np

from jangin.ir.core import Conv
from jangin.ir.dtype import BF16, BOOL, F16, F32, F64, I32, I64, U8, DType
from jangin.ir.expr import Const, Expr, Var, call, cast, const, maximum, minimum, select
from jangin.ir.graph import Array, Graph
from jangin.ir.interpret import size
from jangin.ops import scan
from jangin.ops.builder import Builder
from jangin.ops.core_window import window_extent
from jangin.ops.values import Tensor

N = Var("n")
LARGEST = 8
"""The symbol's largest value."""
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17)
DTYPES = (F32, F32, F32, F32, F32, F32, F32, F64, F16, BF16, I32, I64, U8)
LIMIT = 6000
"""The most elements of a value."""

T = TypeVar("T")
Op = Callable[["Net", Tensor], Tensor | None]


@dataclass
class Net:
    """A graph that grows, with its values so far and the source of its random decisions."""

    r: Random
    b: Builder
    pool: list[Tensor] = field(default_factory=list)

    def pick(self, options: Sequence[T]) -> T:
        return self.r.choice(options)

    def number(self, low: int, high: int) -> int:
        return self.r.randint(low, high)

    def flag(self) -> bool:
        return self.r.random() < 0.5

    def axis(self, x: Tensor) -> int:
        return self.number(0, x.rank - 1)

    def axes(self, x: Tensor) -> list[int]:
        return sorted(self.r.sample(range(x.rank), self.number(1, x.rank)))

    def weight(self, *shape: int, dtype: DType = F32) -> Tensor:
        """Add a constant. Each constant has other numbers."""
        rng = np.random.default_rng(len(self.b.constants))
        scale = 1 / math.sqrt(max(1, math.prod(shape[1:])))
        return self.b.const((rng.uniform(-1, 1, shape) * scale).astype(dtype.numpy))


def known(d: Expr) -> int | None:
    return int(d.value) if isinstance(d, Const) else None


def elements(x: Tensor) -> int:
    return math.prod(size(d, {"n": LARGEST}) for d in x.shape)


# --- operators: each gives a value made of `x`, or None where it doesn't apply ---------------------


def unary(t: Net, x: Tensor) -> Tensor | None:
    if x.dtype is BOOL:
        return t.b.map(lambda v: select(v, const(2, F32), const(-1, F32)), x)
    if x.dtype.is_int:
        return t.b.map(lambda v: minimum(maximum(v, 1), 9) + 1, x)
    bodies: list[Callable[[Expr], Expr]] = [
        lambda v: maximum(v, 0), lambda v: v * 0.5 + 1, lambda v: call("abs", v),
        lambda v: call("tanh", cast(F32, v)), lambda v: call("sigmoid", cast(F32, v)),
        lambda v: call("exp", minimum(cast(F32, v), 1)), lambda v: call("sqrt", call("abs", cast(F64, v))),
        lambda v: select(v > 0, v, v * 0.25), lambda v: minimum(maximum(v, -1), 1),
    ]  # fmt: skip
    body = t.pick(bodies)
    return t.b.map(lambda v: cast(x.dtype, body(v)), x)


def convert(t: Net, x: Tensor) -> Tensor | None:
    exact = {F32: (F64, F32), F64: (F32,), F16: (F32, F64), BF16: (F32,), BOOL: (F32, I32, U8)}
    return t.b.cast(x, t.pick(exact.get(x.dtype, (I64, I32, F32, BOOL))))


def binary(t: Net, x: Tensor) -> Tensor | None:
    """Add an operator on x and a value that broadcasts with it: one of the pool, or a part of x."""
    if x.dtype is BOOL:
        return None
    others = [y for y in t.pool if y.dtype == x.dtype and _broadcasts(x, y)]
    if x.rank and known(x.shape[-1]) is not None and x.dtype is F32:
        others.append(t.weight(int(str(x.shape[-1]))))
    if x.rank:
        others.append(t.b.reduce("max", x, t.axes(x), True))
    y = t.pick(others)
    fns: list[Callable[[Expr, Expr], Expr]] = [
        lambda v, w: v + w, lambda v, w: v - w, lambda v, w: maximum(v, w), lambda v, w: v * w,
    ]  # fmt: skip
    fn = t.pick(fns)
    made = t.b.map(fn, *((x, y) if t.flag() else (y, x)))
    return t.b.map(lambda v: minimum(maximum(v, -4), 4), made) if made.dtype.is_float else made


def _broadcasts(x: Tensor, y: Tensor) -> bool:
    pairs = zip(reversed(x.shape), reversed(y.shape), strict=False)
    return all(a == b or known(a) == 1 or known(b) == 1 for a, b in pairs)


def reduce(t: Net, x: Tensor) -> Tensor | None:
    if not x.rank or x.dtype is BOOL:
        return None
    combiner = t.pick(("sum", "max", "min") if x.dtype in (F32, F64, I64) else ("max", "min"))
    return t.b.reduce(combiner, x, t.axes(x), t.flag())


def spread(t: Net, x: Tensor) -> Tensor | None:
    """Divide numbers by the range of all of them, or of their row."""
    if not x.rank or x.dtype not in (F32, F64):
        return None
    axes = range(x.rank) if t.flag() else [x.rank - 1]
    low, high = (t.b.reduce(c, x, axes, True) for c in ("min", "max"))
    return t.b.map(lambda v, a, c: (v - a) / (c - a + 1), x, low, high)


def softmax(t: Net, x: Tensor) -> Tensor | None:
    if not x.rank or not x.dtype.is_float:
        return None
    return t.b.softmax(x, t.axis(x), t.flag())


def normalize(t: Net, x: Tensor) -> Tensor | None:
    if not x.rank or x.dtype not in (F32, F64):
        return None
    return t.b.normalize(x, t.axes(x), 0.1, t.flag())


def matmul(t: Net, x: Tensor) -> Tensor | None:
    if x.rank < 2 or x.dtype not in (F32, F64, F16):
        return None
    if t.flag():
        first = t.flag()
        return t.b.matmul(x, x, transpose_a=first, transpose_b=not first)
    depth = known(x.shape[-1])
    if depth is None:
        return None
    columns, transposed = t.number(1, 20), t.flag()
    w = t.weight(*((columns, depth) if transposed else (depth, columns)), dtype=x.dtype)
    return t.b.matmul(x, w, transpose_b=transposed)


def _window(t: Net, x: Tensor, groups: int) -> dict[str, Any] | None:
    """Return attributes of a sliding window that fits x in every run."""
    spatial = x.rank - 2
    kernel = [t.number(1, 3) for _ in range(spatial)]
    dilations = [t.number(1, 2) for _ in range(spatial)]
    pads = [t.number(0, k - 1) for k in kernel] * 2
    for n in (1, LARGEST):
        for i, d in enumerate(x.shape[2:]):
            if size(d, {"n": n}) + 2 * pads[i] < (kernel[i] - 1) * dilations[i] + 1:
                return None
    strides = tuple(t.number(1, 2) for _ in range(spatial))
    return {
        "kernel": tuple(kernel), "strides": strides, "dilations": tuple(dilations), "pads": tuple(pads),
    }  # fmt: skip


def conv(t: Net, x: Tensor) -> Tensor | None:
    channels = known(x.shape[1]) if x.rank in (3, 4, 5) else None
    if channels is None or x.dtype is not F32:
        return None
    groups = t.pick(sorted({1, channels} | ({2} if channels % 2 == 0 else set())))
    attrs = _window(t, x, groups)
    if attrs is None:
        return None
    outputs = groups * t.number(1, max(1, 24 // groups))
    w = t.weight(outputs, channels // groups, *attrs["kernel"])
    return t.b.node(Conv(**attrs, groups=groups), [x, w])


def pool(t: Net, x: Tensor) -> Tensor | None:
    attrs = _window(t, x, 1) if x.rank in (3, 4, 5) and x.dtype in (F32, F16) else None
    if attrs is None:
        return None
    values = zip(
        x.shape[2:], attrs["kernel"], attrs["strides"], attrs["dilations"], attrs["pads"], strict=False
    )
    extents = tuple(window_extent(d, k, s, dil, 2 * p) for d, k, s, dil, p in values)
    combiner, average = t.pick((("max", ""), ("sum", "valid"), ("sum", "all")))
    return t.b.pool(x, **attrs, combiner=combiner, average=average, extents=extents)


def transpose(t: Net, x: Tensor) -> Tensor | None:
    return t.b.transpose(x, t.r.sample(range(x.rank), x.rank)) if x.rank > 1 else None


def reshape(t: Net, x: Tensor) -> Tensor | None:
    """Join two neighbouring dimensions, split one, or insert one of size 1."""
    choice, shape = t.number(0, 2), list(x.shape)
    if choice == 0 and x.rank > 1:
        i = t.number(0, x.rank - 2)
        shape[i : i + 2] = [shape[i] * shape[i + 1]]
    elif choice == 1 and x.rank and (n := known(shape[i := t.axis(x)])):
        part = t.pick([d for d in range(1, n + 1) if n % d == 0])
        shape[i : i + 1] = [const(part), const(n // part)]
    elif x.rank < 5:
        shape.insert(t.number(0, x.rank), const(1))
    return t.b.reshape(x, shape)


def slice_(t: Net, x: Tensor) -> Tensor | None:
    starts, shape, steps = [], [], []
    for d in x.shape:
        n = known(d)
        step = t.number(1, 2) if n is not None else 1
        first = t.number(0, n - 1) if n else 0
        last = t.number(first, n - 1) if n else 0
        backward = n is not None and t.flag()
        starts.append(last if backward else first)
        steps.append(-step if backward else step)
        shape.append(d if n is None or n == 0 else const((last - first) // step + 1))
    return t.b.slice(x, starts, shape, steps)


def concat(t: Net, x: Tensor) -> Tensor | None:
    if not x.rank:
        return None
    axis = t.axis(x)

    def fits(y: Tensor) -> bool:
        if y.dtype != x.dtype or y.rank != x.rank:
            return False
        return all(a == b for i, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)) if i != axis)

    others = [y for y in t.pool if fits(y)]
    return t.b.concat([x, *(t.pick(others) for _ in range(t.number(1, 2)))], axis) if others else None


def pad(t: Net, x: Tensor) -> Tensor | None:
    if not x.rank or x.dtype is BOOL or x.rank > 4:
        return None
    mode = t.pick(("constant", "edge", "reflect", "wrap"))
    amounts = [t.number(0, 2) if mode in ("constant", "edge") or known(d) != 1 else 0 for d in x.shape * 2]
    if mode in ("reflect", "wrap"):  # these modes take no more than one copy of the smallest size
        amounts = [min(a, (known(d) or 1) - 1) for a, d in zip(amounts, x.shape * 2, strict=True)]
    return t.b.pad(x, amounts, mode, 3 if mode == "constant" else 0)


def gather(t: Net, x: Tensor) -> Tensor | None:
    if not x.rank:
        return None
    axis = t.axis(x)
    n = known(x.shape[axis])
    if n is None:
        return None
    indices = [t.number(-n, n - 1) for _ in range(t.number(1, 5))]
    return t.b.gather(x, t.b.const(np.array(indices, np.int64)), axis)


def expand(t: Net, x: Tensor) -> Tensor | None:
    shape = [t.number(1, 5) if known(d) == 1 else d for d in x.shape]
    return t.b.expand(x, [t.number(1, 3), *shape] if x.rank < 4 else shape)


def rows(t: Net, x: Tensor) -> Tensor | None:
    """Add a tensor expression of its own: each element less the first of its row."""
    if not x.rank or not x.dtype.is_float:
        return None
    return t.b.compute(x.dtype, x.shape, [x], lambda z, *i: z[0][i] - z[0][(*i[:-1], const(0))])


def cumulate(t: Net, x: Tensor) -> Tensor | None:
    """Add a cumulative sum as a loop nest, because no tensor expression can say it."""
    if not x.rank or x.dtype not in (F32, F64, I32, I64):
        return None
    exclusive, reverse = t.number(0, 1) == 1, t.number(0, 1) == 1
    total = scan.cumulate(t.b, x, "sum", axis=t.axis(x), exclusive=exclusive, reverse=reverse)
    return t.b.map(lambda v: v * 0.125, total) if x.dtype.is_float else total


# --- what networks are made of, as fusion looks for it --------------------------------------------


def block(t: Net, x: Tensor) -> Tensor | None:
    """Add a convolution, a bias, an activation, and a residual if the shape allows it."""
    y = conv(t, x)
    if y is None:
        return None
    bias = t.weight(int(str(y.shape[1])), *(1,) * (y.rank - 2))
    y = t.b.map(lambda v, c: maximum(v + c, 0), y, bias)
    y = t.b.map(lambda v: v * call("sigmoid", v), y) if t.flag() else y
    return t.b.map(lambda v, w: v + w, y, x) if y.shape == x.shape else y


def gate(t: Net, x: Tensor) -> Tensor | None:
    """Squeeze-and-excite: scale the channels by a function of their means."""
    channels = known(x.shape[1]) if x.rank == 4 and x.dtype is F32 else None
    if channels is None:
        return None
    mean = t.b.reduce("max", x, (2, 3), True)
    w = t.weight(channels, channels, 1, 1)
    scale = t.b.conv(mean, w, strides=(1, 1), dilations=(1, 1), pads=(0,) * 4)
    return t.b.map(lambda v, s: v * call("sigmoid", s), x, scale)


def attend(t: Net, x: Tensor) -> Tensor | None:
    """Add self-attention over the second last axis, with one or two heads."""
    width = known(x.shape[-1]) if x.rank == 3 and x.dtype is F32 else None
    if width is None:
        return None
    heads = 2 if width % 2 == 0 and t.flag() else 1
    n, length, _ = x.shape

    def part(perm: Sequence[int]) -> Tensor:
        y = t.b.matmul(x, t.weight(width, width))
        return t.b.transpose(t.b.reshape(y, [n, length, heads, width // heads]), perm)

    q, k, v = part((0, 2, 1, 3)), part((0, 2, 3, 1)), part((0, 2, 1, 3))
    scores = t.b.map(lambda s: s * 0.5, t.b.matmul(q, k))
    mixed = t.b.transpose(t.b.matmul(t.b.softmax(scores, 3), v), (0, 2, 1, 3))
    return t.b.map(lambda a, c: a + c, t.b.reshape(mixed, x.shape), x)


OPS: dict[str, Op] = {
    "unary": unary, "convert": convert, "binary": binary, "reduce": reduce, "softmax": softmax,
    "normalize": normalize, "matmul": matmul, "conv": conv, "pool": pool, "transpose": transpose,
    "reshape": reshape, "slice": slice_, "concat": concat, "pad": pad, "gather": gather, "expand": expand,
    "rows": rows, "cumulate": cumulate, "block": block, "gate": gate, "attend": attend, "spread": spread,
}  # fmt: skip


OFTEN = (*OPS, "spread", "conv", "block", "gate", "attend", "matmul", "pool", "binary", "unary")


def random_graph(seed: int, length: int) -> Graph:
    """Draw a graph of up to `length` operators over one or two inputs. Some of their sizes may be `n`."""
    r = Random(seed)
    symbolic = r.random() < 0.5
    t = Net(r, Builder("random", {N: (const(1), const(LARGEST))} if symbolic else {}))
    for i in range(t.number(1, 2)):
        rank = t.pick((0, 1, 2, 3, 4) if i else (1, 2, 3, 3, 4, 4, 4))
        shape: list[Expr] = [const(t.pick(SIZES)) for _ in range(rank)]
        if symbolic and rank:
            shape[t.number(0, rank - 1)] = N
        while math.prod(size(d, {"n": LARGEST}) for d in shape) > LIMIT:
            shape[shape.index(max(shape, key=lambda d: known(d) or 0))] = const(2)
        t.pool.append(t.b.input(f"x{i}", t.pick(DTYPES), tuple(shape)))
    for _ in range(length):
        x = t.pick((*t.pool[-2:], *t.pool[-1:] * 3))
        made = next((y for _ in range(4) if (y := OPS[t.pick(OFTEN)](t, x)) is not None), None)
        if made is not None and made.rank <= 5 and elements(made) <= LIMIT:
            t.pool.append(made)
    return t.b.graph([t.pool[-1], t.pick(t.pool)], ["y0", "y1"])


def feeds(graph: Graph, n: int) -> dict[str, Array]:
    """Return inputs for the symbol's value `n`: floats in -1..1, and small integers."""
    rng = np.random.default_rng(n)
    arrays: dict[str, Array] = {}
    for name in graph.inputs:
        shape = tuple(size(d, {"n": n}) for d in graph.shape(name))
        dtype = graph.dtype(name)
        numbers = rng.integers(0, 9, shape) if dtype.is_int else rng.uniform(-1, 1, shape)
        arrays[name] = numbers.astype(dtype.numpy)
    return arrays
