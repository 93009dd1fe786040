"""ONNX operators that cut out, pad and turn parts of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.frontends.onnx.registry import op
from jangin.ir.dtype import I64
from jangin.ir.expr import Buffer, Const, Expr, cast, const, land, maximum, minimum, select
from jangin.ir.graph import CompileError
from jangin.ir.simplify import Ranges, prove, simplify
from jangin.ops.axes import axes_of, axis_of, ceil_div, clamped, integers
from jangin.ops.builder import MAX_SIZE, Builder, Tensor

UNBOUNDED = (1 << 31) - 1
"""Slice bounds from here on (exporters write the largest i32 or i64) mean the end of the axis."""


def _bound(v: Expr, dim: Expr, low: int, high: Expr, symbols: Ranges) -> Expr:
    """A slice bound counted from the front and clamped into [low, high]."""
    if isinstance(v, Const) and not isinstance(dim, Const):
        if int(v.value) >= UNBOUNDED:
            return high
        if int(v.value) <= -UNBOUNDED:
            return const(low)
    v = simplify(v, symbols)
    at = v if prove(v >= 0, symbols) else v + dim if prove(v < 0, symbols) else select(v < 0, v + dim, v)
    return simplify(minimum(maximum(at, low), high), symbols)


def _cut(start: Expr, end: Expr, step: int, dim: Expr, symbols: Ranges) -> tuple[Expr, Expr]:
    """(first position, how many) of a NumPy slice of an axis of `dim` entries."""
    if step > 0:
        first, last = _bound(start, dim, 0, dim, symbols), _bound(end, dim, 0, dim, symbols)
        count = ceil_div(last - first, step)
    else:
        first = _bound(start, dim, -1, dim - 1, symbols)
        last = _bound(end, dim, -1, dim - 1, symbols)
        count = ceil_div(first - last, -step)
    return first, simplify(maximum(simplify(count, symbols), 0), symbols)


def slice_axes(
    b: Builder,
    x: Tensor,
    starts: Sequence[Expr],
    ends: Sequence[Expr],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> Tensor:
    """NumPy slicing of some axes."""
    at = axes_of(range(len(starts)) if axes is None else axes, x.rank)
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(at) == len(steps):
        raise CompileError(f"Slice of {x}: starts, ends, axes and steps differ in length")
    if 0 in steps:
        raise CompileError(f"Slice of {x}: a step is 0")
    first: list[Expr] = [const(0)] * x.rank
    dims, by = list(x.shape), [1] * x.rank
    for axis, start, end, step in zip(at, starts, ends, steps, strict=True):
        first[axis], dims[axis] = _cut(start, end, step, x.shape[axis], b.symbols)
        by[axis] = step
    return b.slice(x, first, dims, by)


@op("Slice")
def slice_1(
    b: Builder, x: Tensor, *, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None = None
) -> Tensor:
    return slice_axes(b, x, [const(s) for s in starts], [const(e) for e in ends], axes, None)


@op("Slice", since=10)
def slice_(
    b: Builder,
    x: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    return slice_axes(
        b,
        x,
        b.require_sizes(starts, "Slice's starts", -MAX_SIZE),
        b.require_sizes(ends, "Slice's ends", -MAX_SIZE),
        None if axes is None else integers(b, axes, "Slice's axes"),
        None if steps is None else integers(b, steps, "Slice's steps"),
    )


MODES = ("constant", "edge", "reflect", "wrap")


def pad_with(b: Builder, x: Tensor, pads: Sequence[Expr], mode: str, value: Tensor | None) -> Tensor:
    """Pad every axis; `value` (for constant mode) may be known only at run time."""
    if len(pads) != 2 * x.rank:
        raise CompileError(f"Pad of {x}: there must be {2 * x.rank} pads, two an axis, not {len(pads)}")
    if mode not in MODES:
        raise CompileError(f"Pad of {x}: mode {mode!r} is none of {', '.join(MODES)}")
    fill = b.constant_value(value)
    if mode != "constant" or value is None:
        return b.pad(x, pads, mode)
    if fill is not None:
        return b.pad(x, pads, mode, fill.reshape(()).item())
    pads = [simplify(p, b.symbols) for p in pads]
    begins, ends = pads[: x.rank], pads[x.rank :]
    shape = [simplify(d + p + q, b.symbols) for d, p, q in zip(x.shape, begins, ends, strict=True)]

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        inside: Expr | bool = True
        place = []
        for i, p, d in zip(index, begins, x.shape, strict=True):
            place.append(i - p)
            inside = land(inside, land(i - p >= 0, i - p < d))
        return select(inside, bufs[0][tuple(place)], bufs[1][()])

    return b.compute(x.dtype, shape, [x, b.reshape(value, ())], at)


@op("Pad")
def pad_1(
    b: Builder, x: Tensor, *, paddings: Sequence[int], mode: str = "constant", value: float = 0.0
) -> Tensor:
    return pad_2(b, x, pads=paddings, mode=mode, value=value)


@op("Pad", since=2)
def pad_2(
    b: Builder, x: Tensor, *, pads: Sequence[int], mode: str = "constant", value: float = 0.0
) -> Tensor:
    return pad_with(b, x, [const(p) for p in pads], mode, b.scalar(value, x.dtype))


@op("Pad", since=11)
def pad(
    b: Builder,
    x: Tensor,
    pads: Tensor,
    constant_value: Tensor | None = None,
    axes: Tensor | None = None,
    *,
    mode: str = "constant",
) -> Tensor:
    amounts = b.require_sizes(pads, "Pad's pads", -MAX_SIZE)
    if axes is not None:
        at = axes_of(integers(b, axes, "Pad's axes"), x.rank)
        if len(amounts) != 2 * len(at):
            raise CompileError(f"Pad of {x}: {len(amounts)} pads don't fit {len(at)} axes")
        every: list[Expr] = [const(0)] * (2 * x.rank)
        for n, axis in enumerate(at):
            every[axis], every[axis + x.rank] = amounts[n], amounts[n + len(at)]
        amounts = every
    return pad_with(b, x, amounts, mode, constant_value)


@op("CenterCropPad", since=18)
def center_crop_pad(b: Builder, x: Tensor, shape: Tensor, *, axes: Sequence[int] | None = None) -> Tensor:
    """Negative pads crop, so one pad does both; the odd element goes to (or comes from) the end."""
    at = axes_of(range(x.rank) if axes is None else axes, x.rank)
    pads: list[Expr] = [const(0)] * (2 * x.rank)
    for axis, want in zip(at, b.require_sizes(shape, "CenterCropPad's shape"), strict=True):
        grow = simplify(want - x.shape[axis], b.symbols)
        # (d - want) // 2 elements are cropped before, and (want - d) // 2 are padded before
        before = select(grow < 0, -((-grow) // 2), grow // 2)
        before = simplify(before, b.symbols)
        pads[axis] = before
        pads[axis + x.rank] = simplify(grow - before, b.symbols)
    return b.pad(x, pads)


@op("ReverseSequence", since=10)
def reverse_sequence(
    b: Builder, x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0
) -> Tensor:
    batch, time = axis_of(batch_axis, x.rank), axis_of(time_axis, x.rank)

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        t = index[time]
        length = cast(I64, bufs[1][index[batch]])
        turned = clamped(select(t < length, length - 1 - t, t), x.shape[time])
        return bufs[0][tuple(turned if i == time else e for i, e in enumerate(index))]

    return b.compute(x.dtype, x.shape, [x, lengths], at)
