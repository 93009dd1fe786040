"""Lower the operators of files that ONNX Runtime optimized for one processor (com.microsoft.nchwc).

In these files, a pixel's channels are stored in blocks, and weights are in the order that ONNX Runtime's
kernels read. The lowered tensors are [N, C, H, W], with C a multiple of the block's size, and weights are in
ONNX's order. The module `frontends.onnx.nchwc` finds the block's size, which is the attribute `block`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jangin.frontends.onnx.operators.conv import fused_conv
from jangin.frontends.onnx.operators.resize import COORDINATES, ROUNDING
from jangin.frontends.onnx.operators.window import (
    average_pool_,
    global_average_pool,
    global_max_pool,
    max_pool_,
)
from jangin.frontends.onnx.registry import op
from jangin.ir.expr import Expr
from jangin.ir.graph import CompileError, static_shape
from jangin.ops.builder import Builder
from jangin.ops.resize import Style, resize, scaled_lines
from jangin.ops.values import Tensor

DOMAIN = "com.microsoft.nchwc"


@op("ReorderInput", domain=DOMAIN)
def reorder_input(b: Builder, x: Tensor, *, block: int, channels_last: int = 0) -> Tensor:
    if channels_last:
        x = b.transpose(x, [0, 3, 1, 2])
    (channels,) = _known([x.shape[1]], f"the channels of {x}")
    return b.pad(x, [0, 0, 0, 0, 0, -channels % block, 0, 0])


def _known(sizes: Sequence[Expr], what: str) -> Sequence[int]:
    numbers = static_shape(tuple(sizes))
    if numbers is None:
        raise CompileError(f"{what} must be known")
    return numbers


@op("ReorderOutput", domain=DOMAIN)
def reorder_output(b: Builder, x: Tensor, *, channels: int, channels_last: int = 0) -> Tensor:
    n, _, h, w = x.shape
    kept = b.slice(x, [0] * 4, [n, channels, h, w], [1] * 4)
    return b.transpose(kept, [0, 2, 3, 1]) if channels_last else kept


@op("Conv", domain=DOMAIN)
def conv_in_blocks(
    b: Builder,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    z: Tensor | None = None,
    *,
    block: int,
    **how: Any,
) -> Tensor:
    return fused_conv(b, x, _turned_back(b, w, block), bias, z, **how)


def _turned_back(b: Builder, w: Tensor, block: int) -> Tensor:
    """Return weights in ONNX's order, [outputs, inputs, h, w].

    The file stores them as [outputs / block, inputs, h, w, block] if the inputs don't fill blocks. Otherwise
    it stores [outputs / block, inputs / block, h, w, block, block], with the block of inputs first."""
    outputs, inputs, *kernel = _known(w.shape, f"the sizes of {w}")
    if outputs % block:
        raise CompileError(f"weights of {outputs} outputs don't fill blocks of {block}")
    if inputs % block:
        stored = b.reshape(w, [outputs // block, inputs, *kernel, block])
        return b.reshape(b.transpose(stored, [0, 4, 1, 2, 3]), w.shape)
    stored = b.reshape(w, [outputs // block, inputs // block, *kernel, block, block])
    return b.reshape(b.transpose(stored, [0, 5, 1, 4, 2, 3]), w.shape)


@op("MaxPool", domain=DOMAIN)
def max_pool_in_blocks(b: Builder, x: Tensor, **how: Any) -> Tensor:
    return max_pool_(b, x, **how)[0]


@op("AveragePool", domain=DOMAIN)
def average_pool_in_blocks(b: Builder, x: Tensor, **how: Any) -> Tensor:
    return average_pool_(b, x, **how)


@op("GlobalMaxPool", domain=DOMAIN)
def global_max_pool_in_blocks(b: Builder, x: Tensor) -> Tensor:
    return global_max_pool(b, x)


@op("GlobalAveragePool", domain=DOMAIN)
def global_average_pool_in_blocks(b: Builder, x: Tensor) -> Tensor:
    return global_average_pool(b, x)


@op("Upsample", domain=DOMAIN)
def upsample_in_blocks(
    b: Builder,
    x: Tensor,
    *,
    scales: Sequence[int],
    mode: str = "nearest",
    coordinate_transformation_mode: str = "asymmetric",
) -> Tensor:
    """Upsample by integer factors. How positions are rounded makes no difference then."""
    style = Style(mode, COORDINATES[coordinate_transformation_mode], ROUNDING["floor"])
    return resize(b, x, scaled_lines(b, x, range(x.rank), [float(s) for s in scales]), style)
