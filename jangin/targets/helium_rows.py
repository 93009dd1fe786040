"""The instruction rows of Helium, the vectors of Arm's microcontrollers (MVE), as C intrinsics.

LLVM compiles none of them, because microcontrollers get C alone. Loads widen bytes and stores narrow them to
bytes, so that a vector register has as many elements as sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jangin.ir.dtype import F32, I8, I16, I32, U8, U16, U32, DType
from jangin.targets.rows import NEAREST, PORTABLE, Row

SUMS = 5
"""Registers for sums across lanes. They lie in every second general register, of which the compiler keeps
some for addresses."""


def _kind(dtype: DType) -> str:
    """Return the letter and the bits of a type in the names of intrinsics."""
    return f"{'u' if dtype.kind == 'u' else 's'}{dtype.bits}"


def _vector(dtype: DType, v: str) -> str:
    """Return a value as the vector type of the intrinsics."""
    return f"({'u' if dtype.kind == 'u' else ''}int{dtype.bits}x{128 // dtype.bits}_t){v}"


def _across(dtype: DType) -> Row:
    """Return the row of `products_across`, which adds the products of all lanes to one number (VMLADAVA)."""
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
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


def _compared(dtype: DType) -> Iterator[Row]:
    """Yield the comparisons, whose results are masks of whole elements. Helium's `lt` and `le` hold for NaN,
    and numbers without sign have neither."""
    kind = "f32" if dtype.is_float else _kind(dtype)
    for op, sign in _COMPARISONS.items():
        turned = {"lt": "gt", "le": "ge"}.get(op, op)
        name = {"gt": "hi", "ge": "cs"}.get(turned, turned) if dtype is U32 else turned
        both = ", ".join(_lanes(dtype, v) for v in ("xy" if op == turned else "yx"))
        yield Row(
            f"compare_{op}", (dtype,), "x: T[N], y: T[N]", "bool", f"r[i] = x[i] {sign} y[i]",
            c=f"({{i32}})vpselq_s32(vdupq_n_s32(-1), vdupq_n_s32(0), vcmp{name}q_{kind}({both}))", lanes=4,
        )  # fmt: skip


def _lanes(dtype: DType, v: str) -> str:
    return f"(float32x4_t){v}" if dtype is F32 else _vector(dtype, v)


_X, _Y = _lanes(F32, "x"), _lanes(F32, "y")
_FLOATS = {
    "min_number": f"vpselq_f32({_X}, {_Y}, vcmpgtq_f32({_Y}, {_X}))",
    "max_number": f"vpselq_f32({_X}, {_Y}, vcmpgtq_f32({_X}, {_Y}))",
    "min": f"vpselq_f32({_X}, {_Y}, vcmpneq_f32({_X}, {_X}) | vcmpgtq_f32({_Y}, {_X}))",
    "max": f"vpselq_f32({_X}, {_Y}, vcmpneq_f32({_X}, {_X}) | vcmpgtq_f32({_X}, {_Y}))",
    "floor": f"vrndmq_f32({_X})",
    "ceil": f"vrndpq_f32({_X})",
    "trunc": f"vrndq_f32({_X})",
    "round": f"vrndnq_f32({_X})",
}
_WHOLE = {
    "to_i32": f"vpselq_s32(vcvtq_s32_f32({_X}), vdupq_n_s32(INT32_MIN), "
    f"vcmpgtq_f32(vdupq_n_f32(0x1p31f), vabsq_f32({_X})))",
    "to_i32_held": f"vcvtq_s32_f32({_X})",
}


def _of_floats() -> Iterator[Row]:
    """Yield the portable rows of floats by Helium's instructions. GCC would convert and compare lane by lane,
    and it compiles joined comparisons wrongly."""
    for row in PORTABLE:
        text = f"({{T}}){_FLOATS[row.name]}" if row.name in _FLOATS else ""
        text = text or (f"({{i32}}){_WHOLE[row.name]}" if row.name in _WHOLE else "")
        if text and F32 in row.dtypes:
            yield replace(row, dtypes=(F32,), c=text, lanes=4)
    yield replace(NEAREST, llvm="", becomes="", c=f"({{i32}})vcvtnq_s32_f32({_X})", lanes=4)
    for dtype in (I32, U32):
        yield Row(
            "to_f32", (dtype,), "x: T[N]", "f32", "r[i] = f32(x[i])", lanes=4,
            c=f"(f32x4)vcvtq_f32_{_kind(dtype)}({_vector(dtype, 'x')})",
        )  # fmt: skip


HELIUM: tuple[Row, ...] = (
    *map(_across, (I8, I16, I32)),
    *(row for t in (I8, U8) for wide in (I32, I16) for row in _widening(t, wide)),
    *(row for t in (I16, U16) for row in _widening(t, I32)),
    *(row for t in (I8, U8, I16, U16, I32, U32) for row in _extremes(t)),
    _UPPER,
    _FMA,
    *(row for t in (F32, I32, U32) for row in _compared(t)),
    *_of_floats(),
)
