"""Reductions over axes, and the position of the largest or smallest element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from functools import reduce as fold

import numpy as np

from jangin.ir.dtype import BOOL, F32, F64, I32, I64
from jangin.ir.expr import Buffer, Const, Expr, Load, call, cast, const, maximum, minimum, select
from jangin.ir.records import dataclass
from jangin.ir.simplify import prove, simplify
from jangin.ir.te import COMBINERS, Stage, reduction
from jangin.ops.axes import axis_of, product
from jangin.ops.builder import Builder
from jangin.ops.elementwise import Body, widen
from jangin.ops.order import is_extreme
from jangin.ops.values import Tensor


@dataclass(frozen=True)
class Reduction:
    """`after(combine of before(x))`; `after` also gets the number of combined elements. `corner` says which
    slope gradients take where the function's pieces meet (see `ir.core.Map`)."""

    combiner: str
    before: Body | None = None
    after: Body | None = None
    corner: str | None = None


def _real(fn: str, x: Expr, *_: Expr) -> Expr:
    """Return an intrinsic of floats; integers go through f64."""
    return call(fn, x) if x.dtype.is_float else cast(x.dtype, call(fn, cast(F64, x)))


REDUCTIONS: Mapping[str, Reduction] = {
    "sum": Reduction("sum"),
    "mean": Reduction("sum", None, lambda s, n: s / n),
    "prod": Reduction("prod"),
    "max": Reduction("max"),
    "min": Reduction("min"),
    "l1_norm": Reduction("sum", lambda x: call("abs", x)),
    "l2_norm": Reduction("sum", lambda x: x * x, partial(_real, "sqrt"), "flat"),
    "sum_of_squares": Reduction("sum", lambda x: x * x),
    "log_sum": Reduction("sum", None, partial(_real, "log")),
}
"""The reductions of `reduce_over`, by name."""


def reduce_over(
    b: Builder, kind: str, x: Tensor, axes: Sequence[int], keepdims: bool = False, ties: str | None = None
) -> Tensor:
    """Return one of REDUCTIONS of x over `axes`, in x's dtype; 16-bit floats are computed in f32.

    Without axes, each element is reduced by itself. The reduced axes are removed, or of size 1 with
    `keepdims`. `ties`: see `ir.core.Reduce`.
    """
    how = REDUCTIONS[kind]
    if (
        x.data is not None
        and how.before is None
        and how.after is None
        and tuple(axes) == (0,) == (x.rank - 1,)
    ):
        return _known(b, x, how.combiner, keepdims)
    t = x if how.combiner in ("max", "min") else widen(b, x)
    t = t if how.before is None else b.map(how.before, t)
    combiner = {"max": "or", "min": "and"}.get(kind, how.combiner) if x.dtype is BOOL else how.combiner
    total = b.reduce(combiner, t, axes, keepdims, ties)
    if how.after is not None:
        after, count = how.after, product(x.shape[a] for a in axes)
        total = b.map(lambda s: after(s, cast(s.dtype, simplify(count))), total, corner=how.corner)
    return b.cast(total, x.dtype)


def _known(b: Builder, x: Tensor, combiner: str, keepdims: bool) -> Tensor:
    """Return the reduction of a vector whose contents are known sizes. The result's contents are known
    too."""
    assert x.data is not None
    neutral = 1 if combiner == "prod" else 0
    items = list(x.data.flat) or [const(neutral)]
    out = np.empty((1,) if keepdims else (), object)
    out[...] = simplify(fold(COMBINERS[combiner], items), b.symbols)
    return b.sizes(out, x.dtype)


def log_sum_exp(b: Builder, x: Tensor, axes: Sequence[int], keepdims: bool = False) -> Tensor:
    """Return log(sum(exp(x))) over `axes`, in x's dtype, computed in f32 or f64. A finite maximum is
    subtracted first, so that nothing overflows."""
    wide = b.cast(x, x.dtype if x.dtype is F64 else F32)
    peak = b.reduce("max", wide, axes, True)
    shift = b.map(lambda m: select(call("isinf", m), const(0, m.dtype), m), peak)
    total = b.reduce("sum", b.map(lambda v, m: call("exp", v - m), wide, shift), axes, True)
    result = b.map(lambda s, m: cast(x.dtype, call("log", s) + m), total, shift)
    return result if keepdims else b.reshape(result, [d for i, d in enumerate(x.shape) if i not in axes])


def first_extreme(
    x: Buffer, axis: int, combiner: str, last: bool = False, name: str = "at"
) -> tuple[Buffer, Sequence[Stage]]:
    """Return the buffer and stages of the position along `axis` of the largest ("max") or smallest ("min")
    element of `x`: i64, without the axis.

    The first position of such an element counts, or the `last`. NaN counts as larger and as smaller than
    every number, as in NumPy.
    """
    rows, size = (*x.shape[:axis], *x.shape[axis + 1 :]), x.shape[axis]
    best, at = Buffer("best", x.dtype, rows), Buffer(name, I64, rows)
    known = isinstance(size, Const) and I32.has_whole(size.value)
    number = I32 if known and x.dtype.bytes <= I32.bytes else I64  # as many lanes as elements have

    def load(index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        return Load(x, (*index[:axis], *k, *index[axis:]))

    def position(index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        value = load(index, k)
        is_best = is_extreme(value, Load(best, index))
        return select(is_best, cast(number, k[0]), const(-1, number) if last else cast(number, size))

    def inside(acc: Expr, index: tuple[Expr, ...]) -> Expr:
        return cast(I64, maximum(acc, 0) if last else minimum(acc, cast(number, size - 1)))

    extreme = reduction(best, [size], combiner, load)
    return at, (extreme, reduction(at, [size], "max" if last else "min", position, inside))


def arg_extreme(
    b: Builder, x: Tensor, axis: int, combiner: str, *, last: bool = False, keepdims: bool = False
) -> Tensor:
    """Return the position along `axis` of the largest ("max") or smallest ("min") element, or of a NaN.

    If several elements qualify, the position is the first one's, or the last one's with `last`. The result is
    i64 without the axis, or with the axis of size 1 if `keepdims`. A run refuses an axis without elements.
    """
    axis = axis_of(axis, x.rank)
    _, stages = first_extreme(Buffer("x0", x.dtype, x.shape), axis, combiner, last, "out")
    some = x.shape[axis] >= 1
    place = b.stages(stages, [b.materialize(x)], [] if prove(some, b.symbols) else [some])
    kept = [const(1) if i == axis else d for i, d in enumerate(x.shape)]
    return b.reshape(place, kept) if keepdims else place
