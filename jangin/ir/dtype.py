"""Element types, named as the compiler's text forms print them."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: `kind` is f(loat), i(nt), u(nsigned), b(ool), c(omplex) or s(tring)."""

    name: str
    bits: int
    kind: str

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def bytes(self) -> int:
        """Bytes one element takes in memory (sub-byte types take one)."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        return self.kind in "iu"

    @property
    def numpy(self) -> np.dtype[np.generic]:
        return _NUMPY[self.name]


F64, F32, F16 = DType("f64", 64, "f"), DType("f32", 32, "f"), DType("f16", 16, "f")
BF16 = DType("bf16", 16, "f")
I64, I32, I16, I8 = (DType(f"i{n}", n, "i") for n in (64, 32, 16, 8))
U64, U32, U16, U8 = (DType(f"u{n}", n, "u") for n in (64, 32, 16, 8))
BOOL = DType("bool", 8, "b")

_NUMPY: dict[str, np.dtype[np.generic]] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
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
DTYPES: dict[str, DType] = {
    t.name: t for t in (F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, BOOL)
}
_FROM_NUMPY = {v: DTYPES[k] for k, v in _NUMPY.items()}


def from_numpy(dtype: np.dtype[np.generic] | type) -> DType:
    """The DType of a NumPy dtype; KeyError where there is none (strings, complex, float8)."""
    return _FROM_NUMPY[np.dtype(dtype)]
