"""Lower ONNX's quantization operators, and its products of quantized tensors."""

from __future__ import annotations

from typing import Any

from jangin.frontends.onnx.operators.conv import Convolution
from jangin.frontends.onnx.operators.families import family
from jangin.frontends.onnx.registry import op
from jangin.frontends.onnx.types import element_type
from jangin.ir.dtype import F32, U8
from jangin.ir.expr import Expr, cast
from jangin.ops.axes import per_channel
from jangin.ops.builder import Builder
from jangin.ops.conv import add_bias
from jangin.ops.quantized import (
    checked_scale,
    dequantize,
    dynamic_quantize,
    integer_conv,
    integer_matmul,
    leading,
    quantize,
    requantize,
)
from jangin.ops.values import Tensor


@op("QuantizeLinear")
@op("QuantizeLinear", domain="com.microsoft")
def quantize_linear(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Tensor:
    """Return x quantized. `precision` is the type in which x is divided by the scale. `saturate` only affects
    8-bit floats."""
    wanted = zero.dtype if zero is not None else element_type(output_dtype) if output_dtype else U8
    divided = element_type(precision) if precision else None
    return quantize(
        b, x, scale, zero, dtype=wanted, axis=axis, block=block_size, divided=divided, saturate=bool(saturate)
    )


@op("DequantizeLinear")
@op("DequantizeLinear", domain="com.microsoft")
def dequantize_linear(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    dtype = element_type(output_dtype) if output_dtype else None
    return dequantize(b, x, scale, zero, dtype=dtype, axis=axis, block=block_size)


DYNAMIC = family({"DynamicQuantizeLinear": dynamic_quantize})


def _rescaled(
    b: Builder, sums: Tensor, x_scale: Tensor, w_scale: Tensor, y_scale: Tensor, y_zero: Tensor
) -> Tensor:
    """Return exact sums of products of quantized numbers, rescaled to the result's quantization. Raises
    CompileError for scales that aren't allowed."""
    for scale in (x_scale, w_scale):
        checked_scale(b, scale)
    checked_scale(b, y_scale, divides=True)

    def factor(x: Expr, w: Expr, y: Expr) -> Expr:
        return cast(F32, x) * cast(F32, w) / cast(F32, y)

    return requantize(b, sums, b.map(factor, x_scale, w_scale, y_scale), y_zero)


@op("ConvInteger", since=10)
def conv_integer(
    b: Builder,
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    **window: Any,
) -> Tensor:
    return integer_conv(b, x, w, x_zero, w_zero, **Convolution(**window).arguments(b, x, w))


@op("QLinearConv", since=10)
def qlinear_conv(
    b: Builder, x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor, w_zero: Tensor,
    y_scale: Tensor, y_zero: Tensor, bias: Tensor | None = None, **window: Any,
) -> Tensor:  # fmt: skip
    sums = integer_conv(b, x, w, x_zero, w_zero, **Convolution(**window).arguments(b, x, w))
    if bias is not None:
        sums = add_bias(b, sums, bias)
    return _rescaled(b, sums, x_scale, per_channel(b, w_scale, x.rank), y_scale, y_zero)


@op("MatMulInteger", since=10)
def matmul_integer(
    b: Builder, x: Tensor, y: Tensor, x_zero: Tensor | None = None, y_zero: Tensor | None = None
) -> Tensor:
    return integer_matmul(b, x, y, x_zero, y_zero)


@op("QLinearMatMul", since=10)
def qlinear_matmul(
    b: Builder, x: Tensor, x_scale: Tensor, x_zero: Tensor, y: Tensor, y_scale: Tensor, y_zero: Tensor,
    out_scale: Tensor, out_zero: Tensor,
) -> Tensor:  # fmt: skip
    sums = integer_matmul(b, x, y, x_zero, y_zero)
    return _rescaled(b, sums, leading(b, x_scale, 2), y_scale, out_scale, out_zero)
