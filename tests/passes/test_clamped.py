"""Rounded floats that are known to fit are clamped as i32, with the same results. Others stay."""

from __future__ import annotations

import numpy as np
import pytest

from jangin.ir.dtype import F32, I8, I32, U8, DType
from jangin.ir.expr import Binary, Cast, Expr, Var, call, cast, const, maximum, minimum
from jangin.ir.traversal import walk
from jangin.passes.algebra.simplify_map import evaluate
from jangin.passes.precision.clamped import in_integers

SUM, SCALE = Var("x0", I32), Var("x1", F32)


def quantized(value: Expr, dtype: DType, low: int, high: int, zero: int) -> Cast:
    whole = call("round", value) + const(float(zero), F32)
    made = cast(dtype, minimum(maximum(whole, const(float(low), F32)), const(float(high), F32)))
    assert isinstance(made, Cast)
    return made


@pytest.mark.parametrize(
    ("dtype", "low", "high", "zero"), [(U8, 0, 255, 133), (I8, -128, 127, -7), (U8, 9, 90, 0)]
)
def test_the_same_numbers(dtype: DType, low: int, high: int, zero: int) -> None:
    body = quantized(cast(F32, SUM) * SCALE, dtype, low, high, zero)
    made = in_integers(body, {"x1": 0.4})
    assert isinstance(made, Cast) and made.a.dtype is I32
    random = np.random.default_rng()
    sums = np.concatenate([random.integers(-(1 << 31), 1 << 31, 500), random.integers(-2000, 2000, 500)])
    given = {"x0": sums.astype(np.int32), "x1": random.uniform(-0.4, 0.4, 1000).astype(np.float32)}
    np.testing.assert_array_equal(evaluate(made, given), evaluate(body, given))


def test_what_may_not_fit_stays() -> None:
    body = quantized(cast(F32, SUM) * SCALE, U8, 0, 255, 0)
    assert in_integers(body, {}) == in_integers(body, {"x1": 0.9}) == body
    known = quantized((cast(F32, Var("x0", U8)) - const(3.0, F32)) * SCALE, U8, 0, 255, 0)
    assert in_integers(known, {"x1": 0.9}) != known


def test_a_zero_point_that_is_taken_away_is_not_added() -> None:
    x = Var("x0", F32)
    held = quantized(x, U8, 0, 255, 133)
    made = cast(F32, held) - const(133.0, F32)
    sums = [n for n in walk(made) if isinstance(n, Binary) and n.op in ("add", "sub")]
    assert [n.b for n in sums] == [const(0.0, F32)], "which makes 0 of -0"
    given = {"x0": np.random.default_rng().uniform(-400, 400, 500).astype(np.float32)}
    want = evaluate(held, given).astype(np.float32) - 133
    np.testing.assert_array_equal(evaluate(made, given).view("i4"), want.view("i4"))
    other = cast(F32, held) - const(100.0, F32)
    assert other == Binary("sub", cast(F32, held), const(100.0, F32))
