"""Lower ONNX operators that read at positions that are computed during a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jangin.frontends.onnx.operators.conv import Convolution
from jangin.frontends.onnx.registry import one_of, op
from jangin.ops.builder import Builder
from jangin.ops.sample import deform_conv, grid_sample, roi_align, roi_max_pool
from jangin.ops.values import Tensor


@op("GridSample", since=16)
def grid_sample_16(
    b: Builder, x: Tensor, grid: Tensor, *, mode: str = "linear", padding_mode: str = "zeros",
    align_corners: int = 0,
) -> Tensor:  # fmt: skip
    """Return x sampled at the positions of a grid. Before opset 20 the modes "linear" and "cubic" were called
    "bilinear" and "bicubic"."""
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return grid_sample(b, x, grid, mode=mode, padding=padding_mode, align_corners=bool(align_corners))


@op("RoiAlign", since=10)
def roi_align_10(b: Builder, x: Tensor, rois: Tensor, batch: Tensor, **settings: Any) -> Tensor:
    return roi_align_16(b, x, rois, batch, coordinate_transformation_mode="output_half_pixel", **settings)


@op("RoiAlign", since=16)
def roi_align_16(
    b: Builder, x: Tensor, rois: Tensor, batch: Tensor, *, mode: str = "avg", output_height: int = 1,
    output_width: int = 1, sampling_ratio: int = 0, spatial_scale: float = 1.0,
    coordinate_transformation_mode: str = "half_pixel",
) -> Tensor:  # fmt: skip
    one_of("mode", mode, ("avg", "max"))
    one_of(
        "coordinate_transformation_mode", coordinate_transformation_mode, ("half_pixel", "output_half_pixel")
    )
    return roi_align(
        b, x, rois, batch, size=(output_height, output_width), mode=mode, samples=sampling_ratio,
        scale=spatial_scale, half_pixel=coordinate_transformation_mode == "half_pixel",
    )  # fmt: skip


@op("MaxRoiPool")
def max_roi_pool(
    b: Builder, x: Tensor, rois: Tensor, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> Tensor:
    height, width = pooled_shape
    return roi_max_pool(b, x, rois, size=(height, width), scale=spatial_scale)


@op("DeformConv", since=19)
def deform_conv_19(
    b: Builder, x: Tensor, w: Tensor, offset: Tensor, bias: Tensor | None = None,
    mask: Tensor | None = None, *, offset_group: int = 1, **window: Any,
) -> Tensor:  # fmt: skip
    g = Convolution(**window)
    strides, dilations = g.steps(len(g.kernel(x, w)))
    begins = tuple(g.given_pads)[: x.rank - 2]
    return deform_conv(
        b, x, w, offset, bias, mask, strides=strides, dilations=dilations, begins=begins, groups=g.group,
        offset_groups=offset_group,
    )  # fmt: skip
