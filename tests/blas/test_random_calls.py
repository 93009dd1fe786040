"""Calls at random beside their definitions (`blas_fuzz`), and the kinds of faults that they found."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest
from blas_fuzz import KNOWN, campaign
from repeatable import RNG

from jangin import blas
from jangin.blas.library import emit

QUICK = ("daxpy", "ddot", "dgemv", "dtrsv")
SECONDS = 40
"""Processor time of the slow test. Most of it compiles kernels."""


def test_some_calls_are_right() -> None:
    tally = campaign(int(RNG.integers(1 << 32)), SECONDS, None, QUICK, most=24)
    assert tally.calls.total() == 24
    assert not tally.wrong


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="a library needs a C compiler")
@pytest.mark.parametrize("letter", "sdcz")
def test_calls_in_python_and_c_are_right(letter: str, tmp_path: Path) -> None:
    names = [n for n, (t, _) in sorted(KNOWN.items()) if t == letter]
    chosen = [str(n) for n in RNG.choice(names, 8, replace=False)]
    emit(tmp_path, chosen)
    library = ctypes.CDLL(str(tmp_path / "libjangin_blas.so"))
    tally = campaign(int(RNG.integers(1 << 32)), SECONDS, library, chosen)
    assert not tally.wrong, tally.wrong[:3]


@pytest.mark.parametrize("beta", [0.0, 1.0, -2.0])
def test_the_diagonal_of_a_hermitian_result_has_no_imaginary_part_to_read(beta: float) -> None:
    """A real factor beta multiplies the parts of an element apart. NaN in one of them stays there."""
    rng, n = np.random.default_rng(31), 5
    a = rng.standard_normal((n, 3)) + 1j * rng.standard_normal((n, 3))
    c = np.asfortranarray(rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n)))
    wanted = np.triu(0.5 * a @ a.conj().T + beta * c)
    wanted[np.diag_indices(n)] = wanted.diagonal().real
    c.imag[np.diag_indices(n)] = np.nan
    np.testing.assert_allclose(np.triu(blas.zherk(0.5, a, beta=beta, c=c)), wanted, rtol=1e-14, atol=1e-14)
    unchanged = blas.zherk(0.0, a, beta=1.0, c=c)
    np.testing.assert_array_equal(unchanged, c)


def test_infinity_in_one_part_stays_there_beside_a_real_factor() -> None:
    x, a = np.array([complex(1.0, np.inf), 2.0]), np.zeros((2, 2), np.complex128, order="F")
    found = blas.zher(0.5, np.array([1.0 + 0j, 2.0]), a=a)
    np.testing.assert_array_equal(np.triu(found), [[0.5, 1.0], [0.0, 2.0]])
    c = np.array([[complex(np.inf, 3.0)]], order="F")
    found = blas.zherk(1.0, x[1:, None], beta=2.0, c=c)
    np.testing.assert_array_equal(found, [[np.inf]])
    c = np.array([[1.0, complex(np.inf, 3.0)], [0.0, 1.0]], order="F")
    found = blas.zherk(0.0, np.ones((2, 1), np.complex128), beta=2.0, c=c)
    assert found[0, 1] == complex(np.inf, 6.0)
