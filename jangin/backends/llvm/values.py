"""Values of LLVM IR: their types, SSA names and constants."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from jangin.ir.dtype import BOOL, F32, DType

_TYPES = {"f64": "double", "f32": "float", "f16": "i16", "bf16": "i16", "bool": "i1"}


def scalar_type(dtype: DType) -> str:
    """The LLVM type of a value in a register: bool is i1, floats smaller than f32 are their bits."""
    return _TYPES.get(dtype.name) or f"i{8 * dtype.bytes}"


def vector_type(dtype: DType, lanes: int) -> str:
    return scalar_type(dtype) if lanes == 1 else f"<{lanes} x {scalar_type(dtype)}>"


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA name or a constant. With one lane it is the same for every lane of a vector loop."""

    ref: str
    dtype: DType
    lanes: int = 1

    @property
    def type(self) -> str:
        return vector_type(self.dtype, self.lanes)

    @property
    def is_const(self) -> bool:
        return not self.ref.startswith("%")

    @property
    def is_nan(self) -> bool:
        """Whether it is a constant NaN."""
        _, _, digits = self.ref.rstrip(")").partition("0x")
        return bool(digits) and int(digits, 16) & ~(1 << 63) > 0x7FF << 52

    def __str__(self) -> str:
        return f"{self.type} {self.ref}"


def literal(value: float | int | bool, dtype: DType) -> str:
    """A scalar constant as LLVM writes it."""
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype.wide is not dtype:
        return str(int(np.asarray(value, dtype.numpy).view(f"i{dtype.bytes}")))
    if dtype.is_float:
        with np.errstate(over="ignore"):
            rounded = float(np.float32(value)) if dtype is F32 else float(value)
        return f"0x{struct.unpack('>Q', struct.pack('>d', rounded))[0]:016X}"
    wrapped = int(value) & ((1 << dtype.bits) - 1)
    return str(wrapped - (1 << dtype.bits) if wrapped >> (dtype.bits - 1) else wrapped)


def constant(value: float | int | bool, dtype: DType) -> Value:
    return Value(literal(value, dtype), dtype)
