"""Lower ATen's resizing and sampling of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jangin.frontends.registry import Table, lowers
from jangin.frontends.torch.operators.common import Result, size
from jangin.ir.graph import CompileError
from jangin.ops.builder import Builder
from jangin.ops.resize import Style, resize, scaled_lines, sized_lines
from jangin.ops.resize_positions import Line, asymmetric, half_pixel, pixel_centre
from jangin.ops.resize_positions import align_corners as corners
from jangin.ops.sample import grid_sample
from jangin.ops.values import Tensor


def _lines(b: Builder, x: Tensor, out: Result, rank: int, scales: Sequence[float | None]) -> list[Line]:
    """Return how the spatial axes are resized: by their scales if all are given, else by the sizes of the
    result."""
    axes = range(x.rank - rank, x.rank)
    factors = [s for s in scales if s is not None]
    if len(factors) == rank:
        return scaled_lines(b, x, axes, factors)
    return sized_lines(b, x, axes, [size(out.shape[a]) for a in axes])


def _upsample(rank: int, mode: str, exact: bool = False, antialias: bool = False) -> Any:
    def lower(
        b: Builder, out: Result, input: Tensor | None = None, self: Tensor | None = None,
        align_corners: bool = False, scale_factors: Sequence[float] = (), **given: Any,
    ) -> Tensor:  # fmt: skip
        x = input if input is not None else self
        assert x is not None
        named = [given.get(n) for n in ("scales", "scales_d", "scales_h", "scales_w") if n in given]
        if mode == "nearest":
            style = Style("nearest", pixel_centre if exact else asymmetric, "floor")
        else:
            style = Style(mode, corners if align_corners else half_pixel, "floor")
        if antialias:
            if align_corners:
                raise CompileError(
                    "antialiased resizing with align_corners isn't supported: leave one of them out"
                )
            style = replace(style, antialias=True, exclude_outside=True, a=-0.5)
        scales = () if align_corners else scale_factors or named  # corners stay, whatever the scales
        y = resize(b, x, _lines(b, x, out, rank, scales), style)
        return b.reshape(y, out.shape)

    return lower


UPSAMPLES = Table({
    "upsample_nearest1d": _upsample(1, "nearest"), "upsample_nearest2d": _upsample(2, "nearest"),
    "upsample_nearest3d": _upsample(3, "nearest"), "upsample_linear1d": _upsample(1, "linear"),
    "upsample_bilinear2d": _upsample(2, "linear"), "upsample_trilinear3d": _upsample(3, "linear"),
    "upsample_bicubic2d": _upsample(2, "cubic"),
    "_upsample_bilinear2d_aa": _upsample(2, "linear", antialias=True),
    "_upsample_bicubic2d_aa": _upsample(2, "cubic", antialias=True),
    "_upsample_nearest_exact1d": _upsample(1, "nearest", True),
    "_upsample_nearest_exact2d": _upsample(2, "nearest", True),
    "_upsample_nearest_exact3d": _upsample(3, "nearest", True),
})  # fmt: skip


@lowers("grid_sampler_2d", "grid_sampler_3d", "grid_sampler")
def grid_sampler(
    b: Builder, out: Result, input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int,
    align_corners: bool,
) -> Tensor:  # fmt: skip
    return grid_sample(
        b, input, grid, mode=("linear", "nearest", "cubic")[interpolation_mode],
        padding=("zeros", "border", "reflection")[padding_mode], align_corners=align_corners,
    )  # fmt: skip
