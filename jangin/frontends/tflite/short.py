"""Tables of sigmoid and tanh of 16 bits, computed as in the recurrent layers of TensorFlow Lite's reference
kernels.

A table has the results for all numbers from 0 on. The rounding is that of 16-bit numbers in
gemmlowp/fixedpoint.h.

A fixed-point number with `n` integer bits is the int16 nearest to the real value times 2 ** (15 - n)."""

from __future__ import annotations

import numpy as np

from jangin.frontends.tflite import fixed
from jangin.ir.graph import Array

ONE = (1 << 15) - 1
"""The fixed-point number 1, with no integer bits. The exact 1 would need a bit more, so the nearest int16
stands for it."""
MOST = 1 << 15
"""The largest absolute value of an int16. Tables have an entry for each one from 0 on."""


def _constant(value: int) -> int:
    """Return one of the 32-bit numbers of `fixed`, rounded to 16 bits."""
    return fixed.divided(value, 16)


def _saturated(v: Array) -> Array:
    return np.clip(v, -ONE - 1, ONE)


def _high(x: Array, y: Array | int) -> Array:
    """Return the upper half of twice a product, rounded as in gemmlowp's
    `SaturatingRoundingDoublingHighMul`."""
    product: Array = np.right_shift(x * y + (1 << 14), 15)
    return product


def _divided(x: Array, exponent: int) -> Array:
    """Return `fixed.divided` of each element. The exponent is above 0."""
    quotient: Array = np.right_shift(x + (1 << (exponent - 1)) - (x < 0), exponent)
    return quotient


def _series(a: Array) -> Array:
    """Return exp(a) for a in [-1/4, 0), by Taylor's series about -1/8."""
    x = a + (1 << 12)
    square = _high(x, x)
    cube, fourth = _high(square, x), _high(square, square)
    rest = _divided(_high(_divided(fourth, 2) + cube, _constant(fixed.THIRD)) + square, 1)
    eighth = _constant(fixed.EIGHTH)
    return _saturated(eighth + _high(x + rest, eighth))


def _exp(a: Array, bits: int) -> Array:
    """Return exp(a) with no integer bits, for a <= 0 with `bits` integer bits."""
    fraction = 15 - bits
    quarter = 1 << (fraction - 2)
    part = (a & (quarter - 1)) - quarter
    result = _series(part << bits)
    for exponent, factor in fixed.POWERS:
        if bits > exponent:
            there = (part - a) & (1 << (fraction + exponent)) != 0
            result = np.where(there, _high(result, _constant(factor)), result)
    if bits > 5:
        result = np.where(a < -(1 << (20 - bits)), 0, result)
    return np.where(a == 0, ONE, result)


def _newton(a: Array) -> Array:
    """Return half of 2 / (1 + a) with 2 integer bits, for a in [0, 1], by Newton's method for the
    reciprocal."""
    half = (a + ONE + 1) >> 1
    x = _constant(fixed.START) + _high(half, _constant(fixed.SLOPE))
    for _ in range(3):
        x = x + _saturated(_high(x, (1 << 13) - _high(half, x)) << 2)
    return x


def logistic() -> Array:
    """Return 1 / (1 + exp(-a)) with no integer bits, for a from 0 to `MOST` with 3 integer bits. For a
    negative a, the value is ONE minus the value of -a."""
    table = _saturated(_newton(_exp(-np.arange(MOST + 1), 3)) << 1)
    table[0] = 1 << 14
    return table.astype(np.int16)


def tanh(bits: int) -> Array:
    """Return tanh(a) with no integer bits, for a from 0 to `MOST` with `bits` integer bits. For a negative a,
    negate the value of -a.

    The formula is (1 - exp(-2 a)) / (1 + exp(-2 a))."""
    table = _saturated((_newton(_exp(-np.arange(MOST + 1), bits + 1)) - (1 << 13)) << 2)
    table[0] = 0
    return table.astype(np.int16)
