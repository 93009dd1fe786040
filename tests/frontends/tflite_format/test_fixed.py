"""Fixed-point arithmetic against real numbers and exact fractions."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest

from jangin.frontends.tflite import fixed
from jangin.frontends.tflite.fixed import Multiplier
from jangin.frontends.tflite.operators.common import MOST_RIGHT, REACH, Factors, rescaled
from jangin.ir.dtype import I32
from jangin.ir.expr import Buffer, Expr, Load, Var, const
from jangin.ir.interpret import evaluate_stage
from jangin.ir.te import Axis, Stage
from jangin.ops.builder import Builder

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


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("up", [False, True])
def test_rescaled_in_32_bits(once: bool, up: bool) -> None:
    """What kernels compute is what the multiplier gives, also where both are rounded as one (`up`), at and
    beside the places where the result steps, and at the ends of what may be rescaled."""
    draw, n = random.Random(1), Var("n")
    for shift in (*range(7), 13, MOST_RIGHT, MOST_RIGHT + 1):
        for _ in range(20):
            factor = draw.uniform(0.5, 0.99) * 2.0**-shift
            m = Multiplier.of(factor, once)
            made = Factors.of(Builder("test", {}), [factor], once=once, up=up, narrow=True)
            step = round((draw.randrange(255) + 0.5) / factor)
            near = {s + d for s in (0, step, draw.randrange(REACH)) for d in range(-2, 3)}
            values = sorted({v * sign for v in near | {REACH - 1} if abs(v) < REACH for sign in (1, -1)})
            x, y = (Buffer(name, I32, (const(len(values)),)) for name in "xy")
            parts = [p for p in made.operands if isinstance(p, Expr)]
            stage = Stage(y, (Axis(n, const(len(values))),), rescaled(Load(x, (n,)), *parts))
            got = evaluate_stage(stage, {"x": np.array(values, np.int32)}, {})
            for v, result in zip(values, got.tolist(), strict=True):
                assert result <= 0 if up and v < 0 else result == m.times(v)
