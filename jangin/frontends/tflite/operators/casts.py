"""Lower conversions of types: casts, and floats to and from quantized integers."""

from __future__ import annotations

from jangin.frontends.registry import lowers
from jangin.frontends.tflite.operators.common import (
    Call,
    Factors,
    real,
    requantized,
)
from jangin.ir.dtype import BOOL, F32, F64, I32, DType
from jangin.ir.expr import Expr, cast, const, lor, maximum, minimum, ne, select
from jangin.ir.expr import call as intrinsic
from jangin.ir.graph import CompileError
from jangin.ops.levels import rounded
from jangin.ops.values import Tensor


@lowers("CAST")
def cast_(call: Call) -> Tensor:
    dtype = call.out.dtype
    assert dtype is not None
    if dtype is BOOL:
        return call.b.map(lambda v: ne(v, const(0, v.dtype)), call.x())
    if call.x().dtype.is_float and dtype.is_int:
        return call.b.map(lambda v: _saturated(v, dtype), call.x())
    return call.b.cast(call.x(), dtype)


def _saturated(v: Expr, dtype: DType) -> Expr:
    """Return a float as an integer, truncated towards 0 and clamped to the type's limits. NaN becomes the
    largest integer."""
    low, high = dtype.limits
    beyond, least = const(float(high + 1), F64), const(float(low), F64)
    real = cast(F64, v)
    below, above = real < least, intrinsic("not", real < beyond)
    inside = select(lor(below, above), const(0.0, F64), real)
    number = select(above, const(high, dtype), cast(dtype, inside))
    return select(below, const(low, dtype), number)


@lowers("QUANTIZE")
def quantize(call: Call) -> Tensor:
    """Return floats quantized: x / scale, with halves rounded away from zero, plus the zero point. Quantized
    integers are rescaled."""
    out, b = call.out, call.b
    dtype = out.dtype
    assert dtype is not None
    low, high = out.limits
    if call.given[0].dtype is I32 and call.given[0].scales is None:
        raise CompileError("integers without a scale can't be quantized again")
    if call.x().dtype.is_float:
        scale = const(out.scale, F32)

        def body(v: Expr) -> Expr:
            whole = rounded(cast(F32, v) / scale)
            inside = minimum(maximum(whole + float(out.zero), float(low)), float(high))
            return cast(dtype, inside)

        return b.map(body, call.x())
    zero = call.given[0].zero
    centred = b.map(lambda v: cast(I32, v) - zero, call.x())
    return requantized(call, centred, Factors.of(b, [call.given[0].scale / out.scale]), 0)


@lowers("DEQUANTIZE")
def dequantize(call: Call) -> Tensor:
    return real(call)


@lowers("FAKE_QUANT")
def fake_quant(call: Call) -> Tensor:
    """Return x rounded to the values that integers of `num_bits` bits can represent between `min` and
    `max`."""
    o = call.options
    steps = (1 << o["num_bits"]) - 1 - int(o.get("narrow_range", False))
    scale = (o["max"] - o["min"]) / steps
    origin = round(-o["min"] / scale)
    low, high = float((0 - origin) * scale), float((steps - origin) * scale)

    def body(v: Expr) -> Expr:
        inside = minimum(maximum(v, const(low, F32)), const(high, F32))
        return intrinsic("floor", (inside - low) * float(1 / scale) + 0.5) * float(scale) + low

    return call.b.map(body, call.x())
