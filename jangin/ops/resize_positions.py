"""Positions in the input for the entries of a resized axis, by each coordinate convention.

A position is a fraction of integer expressions if the scale is rational. A rational scale is a ratio of
sizes, or a float that a small fraction rounds to. Rounding is then exact, even for sizes known only at run
time.
"""

from __future__ import annotations

import math
from dataclasses import field

from jangin.ir.dtype import F32, I64, DType
from jangin.ir.expr import (
    Const,
    Expr,
    call,
    cast,
    const,
    is_const,
    maximum,
    select,
)
from jangin.ir.records import dataclass
from jangin.ir.simplify import Ranges, from_poly, prove, simplify, terms
from jangin.ops.axes import divide

ZERO, ONE = const(0), const(1)
Ends = tuple[Expr, Expr]
"""The begin and end of a crop on an axis, f32; 0 is the first entry and 1 the last."""


@dataclass(frozen=True)
class Line:
    """One axis being resized from `size` to `out` entries, by the scale up / down. An optional `crop` is
    resized instead of the whole axis."""

    axis: int
    size: Expr
    out: Expr
    up: Expr
    down: Expr
    crop: Ends | None = None
    symbols: Ranges = field(default_factory=dict)

    @property
    def changes(self) -> bool:
        """Whether resizing this axis does anything."""
        if self.crop is not None:
            return tuple(map(number, self.crop)) != (0.0, 1.0) or self.size != self.out
        return self.size != self.out or self.up != self.down


def number(e: Expr) -> float:
    assert isinstance(e, Const)
    return float(e.value)


@dataclass(frozen=True)
class Position:
    """A position in the input: num / den of integers (den > 0), or a float `at`."""

    num: Expr = ZERO
    den: Expr = ONE
    at: Expr | None = None

    def floor(self) -> Expr:
        return cast(I64, call("floor", self.at)) if self.at is not None else floor_ratio(self.num, self.den)

    def fraction(self, dtype: DType) -> Expr:
        """Return the part of the position beyond its floor, in [0, 1)."""
        if self.at is not None:
            return cast(dtype, self.at - call("floor", self.at))
        rest = simplify(self.num % self.den)
        if is_const(rest, 0):
            return const(0, dtype)
        if isinstance(self.den, Const):
            return cast(dtype, rest) * (1.0 / float(self.den.value))
        return cast(dtype, rest) / cast(dtype, self.den)

    def nearest(self, mode: str) -> Expr:
        """Return the position rounded by floor, by ceil, or to the nearest. A half is rounded down for
        "half_down", up for "half_up"."""
        if mode == "floor":
            return self.floor()
        if self.at is not None:
            half = const(0.5, self.at.dtype)
            rounded = {
                "ceil": call("ceil", self.at),
                "half_down": call("ceil", self.at - half),
                "half_up": call("floor", self.at + half),
            }[mode]
            return cast(I64, rounded)
        if mode == "ceil":
            return floor_ratio(self.num + self.den - 1, self.den)
        # x - 1/2 rounded up is (2 num - den + 2 den - 1) // 2 den
        extra = self.den if mode == "half_up" else self.den - 1
        return floor_ratio(self.num * 2 + extra, self.den * 2)


def floor_ratio(num: Expr, den: Expr) -> Expr:
    """Return num // den, with the common factor g of all varying terms cancelled. The rule is `(g a + c) //
    (g b) = (a + c // g) // b`."""
    num, den = simplify(num), simplify(den)
    if isinstance(den, Const):
        parts = terms(num)
        common = math.gcd(int(den.value), *(c for c, m in parts if m))
        num = from_poly({m: c // common for c, m in parts})
        den = const(int(den.value) // common)
    return simplify(num // den)


# -- coordinates: the place of output index i in the input ---------------------------------------


def asymmetric(line: Line, i: Expr) -> Position:
    """Return i / scale."""
    return _ratio(line, i * line.down, line.up)


def half_pixel(line: Line, i: Expr) -> Position:
    """Return (i + 1/2) / scale - 1/2: elements are areas, and positions their centres."""
    return _ratio(line, (i * 2 + 1) * line.down - line.up, line.up * 2)


def half_pixel_or_start(line: Line, i: Expr) -> Position:
    """Return `half_pixel`, but the start of an axis that becomes one entry."""
    centre = (i * 2 + 1) * line.down - line.up
    return _ratio(line, select(line.out > 1, centre, const(0)), line.up * 2)


def half_pixel_symmetric(line: Line, i: Expr) -> Position:
    """Return `half_pixel` plus (size - out / scale) / 2: both ends share what a rounded size cuts off."""
    centre = (i * 2 + 1) * line.down - line.up
    return _ratio(line, centre + line.size * line.up - line.out * line.down, line.up * 2)


def pixel_centre(line: Line, i: Expr) -> Position:
    """Return (i + 1/2) / scale. Rounded down, this is the entry whose area contains the centre of the
    result's."""
    return _ratio(line, (i * 2 + 1) * line.down, line.up * 2)


def aligned_centre(line: Line, i: Expr) -> Position:
    """Return (i + 1/2) * (size - 1) / (result's size - 1)."""
    return _ratio(line, (i * 2 + 1) * (line.size - 1), maximum(line.out - 1, 1) * 2)


def align_corners(line: Line, i: Expr) -> Position:
    """Return i * (size - 1) / (size * scale - 1): the first and last entries stay where they are."""
    up, down, size, out = line.up, line.down, line.size, line.out
    if (up, down) == (out, size):
        up = down = const(1)
        span = simplify(out - 1, line.symbols)
    else:
        span = simplify(size * up - down, line.symbols)  # (size * scale - 1) * down
    if is_const(span, 0):
        return Position()
    den = span if prove(span > 0, line.symbols) else maximum(span, 1)
    return _ratio(line, select(span > 0, i * (size - 1) * down, const(0)), den)


def align_corners_or_middle(line: Line, i: Expr) -> Position:
    """Return `align_corners`, but the middle of an axis that becomes one entry."""
    return _ratio(
        line, select(line.out > 1, i * (line.size - 1) * 2, line.size - 1), maximum(line.out - 1, 1) * 2
    )


def between_corners(line: Line, i: Expr) -> Position:
    """Return (i + 1/2) * (size - 1) / out: the middles of `out` equal parts between the first and the last
    entry."""
    return _ratio(line, (i * 2 + 1) * maximum(line.size - 1, 1), line.out * 2)


def cropped(line: Line, i: Expr) -> Position:
    """Return `align_corners` within the line's crop; the crop's middle if the result has one entry."""
    assert line.crop is not None
    start, end = line.crop
    span = cast(F32, line.size - 1)
    steps = cast(F32, maximum(line.out - 1, 1))
    spread = start * span + cast(F32, i) * (end - start) * span / steps
    return Position(at=select(line.out > 1, spread, (start + end) * span * 0.5))


def _ratio(line: Line, num: Expr, den: Expr) -> Position:
    num, den = simplify(num, line.symbols), simplify(den, line.symbols)
    exact = divide(num, den, line.symbols)
    return Position(num=exact) if simplify(exact * den - num) == const(0) else Position(num, den)
