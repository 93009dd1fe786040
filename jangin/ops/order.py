"""A total order of elements, as in NumPy's and ONNX's reference sort: NaN comes last, and -0 equals 0.

Floats alone have no total order, because NaN compares with nothing. `key` maps floats to integers, so
sorting, searching and equality compare keys.
"""

from __future__ import annotations

from jangin.ir.dtype import F64, I32, I64, DType
from jangin.ir.expr import Expr, call, const, eq, lor, select
from jangin.ops.builder import Builder
from jangin.ops.operands import wide
from jangin.ops.values import Tensor


def key_type(dtype: DType) -> DType:
    """Return the type of the keys of elements of `dtype`."""
    return dtype if not dtype.is_float else I64 if dtype is F64 else I32


def key(v: Expr) -> Expr:
    """Return an integer that orders like the element: a float's bits, negated if its sign is set."""
    if not v.dtype.is_float:
        return v
    v, whole = wide(v), key_type(v.dtype)
    nan = const(whole.limits[1], whole)
    return select(call("isnan", v), nan, _turned(call(f"bitcast_{whole}", v)))


def element(key: Expr, dtype: DType) -> Expr:
    """Return the element of a key, in the type in which elements are computed."""
    return call(f"bitcast_{dtype.wide}", _turned(key)) if dtype.is_float else key


def _turned(bits: Expr) -> Expr:
    """Convert sign and magnitude to two's complement, which has a single 0, or back."""
    return select(bits < 0, const(bits.dtype.limits[0], bits.dtype) - bits, bits)


def is_extreme(v: Expr, extreme: Expr) -> Expr:
    """Return whether an element equals the row's extreme. NaN counts as the extreme."""
    same = eq(v, extreme)
    return lor(same, call("isnan", v)) if v.dtype.is_float else same


def keys(b: Builder, x: Tensor) -> Tensor:
    return b.map(key, x) if x.dtype.is_float else x
