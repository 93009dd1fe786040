"""The order of elements: as NumPy's and ONNX's reference sort, NaN after all others, and -0 the same as 0.

Floats don't have it, as a NaN is neither less nor greater than anything. Integers have: `key` gives those of
a float, so that what sorts, searches or finds equals compares keys.
"""

from __future__ import annotations

from jangin.ir.dtype import F64, I32, I64, DType
from jangin.ir.expr import Expr, call, const, eq, lor, select
from jangin.ops.builder import Builder
from jangin.ops.operands import wide
from jangin.ops.values import Tensor


def key_type(dtype: DType) -> DType:
    """The type of the keys of elements."""
    return dtype if not dtype.is_float else I64 if dtype is F64 else I32


def key(v: Expr) -> Expr:
    """An integer in the place of an element: a float's bits, as a negative number for those with a sign."""
    if not v.dtype.is_float:
        return v
    v, whole = wide(v), key_type(v.dtype)
    nan = const(whole.limits[1], whole)
    return select(call("isnan", v), nan, _turned(call(f"bitcast_{whole}", v)))


def element(key: Expr, dtype: DType) -> Expr:
    """What has a key, in the type that elements are computed in."""
    return call(f"bitcast_{dtype.wide}", _turned(key)) if dtype.is_float else key


def _turned(bits: Expr) -> Expr:
    """A sign and a size as a number in two's complement, which has one 0, and back."""
    return select(bits < 0, const(bits.dtype.limits[0], bits.dtype) - bits, bits)


def is_extreme(v: Expr, extreme: Expr) -> Expr:
    """Whether an element is the largest, or the smallest, of those it is among: NaN where there is one."""
    same = eq(v, extreme)
    return lor(same, call("isnan", v)) if v.dtype.is_float else same


def keys(b: Builder, x: Tensor) -> Tensor:
    return b.map(key, x) if x.dtype.is_float else x
