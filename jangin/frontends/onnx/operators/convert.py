"""Conversion between element types: Cast, CastLike, BitCast."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes

from jangin.frontends.onnx.operators.strings import string_cast
from jangin.frontends.onnx.registry import op
from jangin.frontends.onnx.types import TEXT, element_type
from jangin.ir.dtype import BOOL, F8E8M0, F32, F64, U8, DType
from jangin.ir.expr import Expr, call, cast, const, lor, maximum, minimum, select
from jangin.ir.expr import binary as operation
from jangin.ir.graph import CompileError
from jangin.ops.builder import Builder, Tensor
from jangin.ops.nontensor import Item, NonTensor
from jangin.ops.operands import wide

ROUND_MODES = ("up", "down", "nearest")


def convert(x: Expr, dtype: DType, saturate: bool = True, round_mode: str = "up") -> Expr:
    """The value in another type, as the standard's Cast has it: as NumPy does it, but for 8-bit floats,
    where `saturate` keeps what is out of range at the ends (else it becomes infinity or NaN), and
    for f8e8m0, which `round_mode` concerns."""
    if dtype is F8E8M0 and x.dtype is not F8E8M0:
        return _power_of_two(cast(F32, x), saturate, round_mode)
    if dtype.is_float and dtype.bits == 8 and saturate and x.dtype != dtype:
        return cast(dtype, clamped(wide(x) if x.dtype.is_float else cast(F64, x), dtype))
    return cast(dtype, x)


def clamped(x: Expr, dtype: DType) -> Expr:
    """A float moved between the least and the largest number of a smaller float type."""
    info = ml_dtypes.finfo(dtype.numpy)
    return minimum(maximum(x, float(info.min)), float(info.max))


def _power_of_two(x: Expr, saturate: bool, round_mode: str) -> Expr:
    """|x|, of f32, as a power of two (Open Compute Project, Microscaling Formats 1.0)."""
    bits = call("bitcast_u32", call("abs", x))
    code, fraction = operation("shr", bits, 23), operation("and", bits, 0x7FFFFF)
    tie = 1 << 22
    nearest = select(code > 0, fraction >= tie, fraction > tie)
    above = {"up": fraction > 0, "nearest": nearest, "down": const(False, BOOL)}[round_mode]
    rounded = code + cast(code.dtype, above)
    if saturate:
        value = minimum(rounded, 254)
    else:
        value = select(lor(bits < tie, rounded > 254), const(255, code.dtype), rounded)
    return call("bitcast_f8e8m0", cast(U8, select(call("isnan", x), const(255, code.dtype), value)))


def _converted(b: Builder, x: Tensor, dtype: DType, saturate: int, round_mode: str) -> Tensor:
    if round_mode not in ROUND_MODES:
        raise CompileError(f"round_mode {round_mode!r} is none of {', '.join(ROUND_MODES)}")
    if dtype.is_float and dtype.bits == 8 and x.dtype != dtype:
        return b.map(lambda v: convert(v, dtype, bool(saturate), round_mode), x)
    return b.cast(x, dtype)


@op("Cast")
def cast_(b: Builder, x: Item, to: int | str | DType, saturate: int = 1, round_mode: str = "up") -> Item:
    code = _TYPE_NAMES[to] if isinstance(to, str) else to
    if isinstance(x, NonTensor) or code == TEXT:
        return string_cast(b, x, code)
    return _converted(b, x, element_type(code), saturate, round_mode)


_TYPE_NAMES: Mapping[str, int] = {
    "FLOAT": 1, "UINT8": 2, "INT8": 3, "UINT16": 4, "INT16": 5, "INT32": 6, "INT64": 7, "BOOL": 9,
    "FLOAT16": 10, "DOUBLE": 11, "UINT32": 12, "UINT64": 13,
}  # fmt: skip
"""Opset 1 of Cast names the type in words."""


@op("CastLike")
def cast_like(b: Builder, x: Tensor, target: Tensor, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return _converted(b, x, target.dtype, saturate, round_mode)


@op("BitCast")
def bit_cast(b: Builder, x: Tensor, to: int) -> Tensor:
    """The same bits read as another type of the same width."""
    dtype = element_type(to)
    if x.dtype.bits != dtype.bits:
        raise CompileError(
            f"{x.dtype} has {x.dtype.bits} bits, {dtype} has {dtype.bits}: they must have as many"
        )
    if BOOL in (x.dtype, dtype):
        return b.cast(x, dtype)
    return b.map(lambda v: call(f"bitcast_{dtype}", v), x)
