"""Every routine gives what SciPy's does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from blas_cases import GUARD, arguments

import jangin.blas
from jangin.blas.table import ROUTINES

scipy_blas = pytest.importorskip("scipy.linalg.blas", reason="SciPy is the reference")

SIZES = ((7, 5, 3), (33, 65, 17), (1, 1, 1), (130, 71, 129), (250, 139, 300))
"""Rows, columns and terms. The last ones are more than a task has of each."""
NO_PAIR = {"sdsdot", "dsdot", "axpby", "gemmtr"}
"""Routines that SciPy leaves out; `test_precise` checks them."""


def close(found: object, wanted: object, letter: str, terms: int) -> None:
    """Assert that results are equal but for rounding: so many units of the last place as there are terms."""
    unit = np.finfo(np.float32 if letter == "s" else np.float64).eps
    wanted = np.asarray(wanted, np.float64)
    tolerance = 32 * unit * (terms + 8) * max(1.0, float(np.abs(wanted[wanted != GUARD]).max(initial=0)))
    np.testing.assert_allclose(np.asarray(found, np.float64), wanted, rtol=0, atol=tolerance)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [n for n in ROUTINES if n not in NO_PAIR])
@pytest.mark.parametrize("letter", "sd")
def test_as_scipy(name: str, letter: str) -> None:
    routine = ROUTINES[name]
    full = routine.named(letter)
    for number, options in enumerate(routine.variants()):
        m, n, k = SIZES[number % len(SIZES)]
        sizes = {"m": m, "n": n, "k": k if routine.level == 3 else min(k, n), "kl": m // 3, "ku": n // 4}
        step = (-1, 3, 1, -2)[number % 4] if len(routine.vectors) + routine.level > 2 else 3
        ours = dict(arguments(routine, letter, options, sizes, step, number))
        theirs = dict(arguments(routine, letter, options, sizes, step, number))
        given = {n: v.copy(order="K") for n, v in ours.items() if isinstance(v, np.ndarray)}
        found, wanted = getattr(jangin.blas, full)(**ours), getattr(scipy_blas, full)(**theirs)
        both = zip(*(x if isinstance(x, tuple) else (x,) for x in (found, wanted)), strict=True)
        for a, b in both:
            assert np.shape(a) == np.shape(b), (full, options)
            close(a, b, letter, max(m, n, k))
        for operand, before in given.items():  # nothing is written but what SciPy writes
            changed = not np.array_equal(before, theirs[operand])
            assert changed or np.array_equal(before, ours[operand]), (full, options, operand)


def test_a_matrix_within_another_is_read_in_place() -> None:
    whole = np.full((20, 20), np.nan, order="F")
    part = whole[3:10, 4:9]
    part[...] = np.random.default_rng(1).standard_normal((7, 5))
    x = np.arange(5.0)
    np.testing.assert_allclose(jangin.blas.dgemv(1.0, part, x), part @ x, rtol=1e-14)
    np.testing.assert_allclose(jangin.blas.dgemm(1.0, part, part, trans_a=1), part.T @ part, rtol=1e-13)


def test_overwrite_writes_into_the_callers_array() -> None:
    c = np.ones((3, 4), order="F")
    a, b = np.ones((3, 2)), np.ones((2, 4))
    assert jangin.blas.dgemm(1.0, a, b, beta=1.0, c=c, overwrite_c=1) is c
    assert (c == 3).all()
    assert jangin.blas.dgemm(1.0, a, b, beta=1.0, c=c) is not c
    assert (c == 3).all()


COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error)")


@pytest.mark.slow
def test_scipys_own_tests_pass() -> None:
    """SciPy's test_blas runs with `jangin.blas` in the place of its library. Tests that call a routine or a
    type which Jangin leaves out are skipped."""
    pytest.importorskip("scipy.linalg.tests.test_blas", reason="this SciPy comes without its tests")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "in_place_of_scipy", "-p"]
    command += ["no:cacheprovider", "-o", "addopts=", "--pyargs", "scipy.linalg.tests.test_blas"]
    here = Path(__file__).resolve().parent
    found = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])])}
    done = subprocess.run(command, capture_output=True, text=True, env=found, cwd=here, timeout=300)
    counts = {what: int(number) for number, what in COUNTS.findall(done.stdout)}
    assert not counts.get("failed") and not counts.get("error"), done.stdout[-3000:]
    assert counts["passed"] >= PASSED, counts


PASSED = 89
"""Tests of SciPy 1.17 that call only routines which Jangin has. Complex ones are among them."""
