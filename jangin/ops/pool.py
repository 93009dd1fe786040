"""Pooling: the maximum, mean or norm of windows, or of whole spatial axes, of x[N, C, spatial axes]."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.ir.dtype import BOOL, I64
from jangin.ir.expr import Buffer, Expr, call, cast, const, land, select
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.te import identity
from jangin.ir.traversal import row_major
from jangin.ops.builder import Builder
from jangin.ops.core_window import window_count
from jangin.ops.elementwise import power
from jangin.ops.operands import wide
from jangin.ops.order import is_extreme
from jangin.ops.values import Tensor
from jangin.ops.window import Window, padded

FAR = (1 << 63) - 1
"""The index of a tap that isn't the maximum: larger than every real index."""


def _pooled(b: Builder, x: Tensor, window: Window, combiner: str, fill: float, average: str = "") -> Tensor:
    """Return the core `pool` of x. If the pads depend on unknown sizes, x is padded with `fill`
    beforehand."""
    pads = static_shape(window.pads)
    if pads is None:
        x, pads = padded(b, x, window.pads, fill), (0,) * len(window.pads)
    return b.pool(
        x, combiner=combiner, average=average, kernel=window.kernel, strides=window.strides,
        dilations=window.dilations, pads=pads, extents=window.extents, layout="first",
    )  # fmt: skip


def max_pool(b: Builder, x: Tensor, window: Window) -> Tensor:
    """Return the maximum of each window, [N, C, *window.extents]; padding doesn't count."""
    return _pooled(b, x, window, "max", float(identity("max", x.dtype).value))


def max_pool_with_indices(b: Builder, x: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Return the maximum of each window, or NaN if the window has one, and the i64 index of its first tap.
    The index is row-major in the whole x."""
    pads, rank = static_shape(window.pads), len(window.kernel)
    if pads is None:
        raise CompileError(
            f"the indices of maxima of {x} need the spatial sizes, from which the padding follows: "
            "fix them with shapes=, or export the model with explicit pads"
        )
    best = max_pool(b, x, window)

    def term(bufs: Sequence[Buffer], index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        inside: Expr = const(True, BOOL)
        place = list(index[:2])
        for i in range(rank):
            p = index[2 + i] * window.strides[i] + k[i] * window.dilations[i] - pads[i]
            inside = land(inside, land(p >= 0, p < x.shape[2 + i]))
            place.append(p)
        is_source = select(inside, is_extreme(bufs[0][tuple(place)], bufs[1][index]), const(False, BOOL))
        return select(is_source, row_major(place, x.shape), const(FAR))

    return best, b.reduction(I64, best.shape, window.kernel, "min", [x, best], term)


def average_pool(b: Builder, x: Tensor, window: Window, *, count_padding: bool = False) -> Tensor:
    """Return the mean of each window over its taps inside x, or with `count_padding` inside the padded x."""
    average = "all" if count_padding else "valid"
    if static_shape(window.pads) is not None:
        return _pooled(b, x, window, "sum", 0, average)
    total = _pooled(b, x, window, "sum", 0)

    def mean(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        value = wide(bufs[0][index])
        count = window_count(
            x.shape[2:], index[2:], kernel=window.kernel, strides=window.strides, dilations=window.dilations,
            pads=window.pads, average=average,
        )  # fmt: skip
        return value / cast(value.dtype, count)

    return b.compute(x.dtype, total.shape, [total], mean)


def _powers(b: Builder, x: Tensor, p: float) -> Tensor:
    """Return |x| ** p, in f32 or wider."""
    return b.map(lambda v: power(wide(v) if p == 2 else call("abs", wide(v)), p), x)


def _roots(b: Builder, total: Tensor, p: float, like: Tensor) -> Tensor:
    return b.map(lambda v: cast(like.dtype, power(v, 1 / p)), total)


def lp_pool(b: Builder, x: Tensor, window: Window, *, p: float = 2) -> Tensor:
    """Return the p-norm of each window: the sum of |x| ** p, to the power of 1 / p."""
    return _roots(b, _pooled(b, _powers(b, x, p), window, "sum", 0), p, x)


def global_lp_pool(b: Builder, x: Tensor, *, p: float = 2) -> Tensor:
    """Return the p-norm over all spatial axes, kept with size 1."""
    return _roots(b, b.reduce("sum", _powers(b, x, p), spatial_axes(x), keepdims=True), p, x)


def spatial_axes(x: Tensor) -> range:
    """Return the axes behind N and C. Raises CompileError if there are none."""
    if x.rank < 3:
        raise CompileError(f"a global pool of {x}: it must have spatial axes (N, C, ...)")
    return range(2, x.rank)
