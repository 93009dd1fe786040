"""The fixed-point arithmetic of TensorFlow Lite's reference kernels, on exact integers.

A quantized model's results depend on every bit of it. It is the arithmetic of
tensorflow/lite/kernels/internal/common.h and gemmlowp/fixedpoint.h.

A fixed-point number with `n` integer bits is the int32 nearest to the real value times 2 ** (31 - n)."""

from __future__ import annotations

import math

from jangin.ir.records import dataclass

LOW, HIGH = -(1 << 31), (1 << 31) - 1
"""The bounds of an int32, to which results saturate as in gemmlowp."""
ONE = HIGH
"""The fixed-point number 1, with no integer bits."""


@dataclass(frozen=True)
class Multiplier:
    """The real factor `value` / 2 ** 31 * 2 ** `shift`.

    By default a product is rounded twice. It is rounded `once` in fully connected layers of LiteRT 2, which
    was found by comparing results. A `long` multiplier multiplies an int64 by the upper 16 bits of
    `value`."""

    value: int
    shift: int
    once: bool = False
    long: bool = False

    @classmethod
    def of(cls, factor: float, once: bool = False, long: bool = False) -> Multiplier:
        """Return the multiplier for a real factor, as LiteRT's `QuantizeMultiplier` does."""
        if factor == 0:
            return cls(0, 0)
        part, shift = math.frexp(factor)
        value = rounded(part * (1 << 31))
        if value == 1 << 31:
            value, shift = value // 2, shift + 1
        if shift < -31:
            return cls(0, 0)
        return cls(HIGH, 30) if shift > 30 else cls(value, shift, once, long)

    def times(self, x: int) -> int:
        """Return an int32 multiplied by the factor, as LiteRT's `MultiplyByQuantizedMultiplier` does. If the
        multiplier is `long`, x is an int64."""
        if self.long:
            return (x * self.upper + (1 << (14 - self.shift))) >> (15 - self.shift)
        if self.once:
            return (x * self.value + (1 << (30 - self.shift))) >> (31 - self.shift)
        return divided(doubled_high(x << max(self.shift, 0), self.value), max(-self.shift, 0))

    @property
    def upper(self) -> int:
        """The upper 16 bits of the value, rounded."""
        return (self.value + (1 << 15)) >> 16 if self.value < 0x7FFF0000 else 0x7FFF


def rounded(x: float) -> int:
    """Return the nearest integer. A half is rounded away from zero."""
    return math.floor(abs(x) + 0.5) * (1 if x >= 0 else -1)


def doubled_high(x: int, y: int) -> int:
    """Return the upper 32 bits of twice the product of two int32. A half is rounded up, as in gemmlowp's
    `SaturatingRoundingDoublingHighMul`."""
    return HIGH if x == y == LOW else (x * y + (1 << 30)) >> 31


def divided(x: int, exponent: int) -> int:
    """Return x divided by 2 ** exponent. A half is rounded away from zero, as in gemmlowp's
    `RoundingDivideByPOT`."""
    return x if not exponent else (x + (1 << (exponent - 1)) - (x < 0)) >> exponent


def _saturated(x: int) -> int:
    return max(LOW, min(HIGH, x))


EIGHTH, THIRD = 1895147668, 715827883
"""The fixed-point numbers exp(-1/8) and 1/3, with no integer bits. Gemmlowp's exponential is a Taylor series
around -1/8."""


def _series(a: int) -> int:
    """Return exp(a) for a in [-1/4, 0), by Taylor's series about -1/8."""
    x = a + (1 << 28)
    square = doubled_high(x, x)
    cube, fourth = doubled_high(square, x), doubled_high(square, square)
    rest = divided(doubled_high(divided(fourth, 2) + cube, THIRD) + square, 1)
    return EIGHTH + doubled_high(EIGHTH, x + rest)


POWERS = (
    (-2, 1672461947),
    (-1, 1302514674),
    (0, 790015084),
    (1, 290630308),
    (2, 39332535),
    (3, 720401),
    (4, 242),
)
"""Pairs of an exponent and exp(-2 ** exponent) with no integer bits."""


def exp(a: int, bits: int) -> int:
    """Return exp(a) with no integer bits, for a <= 0 with `bits` integer bits."""
    if a == 0:
        return ONE
    fraction = 31 - bits
    quarter = 1 << (fraction - 2)
    part = (a & (quarter - 1)) - quarter
    result = _series(_saturated(part << bits))
    rest = part - a
    for exponent, factor in POWERS:
        if bits > exponent and rest & (1 << (fraction + exponent)):
            result = doubled_high(result, factor)
    return result


START, SLOPE = 1515870810, -1010580540
"""The fixed-point numbers 48/17 and -32/17, with 2 integer bits. The line 48/17 - 32/17 x is the first
approximation of 1 / x in Newton's method."""


def _newton(a: int) -> int:
    """Return half of 2 / (1 + a) with 2 integer bits, for a in [0, 1], by Newton's method for the
    reciprocal."""
    total = a + ONE
    half = (total + 1) // 2
    x = START + doubled_high(half, SLOPE)
    for _ in range(3):
        error = (1 << 29) - doubled_high(half, x)
        x += _saturated(doubled_high(x, error) << 2)
    return x


def reciprocal(a: int) -> int:
    """Return 1 / (1 + a) with no integer bits, for a in [0, 1]."""
    return _saturated(_newton(a) << 1)


def logistic(a: int, bits: int) -> int:
    """Return 1 / (1 + exp(-a)) with no integer bits, for a with `bits` integer bits."""
    if a == 0:
        return 1 << 30
    positive = reciprocal(exp(-abs(a), bits))
    return positive if a > 0 else ONE - positive


def tanh(a: int, bits: int) -> int:
    """Return tanh(a) = (1 - exp(-2 a)) / (1 + exp(-2 a)) with no integer bits, for a with `bits` integer
    bits."""
    if a == 0:
        return 0
    share = _newton(exp(_saturated(-2 * abs(a)), bits)) - (1 << 29)
    positive = _saturated(share << 2)
    return positive if a > 0 else -positive


def _short(x: int) -> int:
    return max(-(1 << 15), min((1 << 15) - 1, x))


def _doubled_high_short(x: int, y: int, half: int) -> int:
    """Return the upper half of twice a product of two int16. A `half` of 2 ** 14 rounds to nearest; 0 cuts
    towards 0."""
    product = x * y
    total = product + half if product >= 0 else product + (half and 1 - half)
    return _short(int(math.copysign(abs(total) >> 15, total)))


def hard_swish(x: int, whole: Multiplier, gate: Multiplier) -> int:
    """Return hard-swish of a 16-bit x. The caller must still shift the result by the shift of `whole`.

    `whole` converts x to the result's scale. `gate` converts x to the fixed-point numbers of the gate, which
    saturates at its bounds."""
    half, shift = 1 << 14, gate.shift
    scaled = _doubled_high_short(x, whole.upper, half)
    open_ = _short(x << (shift - 1)) if shift > 0 else x
    open_ = _doubled_high_short(open_, gate.upper, half)
    open_ = _short(open_ << 1) if shift > 0 else divided(open_, -shift)
    return _doubled_high_short((open_ + (1 << 15)) >> 1, scaled, 0)


def radius(bits: int, shift: int) -> int:
    """Return the largest number that doesn't exceed `bits` integer bits when it is shifted left by `shift`,
    as LiteRT's `CalculateInputRadius` does."""
    return math.floor(((1 << bits) - 1) * (1 << (31 - bits)) / (1 << shift))
