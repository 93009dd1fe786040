"""Fixed-point arithmetic against real numbers and exact fractions."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest

from jangin.frontends.tflite import fixed
from jangin.frontends.tflite.fixed import Multiplier
from jangin.frontends.tflite.operators.common import Factors, rescaled
from jangin.frontends.tflite.operators.conv import FEW, mean_of_few
from jangin.ir.dtype import I32
from jangin.ir.expr import Buffer, Expr, Load, Var, const
from jangin.ir.interpret import evaluate_stage
from jangin.ir.te import Axis, Stage
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

NEAR = 4e-7
"""The largest error of a result, for a full scale of 1. The series about -1/8 has 22 right bits at its ends.
A reciprocal doubles the error."""


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
    """A product is within a half of the exact one. With two roundings (`once` is False) it may miss a little
    more."""
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


@pytest.mark.parametrize("reach", [1 << 12, 1 << 20, (1 << 30) - 4, (1 << 30) - 2, math.inf])
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("up", [False, True])
def test_rescaled_in_32_bits(once: bool, up: bool, reach: float) -> None:
    """Kernels compute what `Multiplier.times` computes, with the zero point if it is added.

    The test takes values at and beside the places where the result steps, and at the ends of the allowed
    range. `up`: both roundings are done as one."""
    draw, n, most = random.Random(1), Var("n"), int(min(reach, (1 << 30) - 1))
    for shift in (*range(7), 13, 19, 29, 30):
        for _ in range(20):
            factor, zero = draw.uniform(0.5, 0.99) * 2.0**-shift, draw.choice((0, -128, 127, 255))
            m = Multiplier.of(factor, once)
            given = {"once": once, "up": up, "reach": reach, "zero": zero}
            made = Factors.of(Builder("test", {}), [factor], narrow=True, **given)  # type: ignore[arg-type]
            assert made.zero in (0, zero) and (made.zero == zero or reach > 1 << 20 or shift > 13)
            step = round((draw.randrange(255) + 0.5) / factor)
            near = {s + d for s in (0, step, draw.randrange(most)) for d in range(-2, 3)}
            values = sorted({v * sign for v in near | {most} if abs(v) <= most for sign in (1, -1)})
            x, y = (Buffer(name, I32, (const(len(values)),)) for name in "xy")
            parts = [p for p in made.operands if isinstance(p, Expr)]
            stage = Stage(y, (Axis(n, const(len(values))),), rescaled(Load(x, (n,)), *parts))
            got = evaluate_stage(stage, {"x": np.array(values, np.int32)}, {}) - made.zero
            for v, result in zip(values, got.tolist(), strict=True):
                assert result <= 0 if up and v < 0 else result == m.times(v)


def test_rescaled_by_several() -> None:
    """Only those of several factors that shift are rounded twice."""
    draw, n, c = np.random.default_rng(2), Var("n"), Var("c")
    factors, reach = [0.9, 0.3, 0.01, 0.0, 0.5, 2.0**-9], 1 << 18
    b = Builder("test", {})
    made = Factors.of(b, factors, 1, 2, reach=reach, zero=-3)
    values = np.concatenate([np.arange(-600, 600), draw.integers(-reach, reach, 400)]).astype(np.int32)
    shape = const(len(values)), const(len(factors))
    x, y = Buffer("x", I32, shape[:1]), Buffer("y", I32, shape)
    arrays, parts = {"x": values}, []
    for i, operand in enumerate(made.operands):
        if isinstance(operand, Tensor):
            arrays[f"p{i}"] = b.require_constant(operand, "a factor")
            operand = Load(Buffer(f"p{i}", I32, (const(1), shape[1])), (const(0), c))
        parts.append(operand)
    stage = Stage(y, (Axis(n, shape[0]), Axis(c, shape[1])), rescaled(Load(x, (n,)), *parts))
    got = evaluate_stage(stage, arrays, {})
    want = [[Multiplier.of(f).times(int(v)) - 3 for f in factors] for v in values]
    assert made.zero == -3 and np.array_equal(got, want)


def test_means_by_a_product() -> None:
    """Every sum of 8-bit numbers has the exact mean, for counts up to `FEW`, the most that a product divides
    by."""
    n = Var("n")
    for count in (1, 2, 3, 7, 49, 225, 1023, 2047, FEW - 1, FEW):
        values = np.arange(-128 * count, 255 * count + 1, max(1, count // 64), dtype=np.int32)
        shape = (const(len(values)),)
        x, y = Buffer("x", I32, shape), Buffer("y", I32, shape)
        stage = Stage(y, (Axis(n, shape[0]),), mean_of_few(Load(x, (n,)), const(count, I32)))
        size = np.abs(values.astype(np.int64)) + count // 2
        want = np.sign(values) * (size // count)
        assert np.array_equal(evaluate_stage(stage, {"x": values}, {}), want)
