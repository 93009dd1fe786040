"""Fixed-point arithmetic against real numbers and exact fractions."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

from jangin.frontends.tflite import fixed
from jangin.frontends.tflite.fixed import Multiplier

NEAR = 4e-7
"""Of 1: the series, about -1/8, is good for 22 bits at its ends, and a reciprocal takes its error twice."""


@pytest.mark.parametrize("bits", [4, 5, 12])
def test_functions(bits: int) -> None:
    one = 1 << (31 - bits)
    for n in range(400):
        a = -n * one // 37
        if a < fixed.LOW:
            break
        assert abs(fixed.exp(a, bits) / 2**31 - math.exp(a / one)) < NEAR
        assert abs(fixed.logistic(a, bits) / 2**31 - 1 / (1 + math.exp(-a / one))) < NEAR
        assert abs(fixed.tanh(a, bits) / 2**31 - math.tanh(a / one)) < NEAR


def test_a_reciprocal() -> None:
    for n in range(101):
        a = n * fixed.ONE // 100
        assert abs(fixed.reciprocal(a) / 2**31 - 1 / (1 + a / 2**31)) < NEAR


def test_divisions_round_a_half_away_from_zero() -> None:
    for x in range(-70, 71):
        for exponent in range(5):
            exact = Fraction(x, 1 << exponent)
            away = math.floor(abs(exact) + Fraction(1, 2)) * (1 if x >= 0 else -1)
            assert fixed.divided(x, exponent) == away


@pytest.mark.parametrize("once", [False, True])
def test_multipliers(once: bool) -> None:
    """Within a half of the exact product, or, rounded twice, of that and a little."""
    draw = random.Random(0)
    for _ in range(2000):
        factor = math.exp(draw.uniform(-20, 0))
        x = draw.randrange(-(1 << 24), 1 << 24)
        m = Multiplier.of(factor, once)
        exact = Fraction(m.value * x) * Fraction(2) ** (m.shift - 31)
        assert abs(m.times(x) - exact) <= Fraction(1, 2) + (
            0 if once else Fraction(1, 2) ** (1 - min(m.shift, 0))
        )
        assert abs(m.value * 2.0 ** (m.shift - 31) - factor) <= factor * 2**-30
