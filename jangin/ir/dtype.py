"""Element types, named as in the compiler's text forms."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

_ALL: dict[str, DType] = {}
"""Every element type by name. Pickled types are looked up here."""


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type. Each exists once, and equals only itself.

    `kind` is f(loat), i(nt), u(nsigned), b(ool), c(omplex) or s(tring). `bytes` are those of one element in
    memory. A sub-byte type takes one byte."""

    name: str
    bits: int
    kind: str
    bytes: int = field(init=False, repr=False)
    is_float: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", max(1, self.bits // 8))
        object.__setattr__(self, "is_float", self.kind == "f")
        _ALL[self.name] = self

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return _same, (self.name,)

    @property
    def is_int(self) -> bool:
        return self.kind in "iu"

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest number of an integer type."""
        half = 1 << (self.bits - 1)
        return (-half, half - 1) if self.kind == "i" else (0, 2 * half - 1)

    def has_whole(self, number: float) -> bool:
        """Return whether the type represents a whole f32 number, and all whole numbers between it and 0."""
        if self.is_float:
            return self.bits >= 32
        low, high = self.limits
        return low <= number <= high

    @property
    def wide(self) -> DType:
        """The type in which values are computed: f32 for smaller floats, 8-bit integers for sub-byte
        integers, and the type itself for all others."""
        if self.bits >= 32:
            return self
        return F32 if self.is_float else _BYTES[self.kind] if self.bits < 8 else self

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy dtype of the type's arrays. Raises ModuleNotFoundError for a type that only ml_dtypes has
        if ml_dtypes isn't installed."""
        dtype = _NUMPY.get(self.name)
        return _from_ml_dtypes(self.name) if dtype is None else dtype


def _same(name: str) -> DType:
    return _ALL[name]


F64, F32, F16 = DType("f64", 64, "f"), DType("f32", 32, "f"), DType("f16", 16, "f")
BF16 = DType("bf16", 16, "f")
I64, I32, I16, I8 = (DType(f"i{n}", n, "i") for n in (64, 32, 16, 8))
U64, U32, U16, U8 = (DType(f"u{n}", n, "u") for n in (64, 32, 16, 8))
BOOL = DType("bool", 8, "b")
F8E4M3FN, F8E4M3FNUZ = DType("f8e4m3fn", 8, "f"), DType("f8e4m3fnuz", 8, "f")
F8E5M2, F8E5M2FNUZ = DType("f8e5m2", 8, "f"), DType("f8e5m2fnuz", 8, "f")
F8E8M0 = DType("f8e8m0", 8, "f")
F4E2M1 = DType("f4e2m1", 4, "f")
I4, U4, I2, U2 = DType("i4", 4, "i"), DType("u4", 4, "u"), DType("i2", 2, "i"), DType("u2", 2, "u")
"""Small types: one element a byte in memory, in the lowest bits."""
STRING = DType("string", 0, "s")
"""The type of text tensors: arrays of Python strings at run time, never in a plan."""
_BYTES = {"i": I8, "u": U8}

_NUMPY: dict[str, np.dtype[np.generic]] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "u64": np.dtype(np.uint64),
    "u32": np.dtype(np.uint32),
    "u16": np.dtype(np.uint16),
    "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}
"""NumPy's own dtypes, by the names of element types."""
_ML_DTYPES = {
    "bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn", "f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2": "float8_e5m2",
    "f8e5m2fnuz": "float8_e5m2fnuz", "f8e8m0": "float8_e8m0fnu", "f4e2m1": "float4_e2m1fn", "i4": "int4",
    "u4": "uint4", "i2": "int2", "u2": "uint2",
}  # fmt: skip
"""The names in ml_dtypes of the types that NumPy itself lacks."""
SMALL = (F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0, F4E2M1, I4, U4, I2, U2)
DTYPES: dict[str, DType] = {
    t.name: t for t in (F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, BOOL, *SMALL)
}
_FROM_NUMPY = {v: DTYPES[k] for k, v in _NUMPY.items()}
_FROM_ML_DTYPES = {theirs: DTYPES[ours] for ours, theirs in _ML_DTYPES.items()}


@cache
def _from_ml_dtypes(name: str) -> np.dtype[np.generic]:
    """Return the dtype of an element type that NumPy itself lacks.

    ml_dtypes is imported here, when a type needs it, because most compiled models run with NumPy alone."""
    try:
        import ml_dtypes
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"arrays of {name} need the package ml_dtypes, which isn't installed: pip install ml_dtypes",
            name=missing.name,
        ) from None
    dtype: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
    return dtype


def from_numpy(dtype: np.dtype[np.generic] | type) -> DType:
    """Return the DType of a NumPy dtype. Raises KeyError for a dtype without one, such as strings and complex
    numbers."""
    dtype = np.dtype(dtype)
    element_type = _FROM_NUMPY.get(dtype)
    if element_type is None and dtype.type.__module__ == "ml_dtypes":
        element_type = _FROM_ML_DTYPES.get(dtype.name)
    if element_type is None:
        raise KeyError(dtype)
    return element_type


def dtype_of(name: str) -> DType:
    """Return the element type of this name in text forms."""
    return DTYPES[name]
