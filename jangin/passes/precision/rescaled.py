"""Replaces scaling, dividing and rounding of few whole numbers, as between two quantizations, by one factor.

The factor is used only if it gives the same result for every number; all are tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import add, sub

import numpy as np

from jangin.ir.dtype import F32
from jangin.ir.expr import Binary, Call, Cast, Const, Expr, call, const
from jangin.ir.graph import Array
from jangin.ir.traversal import rewrite

MOST = 1 << 16
"""Most values for which a factor is tried. All values of 16 bits are as many; each try computes all of
them."""


def by_factors(body: Expr) -> Expr:
    """Return a map's body with each scaling and division of whole numbers before a rounding replaced by one
    factor, if there is one. A division takes as long as a dozen products."""
    return rewrite(body, _by_factor)


def _by_factor(e: Expr) -> Expr | None:
    """Return round(whole * factor) for round(whole * s / t) and the like, or None if there is no factor with
    the same results."""
    if not isinstance(e, Call) or e.fn != "round" or e.dtype is not F32:
        return None
    whole, steps = e.args[0], list[tuple[str, float]]()
    while isinstance(whole, Binary) and whole.op in ("mul", "div") and isinstance(whole.b, Const):
        steps.insert(0, (whole.op, float(whole.b.value)))
        whole = whole.a
    low, high = _numbers(whole) or (-math.inf, math.inf)
    if not steps or steps[-1][0] != "div" or high - low >= MOST or max(-low, high) > 1 << 24:
        return None
    factor = _factor(np.arange(low, high + 1, dtype=np.float32), steps)
    if factor is None:
        return None
    return whole if factor == 1 else call("round", whole * const(factor, F32))


def _factor(numbers: Array, steps: Sequence[tuple[str, float]]) -> float | None:
    """Return a factor whose rounded products equal, for all numbers, the rounded results of the steps; else
    None."""
    with np.errstate(all="ignore"):
        scaled, product = numbers, np.float64(1)
        for op, by in steps:
            apply = {"mul": np.multiply, "div": np.divide}[op]
            scaled, product = apply(scaled, np.float32(by)), apply(product, np.float64(np.float32(by)))
        want, one, near = np.rint(scaled), np.float32(1), np.float32(product)
        for factor in (one, near, *(np.nextafter(near, np.float32(end)) for end in (0, np.inf))):
            if np.isfinite(factor) and np.array_equal(np.rint(numbers * factor), want):
                return float(factor)
    return None


def _numbers(e: Expr) -> tuple[float, float] | None:
    """Return the range of a float expression whose value is whole or infinite; None if it may have a
    fraction."""
    match e:
        case Const(value=value):
            return (float(value), float(value)) if float(value).is_integer() else None
        case Cast(a=a) if a.dtype.is_int:
            return float(a.dtype.limits[0]), float(a.dtype.limits[1])
        case Call(fn="round"):
            return -math.inf, math.inf
        case Binary(op="min" | "max" | "add" | "sub" as op, a=a, b=b):
            first, second = _numbers(a), _numbers(b)
            if first is None or second is None:
                return None
            second = second[::-1] if op == "sub" else second
            by: dict[str, Callable[[float, float], float]] = {"min": min, "max": max, "add": add, "sub": sub}
            return by[op](first[0], second[0]), by[op](first[1], second[1])
    return None
