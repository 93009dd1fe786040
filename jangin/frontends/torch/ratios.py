"""Convert fractions of sizes, which Python computes in float64, to ratios of integers.

The rounded ratio is proven to equal Python's result for all sizes in range. A fraction without this proof is
refused by `Unsaid`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import reduce
from typing import Any, NamedTuple

from jangin.ir.expr import Const, Expr, const, eq, land, select
from jangin.ir.simplify import Ranges, interval, prove


class Unsaid(Exception):
    """The expression isn't proven to equal a ratio."""


LARGEST = 1 << 52
"""With a numerator up to this number, rounding to float64 doesn't move a quotient across an integer or a
half.

A quotient that differs from an integer or a half differs by more than half a unit in the last of 53
places."""


class Ratio(NamedTuple):
    """A number in float64: `over` / `under` itself if it is `exact`, else the float64 nearest to this ratio.
    `under` is positive."""

    over: Expr
    under: Expr
    exact: bool


def ratio_of(e: Any, integer: Callable[[Any], Expr], ranges: Ranges) -> Ratio:
    """Return an expression of SymPy on floats as a ratio. `integer` converts the integers in it to
    expressions. Raises Unsaid if equality isn't proven."""
    name = type(e).__name__
    if e.is_Float or e.is_Integer:
        over, under = Fraction(float(e)).as_integer_ratio()
        return _checked(const(over), const(under), True, ranges)
    if name == "ToFloat":
        return _checked(integer(e.args[0]), const(1), True, ranges)
    if name == "IntTrueDiv":
        whole, divisor = (Ratio(integer(a), const(1), True) for a in e.args)
        return _quotient(whole, divisor, ranges)
    if name not in ("Mul", "Add", "FloatTrueDiv"):
        raise Unsaid
    parts = [ratio_of(a, integer, ranges) for a in e.args]
    if name == "FloatTrueDiv":
        return _quotient(parts[0], parts[1], ranges)
    return reduce(lambda a, b: (_product if name == "Mul" else _sum)(a, b, ranges), parts)


def _product(a: Ratio, b: Ratio, ranges: Ranges) -> Ratio:
    """Return the product of two ratios. Raises Unsaid unless both are exact or one is a power of 2, which
    changes no digit of a rounded number."""
    if not ((a.exact and b.exact) or any(r.exact and _is_power(r) for r in (a, b))):
        raise Unsaid
    return _checked(a.over * b.over, a.under * b.under, a.exact and b.exact, ranges)


def _sum(a: Ratio, b: Ratio, ranges: Ranges) -> Ratio:
    if not (a.exact and b.exact):
        raise Unsaid
    return _checked(a.over * b.under + b.over * a.under, a.under * b.under, True, ranges)


def _quotient(a: Ratio, b: Ratio, ranges: Ranges) -> Ratio:
    if not (a.exact and b.exact and prove(b.over >= 1, ranges)):
        raise Unsaid
    exact = isinstance(b.over, Const) and _is_power(b)
    return _checked(a.over * b.under, a.under * b.over, exact, ranges)


def _checked(over: Expr, under: Expr, exact: bool, ranges: Ranges) -> Ratio:
    """Return a ratio. Raises Unsaid if its numerator may be larger than `LARGEST`."""
    low, high = interval(over, ranges)
    if low is None or high is None or not -LARGEST <= low <= high <= LARGEST:
        raise Unsaid
    return Ratio(over, under, exact)


def _is_power(r: Ratio) -> bool:
    """Tell if a ratio is known to be a power of 2 or the reciprocal of one."""
    sizes = [e.value for e in (r.over, r.under) if isinstance(e, Const)]
    return len(sizes) == 2 and all(isinstance(n, int) and n > 0 and n & (n - 1) == 0 for n in sizes)


def _floor(r: Ratio) -> Expr:
    return r.over // r.under


def _ceiling(r: Ratio) -> Expr:
    return (r.over + r.under - 1) // r.under


def _nearest(r: Ratio) -> Expr:
    """Return the nearest integer. If two are equally near, return the even one."""
    twice = r.under * 2
    above = (r.over * 2 + r.under) // twice
    halfway = eq((r.over * 2 + r.under) % twice, 0)
    return select(land(halfway, eq(above % 2, 1)), above - 1, above)


def _toward_zero(r: Ratio) -> Expr:
    return select(r.over >= 0, _floor(r), _ceiling(r))


ROUNDINGS: Mapping[str, Callable[[Ratio], Expr]] = {
    "FloorToInt": _floor, "CeilToInt": _ceiling, "TruncToInt": _toward_zero, "RoundToInt": _nearest,
}  # fmt: skip
"""Roundings of a ratio to an integer, by the names of PyTorch's classes."""
