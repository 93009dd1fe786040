"""ONNX products of quantized tensors: exact integer sums, then one rescaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jangin.frontends.onnx.operators.conv import Convolution
from jangin.frontends.onnx.registry import op
from jangin.ir.dtype import F32, I32, DType
from jangin.ir.expr import Expr, call, cast, maximum, minimum
from jangin.ir.te import identity
from jangin.ops.builder import Builder, Tensor
from jangin.ops.conv import add_bias, channelwise
from jangin.ops.linear import matmul


def centred(b: Builder, x: Tensor, zero: Tensor | None) -> Tensor:
    """x - zero in i32, where the zero point is not 0."""
    value = b.constant_value(zero)
    if zero is None or (value is not None and not value.any()):
        return x
    return b.map(lambda v, z: cast(I32, v) - cast(I32, z), x, zero)


def per_row(b: Builder, v: Tensor | None) -> Tensor | None:
    """A vector with an entry for each row of a matrix, as a column; anything else is kept."""
    return b.reshape(v, [*v.shape, 1]) if v is not None and v.rank == 1 else v


def per_filter(b: Builder, v: Tensor | None, w: Tensor) -> Tensor | None:
    """A vector over output channels shaped as the weights [M, C, ...]."""
    return b.reshape(v, [*v.shape, *([1] * (w.rank - 1))]) if v is not None and v.rank == 1 else v


def saturated(e: Expr, dtype: DType) -> Expr:
    """A float rounded half to even, clamped to an integer type's range and cast to it."""
    low, high = identity("max", dtype).value, identity("min", dtype).value
    return cast(dtype, minimum(maximum(call("round", e), float(low)), float(high)))


def requantized(
    b: Builder, acc: Tensor, x_scale: Tensor, w_scale: Tensor, y_scale: Tensor, y_zero: Tensor
) -> Tensor:
    """acc * x_scale * w_scale / y_scale, rounded, + y_zero, saturated to y_zero's type."""

    def body(v: Expr, xs: Expr, ws: Expr, ys: Expr, z: Expr) -> Expr:
        scale = cast(F32, xs) * cast(F32, ws) / cast(F32, ys)
        return saturated(call("round", cast(F32, v) * scale) + cast(F32, z), y_zero.dtype)

    return b.map(body, acc, x_scale, w_scale, y_scale, y_zero)


EXACT = 1 << 24
"""f32 has every whole number up to this: sums that stay below are exact in it, in any order."""


def accumulator(b: Builder, x: Tensor, right: Tensor, axes: tuple[int, ...]) -> DType:
    """The type for sums along `axes` of products of x, less a zero point, and `right`: f32, whose
    instructions are quicker, where it is exact, else i32."""
    known = b.constant_value(right)
    if known is None or x.dtype.bits > 8:
        return I32
    most = 255 * np.abs(known.astype(np.int64)).sum(axes).max(initial=0)
    return F32 if most < EXACT else I32


def _convolved(
    b: Builder, x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None, window: Mapping[str, Any]
) -> Tensor:
    """Exact sums, in i32 or f32. Padding counts as x's zero point, so it is 0 after centring."""
    left, right = centred(b, x, x_zero), centred(b, w, per_filter(b, w_zero, w))
    dtype = accumulator(b, x, right, tuple(range(1, w.rank)))
    return Convolution(**window).of(b, b.cast(left, dtype), b.cast(right, dtype), dtype)


@op("ConvInteger", since=10)
def conv_integer(
    b: Builder,
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    **window: Any,
) -> Tensor:
    return b.cast(_convolved(b, x, w, x_zero, w_zero, window), I32)


@op("QLinearConv", since=10)
def qlinear_conv(
    b: Builder, x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor, w_zero: Tensor,
    y_scale: Tensor, y_zero: Tensor, bias: Tensor | None = None, **window: Any,
) -> Tensor:  # fmt: skip
    acc = _convolved(b, x, w, x_zero, w_zero, window)
    if bias is not None:
        acc = add_bias(b, b.cast(acc, I32), bias)
    return requantized(b, acc, x_scale, channelwise(b, w_scale, x.rank), y_scale, y_zero)


def _multiplied(b: Builder, x: Tensor, y: Tensor, x_zero: Tensor | None, y_zero: Tensor | None) -> Tensor:
    """Exact sums, in i32 or f32."""
    left, right = centred(b, x, per_row(b, x_zero)), centred(b, y, y_zero)
    dtype = accumulator(b, x, right, (max(0, y.rank - 2),))
    return matmul(b, b.cast(left, dtype), b.cast(right, dtype), dtype=dtype)


@op("MatMulInteger", since=10)
def matmul_integer(
    b: Builder, x: Tensor, y: Tensor, x_zero: Tensor | None = None, y_zero: Tensor | None = None
) -> Tensor:
    return b.cast(_multiplied(b, x, y, x_zero, y_zero), I32)


@op("QLinearMatMul", since=10)
def qlinear_matmul(
    b: Builder, x: Tensor, x_scale: Tensor, x_zero: Tensor, y: Tensor, y_scale: Tensor, y_zero: Tensor,
    out_scale: Tensor, out_zero: Tensor,
) -> Tensor:  # fmt: skip
    acc = _multiplied(b, x, y, x_zero, y_zero)
    rows = per_row(b, x_scale)
    return requantized(b, acc, x_scale if rows is None else rows, y_scale, out_scale, out_zero)
