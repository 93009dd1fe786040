"""The instruction rows of Helium, the vectors of Arm's microcontrollers (MVE), as C intrinsics.

LLVM compiles none of them, because microcontrollers get C alone. Loads widen bytes and stores narrow them to
bytes, so that a vector register has as many elements as sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jangin.ir.dtype import F32, I8, I16, I32, U8, U16, U32, DType
from jangin.targets.rows import PORTABLE, Row

SUMS = 5
"""Registers for sums across lanes. They lie in every second general register."""


def _kind(dtype: DType) -> str:
    """Return the letter and the bits of a type in the names of intrinsics."""
    return f"{'u' if dtype.kind == 'u' else 's'}{dtype.bits}"


def _vector(dtype: DType, v: str) -> str:
    """Return a value as the vector type of the intrinsics."""
    return f"({'u' if dtype.kind == 'u' else ''}int{dtype.bits}x{128 // dtype.bits}_t){v}"


def _across(dtype: DType) -> Row:
    """`products_across`: the sum of all lanes' products, added to one number (VMLADAVA)."""
    x, y = (_vector(dtype, v) for v in "xy")
    return Row(
        "products_across", (dtype,), "x: T[N], y: T[N], z: i32[1]", "i32[1]",
        "r[0] = z[0] serial i in N { r[0] = r[0] + i32(x[i]) * i32(y[i]) }",
        c=f"vmladavaq_{_kind(dtype)}(z, {x}, {y})", lanes=128 // dtype.bits, registers=SUMS,
    )  # fmt: skip


def _widening(dtype: DType, wide: DType) -> Iterator[Row]:
    """Yield the load that widens small integers, and the store that keeps the lowest bits of wide ones."""
    lanes, size = 128 // wide.bits, "b" if dtype.bits == 8 else "h"
    kind = f"{'u' if dtype.kind == 'u' else 's'}{wide.bits}"
    yield Row(
        f"load_{wide}", (dtype,), "memory: T[N]", wide.name, f"r[i] = {wide}(memory[i])",
        c=f"({{{wide}}})vldr{size}q_{kind}(memory)", lanes=lanes,
    )  # fmt: skip
    unsigned = "u" if dtype.kind == "u" else ""
    yield Row(
        f"store_{wide}", (dtype,), f"x: {wide}[N], memory: out T[N]", "", "memory[i] = T(x[i])",
        c=f"vstr{size}q_{kind}(memory, ({unsigned}int{wide.bits}x{lanes}_t)x)", lanes=lanes,
    )  # fmt: skip


def _extremes(dtype: DType) -> Iterator[Row]:
    for name in ("min", "max"):
        x, y = (_vector(dtype, v) for v in "xy")
        yield Row(
            name, (dtype,), "x: T[N], y: T[N]", "T", f"r[i] = {name}(x[i], y[i])",
            c=f"({{T}})v{name}q_{_kind(dtype)}({x}, {y})", lanes=128 // dtype.bits,
        )  # fmt: skip


_UPPER = Row(
    "upper", (I32,), "x: T[N], y: T[N]", "T", "r[i] = i32((i64(x[i]) * i64(y[i])) >> i64(30))",
    c="({T})vsliq_n_s32((int32x4_t)vshrq_n_u32((uint32x4_t)(x * y), 30), "
    "vmulhq_s32((int32x4_t)x, (int32x4_t)y), 2)",
    lanes=4,
)  # fmt: skip
"""The upper half of a product, shifted left, with the two highest bits of its lower half put below."""
_FMA = Row(
    "fma", (F32,), "x: T[N], y: T[N], z: T[N]", "T", "r[i] = fma(x[i], y[i], z[i])",
    c="({T})vfmaq_f32((float32x4_t)z, (float32x4_t)x, (float32x4_t)y)", lanes=4,
)  # fmt: skip
_BY_LANE = ("min", "max", "min_number", "max_number", "to_i32", "to_i64")
"""Portable rows that compare floats. GCC 12 keeps one lane alone of such a comparison."""

HELIUM: tuple[Row, ...] = (
    *map(_across, (I8, I16, I32)),
    *(row for t in (I8, U8) for wide in (I32, I16) for row in _widening(t, wide)),
    *(row for t in (I16, U16) for row in _widening(t, I32)),
    *(row for t in (I8, U8, I16, U16, I32, U32) for row in _extremes(t)),
    _UPPER,
    _FMA,
    *(replace(row, dtypes=(F32,), c="") for row in PORTABLE if row.name in _BY_LANE),
)
