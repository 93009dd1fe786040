"""Floats that are rounded, clamped and made small integers, as quantizing does: a conversion that rounds to
even by itself, and a cut that saturates, leave out the rounding and a clamp."""

from __future__ import annotations

from jangin.ir.dtype import F32, I16
from jangin.ir.expr import Binary, Call, Cast, Const, Expr
from jangin.ir.records import dataclass

BITS = 8, 16
"""Of the integers to which a cut saturates."""


@dataclass(frozen=True)
class Saturated:
    """round(value) + offset, clamped to what lies from `low` to `high`."""

    value: Expr
    offset: int
    low: int
    high: int

    @property
    def short(self) -> bool:
        """Whether round(value) may be clamped to int16 first."""
        least, most = I16.limits
        return least <= self.low - self.offset and self.high - self.offset <= most


def saturated(e: Cast) -> Saturated | None:
    """What a conversion to a small integer is so; None where it is another."""
    if e.dtype.bits not in BITS or not e.dtype.is_int or e.a.dtype is not F32:
        return None
    inner, (least, most) = e.a, e.dtype.limits
    low, high = -(1 << 31), 1 << 31
    while isinstance(inner, Binary) and inner.op in ("min", "max") and _whole(inner.b):
        assert isinstance(inner.b, Const)
        bound, within = int(inner.b.value), low <= int(inner.b.value) <= high
        if not within:  # the outer clamp alone counts
            return None
        low, high = (low, bound) if inner.op == "min" else (bound, high)
        inner = inner.a
    offset = 0
    if isinstance(inner, Binary) and inner.op in ("add", "sub") and _whole(inner.b):
        assert isinstance(inner.b, Const)
        offset = int(inner.b.value) * (1 if inner.op == "add" else -1)
        inner = inner.a
    if not isinstance(inner, Call) or inner.fn != "round" or not least <= low <= high <= most:
        return None
    return Saturated(inner.args[0], offset, low, high) if abs(offset) < 1 << 16 else None


def moved(e: Cast) -> Saturated | None:
    """As `saturated`, of what is so and then moved as an integer, as where other bytes are read."""
    sum_ = e.a
    if not isinstance(sum_, Binary) or sum_.op not in ("add", "sub") or e.dtype.bits not in BITS:
        return None
    whole = saturated(sum_.a) if isinstance(sum_.a, Cast) else None
    if whole is None or not isinstance(sum_.b, Const):
        return None
    by, (least, most) = int(sum_.b.value) * (1 if sum_.op == "add" else -1), e.dtype.limits
    low, high = whole.low + by, whole.high + by
    return Saturated(whole.value, whole.offset + by, low, high) if least <= low and high <= most else None


def _whole(e: Expr) -> bool:
    return isinstance(e, Const) and e.dtype is F32 and abs(e.value) < 1 << 24 and float(e.value).is_integer()
