"""Accuracy of the f32 polynomials against f64, over all magnitudes and at the edges."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from machine import run, runnable, target

from jangin.backends.walk.math import FLUSH_BELOW, FLUSHED, MAX_ULP
from jangin.ir.dtype import F32, F64, DType
from jangin.ir.expr import Buffer, Expr, Var, call, const
from jangin.ir.graph import Array
from jangin.ir.loop import For, Func, Store
from jangin.targets.target import Target

_TRUTH: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log1p": np.log1p,
    "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "sigmoid": lambda x: np.where(x >= 0, 1.0, np.exp(-abs(x))) / (1.0 + np.exp(-abs(x))),
}  # fmt: skip
WITHOUT_FMA = 0.5
"""Additional ulp if products are rounded before they are added."""


def samples() -> Array:
    """Return every magnitude of f32, denser where functions bend, and the special values."""
    with np.errstate(over="ignore", under="ignore"):
        magnitudes = np.geomspace(1e-45, 3.4e38, 60_000).astype(np.float32)
        near = np.concatenate(
            [np.linspace(0, 12, 60_000), np.linspace(80, 110, 20_000), np.linspace(0.5, 2, 20_000)]
        )
    edges = np.array(
        [0, np.inf, np.nan, 1.4e-45, 1.1754942e-38, 1.17549435e-38, 3.4028235e38, 1, 2, 0.5], np.float32
    )
    positive = np.concatenate([magnitudes, near.astype(np.float32), edges])
    both = np.concatenate([positive, -positive])
    return both[: both.size // 16 * 16]


def unary(fn: str, count: int, lanes: int, dtype: DType = F32) -> Func:
    x, y = (Buffer(n, dtype, (const(count),)) for n in "xy")
    i, v = Var("i"), Var("v")
    index: Expr = i * lanes + v
    body = Store(y, (index,), call(fn, x[index]))
    return Func(
        f"{fn}.{lanes}", (x, y), 1, (), For(i, const(count // lanes), For(v, const(lanes), body, "vector"))
    )


def ulps(got: Array, truth: Array) -> Array:
    """Return the error in units in the last place of the f32 nearest the truth. Special values must be
    equal."""
    with np.errstate(all="ignore"):
        nearest = truth.astype(np.float32)
        error = np.abs(got.astype(np.float64) - truth) / np.spacing(np.abs(nearest)).astype(np.float64)
    special = ~np.isfinite(nearest)
    same = (got == nearest) | (np.isnan(got) & np.isnan(nearest))
    return np.where(special, np.where(same, 0.0, np.inf), np.where(np.isnan(got), np.inf, error))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("on", runnable())
@pytest.mark.parametrize("fn", sorted(MAX_ULP))
def test_accuracy(fn: str, on: str) -> None:
    check_accuracy(fn, target(on))


@pytest.mark.parametrize("fn", ["erf"])
def test_accuracy_where_few_instructions_begin_a_cycle(fn: str) -> None:
    """Processors that begin few instructions a cycle get forms with fewer operations. Other processors would
    wait for their results."""
    check_accuracy(fn, target(runnable()[-1]).with_figures(issue=2))


def check_accuracy(fn: str, machine: Target) -> None:
    x = samples()
    lanes = machine.processor.lanes(4)
    out = run(unary(fn, x.size, lanes), {"x": x, "y": np.zeros_like(x)}, {}, machine)["y"]
    with np.errstate(all="ignore"):
        truth = _TRUTH[fn](x.astype(np.float64))
        error = ulps(out, truth)
    if fn in FLUSHED:
        error = np.where((abs(truth) < FLUSH_BELOW) & (out >= 0) & (out <= FLUSH_BELOW), 0, error)
    allowed = MAX_ULP[fn] + (0 if machine.has("fma") else WITHOUT_FMA)
    worst = int(np.argmax(error))
    assert error[worst] <= allowed, f"{fn}({x[worst]!r}) = {out[worst]!r}: {error[worst]:.2f} ulp"


@pytest.mark.parametrize("on", runnable())
@pytest.mark.parametrize(("fn", "lowest"), [("exp", -87.336540), ("exp2", -126.0)])
def test_no_normal_result_is_flushed(fn: str, lowest: float, on: str) -> None:
    """Results are normal for all floats near the smallest and the largest argument with a normal result."""
    edges = [[lowest, lowest * 0.994], [lowest, lowest * 1.004], [-lowest * 1.011, -lowest * 1.018]]
    x = np.concatenate([floats(*sorted(map(abs, e))) * np.float32(np.sign(e[0])) for e in edges])
    x = x[: x.size // 16 * 16]
    out = run(unary(fn, x.size, 16), {"x": x, "y": np.zeros_like(x)}, {}, target(on))["y"]
    with np.errstate(over="ignore"):
        truth = _TRUTH[fn](x.astype(np.float64))
        error = ulps(out, truth)
    normal = truth >= np.finfo(np.float32).tiny
    assert error[normal].max() <= MAX_ULP[fn] + (0 if target(on).has("fma") else WITHOUT_FMA)
    assert ((out[~normal] >= 0) & (out[~normal] <= np.finfo(np.float32).tiny)).all()


def floats(low: float, high: float) -> Array:
    """Return all f32 of a range of positive numbers."""
    first, last = np.array([low, high], np.float32).view(np.int32)
    return np.arange(first, last + 1, dtype=np.int32).view(np.float32)


@pytest.mark.parametrize("fn", sorted(MAX_ULP))
def test_scalar_code_gives_what_vector_code_gives(fn: str) -> None:
    x = samples()[::97].copy()
    x = x[: x.size // 16 * 16]
    outs = [
        run(unary(fn, x.size, lanes), {"x": x, "y": np.zeros_like(x)}, {}, target(runnable()[-1]))["y"]
        for lanes in (1, 4, 16)
    ]
    for other in outs[1:]:
        np.testing.assert_array_equal(outs[0], other)


@pytest.mark.parametrize("fn", ["exp", "log", "tanh", "erf", "sigmoid", "sin", "atanh", "expm1"])
def test_f64_is_the_c_library(fn: str) -> None:
    x = np.concatenate([np.linspace(-0.99, 0.99, 64), [0.0, np.nan, np.inf, -np.inf]])
    y = run(unary(fn, x.size, 4, F64), {"x": x, "y": np.zeros_like(x)}, {}, target(runnable()[-1]))["y"]
    with np.errstate(all="ignore"):
        more: dict[str, Callable[[Array], Array]] = {"sin": np.sin, "atanh": np.arctanh}
        truth = (_TRUTH | more)[fn](x)
    np.testing.assert_allclose(y, truth, rtol=4e-16, atol=0)
