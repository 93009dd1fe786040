"""Lower ONNX's Resize and Upsample, which have several ways to give sizes and scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from jangin.frontends.onnx.registry import one_of, op
from jangin.ir.dtype import F32
from jangin.ir.expr import Expr, const
from jangin.ir.graph import CompileError, static_shape
from jangin.ops.axes import axes_of
from jangin.ops.builder import Builder
from jangin.ops.resize import Style, resize, scaled_lines, sized_lines
from jangin.ops.resize_positions import (
    Ends,
    Line,
    Position,
    align_corners,
    asymmetric,
    cropped,
    half_pixel,
    half_pixel_or_start,
    half_pixel_symmetric,
    pixel_centre,
)
from jangin.ops.values import Tensor

COORDINATES: Mapping[str, Callable[[Line, Expr], Position]] = {
    "align_corners": align_corners,
    "asymmetric": asymmetric,
    "half_pixel": half_pixel,
    "half_pixel_symmetric": half_pixel_symmetric,
    "pytorch_half_pixel": half_pixel_or_start,
    "tf_crop_and_resize": cropped,
    "tf_half_pixel_for_nn": pixel_centre,
}
"""Functions that give the positions of pixels, by the attribute `coordinate_transformation_mode`."""

ROUNDING: Mapping[str, str] = {
    "ceil": "ceil",
    "floor": "floor",
    "round_prefer_ceil": "half_up",
    "round_prefer_floor": "half_down",
}
"""Roundings of positions to pixels, by the attribute `nearest_mode`."""


def _proportional(
    b: Builder, x: Tensor, axes: Sequence[int], sizes: Sequence[Expr], roi: Sequence[Ends | None], policy: str
) -> list[Line]:
    from fractions import Fraction

    old, new = static_shape(tuple(x.shape[a] for a in axes)), static_shape(tuple(sizes))
    if old is None or new is None:
        raise CompileError(f"Resize of {x} with keep_aspect_ratio_policy={policy} needs known sizes")
    if policy not in ("not_larger", "not_smaller"):
        known = "stretch, not_larger and not_smaller"
        raise CompileError(f"keep_aspect_ratio_policy {policy!r} is none of {known}, and is not supported")
    scale = (min if policy == "not_larger" else max)(Fraction(n, d) for n, d in zip(new, old, strict=True))
    up, down = const(scale.numerator), const(scale.denominator)
    return [
        Line(a, const(d), const(math.floor(scale * d + Fraction(1, 2))), up, down, ends, b.symbols)
        for a, d, ends in zip(axes, old, roi, strict=True)
    ]


def _present(b: Builder, t: Tensor | None) -> Tensor | None:
    """Return an optional input, or None if it is absent. Before opset 13, an empty tensor means an absent
    input."""
    return None if t is None or t.shape == (const(0),) else t


@op("Upsample")
def upsample_1(
    b: Builder, x: Tensor, *, height_scale: float, width_scale: float, mode: str = "nearest"
) -> Tensor:
    return upsample_7(b, x, scales=[1.0, 1.0, height_scale, width_scale], mode=mode)


@op("Upsample", since=7)
def upsample_7(b: Builder, x: Tensor, *, scales: Sequence[float], mode: str = "nearest") -> Tensor:
    if len(scales) != x.rank:
        raise CompileError(f"Upsample of {x}: there must be {x.rank} scales, not {len(scales)}")
    style = Style("linear" if mode == "bilinear" else mode, asymmetric, "by_scale")
    return resize(b, x, scaled_lines(b, x, range(x.rank), scales), style)


@op("Upsample", since=9)
@op("Resize", since=10)
def resize_10(b: Builder, x: Tensor, scales: Tensor, *, mode: str = "nearest") -> Tensor:
    factors = b.require_constant(scales, "the scales of Resize").reshape(-1)
    return upsample_7(b, x, scales=[float(s) for s in factors], mode=mode)


@op("Resize", since=11)
def resize_11(
    b: Builder, x: Tensor, roi: Tensor | None = None, scales: Tensor | None = None,
    sizes: Tensor | None = None, *, mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel", nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0,
    antialias: int = 0, axes: Sequence[int] | None = None, keep_aspect_ratio_policy: str = "stretch",
) -> Tensor:  # fmt: skip
    one_of("coordinate_transformation_mode", coordinate_transformation_mode, COORDINATES)
    one_of("nearest_mode", nearest_mode, ROUNDING)
    style = Style(
        mode, COORDINATES[coordinate_transformation_mode], ROUNDING[nearest_mode], cubic_coeff_a,
        bool(exclude_outside), extrapolation_value, bool(antialias),
    )  # fmt: skip
    at = axes_of(range(x.rank) if axes is None else axes, x.rank)
    crops: list[Ends | None] = [None] * len(at)
    if style.coordinates is cropped:
        bounds = [const(float(v), F32) for v in b.require_constant(roi, "the roi of Resize").reshape(-1)]
        crops = list(zip(bounds[: len(at)], bounds[len(at) :], strict=True))
    scales, sizes = _present(b, scales), _present(b, sizes)
    if sizes is None:
        factors = b.require_constant(scales, "the scales of Resize").reshape(-1)
        lines = scaled_lines(b, x, at, [float(s) for s in factors], crops)
    elif keep_aspect_ratio_policy != "stretch":
        wanted = b.require_sizes(sizes, "the sizes of Resize")
        lines = _proportional(b, x, at, wanted, crops, keep_aspect_ratio_policy)
    else:
        lines = sized_lines(b, x, at, b.require_sizes(sizes, "the sizes of Resize"), crops)
    return resize(b, x, lines, style)
