"""Floats that are rounded, clamped and narrowed to small integers, as in quantization.

A conversion that rounds to even, and a narrowing that saturates, save the rounding and a clamp.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from jangin.ir.dtype import F32, I16, I32, I64, DType
from jangin.ir.expr import Binary, Call, Cast, Const, Expr, const
from jangin.ir.records import dataclass

BITS = 8, 16
"""Bits of the integers to which a narrowing saturates."""
MOST_STEPS = 1 << 10
"""Most integers between a quotient's bounds. All steps between them are tested."""
CONVERSIONS = {"round": "nearest", "trunc": "toward_zero"}
"""The rows that convert a float to i32, by the rule of rounding."""
NEXT = 4
"""Numbers before and after a step that are tested. The quotient's rounding errors are below two units in the
last place, so steps lie nearer than four numbers."""


@dataclass(frozen=True)
class Saturated:
    """round(value) + offset, clamped to `low` to `high`. `fits`: the rounded number is an i32 before it is
    clamped. `rule`: how it is rounded, to the nearest number (round) or toward zero (trunc)."""

    value: Expr
    offset: int
    low: int
    high: int
    fits: bool = False
    rule: str = "round"

    @property
    def short(self) -> bool:
        """Whether round(value) may be clamped to int16 first."""
        least, most = I16.limits
        return least <= self.low - self.offset and self.high - self.offset <= most


def saturated(e: Cast) -> Saturated | None:
    """Return a conversion to a small integer as Saturated, or None if it doesn't have this form."""
    own = e.a.dtype
    if e.dtype.bits not in BITS or not e.dtype.is_int or own not in (F32, I32):
        return None
    inner, (least, most) = e.a, e.dtype.limits
    low, high = -(1 << 31), 1 << 31
    while isinstance(inner, Binary) and inner.op in ("min", "max") and _whole(inner.b, own):
        assert isinstance(inner.b, Const)
        bound, within = int(inner.b.value), low <= int(inner.b.value) <= high
        if not within:  # the outer clamp alone counts
            return None
        low, high = (low, bound) if inner.op == "min" else (bound, high)
        inner = inner.a
    offset = 0
    if isinstance(inner, Binary) and inner.op in ("add", "sub") and _whole(inner.b, own):
        assert isinstance(inner.b, Const)
        offset = int(inner.b.value) * (1 if inner.op == "add" else -1)
        inner = inner.a
    if own is I32:
        inner = inner.a if isinstance(inner, Cast) and inner.a.dtype is F32 else inner
    whole = isinstance(inner, Call) and inner.fn in CONVERSIONS and abs(offset) < 1 << 16
    if not whole or not isinstance(inner, Call) or not least <= low <= high <= most:
        return None
    return Saturated(inner.args[0], offset, low, high, own is I32, inner.fn)


def moved(e: Cast) -> Saturated | None:
    """Return a `saturated` value to which integers then add a constant, as one Saturated. Return None for any
    other conversion."""
    inner, by, sum_ = e.a, 0, e.a
    if isinstance(sum_, Binary) and sum_.op in ("add", "sub") and isinstance(sum_.b, Const):
        inner, by = sum_.a, int(sum_.b.value) * (1 if sum_.op == "add" else -1)
    whole = saturated(inner) if isinstance(inner, Cast) and e.dtype.bits in BITS else None
    if whole is None:
        return None
    least, most = e.dtype.limits
    low, high = whole.low + by, whole.high + by
    if not (least <= low and high <= most):
        return None
    return Saturated(whole.value, whole.offset + by, low, high, whole.fits, whole.rule)


@dataclass(frozen=True)
class Clamps:
    """An i32 that is clamped to the range from `low` to `high`."""

    value: Expr
    low: int
    high: int

    def inside(self, dtype: DType) -> list[tuple[str, int]]:
        """Return the clamps that are still needed before a saturating conversion to a type, each as an
        operation (max or min) and its bound."""
        least, most = dtype.limits
        ends = [("max", self.low)] * (self.low > least) + [("min", self.high)] * (self.high < most)
        return [(op, int(end)) for op, end in ends]


def clamps(e: Cast) -> Clamps | None:
    """Return the clamped i32 that a conversion to a small integer reads; None if it may cut off bits."""
    (least, most), inner, low, high = e.dtype.limits, e.a, -(1 << 31), 1 << 31
    if e.dtype.bits not in BITS or not e.dtype.is_int or e.a.dtype is not I32:
        return None
    while isinstance(inner, Binary) and inner.op in ("min", "max") and isinstance(inner.b, Const):
        bound = int(inner.b.value)
        if not low <= bound <= high:  # the outer clamp alone counts
            return None
        low, high = (low, bound) if inner.op == "min" else (bound, high)
        inner = inner.a
    return Clamps(inner, low, high) if least <= low <= high <= most else None


def upper(e: Cast) -> tuple[Expr, Expr] | None:
    """Return the factors of an i64 product that is converted to i32 without its lowest 30 bits, or None for
    any other conversion."""
    cut = e.a if e.dtype is I32 and isinstance(e.a, Binary) and e.a.op == "shr" else None
    if cut is None or cut.b != const(30, I64) or not isinstance(cut.a, Binary) or cut.a.op != "mul":
        return None
    factors = [f.a if isinstance(f, Cast) else narrowed(f) for f in (cut.a.a, cut.a.b)]
    x, y = (f if f is not None and f.dtype is I32 else None for f in factors)
    return None if x is None or y is None else (x, y)


def narrowed(e: Expr) -> Expr | None:
    """Return a constant that an i32 can hold, as i32, or None for any other expression."""
    low, high = I32.limits
    return const(int(e.value), I32) if isinstance(e, Const) and low <= e.value <= high else None


def _whole(e: Expr, dtype: DType) -> bool:
    small = isinstance(e, Const) and e.dtype is dtype and abs(e.value) < 1 << 24
    return small and isinstance(e, Const) and float(e.value).is_integer()


@cache
def quotient(by: float, low: int, high: int) -> tuple[float, float] | None:
    """Return the pair (a, b) whose fma(x, a, x * b) may replace x / by, or None if there is none.

    Both are equal for every f32 x, once rounded and clamped to `low` and `high`. Two products replace a
    division, which takes as long as six. a + b is close to 1 / by. Both sides grow with x. They are equal if
    they step from one integer to the next at the same numbers, so the numbers around each step are tested.

    Source: Brisebarre, Muller and Raina, "Accelerating correctly rounded floating-point division when the
    divisor is known in advance", 2004.
    """
    divisor = np.float32(by)
    if not (2.0**-100 < by < 2.0**100 and high - low <= MOST_STEPS):
        return None
    exact = 1.0 / np.float64(divisor)
    near = np.float32(exact)
    if near > exact:
        # the rest must not be negative, so that infinity stays infinite
        near = np.nextafter(near, np.float32(0))
    rest = np.float32(exact - np.float64(near))
    if rest <= 0:
        return None
    steps = ((np.arange(low, high) + 0.5) * np.float64(divisor)).astype(np.float32)
    x = (steps.view(np.int32)[:, None] + np.arange(-NEXT, NEXT + 1, dtype=np.int32)).view(np.float32)
    total = x.astype(np.float64) * np.float64(near) + (x * rest).astype(np.float64)
    middle, below, above = (
        np.clip(np.rint(t.astype(np.float32)), low, high)
        for t in (total, np.nextafter(total, -np.inf), np.nextafter(total, np.inf))
    )  # f64 may have rounded
    want = np.clip(np.rint(x / divisor), low, high)
    same = all(np.array_equal(want, m) for m in (middle, below, above))
    return (float(near), float(rest)) if same else None
