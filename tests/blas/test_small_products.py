"""Products of matrices of any size: small ones without gaps are read where they lie, and others in copies."""

from __future__ import annotations

import numpy as np
import pytest
from repeatable import RNG

from jangin import blas
from jangin.blas.dense import FEW_BYTES
from jangin.blas.elements import tile_of
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
