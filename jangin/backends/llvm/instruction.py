"""Instruction rows as LLVM IR text for a number of lanes."""

from __future__ import annotations

import re
from functools import cache

from jangin.backends.llvm.types import literal, scalar_type, vector_type
from jangin.ir.dtype import DTYPES, DType
from jangin.ir.records import dataclass
from jangin.targets.rows import Row

Lines = tuple[tuple[str, str], ...]
"""(name, instruction) of each line, with operands as `%(name)s`. The last line has no name."""


@dataclass(frozen=True)
class _Type:
    """The meaning of `{T}` in a row's text (see `Row`)."""

    dtype: DType
    lanes: int

    @property
    def one(self) -> str:
        return scalar_type(self.dtype)

    @property
    def bytes(self) -> int:
        return self.dtype.bytes

    def __format__(self, value: str) -> str:
        if not value:
            return vector_type(self.dtype, self.lanes)
        number = literal(float(value) if self.dtype.is_float else int(value, 0), self.dtype)
        return number if self.lanes == 1 else f"splat ({self.one} {number})"


@cache
def lines(row: Row, dtype: DType, lanes: int) -> Lines:
    """Return a row's instructions on `lanes` values of a type."""
    types: dict[str, object] = {name: _Type(t, lanes) for name, t in DTYPES.items()}
    for name in ("ptr", "half"):
        types[name] = name if lanes == 1 else f"<{lanes} x {name}>"
    types |= {"pairs": f"<{2 * lanes} x i16>", "quads": f"<{4 * lanes} x i8>"}
    types["bfloats"] = f"<{2 * lanes} x bfloat>"
    text = row.llvm.strip().format(T=_Type(dtype, lanes), **types)
    parts = [line.strip().rpartition(" = ") for line in text.splitlines()]
    return tuple((name[1:], re.sub(r"%(\w+)", r"%(\1)s", line)) for name, _, line in parts)
