"""Rounds and clamps floats to small integers as i32, if the numbers are known to fit.

This saves one operation, because the narrowing instruction saturates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from jangin.ir.dtype import F32, I32
from jangin.ir.expr import Binary, Call, Cast, Const, Expr, Var, binary, cast, const
from jangin.ir.traversal import rewrite

BITS = 8, 16
"""Bits of the integer types that are clamped to."""
MOST = 1 << 30
"""A bound on the magnitude of rounded numbers. An i32 then has room for a zero point on top."""


def in_integers(body: Expr, reach: Mapping[str, float]) -> Expr:
    """Return a map's body with roundings and clamps moved to i32. `reach` bounds each operand's magnitude, by
    its variable."""

    def changed(e: Expr) -> Expr | None:
        small = isinstance(e, Cast) and e.dtype.is_int and e.dtype.bits in BITS and e.a.dtype is F32
        whole = _whole(e.a, reach) if small and isinstance(e, Cast) else None
        return None if whole is None or not isinstance(e, Cast) else cast(e.dtype, whole)

    return rewrite(body, changed)


def _whole(e: Expr, reach: Mapping[str, float]) -> Expr | None:
    """Return a rounded float, perhaps with constants added and clamped, as i32. Return None for other
    expressions, and if the number may not fit."""
    if isinstance(e, Call) and e.fn == "round":
        return cast(I32, e) if _reach(e.args[0], reach) < MOST else None
    if not isinstance(e, Binary) or e.op not in ("min", "max", "add", "sub"):
        return None
    known = e.b.value if isinstance(e.b, Const) and abs(e.b.value) <= 1 << 16 else 0.5
    inner = _whole(e.a, reach) if float(known).is_integer() else None
    return None if inner is None else binary(e.op, inner, const(int(known), I32))


def _reach(e: Expr, reach: Mapping[str, float]) -> float:
    """Return a bound on an expression's absolute value, up to rounding. It is infinite if none is known."""
    match e:
        case Const(value=value):
            return abs(float(value))
        case Var(name=name):
            return reach.get(name, math.inf)
        case Cast(a=a):
            known = float(max(map(abs, a.dtype.limits))) if a.dtype.is_int else math.inf
            return min(known, _reach(a, reach))
        case Call(fn="round", args=(a,)):
            return _reach(a, reach) + 1
        case Binary(op="add" | "sub", a=a, b=b):
            return _reach(a, reach) + _reach(b, reach)
        case Binary(op="mul", a=a, b=b):
            first, second = _reach(a, reach), _reach(b, reach)
            return first * second if first and second else 0.0
        case Binary(op="div", a=a, b=Const(value=value)) if value:
            return _reach(a, reach) / abs(float(value))
        case Binary(op="min", a=Binary(op="max", a=a, b=Const(value=low)), b=Const(value=high)):
            return min(_reach(a, reach), max(abs(float(low)), abs(float(high))))
    return math.inf
