"""Special functions against mpmath's, and their slopes against PyTorch's names for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jangin.gradients.reverse import differentiate
from jangin.ir.dtype import F64
from jangin.ir.expr import Expr, const
from jangin.ops import special
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph

mpmath = pytest.importorskip("mpmath", reason="mpmath isn't installed: it has the exact values")
SMALL = 1e-12
"""The largest error as a share. The functions are good to some units in the last place, and their slopes lose
a few digits where terms cancel."""
WIDE = (-60.3, -7.25, -1.5, -0.9, -1e-3, 1e-9, 0.3, 0.99, 1.0, 1.6, 2.0, 3.7, 9.9, 10.0, 33.3, 1e5)
EVERYWHERE = (-5.0, -2.0, -1.0, -0.2, 0.0, 1e-5, 0.4, 0.5, 1.0, 2.5, 5.0, 11.0)
INSIDE = (-0.9999999, -0.9, -0.3, 0.0, 1e-7, 0.5, 0.86, 0.999)
CHANCES = (1e-9, 0.2, 0.5, 0.9, 0.9999)
FUNCTIONS: dict[str, tuple[Callable[[Expr], Expr], Callable[[Any], Any], tuple[float, ...]]] = {
    "erfc": (special.erfc, lambda x: mpmath.erfc(x), (*EVERYWHERE, 25.0)),
    "erfcx": (special.erfcx, lambda x: mpmath.exp(x * x) * mpmath.erfc(x), (*EVERYWHERE, 1e4)),
    "erfinv": (special.erfinv, lambda x: mpmath.erfinv(x), INSIDE),
    "ndtri": (special.ndtri, lambda p: mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1), CHANCES),
    "log_ndtr": (special.log_ndtr, lambda x: mpmath.log(mpmath.ncdf(x)), (-30.0, *EVERYWHERE)),
    "lgamma": (special.lgamma, lambda x: mpmath.log(abs(mpmath.gamma(x))), WIDE),
    "digamma": (special.digamma, lambda x: mpmath.digamma(x), WIDE),
    "trigamma": (special.trigamma, lambda x: mpmath.polygamma(1, x), WIDE),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_slopes(name: str) -> None:
    function, exact, points = FUNCTIONS[name]
    b = Builder("special", {}, unchecked=True)
    x = b.input("x", F64, (const(len(points)),))
    y = b.map(function, x)
    made = differentiate(b.graph([b.reduce("sum", y, [0], False), y], ["total", "y"]), "total", ["x"])
    found = run_graph(made, {"x": np.array(points)})
    with mpmath.workdps(70):
        values = [float(exact(mpmath.mpf(p))) for p in points]
        slopes = [float(mpmath.diff(exact, mpmath.mpf(p), h=mpmath.mpf(10) ** -25)) for p in points]
    np.testing.assert_allclose(found["y"], values, SMALL, 1e-14)
    np.testing.assert_allclose(found[made.outputs[-1]], slopes, SMALL, 1e-13)


def test_lgamma_beside_zero_and_at_the_ends() -> None:
    """The mirrored argument's factors don't underflow together."""
    b = Builder("special", {}, unchecked=True)
    y = b.map(special.lgamma, b.input("x", F64, (const(4),)))
    x = np.array([-1e-300, 1e-300, -np.inf, np.inf])
    found = run_graph(b.graph([y], ["y"]), {"x": x})["y"]
    np.testing.assert_allclose(found, [300 * np.log(10.0)] * 2 + [np.inf] * 2, SMALL)


POLES: dict[str, tuple[tuple[float, float, float], ...]] = {
    "lgamma": ((0.0, np.inf, -np.inf), (-0.0, np.inf, np.inf)),
    "digamma": (
        (0.0, -np.inf, np.inf), (-0.0, np.inf, np.inf), (-1.0, np.nan, np.inf), (-7.0, np.nan, np.inf)
    ),
    "trigamma": ((0.0, np.inf, -np.inf), (-0.0, np.inf, np.inf)),
    "erfinv": ((-1.0, -np.inf, np.inf), (1.0, np.inf, np.inf)),
    "ndtri": ((0.0, -np.inf, np.inf), (1.0, np.inf, np.inf)),
}  # fmt: skip
"""Poles and ends, each with its value and slope. The sign at 0 follows from the sign of the zero, and whole
negative numbers have PyTorch's values."""


@pytest.mark.parametrize("name", POLES)
def test_poles(name: str) -> None:
    points, values, slopes = map(np.array, zip(*POLES[name], strict=True))
    b = Builder("special", {}, unchecked=True)
    y = b.map(FUNCTIONS[name][0], b.input("x", F64, (const(len(points)),)))
    made = differentiate(b.graph([b.reduce("sum", y, [0], False), y], ["total", "y"]), "total", ["x"])
    found = run_graph(made, {"x": points})
    np.testing.assert_array_equal(found["y"], values)
    np.testing.assert_array_equal(found[made.outputs[-1]], slopes)
