"""Convolutions and their transposes, over x[N, C, spatial axes]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jangin.ir.dtype import BOOL, DType
from jangin.ir.expr import Buffer, Expr, ExprLike, Load, const, eq, land, select
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.simplify import simplify
from jangin.ops.axes import ceil_div, divide, per_channel, product
from jangin.ops.builder import Builder
from jangin.ops.operands import wide
from jangin.ops.values import Tensor
from jangin.ops.window import Sizes, explicit_pads, padded, steps


def kernel_size(x: Tensor, w: Tensor) -> tuple[int, ...]:
    """Return the spatial sizes of the weights. Raises CompileError if they don't fit x."""
    size = static_shape(w.shape[2:])
    if x.rank < 3 or w.rank != x.rank or size is None:
        raise CompileError(
            f"a convolution of {x} with weights {w}: it takes N, C and spatial axes, and weights of the "
            "same rank whose kernel size is known"
        )
    return size


def add_bias(b: Builder, y: Tensor, bias: Tensor | None) -> Tensor:
    """Return y[N, C, ...] + bias[C], or y without a bias."""
    return y if bias is None else b.map(lambda v, c: v + c, y, per_channel(b, bias, y.rank))


def conv(
    b: Builder, x: Tensor, w: Tensor, bias: Tensor | None = None, *, strides: Sizes = (),
    dilations: Sizes = (), pads: Sequence[ExprLike] = (), groups: int = 1, dtype: DType | None = None,
) -> Tensor:  # fmt: skip
    """Return the cross-correlation of x[N, C, ...] with w[M, C / groups, *kernel], plus bias[M]: [N, M, ...].

    Strides and dilations default to 1, pads to 0. `pads` (begins, then ends) may depend on sizes; negative
    ones crop. `dtype`: of the sums, by default x's.
    """
    rank = len(kernel_size(x, w))
    filters = static_shape(w.shape[:1])
    if groups < 1 or (filters is not None and filters[0] % groups):
        raise CompileError(f"{groups} groups of filters {w}: their number must be a multiple of the groups")
    around = explicit_pads(pads, rank)
    amounts = static_shape(tuple(around))
    if amounts is None or min(amounts, default=0) < 0:
        x, amounts = padded(b, x, around), (0,) * (2 * rank)
    strides, dilations = steps(strides, rank), steps(dilations, rank)
    y = b.conv(x, w, strides=strides, dilations=dilations, pads=amounts, groups=groups, dtype=dtype)
    return add_bias(b, y, bias)


# -- transposed ----------------------------------------------------------------------------------


def transposed_extents(x: Tensor, kernel: Sizes, strides: Sizes, dilations: Sizes) -> list[Expr]:
    """Return the spatial sizes of a transposed convolution's result before pads are cut off."""
    windows = zip(x.shape[2:], kernel, strides, dilations, strict=True)
    return [(size - 1) * s + (k - 1) * d + 1 for size, k, s, d in windows]


def conv_transpose(
    b: Builder, x: Tensor, w: Tensor, bias: Tensor | None = None, *, strides: Sizes = (),
    dilations: Sizes = (), pads: Sequence[ExprLike] = (), groups: int = 1,
) -> Tensor:  # fmt: skip
    """Return the transposed convolution: each x[N, C, ...] adds its multiple of w[C, M / groups, *kernel] at
    its stride, plus bias[M].

    `pads` (begins, then ends) are cut off the result; negative ones add zeros, as output padding does. An
    output that no window reaches is 0, even if a neighbouring input is infinite.
    """
    kernel = kernel_size(x, w)
    rank = len(kernel)
    strides, dilations = steps(strides, rank), steps(dilations, rank)
    cut = explicit_pads(pads, rank)
    full = transposed_extents(x, kernel, strides, dilations)
    out = [simplify(e - p - q, b.symbols) for e, p, q in zip(full, cut[:rank], cut[rank:], strict=True)]
    begins = [simplify(e, b.symbols) for e in cut[:rank]]
    known = b.constant_value(w)
    if all(d == 1 for d in dilations) and (known is None or np.isfinite(known.astype(np.float64)).all()):
        y = _subpixel(b, x, w, groups, kernel, strides, begins, out)
    else:
        y = _gathered(b, x, w, groups, strides, dilations, begins, out)
    return add_bias(b, y, bias)


def _sources(
    at: Sequence[Expr], taps: Sequence[Expr], strides: Sizes, dilations: Sizes,
    begins: Sequence[ExprLike], sizes: Sequence[Expr],
) -> tuple[list[Expr], Expr]:  # fmt: skip
    """Return the position of the window that has its given tap at `at`, and whether the window exists."""
    inside: Expr = const(True, BOOL)
    position = []
    for i, (p, tap) in enumerate(zip(at, taps, strict=True)):
        reach = p + begins[i] - tap * dilations[i]
        source = reach // strides[i]
        hit = land(reach >= 0, source < sizes[i])
        inside = land(inside, land(hit, eq(reach % strides[i], 0)))
        position.append(source)
    return position, inside


def _gathered(
    b: Builder, x: Tensor, w: Tensor, group: int, strides: Sizes, dilations: Sizes,
    begins: Sequence[Expr], out: Sequence[Expr],
) -> Tensor:  # fmt: skip
    """Return the transposed convolution as a reduction with predicates: each output sums the inputs whose
    kernels reach it."""
    in_group, out_group = divide(x.shape[1], const(group), b.symbols), w.shape[1]

    def term(bufs: Sequence[Buffer], index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        n, o, *at = index
        c, *taps = k
        place, inside = _sources(at, taps, strides, dilations, begins, x.shape[2:])
        channel = simplify(o // out_group * in_group + c) if group > 1 else c
        filters = o % out_group if group > 1 else o
        value = wide(bufs[0][(n, channel, *place)]) * wide(bufs[1][(channel, filters, *taps)])
        return select(inside, value, const(0, value.dtype))

    shape = [x.shape[0], simplify(out_group * group), *out]
    return b.reduction(x.dtype, shape, [in_group, *w.shape[2:]], "sum", [x, w], term)


def _subpixel(
    b: Builder,
    x: Tensor,
    w: Tensor,
    group: int,
    kernel: Sequence[int],
    strides: Sequence[int],
    begins: Sequence[Expr],
    out: Sequence[Expr],
) -> Tensor:
    """Return the transposed convolution, computed by sub-pixel convolution.

    Outputs of one phase (position modulo the stride) see one subset of the taps. A plain convolution computes
    all phases with equally many taps as channels, and the phases are interleaved afterwards. It multiplies as
    often as the definition, and inserts no zeros, which an infinity would turn into NaN.
    """
    rank = len(kernel)
    split = _split_taps(b, w, group, kernel, strides)
    # Positions [first, last) of the phases hold all outputs; all positions would be [0, size + taps - 1).
    first = [simplify(p // s, b.symbols) for p, s in zip(begins, strides, strict=True)]
    last = [simplify(ceil_div(p + n, s), b.symbols) for p, n, s in zip(begins, out, strides, strict=True)]
    after = [simplify(m - d, b.symbols) for m, d in zip(last, x.shape[2:], strict=True)]
    count = [simplify(m - n, b.symbols) for m, n in zip(last, first, strict=True)]

    def phases(chosen: Sequence[_Phases]) -> Tensor:
        """Return [N, group, *phases, M / group, *positions] for the phases chosen on the first axes."""
        axis = len(chosen)
        if axis < rank:
            parts = [phases([*chosen, p]) for p in _phases(kernel[axis], strides[axis])]
            return b.concat(parts, 2 + axis) if len(parts) > 1 else parts[0]
        inner = (x.shape[0], const(group), *(const(p.width) for p in chosen), w.shape[1], *count)
        if not all(p.taps for p in chosen):
            return b.compute(x.dtype, inner, [], lambda bufs, *at: const(0, x.dtype))
        before = [simplify(p.taps - 1 - m, b.symbols) for p, m in zip(chosen, first, strict=True)]
        weights = _phase_weights(b, split, chosen)
        return b.reshape(conv(b, x, weights, pads=[*before, *after], groups=group), inner)

    y = phases([])
    y = b.transpose(y, [0, 1, 2 + rank, *(a for i in range(rank) for a in (3 + rank + i, 2 + i))])
    grown = [y.shape[3 + 2 * i] * strides[i] for i in range(rank)]
    y = b.reshape(y, [y.shape[0], simplify(w.shape[1] * group), *grown])
    starts = [p - m * s for p, m, s in zip(begins, first, strides, strict=True)]
    return b.slice(y, [0, 0, *starts], [*y.shape[:2], *out], [1] * y.rank)


class _Phases(NamedTuple):
    """Neighbouring phases of one axis, from `start` on, that see equally many taps."""

    start: int
    width: int
    taps: int


def _phases(kernel: int, stride: int) -> list[_Phases]:
    longer, taps = kernel % stride, kernel // stride
    return [p for p in (_Phases(0, longer, taps + 1), _Phases(longer, stride - longer, taps)) if p.width]


def _split_taps(b: Builder, w: Tensor, group: int, kernel: Sequence[int], strides: Sequence[int]) -> Tensor:
    """Return w as [g, C/g, M/g, taps, phase, ...]: element tap * stride + phase of the kernel, and 0 beyond
    its end."""
    per_group = divide(w.shape[0], const(group), b.symbols)
    taps = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    ends = [t * s - k for t, s, k in zip(taps, strides, kernel, strict=True)]
    w = b.pad(w, [0] * (2 + len(kernel)) + [0, 0, *ends])
    split = [n for t, s in zip(taps, strides, strict=True) for n in (t, s)]
    return b.reshape(w, [group, per_group, w.shape[1], *split])


def _phase_weights(b: Builder, split: Tensor, chosen: Sequence[_Phases]) -> Tensor:
    """Return the filters [g * phases * M/g, C/g, *taps] of the correlation, which meets taps in reverse. A
    phase's filters are neighbours, so channels-last pixels are interleaved whole."""
    rank = len(chosen)
    starts = [const(0)] * 3 + [const(n) for p in chosen for n in (p.taps - 1, p.start)]
    sizes = [*split.shape[:3], *(const(n) for p in chosen for n in (p.taps, p.width))]
    w = b.slice(split, starts, sizes, [1, 1, 1] + [-1, 1] * rank)
    outer = [0, *(4 + 2 * i for i in range(rank)), 2]
    w = b.transpose(w, [*outer, 1, *(3 + 2 * i for i in range(rank))])
    filters = simplify(product(w.shape[: len(outer)]))
    return b.reshape(w, [filters, w.shape[len(outer)], *(p.taps for p in chosen)])


def col2im(
    b: Builder, x: Tensor, image: Sequence[Expr], kernel: Sizes, *, strides: Sizes = (),
    dilations: Sizes = (), pads: Sequence[ExprLike] = (),
) -> Tensor:  # fmt: skip
    """Sum overlapping blocks x[N, C * block elements, blocks] into [N, C, *image] (col2im).

    The blocks lie over the padded image like a convolution's windows. Each pixel gathers the block elements
    that fall on it.
    """
    rank = len(kernel)
    strides, dilations = steps(strides, rank), steps(dilations, rank)
    around = explicit_pads(pads, rank)
    counts = [
        simplify(
            (image[i] + (around[i] + around[i + rank] - (kernel[i] - 1) * dilations[i] - 1)) // strides[i] + 1
        )
        for i in range(rank)
    ]
    channels = divide(x.shape[1], product(kernel), b.symbols)
    blocks = b.reshape(x, [x.shape[0], channels, *kernel, *counts])

    def term(bufs: Sequence[Buffer], index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        place, inside = _sources(index[2:], k, strides, dilations, around, counts)
        return select(inside, Load(bufs[0], (*index[:2], *k, *place)), const(0, x.dtype))

    return b.reduction(x.dtype, [x.shape[0], channels, *image], kernel, "sum", [blocks], term)
