"""Linear quantization: per tensor, per axis, or by blocks."""

from __future__ import annotations

from jangin.frontends.onnx.operators.convert import convert
from jangin.frontends.onnx.registry import op
from jangin.frontends.onnx.types import element_type
from jangin.ir.dtype import (
    F4E2M1,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F32,
    F64,
    I2,
    I4,
    I8,
    I16,
    U2,
    U4,
    U8,
    U16,
    DType,
)
from jangin.ir.expr import Expr, call, cast, const, eq, maximum, minimum, select
from jangin.ir.graph import CompileError
from jangin.ir.te import identity
from jangin.ops.axes import axis_of
from jangin.ops.builder import Builder, Tensor
from jangin.ops.operands import wide

_INTEGERS = (I8, U8, I16, U16, I4, U4, I2, U2)
_FLOATS = (F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F4E2M1)


def spread(b: Builder, t: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """A scale or zero point, shaped to broadcast against `x`: one for all, one for each index of
    `axis`, or one for each block along it."""
    if t.rank == 0 or (t.rank == 1 and t.shape[0] == const(1)):
        return b.reshape(t, ())
    axis = axis_of(axis, x.rank)
    if t.rank == 1:
        if t.shape[0] != x.shape[axis] and x.rank == 1 and not block_size:
            raise CompileError(f"{t} can't be spread along axis {axis} of {x}")
        if not block_size:
            return b.reshape(t, [t.shape[0] if i == axis else 1 for i in range(x.rank)])
    if not block_size or t.rank != x.rank:
        raise CompileError(f"{t} fits {x} neither whole, nor by axis {axis}, nor by blocks of {block_size}")
    shape = [*t.shape[:axis], x.shape[axis], *t.shape[axis + 1 :]]
    return b.compute(
        t.dtype,
        shape,
        [t],
        lambda bufs, *index: bufs[0][(*index[:axis], index[axis] // block_size, *index[axis + 1 :])],
    )


def whole(x: Expr, dtype: DType) -> Expr:
    """A float, already whole, as an integer of `dtype`, at its ends where it lies outside."""
    low, high = (const(identity(c, dtype).value, x.dtype) for c in ("max", "min"))
    return cast(dtype, minimum(maximum(x, low), high))


def _quantized(dtype: DType) -> DType:
    if dtype not in (*_INTEGERS, *_FLOATS):
        known = ", ".join(map(str, (*_INTEGERS, *_FLOATS)))
        raise CompileError(f"quantizing to {dtype} isn't supported; these are: {known}")
    return dtype


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
    """saturate(round(x / scale) + zero), rounding half to even. The attribute `saturate` concerns
    8-bit floats only; `precision` is the type of the division. Floats round once, at the end."""
    wanted = zero.dtype if zero is not None else element_type(output_dtype) if output_dtype else U8
    dtype = _quantized(wanted)
    divided = element_type(precision) if precision else scale.dtype
    work = F64 if divided is F64 else F32
    steps = spread(b, scale, x, axis, block_size)
    zeros = [spread(b, zero, x, axis, block_size)] if zero is not None else []

    def body(v: Expr, s: Expr, *z: Expr) -> Expr:
        ratio = cast(work, v) / cast(work, s)
        if divided.bits == 16:
            ratio = cast(work, cast(divided, ratio))
        if dtype.is_float:
            return convert(_offset(ratio, z), dtype, bool(saturate))
        return _shifted(call("round", ratio), z, dtype)

    return b.map(body, x, steps, *zeros)


def _offset(v: Expr, zeros: tuple[Expr, ...]) -> Expr:
    for z in zeros:
        v = v + cast(v.dtype, z)
    return v


def _shifted(v: Expr, zeros: tuple[Expr, ...], dtype: DType) -> Expr:
    return whole(_offset(v, zeros), dtype)


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
    """(x - zero) * scale, in the scale's type unless `output_dtype` says otherwise."""
    dtype = element_type(output_dtype) if output_dtype else scale.dtype
    steps = spread(b, scale, x, axis, block_size)
    zeros = [spread(b, zero, x, axis, block_size)] if zero is not None else []

    def body(v: Expr, s: Expr, *z: Expr) -> Expr:
        step = wide(s)
        v = cast(step.dtype, v)
        for offset in z:
            v = v - cast(step.dtype, offset)
        return cast(dtype, v * step)

    return b.map(body, x, steps, *zeros)


@op("DynamicQuantizeLinear")
def dynamic_quantize_linear(b: Builder, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """u8 with scale and zero point from the data's range, widened to hold 0."""
    axes = range(x.rank)
    low, high = b.reduce("min", x, axes), b.reduce("max", x, axes)

    def step(bottom: Expr, top: Expr) -> Expr:
        size = maximum(top, 0) - minimum(bottom, 0)
        return select(eq(size, 0), const(1, F32), size / 255)

    scale = b.map(step, low, high)
    zero = b.map(lambda bottom, s: whole(call("round", -minimum(bottom, 0) / s), U8), low, scale)
    y = b.map(lambda v, s, z: _shifted(call("round", v / s), (z,), U8), x, scale, zero)
    return y, scale, zero
