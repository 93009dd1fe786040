"""Types and constants in LLVM IR."""

from __future__ import annotations

import struct
from functools import cache

import numpy as np

from jangin.ir.dtype import BOOL, DType
from jangin.ir.expr import Scalar

_TYPES = {"f64": "double", "f32": "float", "f16": "i16", "bf16": "i16", "bool": "i1"}


def scalar_type(dtype: DType) -> str:
    """Return the LLVM type of a value in a register. bool is i1, and floats smaller than f32 are their
    bits."""
    return _TYPES.get(dtype.name) or f"i{8 * dtype.bytes}"


@cache
def vector_type(dtype: DType, lanes: int) -> str:
    return scalar_type(dtype) if lanes == 1 else f"<{lanes} x {scalar_type(dtype)}>"


def half_type(lanes: int) -> str:
    """Return LLVM's own type of `lanes` f16."""
    return "half" if lanes == 1 else f"<{lanes} x half>"


def literal(value: Scalar, dtype: DType) -> str:
    """Return a scalar constant, rounded to its type, as LLVM writes it."""
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype.wide is not dtype:
        return str(int(np.asarray(value, dtype.numpy).view(f"i{dtype.bytes}")))
    if dtype.is_float:
        return f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:016X}"
    number = int(value)
    return str(number - (1 << dtype.bits) if number >> (dtype.bits - 1) > 0 else number)
