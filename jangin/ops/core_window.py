"""Core operators over sliding windows: `conv` and `pool`."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.ir.core import Conv, Pool
from jangin.ir.expr import (
    Buffer,
    Const,
    Expr,
    ExprLike,
    Load,
    cast,
    const,
    land,
    maximum,
    minimum,
    select,
    wrap,
)
from jangin.ir.graph import CompileError, Shape, Value
from jangin.ir.simplify import simplify
from jangin.ir.te import Stage, identity, reduction
from jangin.ops.core_rows import conv_of_rows, is_of_rows
from jangin.ops.operands import TRUE, Typed, multiplied, typed, wide


def window_extent(size: Expr, kernel: int, stride: int, dilation: int, pad: int) -> Expr:
    """Return the output size of a sliding window over `size` with `pad` elements added in all."""
    span = size + (pad - dilation * (kernel - 1) - 1)
    return simplify(span // stride + 1)


def split_layout(shape: Shape, layout: str) -> tuple[Expr, Expr, Shape]:
    """Return (batch, channels, spatial) of a shape in layout "first" (N, C, ...) or "last" (N, ..., C)."""
    return (shape[0], shape[1], shape[2:]) if layout == "first" else (shape[0], shape[-1], shape[1:-1])


def join_layout(n: Expr, c: Expr, spatial: Sequence[Expr], layout: str) -> Shape:
    return (n, c, *spatial) if layout == "first" else (n, *spatial, c)


def conv_infer(ins: Sequence[Value], attrs: Conv) -> Typed:
    (dtype, x), (_, w) = typed(ins[0]), typed(ins[1])
    n, c, spatial = split_layout(x, attrs.layout)
    per_group = simplify(w[1] * attrs.groups)
    if len(w) != len(x):
        raise CompileError(f"a convolution of {ins[0]} with weights {ins[1]}: the ranks differ")
    if isinstance(c, Const) and isinstance(per_group, Const) and c != per_group:
        raise CompileError(
            f"a convolution of {ins[0]} with weights {ins[1]} in {attrs.groups} group(s): "
            f"the input has {c} channels, the weights want {per_group}"
        )
    out = _windows(spatial, attrs)
    return attrs.dtype or dtype, join_layout(n, w[0], out, attrs.layout)


def _windows(spatial: Shape, attrs: Conv) -> Shape:
    rank = len(spatial)
    return tuple(
        window_extent(
            spatial[i], attrs.kernel[i], attrs.strides[i], attrs.dilations[i],
            attrs.pads[i] + attrs.pads[i + rank],
        )
        for i in range(rank)
    )  # fmt: skip


def _window_index(
    spatial: Shape, at: Sequence[Expr], k: Sequence[Expr], window: Conv | Pool, partial: bool
) -> tuple[list[Expr], Expr]:
    """Return the input positions of a window's taps, and whether they lie inside the input. `partial` windows
    may reach beyond the end even without padding there."""
    inside: Expr = TRUE
    index = []
    for i, size in enumerate(spatial):
        begin, end = window.pads[i], window.pads[i + len(spatial)]
        pos = at[i] * window.strides[i] + k[i] * window.dilations[i] - begin
        if begin > 0:
            inside = land(inside, pos >= 0)
        if end > 0 or partial:
            inside = land(inside, pos < size)
        index.append(pos)
    return index, inside


def conv_te(ins: Sequence[Buffer], out: Buffer, attrs: Conv) -> tuple[Stage, ...]:
    x, w = ins
    if is_of_rows(x.dtype, attrs):
        return conv_of_rows(x, w, out, attrs)
    groups, layout = attrs.groups, attrs.layout
    _, _, spatial = split_layout(x.shape, layout)
    per_group_out = simplify(w.shape[0] // groups)

    def term(index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        n, o, at = split_layout(index, layout)
        *taps, c = k
        pos, inside = _window_index(spatial, at, taps, attrs, False)
        channel = c if groups == 1 else simplify((o // per_group_out) * w.shape[1] + c)
        value = Load(x, join_layout(n, channel, pos, layout))
        return multiplied(
            select(inside, value, const(0, x.dtype)), Load(w, (o, c, *taps)), out.dtype, attrs.dot
        )

    return (reduction(out, [*(const(k) for k in attrs.kernel), w.shape[1]], "sum", term),)


def pool_infer(ins: Sequence[Value], attrs: Pool) -> Typed:
    dtype, x = typed(ins[0])
    n, c, _ = split_layout(x, attrs.layout)
    return dtype, join_layout(n, c, attrs.extents, attrs.layout)


def pool_te(ins: Sequence[Buffer], out: Buffer, attrs: Pool) -> tuple[Stage, ...]:
    x, layout = ins[0], attrs.layout
    _, _, spatial = split_layout(x.shape, layout)
    combiner = attrs.combiner

    def term(index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        n, c, at = split_layout(index, layout)
        pos, inside = _window_index(spatial, at, k, attrs, True)
        value = Load(x, join_layout(n, c, pos, layout))
        return wide(select(inside, value, identity(combiner, x.dtype)))

    def mean(acc: Expr, index: tuple[Expr, ...]) -> Expr:
        _, _, at = split_layout(index, layout)
        count = window_count(
            spatial, at, kernel=attrs.kernel, strides=attrs.strides, dilations=attrs.dilations,
            pads=attrs.pads, average=attrs.average,
        )  # fmt: skip
        return acc / cast(acc.dtype, count)

    extents = [const(k) for k in attrs.kernel]
    return (reduction(out, extents, combiner, term, mean if attrs.average else None),)


def window_count(
    spatial: Shape,
    at: Sequence[Expr],
    *,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[ExprLike],
    average: str,
) -> Expr:
    """Return the number by which an average over the window at `at` divides (see `ir.core.Pool`)."""
    count: Expr = const(1)
    some = True  # whether every window surely has a tap; the mean of no taps is 0
    for i, size in enumerate(spatial):
        begin, end = wrap(pads[i]), wrap(pads[i + len(spatial)])
        start = at[i] * strides[i] - begin
        low: ExprLike = 0 if average == "valid" else -begin
        high = size if average == "valid" else size + end
        first = maximum(const(0), (low - start + (dilations[i] - 1)) // dilations[i])
        last = minimum(const(kernel[i] - 1), (high - 1 - start) // dilations[i])
        taps = last - first + 1
        outside = (
            isinstance(begin, Const) and isinstance(end, Const) and max(begin.value, end.value) >= kernel[i]
        )
        count = count * (maximum(taps, 0) if outside or dilations[i] > 1 else taps)
        some = some and not (outside or dilations[i] > 1)
    return count if some else maximum(count, 1)
