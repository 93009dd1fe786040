"""Products of a batch beside NumPy's, however the matrices lie."""

from __future__ import annotations

import ctypes
import itertools
import shutil
from typing import Any

import numpy as np
import pytest

from jangin import blas
from jangin.blas.calls import BlasError
from jangin.blas.library import emit

TYPES = {"s": np.float32, "d": np.float64}
SIZES = [(1, 1, 1, 1), (5, 7, 3, 9), (3, 33, 17, 65), (2, 130, 71, 300), (4, 6, 5, 0)]
"""Matrices, rows, columns and terms. The fourth one has more of each than a task."""


def near(found: np.ndarray, wanted: np.ndarray, terms: int) -> None:
    """Assert that results differ by less than a unit in the last place for each term."""
    assert found.dtype in (np.float32, np.float64)
    unit = float(np.finfo(found.dtype).eps)
    largest = max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=unit * (terms + 8) * largest)


def lying(shape: tuple[int, ...], kind: int, rng: np.random.Generator) -> np.ndarray:
    """Return random matrices: in rows, in columns, within larger ones, the last first, or every third number
    of a row."""
    whole = rng.standard_normal([2 * shape[0] + 1, shape[1] + 3, 3 * shape[2] + 2])
    if kind == 1:
        return np.ascontiguousarray(whole[: shape[0], : shape[1], : shape[2]].swapaxes(1, 2)).swapaxes(1, 2)
    if kind == 2:
        return whole[1 : 2 * shape[0] : 2, 2 : 2 + shape[1], 1 : 1 + shape[2]]
    if kind == 3:
        return whole[: shape[0], : shape[1], : shape[2]][::-1]
    if kind == 4:
        return whole[: shape[0], : shape[1], : 3 * shape[2] : 3]
    return whole[: shape[0], : shape[1], : shape[2]].copy()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("letter", "sd")
@pytest.mark.parametrize("called", ["gemm_strided_batched", "gemm_batched"])
def test_as_numpy(letter: str, called: str) -> None:
    """Every way to lie and every transposition is taken at every size in turn."""
    multiply = getattr(blas, letter + called)
    rng = np.random.default_rng(11)
    ways = itertools.product(range(5), range(5), (0, 1), (0, 2))
    for (way_a, way_b, trans_a, trans_b), (batch, m, n, k) in zip(ways, itertools.cycle(SIZES), strict=False):
        a = lying((batch, *((k, m) if trans_a else (m, k))), way_a, rng).astype(TYPES[letter], copy=False)
        b = lying((batch, *((n, k) if trans_b else (k, n))), way_b, rng).astype(TYPES[letter], copy=False)
        left = a.swapaxes(1, 2) if trans_a else a
        right = b.swapaxes(1, 2) if trans_b else b
        found = np.array(multiply(1.5, a, b, trans_a=trans_a, trans_b=trans_b))
        near(found, 1.5 * np.matmul(left.astype(np.float64), right.astype(np.float64)), k)


def test_one_matrix_is_multiplied_with_all() -> None:
    rng = np.random.default_rng(12)
    a, b = rng.standard_normal((5, 7, 9)), rng.standard_normal((9, 3))
    near(blas.dgemm_strided_batched(1.0, a, b), a @ b, 9)
    near(
        blas.dgemm_strided_batched(1.0, a[:1], np.broadcast_to(b, (4, 9, 3))), a[:1] @ b[None].repeat(4, 0), 9
    )
    near(blas.dgemm_strided_batched(1.0, a[0], b), (a[0] @ b)[None], 9)
    near(np.array(blas.dgemm_batched(1.0, list(a), [b] * 5)), a @ b, 9)


def test_a_batch_may_be_empty() -> None:
    assert blas.dgemm_strided_batched(1.0, np.ones((0, 2, 3)), np.ones((3, 4))).shape == (0, 2, 4)
    assert blas.sgemm_strided_batched(1.0, np.ones((3, 0, 3)), np.ones((3, 3, 4))).shape == (3, 0, 4)
    assert blas.dgemm_batched(1.0, [], []) == []


@pytest.mark.parametrize("way", range(5))
def test_c_is_written_where_it_lies(way: int) -> None:
    """The strides between matrices, rows and numbers may be any. Numbers between them are kept."""
    rng = np.random.default_rng(13)
    a, b = rng.standard_normal((4, 7, 9)), rng.standard_normal((4, 9, 5))
    c = lying((4, 7, 5), way, rng)
    whole = c
    while whole.base is not None:
        whole = whole.base
    wanted, outside = 2 * a @ b - 0.5 * c, whole.copy()
    assert blas.dgemm_strided_batched(2.0, a, b, beta=-0.5, c=c, overwrite_c=1) is c
    near(c, wanted, 9)
    places = np.zeros(whole.shape, bool)
    view = np.lib.stride_tricks.as_strided
    first = (c.__array_interface__["data"][0] - whole.__array_interface__["data"][0]) // 8
    view(places.reshape(-1)[first:], c.shape, [s // 8 for s in c.strides])[...] = True
    np.testing.assert_array_equal(whole[~places], outside[~places])


def test_a_list_of_c_is_written_where_it_lies() -> None:
    rng = np.random.default_rng(14)
    a, b = rng.standard_normal((3, 7, 9)), rng.standard_normal((3, 9, 5))
    for order in ("C", "F"):
        c = [np.array(rng.standard_normal((7, 5)), order=order) for _ in range(3)]
        wanted = [x @ y + z for x, y, z in zip(a, b, c, strict=True)]
        assert blas.dgemm_batched(1.0, a, b, beta=1.0, c=c, overwrite_c=1) is c
        near(np.array(c), np.array(wanted), 9)


def test_c_that_may_not_be_written_is_not() -> None:
    a, c = np.ones((2, 3, 3)), np.ones((2, 3, 3))
    once, fixed = np.broadcast_to(np.ones((3, 3)), (2, 3, 3)), c.copy()
    fixed.flags.writeable = False
    kept = [c[0], c[0]]
    for given in (c, once, fixed):
        overwrite = 0 if given is c else 1
        found = blas.dgemm_strided_batched(1.0, a, a, beta=1.0, c=given, overwrite_c=overwrite)
        assert (found == 4).all() and (given == 1).all()
    assert (np.array(blas.dgemm_batched(1.0, a, a, beta=1.0, c=kept, overwrite_c=1)) == 4).all()
    assert (c == 1).all()


def test_a_factor_of_0_leaves_its_operand_out() -> None:
    bad, good = np.full((2, 3, 3), np.nan), np.ones((2, 3, 3))
    assert (blas.dgemm_strided_batched(1.0, good, good, beta=0.0, c=bad) == 3).all()
    assert (blas.dgemm_strided_batched(0.0, bad, good, beta=2.0, c=good) == 2).all()
    assert np.isnan(blas.dgemm_strided_batched(1.0, bad, good)).all()


def test_any_number_of_threads_gives_the_same() -> None:
    rng = np.random.default_rng(15)
    a, b = rng.standard_normal((40, 21, 33)), rng.standard_normal((40, 33, 18))
    found = []
    for threads in (1, 2):
        blas.set_threads(threads)
        try:
            found.append(blas.dgemm_strided_batched(1.0, a, b))
        finally:
            blas.set_threads(None)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("a", "b", "more", "told"),
    [
        ((2, 3, 4), (2, 3, 4), {}, "number 10 .* b has matrices of the shape"),
        ((2, 3, 3), (4, 3, 3), {}, "number 10 .* b has 4 matrices, and 2 are"),
        ((2, 3, 3), (3,), {}, "number 10 .* b has 1 axes"),
        ((2, 3, 3), (3, 3), {"c": np.ones((1, 3, 3))}, "number 14 .* c has 1 matrices"),
        ((2, 3, 3), (3, 3), {"trans_b": 5}, "number 2 .* transb is 5"),
    ],
)
def test_a_wrong_argument_is_told_by_its_number(
    a: tuple[int, ...], b: tuple[int, ...], more: dict[str, Any], told: str
) -> None:
    with pytest.raises(BlasError, match=f"DGEMM_STRIDED_BATCHED parameter {told}"):
        blas.dgemm_strided_batched(1.0, np.ones(a), np.ones(b), **more)


def test_matrices_of_a_list_have_one_shape() -> None:
    with pytest.raises(BlasError, match=r"DGEMM_BATCHED .*shapes \(2, 2\), \(3, 3\), not of one"):
        blas.dgemm_batched(1.0, [np.eye(2), np.eye(3)], [np.eye(2), np.eye(2)])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("gcc") is None:
        pytest.skip("a library needs a C compiler")
    folder = tmp_path_factory.mktemp("batched")
    emit(folder, ["dgemm_strided_batched"])
    return ctypes.CDLL(str(folder / "libjangin_blas.so"))


NUMBER = ctypes.c_double


def pointer(array: np.ndarray, first: int = 0) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data + first * array.itemsize)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [False, True])
def test_a_library_has_the_batch_extension(library: ctypes.CDLL, rows: bool) -> None:
    """Matrices lie within larger ones, transposed or not, and one b is used for all."""
    rng = np.random.default_rng(16)
    for trans_a, trans_b in itertools.product((0, 1), repeat=2):
        whole = [np.full((4, 12, 12), 777.0) for _ in range(3)]
        seen = whole if rows else [w.swapaxes(1, 2) for w in whole]
        a = seen[0][:, 2:9, 1:6] if not trans_a else seen[0][:, 2:7, 1:8]
        b, c = seen[1][:, 1:6, 3:9] if not trans_b else seen[1][:, 1:7, 3:8], seen[2][:, 3:10, 2:8]
        for part in (a, b, c):
            part[...] = rng.standard_normal(part.shape)
        left, right = a.swapaxes(1, 2) if trans_a else a, b[0].T if trans_b else b[0]
        wanted, outside = 2 * left @ right - c, whole[2].copy()
        library.cblas_dgemm_batch_strided(
            101 if rows else 102, 111 + trans_a, 111 + trans_b, 7, 6, 5, NUMBER(2), pointer(a), 12, 144,
            pointer(b), 12, 0, NUMBER(-1), pointer(c), 12, 144, 4,
        )  # fmt: skip
        np.testing.assert_allclose(c, wanted, rtol=1e-13, atol=1e-13)
        kept = whole[2].copy()
        c[...] = 0
        (outside if rows else outside.swapaxes(1, 2))[:, 3:10, 2:8] = 0
        np.testing.assert_array_equal(whole[2], outside)
        assert (kept != 777.0).sum() == 4 * 7 * 6


def test_a_wrong_argument_of_the_extension_is_refused(
    library: ctypes.CDLL, capfd: pytest.CaptureFixture[str]
) -> None:
    c = np.ones(8)
    for layout, leading, batch, number in ((7, 2, 1, 1), (101, 1, 1, 16), (102, 2, -1, 18)):
        library.cblas_dgemm_batch_strided(
            layout, 111, 111, 2, 2, 0, NUMBER(1), None, 2, 0, None, 2, 0, NUMBER(0), pointer(c), leading, 4,
            batch,
        )  # fmt: skip
        told = f"On entry to cblas_dgemm_batch_strided parameter number {number:2} had an illegal value"
        assert told in capfd.readouterr().err
    assert (c == 1).all()
    library.cblas_dgemm_batch_strided(
        101, 111, 111, 2, 2, 0, NUMBER(1), None, 2, 0, None, 2, 0, NUMBER(3), pointer(c), 2, 4, 2
    )
    assert (c == 3).all()
