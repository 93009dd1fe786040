"""Lower NNEF's regions of interest.

A region is a row of `rois`: its begin on each spatial axis, then its end on each, in elements of the input.

By the standard's text, each cell of a pooled region would begin one cell too late, so that the last is
outside of the region. Here the first cell begins where the region begins. Outside of the input, a pool's
cells are empty (an empty cell gives 0), and resampling takes the input's border."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from jangin.frontends.nnef.operators.common import Operand, tensor
from jangin.frontends.nnef.operators.window import avg_pool, max_pool
from jangin.frontends.registry import Table, lowers
from jangin.ir.dtype import I64
from jangin.ir.expr import Expr, call, const
from jangin.ir.graph import CompileError
from jangin.ops.builder import Builder
from jangin.ops.sample import Region, pool_cells, resample_regions
from jangin.ops.values import Tensor

Sizes = Sequence[int]

POSITIONS: dict[str, Callable[[Expr, Expr, Expr, int], Expr]] = {
    "symmetric": lambda low, extent, i, count: low + (i + 0.5) * (extent / float(count)) - 0.5,
    "asymmetric": lambda low, extent, i, count: low + i * (extent / float(count)),
    "aligned": lambda low, extent, i, count: low + i * ((extent - 1.0) / float(max(count - 1, 1))),
}
"""By method, a function that returns the position in the input of an entry of a resampled region."""


def _checked(
    b: Builder, input: Operand, rois: Operand, batch_index: Operand, sizes: Sizes
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three operands as tensors, the indices with one axis. Raises CompileError if they don't fit
    each other."""
    x, regions, images = tensor(b, input), tensor(b, rois), tensor(b, batch_index)
    axes = x.rank - 2
    if axes < 1 or len(sizes) != axes or min(sizes) < 1:
        raise CompileError(f"a size {list(sizes)} needs a positive entry for each spatial axis of {x}")
    if regions.rank != 2 or regions.shape[1] != const(2 * axes):
        raise CompileError(f"the regions {regions} must have {2 * axes} numbers each")
    if images.rank not in (1, 2) or images.dtype is not I64:
        raise CompileError(f"batch_index {images} must be one integer for each region")
    return x, regions, b.reshape(images, regions.shape[:1])


def _pool(
    mode: str, b: Builder, input: Operand, rois: Operand, batch_index: Operand, output_size: Sizes
) -> Tensor:
    x, regions, images = _checked(b, input, rois, batch_index, output_size)

    def ends(region: Region, axis: int, cell: Expr) -> tuple[Expr, Expr]:
        low, high = (call("round", region(k)) for k in (axis, axis + len(output_size)))
        each = (high - low) / float(output_size[axis])
        start = low + cell * call("floor", each)
        return start, start + call("ceil", each)

    return pool_cells(b, x, regions, images, output_size, ends, mode)


@lowers("roi_resample")
def roi_resample(
    b: Builder, input: Operand, rois: Operand, batch_index: Operand, output_size: Sizes,
    method: str = "symmetric",
) -> Tensor:  # fmt: skip
    if method not in POSITIONS:
        raise CompileError(f"method '{method}' is none of {', '.join(POSITIONS)}")
    x, regions, images = _checked(b, input, rois, batch_index, output_size)
    return resample_regions(b, x, images, regions, output_size, POSITIONS[method])


def _align(
    pool: Callable[..., Tensor], b: Builder, input: Operand, rois: Operand, batch_index: Operand,
    output_size: Sizes, sampling_rate: Sizes, resize_method: str = "symmetric",
) -> Tensor:  # fmt: skip
    """Compute an aligned pool by the standard's definition: resample, then pool. `pool` is the pooling, with
    windows over spatial axes alone."""
    if len(sampling_rate) != len(output_size) or min(sampling_rate, default=0) < 1:
        raise CompileError(f"sampling_rate {list(sampling_rate)} must be as many positive numbers as sizes")
    size = [n * r for n, r in zip(output_size, sampling_rate, strict=True)]
    resized = roi_resample(b, input, rois, batch_index, size, resize_method)
    window = [1, 1, *sampling_rate]
    return pool(b, resized, size=window, stride=window, padding=[(0, 0)] * len(window))


REGIONS = Table(
    {
        "avg_roi_pool": partial(_pool, "avg"),
        "max_roi_pool": partial(_pool, "max"),
        "avg_roi_align": partial(_align, avg_pool),
        "max_roi_align": partial(_align, max_pool),
    }
)
