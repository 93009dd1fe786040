"""Results beside sums in higher precision, rules for NaN and 0, extremes, and wrong arguments."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from blas_cases import arguments

from jangin import blas
from jangin.blas.calls import BlasError, all_routines
from jangin.blas.routine import Routine
from jangin.ir.graph import Array

ORDER = 133
"""An order that is split into blocks, with an odd rest."""


def error(found: Array, wanted: Array) -> float:
    """Return the largest difference, in the last place of the largest number."""
    unit = np.finfo(found.dtype).eps * float(np.abs(wanted).max())
    return float(np.abs(found - wanted).max()) / unit


@pytest.mark.parametrize("letter", "sd")
def test_products_are_near_long_sums(letter: str) -> None:
    rng = np.random.default_rng(1)
    dtype = np.float32 if letter == "s" else np.float64
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((67, 129), (129, 35)))
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
    assert error(getattr(blas, f"{letter}gemm")(1.0, a, b), exact) < 129
    assert error(getattr(blas, f"{letter}gemv")(1.0, a, b[:, 0]), exact[:, 0]) < 129


@pytest.mark.parametrize(("name", "dtype"), [("hgemm", np.float16), ("bgemm", ml_dtypes.bfloat16)])
def test_small_floats_are_summed_in_float32(name: str, dtype: type) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((33, 257), (257, 17)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    found = getattr(blas, name)(1.0, a, b)
    assert found.dtype == dtype
    half_unit = float(ml_dtypes.finfo(dtype).eps) / 2
    assert (np.abs(found.astype(np.float64) - exact) <= np.abs(exact) * half_unit * 1.01 + 1e-4).all()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ["dtrmm", "dtrsm"])
def test_large_triangles(name: str) -> None:
    rng = np.random.default_rng(3)
    square = np.asfortranarray(rng.standard_normal((ORDER, ORDER)) + ORDER * np.eye(ORDER))
    for side, lower, trans, unit in itertools.product((0, 1), repeat=4):
        b = rng.standard_normal((7, ORDER) if side else (ORDER, 7))
        a = np.tril(square) if lower else np.triu(square)
        given = a / ORDER
        if unit:
            given[np.diag_indices(ORDER)] = 1
        given = given.T if trans else given
        found = getattr(blas, name)(0.5, square / ORDER, b, side=side, lower=lower, trans_a=trans, diag=unit)
        turned = found if name == "dtrmm" else b
        source = b if name == "dtrmm" else found
        product = (source @ given if side else given @ source) * (0.5 if name == "dtrmm" else 2.0)
        np.testing.assert_allclose(turned, product, rtol=0, atol=1e-10)


@pytest.mark.parametrize("side", [0, 1])
def test_a_large_system_is_solved_where_it_lies(side: int) -> None:
    """Its halves are products of parts of the operands, and nothing beside the right sides is written."""
    rng = np.random.default_rng(7)
    whole = np.full((ORDER + 5, ORDER + 7), 777.0, order="F")
    shape = (9, ORDER) if side else (ORDER, 9)
    b = whole[2 : 2 + shape[0], 3 : 3 + shape[1]]
    b[...] = rng.standard_normal(shape)
    before, a = b.copy(), np.triu(rng.standard_normal((ORDER, ORDER))) / ORDER + np.eye(ORDER)
    found = blas.dtrsm(2.0, a, b, side=side, overwrite_b=1)
    assert np.shares_memory(found, whole)
    np.testing.assert_allclose(b @ a if side else a @ b, 2 * before, rtol=0, atol=1e-12)
    b[...] = 777.0
    assert (whole == 777.0).all()


@pytest.mark.sampled(2)
def test_the_other_triangle_keeps_its_elements_and_is_not_read() -> None:
    rng = np.random.default_rng(4)
    a, c = rng.standard_normal((ORDER, 9)), np.full((ORDER, ORDER), np.nan, order="F")
    for lower in (0, 1):
        found = blas.dsyrk(1.0, a, c=c, lower=lower)
        inside = np.tril(np.ones_like(c)) if lower else np.triu(np.ones_like(c))
        np.testing.assert_allclose(found[inside > 0], (a @ a.T)[inside > 0], rtol=1e-12, atol=1e-12)
        assert np.isnan(found[inside == 0]).all()
        triangle = np.where(inside > 0, 1.0, np.nan)
        assert np.isfinite(blas.dsymm(1.0, triangle, a, lower=lower)).all()
        assert np.isfinite(blas.dtrmm(1.0, triangle, a, lower=lower)).all()
        assert np.isfinite(blas.dsymv(1.0, triangle, a[:, 0], lower=lower)).all()


def test_a_factor_of_0_leaves_its_operand_out() -> None:
    bad, good = np.full((3, 3), np.nan), np.ones((3, 3))
    assert (blas.dgemm(1.0, good, good, beta=0.0, c=bad) == 3).all()
    assert (blas.dgemm(0.0, bad, good, beta=2.0, c=good) == 2).all()
    assert (blas.dgemv(0.0, bad, good[0], beta=2.0, y=good[0]) == 2).all()
    assert (blas.dgemv(1.0, good, good[0], beta=0.0, y=bad[0]) == 3).all()
    assert np.isnan(blas.dgemm(1.0, bad, good)).all()


@pytest.mark.parametrize(
    ("x", "length"),
    [
        ([3e300, 4e300], 5e300), ([3e-320, 4e-320], 5e-320), ([1e-200, 3.0, 4.0], 5.0), ([], 0.0),
        ([0.0, 0.0], 0.0), ([math.inf, 1.0], math.inf), ([1e-300, math.nan], math.nan),
        ([3e200, 4e200, 1e-200], 5e200),
    ],
)  # fmt: skip
def test_a_length_neither_overflows_nor_underflows(x: list[float], length: float) -> None:
    np.testing.assert_allclose(blas.dnrm2(np.array(x)), length, rtol=1e-15)


def test_mixed_precision_dots() -> None:
    x = np.full(1001, 0.1, np.float32)
    exact = float((x.astype(np.float64) ** 2).sum())
    assert blas.dsdot(x, x) == pytest.approx(exact, rel=1e-15)
    assert blas.sdsdot(1.0, x, x) == np.float32(exact + 1)


def test_the_largest_element_is_the_first_and_never_a_later_nan() -> None:
    assert blas.idamax([1.0, -3.0, 3.0]) == 1
    assert blas.idamax([1.0, math.nan, 2.0]) == 2
    assert blas.idamax([math.nan, 5.0]) == 0


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: blas.dgemv(1.0, np.ones((2, 3)), [1.0]), "DGEMV parameter number 7"),
        (lambda: blas.dgemm(1.0, np.ones((2, 3)), np.ones((2, 3))), "DGEMM parameter number 9"),
        (lambda: blas.dtrsv(np.eye(2), [1.0, 2.0], incx=0), "DTRSV parameter number 8"),
        (lambda: blas.dsyrk(1.0, np.eye(2), trans=7), "DSYRK parameter number 2"),
    ],
)
def test_a_wrong_argument_is_told_by_its_number(call: object, told: str) -> None:
    with pytest.raises(BlasError, match=told):
        call()  # type: ignore[operator]


def test_an_unknown_routine_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="xgemm"):
        blas.xgemm  # noqa: B018


def test_both_factors_scale_their_vectors() -> None:
    x, y = np.arange(5.0), np.ones(5)
    np.testing.assert_array_equal(blas.daxpby(x, y.copy(), alpha=2.0, beta=-1.0), 2 * x - 1)
    np.testing.assert_array_equal(blas.daxpby(x, np.full(5, np.nan), alpha=2.0, beta=0.0), 2 * x)


def test_a_product_may_be_a_triangle() -> None:
    a, b = np.random.default_rng(5).standard_normal((2, 9, 7))
    found = blas.dgemmtr(1.0, a, b, trans_b=1, lower=1, c=np.full((9, 9), 5.0, order="F"))
    np.testing.assert_allclose(found, np.where(np.tri(9) > 0, a @ b.T, 5.0), rtol=1e-13, atol=1e-13)


IDLE = [(n, t, r) for n, (t, r) in all_routines().items() if r.idle or n == "dscal"]


@pytest.mark.parametrize(("name", "letter", "routine"), IDLE, ids=[n for n, *_ in IDLE])
def test_a_factor_of_0_changes_nothing(name: str, letter: str, routine: Routine) -> None:
    """The other operands may have NaN, and are copied or kept as they are."""
    sizes = {"m": 4, "n": 3, "k": 2}
    for number, options in enumerate(routine.variants()):
        given = dict(arguments(routine, letter, options, sizes, -2, number))
        if routine.idle:
            given[routine.idle] = 0.0
        for operand in {*routine.extents} - {*routine.written}:
            given[operand][...] = np.nan
        (written,) = routine.written
        before = given[written].copy()
        found = getattr(blas, name)(**given)
        np.testing.assert_array_equal(found, before)
        assert routine.level == 1 or not np.shares_memory(found, given[written])


SCALED = [
    (n, r) for n, (t, r) in all_routines().items()
    if t == "d" and r.level > 1 and "alpha" in r.scalars and "batched" not in n
]  # fmt: skip
"""Routines with a factor alpha. The tests of batched products have such tests of their own."""


@pytest.mark.parametrize(("name", "routine"), SCALED, ids=[n for n, _ in SCALED])
def test_operands_that_a_factor_of_0_leaves_out_may_have_nan(name: str, routine: Routine) -> None:
    sizes = {"m": 4, "n": 3, "k": 2, "kl": 1, "ku": 1}
    (written,) = routine.written
    for number, options in enumerate(routine.variants()):
        given = dict(arguments(routine, "d", options, sizes, 1, number))
        given["alpha"] = 0.0
        for operand in {*routine.extents} - {written}:
            given[operand][...] = np.nan
        wanted = given[written] * given["beta"] if "beta" in given else given[written]
        if routine.name in ("trmm", "trsm"):
            given[written][...] = np.nan
            wanted = np.zeros_like(given[written])
        found, wanted = getattr(blas, name)(**given), np.array(wanted)
        if found.ndim == 2 and "uplo" in options and "side" not in options:
            part = np.tril if options["uplo"] == "L" else np.triu
            found, wanted = part(found), part(wanted)
        if written in routine.vectors:
            first = given.get(f"off{written}", 0)
            found, wanted = found[first:], wanted[first:]
        np.testing.assert_array_equal(found, wanted, err_msg=str(options))


@pytest.mark.parametrize("side", [0, 1])
def test_a_large_system_without_right_sides_has_no_nan(side: int) -> None:
    a, b = np.full((ORDER, ORDER), np.nan), np.full((3, ORDER) if side else (ORDER, 3), np.nan)
    assert (blas.dtrsm(0.0, a, b, side=side) == 0).all()


def test_an_operand_is_no_none() -> None:
    a = np.ones((2, 2))
    with pytest.raises(TypeError, match=r"dgemm\(.*\) lacks alpha, b"):
        blas.dgemm(None, a, None)
