"""Complex routines beside SciPy's and sums in higher precision; rules for NaN and 0; wrong arguments."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from blas_cases import DTYPES, GUARD, arguments

from jangin import blas
from jangin.blas.blocked import SMALLEST_COMPLEX
from jangin.blas.calls import BlasError
from jangin.blas.table import COMPLEX
from jangin.blas.vectors import TASK

SIZES = ((7, 5, 3), (33, 65, 17), (1, 1, 1), (130, 71, 129), (250, 139, 300), (2100, 3, 2))
"""Rows, columns and terms. The last ones are more than a task has of each."""
BEYOND_SCIPY = ("axpby", "gemmtr", "rotg")
"""Routines that SciPy lacks, or whose results it leaves in part to chance: the c of `rotg`."""


def near(found: Any, wanted: Any, letter: str, terms: int) -> None:
    """Assert that results differ by some units in the last place for each term: a term has four products."""
    unit = float(np.finfo(DTYPES[letter]).eps)
    wanted = np.asarray(wanted, np.clongdouble)
    largest = max(1.0, float(np.abs(wanted[wanted != GUARD]).max(initial=0)))
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=0, atol=8 * unit * (terms + 8) * largest)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", [n for n in COMPLEX if n not in BEYOND_SCIPY])
@pytest.mark.parametrize("letter", "cz")
def test_as_scipy(name: str, letter: str) -> None:
    """Every variant at every size and step in turn. Nothing is written but what SciPy writes."""
    scipy_blas = pytest.importorskip("scipy.linalg.blas", reason="SciPy is the reference")
    routine = COMPLEX[name]
    full = routine.named(letter)
    variants = [*routine.variants()]
    for number in range(max(len(variants), 6)):
        options, (m, n, k) = variants[number % len(variants)], SIZES[number % len(SIZES)]
        step = (-1, 3, 1, -2)[number % 4] if len(routine.vectors) + routine.level > 2 else 3
        few = {"kl": min(2, m - 1), "ku": min(1, m - 1)}  # SciPy refuses bands that are wider than the matrix
        terms = k if routine.level == 3 else min(k, 5)
        sizes = {"m": m, "n": n, "k": terms, **few}
        ours, theirs = (dict(arguments(routine, letter, options, sizes, step, number)) for _ in "ab")
        results, references = getattr(blas, full)(**ours), getattr(scipy_blas, full)(**theirs)
        pairs = zip(results, references, strict=True) if type(results) is tuple else [(results, references)]
        for found, wanted in pairs:
            assert np.shape(found) == np.shape(wanted), (full, options)
            assert np.asarray(found).dtype == np.asarray(wanted).dtype or np.ndim(wanted) == 0
            near(found, wanted, letter, max(m, n, k))
        for operand, value in theirs.items():
            if isinstance(value, np.ndarray):
                near(ours[operand], value, letter, 1)


def applied(a: Any, trans: int) -> Any:
    """Return a matrix as an option of SciPy takes it, in higher precision."""
    a = a.astype(np.clongdouble)
    return (a, a.T, a.conj().T)[trans]


@pytest.mark.parametrize("trans", range(3))
def test_large_systems_are_solved_for_every_option(trans: int) -> None:
    """The triangle is larger than one that `blocked` halves."""
    rng, n = np.random.default_rng(23), SMALLEST_COMPLEX + 22
    a = np.asfortranarray(rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))) / n + np.eye(n)
    for side, lower in itertools.product(range(2), range(2)):
        b = rng.standard_normal((3, n) if side else (n, 3)) + 0.5j
        found = blas.ztrsm(2j, a, b, side=side, lower=lower, trans_a=trans).astype(np.clongdouble)
        triangle = applied(np.tril(a) if lower else np.triu(a), trans)
        near(found @ triangle if side else triangle @ found, 2j * b, "z", n)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", [*itertools.product(range(2), range(3), range(3))])
@pytest.mark.parametrize("letter", "cz")
def test_a_triangle_of_a_product_is_near_long_sums(letter: str, options: tuple[int, int, int]) -> None:
    lower, trans_a, trans_b = options
    rng, n, k = np.random.default_rng(24), 77, 35
    shapes = ((k, n) if trans_a else (n, k), (n, k) if trans_b else (k, n), (n, n))
    a, b, c = ((rng.standard_normal(s) + 1j * rng.standard_normal(s)).astype(DTYPES[letter]) for s in shapes)
    found = getattr(blas, f"{letter}gemmtr")(
        1 - 2j, a, b, beta=0.5j, c=c, lower=lower, trans_a=trans_a, trans_b=trans_b
    )
    exact = (1 - 2j) * (applied(a, trans_a) @ applied(b, trans_b)) + 0.5j * c
    inside = np.tril(np.ones((n, n), bool)) if lower else np.triu(np.ones((n, n), bool))
    near(found[inside], exact[inside], letter, k)
    np.testing.assert_array_equal(found[~inside], c[~inside])


@pytest.mark.parametrize("letter", "cz")
def test_sums_of_scaled_vectors(letter: str) -> None:
    rng = np.random.default_rng(25)
    x, y = ((rng.standard_normal(50) + 1j * rng.standard_normal(50)).astype(DTYPES[letter]) for _ in "xy")
    before, routine = y.copy(), getattr(blas, f"{letter}axpby")
    found = routine(x, y, n=17, alpha=2j, beta=1 - 1j, offx=1, incx=-2, offy=2, incy=1)
    near(found[2:19], 2j * x[33:0:-2] + (1 - 1j) * before[2:19], letter, 1)
    np.testing.assert_array_equal(np.delete(found, range(2, 19)), np.delete(before, range(2, 19)))
    bad = np.full(3, complex(np.nan, np.nan), DTYPES[letter])
    assert (routine(x[:3], bad, alpha=1.0, beta=0.0) == x[:3]).all()


@pytest.mark.parametrize("letter", "cz")
def test_results_are_near_long_sums(letter: str) -> None:
    """Operands are parts of larger matrices, which are NaN elsewhere."""
    rng = np.random.default_rng(21)
    whole = np.full((2, 90, 90), np.nan, DTYPES[letter]).transpose(0, 2, 1)
    a, b = whole[0][3:70, 2:37], whole[1][5:40, 1:20]
    for part in (a, b):
        part[...] = rng.standard_normal(part.shape) + 1j * rng.standard_normal(part.shape)
    exact = a.astype(np.clongdouble) @ b.astype(np.clongdouble)
    near(getattr(blas, f"{letter}gemm")(1.0, a, b), exact, letter, 35)
    near(getattr(blas, f"{letter}gemv")(1.0, a, b[:, 0]), exact[:, 0], letter, 35)
    near(getattr(blas, f"{letter}gemv")(1.0, a, a[:, 1], trans=2), a.conj().T @ a[:, 1], letter, 67)
    near(getattr(blas, f"{letter}dotc")(a[:, 0], a[:, 1]), np.vdot(a[:, 0], a[:, 1]), letter, 67)


@pytest.mark.parametrize("letter", "cz")
def test_sums_of_several_tasks_are_near_long_sums(letter: str) -> None:
    rng, n = np.random.default_rng(26), 2 * TASK + 7
    x, y = ((rng.standard_normal(n) + 1j * rng.standard_normal(n)).astype(DTYPES[letter]) for _ in "xy")
    long_x, long_y = (v.astype(np.clongdouble) for v in (x, y))
    # The terms' signs differ, so that rounding errors add up like the root of their number.
    near(getattr(blas, f"{letter}dotu")(x, y), (long_x * long_y).sum(), letter, 40)
    near(getattr(blas, f"{letter}dotc")(x, y), (long_x.conj() * long_y).sum(), letter, 40)


def test_c_is_written_within_a_larger_matrix() -> None:
    rng = np.random.default_rng(22)
    whole = np.full((40, 50), GUARD + 0j, order="F")
    c = whole[3:36, 7:48]
    a, b = (rng.standard_normal(s) + 1j * rng.standard_normal(s) for s in ((33, 9), (9, 41)))
    c[...] = 1 + 2j
    found = blas.zgemm(1j, a, b, beta=2 - 1j, c=c, overwrite_c=1)
    assert np.shares_memory(found, whole)
    near(c, 1j * (a @ b) + (2 - 1j) * (1 + 2j), "z", 9)
    c[...] = GUARD
    assert (whole == GUARD).all()


def test_a_factor_of_0_leaves_its_operand_out() -> None:
    bad, good = np.full((3, 3), complex(np.nan, np.nan)), np.ones((3, 3), complex)
    assert (blas.zgemm(1j, good, good, beta=0.0, c=bad) == 3j).all()
    assert (blas.zgemm(0.0, bad, good, beta=2j, c=good) == 2j).all()
    for trans in range(3):
        assert (blas.zgemv(0.0, bad, good[0], beta=2j, y=good[0], trans=trans) == 2j).all()
        assert (blas.zgemv(1j, good, good[0], beta=0.0, y=bad[0], trans=trans) == 3j).all()
    assert (blas.zgeru(0.0, bad[0], bad[0], a=good) == 1).all()
    assert (blas.zaxpy(bad[0], good[0].copy(), a=0.0) == 1).all()
    assert np.isnan(blas.zgemm(1.0, bad, good)).all()
    assert np.isnan(blas.zgemm(1.0, good, good, beta=1e-300, c=bad)).all()


def test_results_without_rows_columns_or_terms() -> None:
    empty = np.ones((3, 0), complex)
    assert (blas.zgemm(1.0, empty, empty.T, beta=2j, c=np.ones((3, 3))) == 2j).all()
    assert blas.zgemm(1.0, empty.T, np.ones((3, 2))).shape == (0, 2)
    assert blas.zdotu([], []) == 0
    assert (blas.zgemv(1.0, empty.T, np.ones(3), trans=2) == 0).all()


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("cgemv", (1.0, np.ones((2, 3)), [1.0]), "CGEMV parameter number 7"),
        ("zgemm", (1.0, np.ones((2, 3)), np.ones((2, 3))), "ZGEMM parameter number 9"),
        ("zgemm", (1.0, np.ones((2, 2)), np.ones((2, 2)), 0.0, None, 3), "ZGEMM parameter number 1"),
        ("zaxpy", ([1.0], [1.0], 1, 1.0, 0, 0), "ZAXPY parameter number 4"),
        ("csscal", (1.0, [1.0], 3), "CSSCAL parameter number 3"),
        ("zgerc", (1.0, [1.0], [1.0], 0), "ZGERC parameter number 5"),
    ],
)
def test_a_wrong_argument_is_told_by_its_number(name: str, given: tuple[Any, ...], told: str) -> None:
    with pytest.raises(BlasError, match=told):
        getattr(blas, name)(*given)


@pytest.mark.parametrize("letter", "cz")
def test_a_rotation_makes_the_second_number_0(letter: str) -> None:
    """c a + s b is r, and c b - conj(s) a is 0, at sizes whose squares overflow or underflow too."""
    rng, unit = np.random.default_rng(25), float(np.finfo(DTYPES[letter]).eps)
    most = 18 if letter == "c" else 150
    for number in range(60):
        scale = 10.0 ** rng.integers(-most, most, 2)
        a, b = (complex(DTYPES[letter](complex(*rng.standard_normal(2)) * s)) for s in scale)
        a, b = (0j if number % 7 == 0 else a), (0j if number % 11 == 0 else b)
        c, s = getattr(blas, f"{letter}rotg")(a, b)
        size = max(abs(a), abs(b)) or 1.0
        assert isinstance(c, float)
        assert c >= 0
        assert abs(c * b / size - np.conj(s) * a / size) < 8 * unit
        assert abs(c * c + abs(s) ** 2 - 1) < 8 * unit
    assert getattr(blas, f"{letter}rotg")(0j, 0j) == (1, 0)


def test_a_real_factor_is_no_complex_number() -> None:
    with pytest.raises(TypeError):
        blas.zdscal(1j, [1.0, 2.0])


def test_negative_steps_and_overwriting_are_as_in_level_1() -> None:
    x = np.arange(4) + 1j
    assert blas.zscal(2j, x) is x
    np.testing.assert_array_equal(x, 2j * (np.arange(4) + 1j))
    before = x.copy()
    scaled = blas.zdscal(2.0, x)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(scaled, 2 * before)
    assert blas.zdscal(2.0, x, overwrite_x=1) is x
