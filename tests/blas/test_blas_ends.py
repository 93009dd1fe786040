"""Products, systems and sums of any size: each number of rows and columns that are left over at an end."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from repeatable import RNG

from jangin import blas
from jangin.blas.blocked import SMALLEST
from jangin.blas.dense import FEW_BYTES
from jangin.blas.elements import tile_of
from jangin.blas.matvec import LEAST, ROW_BYTES, WIDE
from jangin.blas.vectors import TASK
from jangin.targets import resolve

GAP = 5
"""Rows beside the result, which no product may write."""


def rows_to_try(size: int) -> list[int]:
    """Return numbers of rows with each number of vectors in the last panel, and one row more or less."""
    tile = tile_of(resolve().machine, size)
    whole = [tile.lanes * vectors for vectors in range(1, 2 * tile.vectors + 3)]
    return [rows + more for rows in whole for more in (-1, 0, 1)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("letter", ["s", "d"])
@pytest.mark.parametrize("gap", [0, GAP], ids=["dense", "gaps"])
def test_products_of_each_number_of_rows(letter: str, gap: int, threads: int) -> None:
    dtype = np.dtype(np.float32 if letter == "s" else np.float64)
    rng, gemm = RNG, getattr(blas, f"{letter}gemm")
    blas.set_threads(threads)
    try:
        for m in rows_to_try(dtype.itemsize):
            n, k = (int(size) for size in rng.integers(1, 40, 2))
            a = np.asfortranarray(rng.standard_normal((m + gap, k)).astype(dtype))[:m]
            b = np.asfortranarray(rng.standard_normal((k, n)).astype(dtype))
            whole = np.full((m + gap, n), np.nan, dtype, order="F")
            c = whole[:m]
            c[...] = rng.standard_normal((m, n))
            exact = a.astype(np.longdouble) @ b.astype(np.longdouble) - c / np.longdouble(2)
            # Each of the k + 1 roundings of a sum errs by at most half a unit of the terms' magnitudes.
            bound = (k + 1) * np.finfo(dtype).eps * (abs(a) @ abs(b) + abs(c))
            assert gemm(1.0, a, b, beta=-0.5, c=c, overwrite_c=1) is c
            assert (abs(c - exact) <= bound).all(), (m, n, k)
            assert np.isnan(whole[m:]).all(), (m, n, k)
    finally:
        blas.set_threads(None)


def test_matrices_above_the_limit_of_those_read_where_they_lie() -> None:
    """The sizes lie on both sides of the limit, so that both kinds of reading give one result."""
    rng, lanes = RNG, tile_of(resolve().machine, 8).lanes
    depth = FEW_BYTES // 8 // (2 * lanes)
    b = rng.standard_normal((depth + 1, 7))
    a = np.asfortranarray(rng.standard_normal((2 * lanes, depth + 1)))
    for k in (depth, depth + 1):
        exact = a[:, :k].astype(np.longdouble) @ b[:k].astype(np.longdouble)
        bound = (k + 1) * np.finfo(float).eps * (abs(a[:, :k]) @ abs(b[:k]))
        assert (abs(blas.dgemm(1.0, a[:, :k], b[:k]) - exact) <= bound).all(), k


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("letter", ["s", "d"])
def test_matrices_and_vectors_of_each_number_of_columns(letter: str, threads: int) -> None:
    """The rows are those of one task and of several, and the columns have each remainder."""
    dtype = np.dtype(np.float32 if letter == "s" else np.float64)
    rows = ROW_BYTES // dtype.itemsize
    blas.set_threads(threads)
    try:
        for m, n in itertools.product((1, 2 * LEAST + 1, rows, rows + 3), range(1, 2 * WIDE + 1, 3)):
            a = np.asfortranarray(RNG.standard_normal((m, n)).astype(dtype))
            x = RNG.standard_normal(n).astype(dtype)
            exact = a.astype(np.longdouble) @ x.astype(np.longdouble)
            # Each of the n + 1 roundings of a sum errs by at most half a unit of the terms' magnitudes.
            bound = (n + 1) * np.finfo(dtype).eps * (abs(a) @ abs(x))
            assert (abs(getattr(blas, f"{letter}gemv")(1.0, a, x) - exact) <= bound).all(), (m, n)
    finally:
        blas.set_threads(None)


@pytest.mark.parametrize("letter", ["s", "d"])
def test_dots_of_each_length_at_the_ends_of_vectors_and_tasks(letter: str) -> None:
    dtype = np.dtype(np.float32 if letter == "s" else np.float64)
    lengths = [*range(1, 200), *(TASK + more for more in (-65, -1, 0, 1, 33, 127)), 3 * TASK + 77]
    for n in lengths:
        x, y = (RNG.integers(-4, 5, n).astype(dtype) for _ in range(2))
        assert getattr(blas, f"{letter}dot")(x, y) == int(x.astype(int) @ y.astype(int)), n


@pytest.mark.parametrize("options", [*itertools.product(range(2), range(2), range(2))])
def test_systems_that_are_halved(options: tuple[int, int, int]) -> None:
    side, lower, trans = options
    n = SMALLEST + 22
    a = np.asfortranarray(RNG.standard_normal((n, n))) / n + np.eye(n)
    b = RNG.standard_normal((3, n) if side else (n, 3))
    found = blas.dtrsm(2.0, a, b, side=side, lower=lower, trans_a=trans).astype(np.longdouble)
    triangle = (np.tril(a) if lower else np.triu(a)).astype(np.longdouble)
    triangle = triangle.T if trans else triangle
    # The residual of a solution by substitution is bounded by its n roundings of each term.
    bound = (
        (n + 1) * np.finfo(float).eps * (abs(found) @ abs(triangle) if side else abs(triangle) @ abs(found))
    )
    assert (abs((found @ triangle if side else triangle @ found) - 2 * b) <= bound).all()
