"""A division between two quantizations becomes one factor, which gives every number the same result."""

from __future__ import annotations

import numpy as np
import pytest

from jangin.ir.dtype import F32, I16, U8
from jangin.ir.expr import Binary, Buffer, Expr, Var, call, cast, const, maximum, minimum
from jangin.ir.graph import Array
from jangin.ir.interpret import run_func
from jangin.ir.loop import For, Func, Store
from jangin.ir.traversal import substitute, walk
from jangin.passes.precision.rescaled import by_factors

X = Var("x0", U8)


def quantized(value: Expr, scale: float, zero: int) -> Expr:
    whole = call("round", value / const(scale, F32)) + const(float(zero), F32)
    return cast(U8, minimum(maximum(whole, const(0.0, F32)), const(255.0, F32)))


def value(e: Expr, x: Array) -> Array:
    i, given, out = Var("i"), Buffer("x", U8, (const(x.size),)), Buffer("out", U8, (const(x.size),))
    arrays = {"x": x, "out": np.zeros_like(x)}
    store = Store(out, (i,), substitute(e, {X: given[i]}))
    run_func(Func("k", (given, out), 1, (), For(i, const(x.size), store)), arrays, {})
    return arrays["out"]


def divides(e: Expr) -> bool:
    return any(isinstance(n, Binary) and n.op == "div" for n in walk(e))


@pytest.mark.parametrize("seed", range(8))
def test_every_number_stays(seed: int) -> None:
    random = np.random.default_rng(seed)
    first, second = random.uniform(1e-3, 0.2, 2).astype(np.float32).tolist()
    zero, other = random.integers(0, 255, 2).tolist()
    body = quantized((cast(F32, X) - const(float(zero), F32)) * const(first, F32), second, other)
    made = by_factors(body)
    assert divides(body) and not divides(made)
    x = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(value(made, x), value(body, x))


def test_the_same_scale_is_none() -> None:
    x = cast(F32, X)
    whole = maximum(x + const(0.0, F32), const(0.0, F32))
    assert by_factors(quantized(x * const(0.1, F32), 0.1, 0)) == cast(U8, minimum(whole, const(255.0, F32)))


def test_what_a_product_rounds_otherwise_stays() -> None:
    """A product whose rounding differs stays. For 16-bit integers, some factors have ties that no float
    factor reproduces."""
    y = Var("x0", I16)
    ties = [
        n for n in range(1, 60, 2) if divides(by_factors(quantized(cast(F32, y) * const(n, F32), 48.0, 0)))
    ]
    assert ties


@pytest.mark.parametrize("inner", [Var("x0", F32), cast(F32, Var("x0", F32)) + const(0.5, F32)], ids=str)
def test_fractions_stay(inner: Expr) -> None:
    body = quantized(inner * const(0.3, F32), 0.7, 0)
    assert by_factors(body) == body
