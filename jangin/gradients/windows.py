"""The gradient rules of convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jangin.gradients.general import by_stages
from jangin.gradients.step import Step
from jangin.ir.core import Conv, Pool
from jangin.ir.dtype import I32
from jangin.ir.expr import Buffer, Expr, cast, const, eq, is_const, land, select
from jangin.ir.simplify import simplify
from jangin.ir.traversal import row_major
from jangin.ops.conv import conv_transpose, transposed_extents
from jangin.ops.operands import TRUE, wide
from jangin.ops.values import Tensor


def of_conv(step: Step, attrs: Conv) -> None:
    if attrs.layout != "first" or attrs.dot is not None:
        by_stages(step)
        return
    if step.wants(0):
        step.give(_by_input(step, attrs), 0)
    if step.wants(1):
        step.give(_by_weights(step, attrs), 1)


def _by_input(step: Step, attrs: Conv) -> Tensor:
    """Return the input's gradient: the transposed convolution of the result's gradient, cut to the input's
    size."""
    x, w = step.ins
    rank = len(attrs.kernel)
    full = transposed_extents(step.g, attrs.kernel, attrs.strides, attrs.dilations)
    begins = attrs.pads[:rank]
    ends = [simplify(e - p - d) for e, p, d in zip(full, begins, x.shape[2:], strict=True)]
    return conv_transpose(
        step.b, step.g, w, strides=attrs.strides, dilations=attrs.dilations, pads=[*begins, *ends],
        groups=attrs.groups,
    )  # fmt: skip


def _by_weights(step: Step, attrs: Conv) -> Tensor:
    """Return the weights' gradient, a sum of products over the batch and all windows.

    The products are of copies of the image and the result's gradient, with channels last. The image's copy
    includes the padding. So the sum has no condition, and is a matrix product for each tap."""
    x, w = step.ins
    b, g, rank, groups = step.b, step.g, len(attrs.kernel), attrs.groups
    last = [0, *range(2, 2 + rank), 1]
    around = [0, *attrs.pads[:rank], 0, 0, *attrs.pads[rank:], 0]
    image, grad = b.pad(b.transpose(x, last), around), b.transpose(g, last)
    depthwise = is_const(w.shape[1], 1) and is_const(w.shape[0], groups)
    per_group = simplify(w.shape[0] // groups)

    def term(bufs: Sequence[Buffer], index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        taps, o = index[:rank], index[-1]
        n, *at = k
        if depthwise:
            channel = o
        else:
            channel = index[rank] if groups == 1 else simplify(o // per_group * w.shape[1] + index[rank])
        place = [p * s + t * d for p, t, s, d in zip(at, taps, attrs.strides, attrs.dilations, strict=True)]
        return wide(bufs[0][(n, *place, channel)]) * wide(bufs[1][(n, *at, o)])

    channels = () if depthwise else (w.shape[1],)
    extents = [g.shape[0], *g.shape[2:]]
    gradient = b.reduction(
        w.dtype, [*w.shape[2:], *channels, w.shape[0]], extents, "sum", [image, grad], term
    )
    if depthwise:
        return b.reshape(b.transpose(gradient, [rank, *range(rank)]), w.shape)
    return b.transpose(gradient, [rank + 1, rank, *range(rank)])


def of_pool(step: Step, attrs: Pool) -> None:
    """Add the gradient. The first of equal maxima has the whole gradient, as in PyTorch."""
    if attrs.combiner == "max" and attrs.layout == "first" and all(d == 1 for d in attrs.dilations):
        step.give(_by_places(step, attrs))
    else:
        by_stages(step, first=True)


def _by_places(step: Step, attrs: Pool) -> Tensor:
    """Return the gradient of a maximum over windows. The place of each window's maximum comes first, counted
    in taps. An element then has the gradients of the few windows around it whose place it is."""
    x, g, b, rank = step.x, step.g, step.b, len(attrs.kernel)
    spatial, begins = x.shape[2:], attrs.pads[:rank]
    none = const(math.prod(attrs.kernel), I32)

    def place_of(taps: Sequence[Expr]) -> Expr:
        return cast(I32, row_major(taps, [const(k) for k in attrs.kernel]))

    def place(bufs: Sequence[Buffer], index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        at = [i * s + t - p for i, s, t, p in zip(index[2:], attrs.strides, k, begins, strict=True)]
        is_most = eq(bufs[0][(*index[:2], *at)], bufs[1][index])
        return select(_inside(at, spatial), select(is_most, place_of(k), none), none)

    taps = [const(k) for k in attrs.kernel]
    places = b.reduction(I32, step.out.shape, taps, "min", [x, step.out], place)

    def term(bufs: Sequence[Buffer], index: tuple[Expr, ...], back: Sequence[Expr]) -> Expr:
        padded = [i + p for i, p in zip(index[2:], begins, strict=True)]
        at = [i // s - n for i, s, n in zip(padded, attrs.strides, back, strict=True)]
        own = [i - a * s for i, a, s in zip(padded, at, attrs.strides, strict=True)]
        window, zero = (*index[:2], *at), const(0, g.dtype)
        adjoint = select(eq(bufs[0][window], place_of(own)), bufs[1][window], zero)
        return select(land(_inside(at, attrs.extents), _inside(own, taps)), adjoint, zero)

    counts = [-(-k // s) for k, s in zip(attrs.kernel, attrs.strides, strict=True)]
    return b.reduction(
        x.dtype, x.shape, counts, "sum", [places, g], lambda bufs, i, k: wide(term(bufs, i, k))
    )


def _inside(at: Sequence[Expr], sizes: Sequence[Expr]) -> Expr:
    inside: Expr = TRUE
    for i, size in zip(at, sizes, strict=True):
        inside = land(inside, land(i >= 0, i < size))
    return inside
