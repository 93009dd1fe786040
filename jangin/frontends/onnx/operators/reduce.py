"""Reductions over axes, and the place of the largest or smallest element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from functools import reduce as fold

import numpy as np

from jangin.frontends.onnx.operators.activation import first_extreme
from jangin.frontends.onnx.operators.families import Body, Family, widen
from jangin.frontends.onnx.registry import Lowering, Operator, op
from jangin.ir.dtype import BOOL, F32, F64
from jangin.ir.expr import Buffer, Expr, call, cast, const, select
from jangin.ir.simplify import simplify
from jangin.ir.te import COMBINERS
from jangin.ops.axes import axes_of, axis_of, integers, product
from jangin.ops.builder import Builder, Tensor

Axes = Tensor | Sequence[int] | None


@dataclass(frozen=True)
class _Kind:
    """`after(combine of before(x))`; `after` also gets how many elements were combined."""

    combiner: str
    before: Body | None = None
    after: Body | None = None


def _real(fn: str, x: Expr, *_: Expr) -> Expr:
    """An intrinsic of floats, through f64 for integers."""
    return call(fn, x) if x.dtype.is_float else cast(x.dtype, call(fn, cast(F64, x)))


_KINDS: Mapping[str, _Kind] = {
    "ReduceSum": _Kind("sum"),
    "ReduceMean": _Kind("sum", None, lambda s, n: s / n),
    "ReduceProd": _Kind("prod"),
    "ReduceMax": _Kind("max"),
    "ReduceMin": _Kind("min"),
    "ReduceL1": _Kind("sum", lambda x: call("abs", x)),
    "ReduceL2": _Kind("sum", lambda x: x * x, partial(_real, "sqrt")),
    "ReduceSumSquare": _Kind("sum", lambda x: x * x),
    "ReduceLogSum": _Kind("sum", None, partial(_real, "log")),
}


def reduced_axes(b: Builder, x: Tensor, axes: Axes, noop: int) -> tuple[int, ...]:
    """The axes to reduce: an attribute in older opsets, an input in newer. None given means all,
    or none where `noop` (noop_with_empty_axes) is set."""
    given = integers(b, axes, "axes") if isinstance(axes, Tensor) else list(axes or ())
    return axes_of(given, x.rank) if given else () if noop else tuple(range(x.rank))


def _reduce(
    kind: _Kind, b: Builder, x: Tensor, axes: Axes = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    over = reduced_axes(b, x, axes, noop_with_empty_axes)
    if x.data is not None and kind.before is None and kind.after is None and over == (0,) and x.rank == 1:
        return _known(b, x, kind.combiner, bool(keepdims))
    t = x if kind.combiner in ("max", "min") else widen(b, x)
    t = t if kind.before is None else b.map(kind.before, t)
    total = combine(b, kind.combiner, t, over, bool(keepdims))
    if kind.after is not None:
        after, count = kind.after, product(x.shape[a] for a in over)
        total = b.map(lambda s: after(s, cast(s.dtype, simplify(count))), total)
    return b.cast(total, x.dtype)


def _known(b: Builder, x: Tensor, combiner: str, keepdims: bool) -> Tensor:
    """The reduction of a vector of known sizes."""
    assert x.data is not None
    neutral = 1 if combiner == "prod" else 0
    items = list(x.data.flat) or [const(neutral)]
    out = np.empty((1,) if keepdims else (), object)
    out[...] = simplify(fold(COMBINERS[combiner], items), b.symbols)
    return b.sizes(out, x.dtype)


def combine(b: Builder, combiner: str, x: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    """A core reduction; truth values combine by or and and."""
    if x.dtype is BOOL:
        combiner = {"max": "or", "min": "and"}.get(combiner, combiner)
    return b.reduce(combiner, x, axes, keepdims)


def mean(b: Builder, x: Tensor, axes: Sequence[int], keepdims: bool = True) -> Tensor:
    """The mean of a float tensor over axes."""
    return _reduce(_KINDS["ReduceMean"], b, x, tuple(axes), int(keepdims), noop_with_empty_axes=1)


def _declare(kind: _Kind) -> Lowering:
    return partial(_reduce, kind)


REDUCTIONS = Family(tuple(Operator("", name, 1, _declare(kind)) for name, kind in _KINDS.items()))


@op("ReduceLogSumExp")
def reduce_log_sum_exp(
    b: Builder, x: Tensor, axes: Axes = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """log(sum(exp(x))), shifted by the maximum where that is finite so that nothing overflows."""
    over = reduced_axes(b, x, axes, noop_with_empty_axes)
    wide = b.cast(x, x.dtype if x.dtype is F64 else F32)
    peak = combine(b, "max", wide, over, True)
    shift = b.map(lambda m: select(call("isinf", m), const(0, m.dtype), m), peak)
    total = combine(b, "sum", b.map(lambda v, m: call("exp", v - m), wide, shift), over, True)
    result = b.map(lambda s, m: cast(x.dtype, call("log", s) + m), total, shift)
    return result if keepdims else b.reshape(result, _without(x, over))


def _without(x: Tensor, axes: Sequence[int]) -> list[Expr]:
    return [d for i, d in enumerate(x.shape) if i not in axes]


def arg(
    combiner: str, b: Builder, x: Tensor, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Tensor:
    """Where the largest or smallest element along `axis` stands: i64."""
    axis = axis_of(axis, x.rank)
    source = Buffer("x0", x.dtype, x.shape)
    _, stages = first_extreme(source, axis, combiner, bool(select_last_index), "out")
    found = b.stages(stages, [b.materialize(x)])
    kept = [const(1) if i == axis else d for i, d in enumerate(x.shape)]
    return b.reshape(found, kept) if keepdims else found


ARGUMENTS = Family(
    tuple(Operator("", name, 1, partial(arg, c)) for name, c in (("ArgMax", "max"), ("ArgMin", "min")))
)
