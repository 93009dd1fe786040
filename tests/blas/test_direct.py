"""Repeated calls: what an earlier call prepared gives the same results on other memory."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from jangin import blas
from jangin.blas.direct import KINDS, Direct, keep

N = 9


@pytest.fixture
def repeats(monkeypatch: pytest.MonkeyPatch) -> list[Direct]:
    """Return a list that gets each repeated call."""
    made: list[Direct] = []
    run = Direct.__call__
    monkeypatch.setattr(Direct, "__call__", lambda self, values: (made.append(self), run(self, values))[1])
    return made


def matrix(seed: int) -> np.ndarray:
    return np.asfortranarray(np.random.default_rng(seed).standard_normal((N, N)))


def test_a_repeated_product_takes_its_own_operands_and_factors(repeats: list[Direct]) -> None:
    for seed in range(3):
        a, b, c = matrix(seed), matrix(seed + 10), matrix(seed + 20)
        alpha = 1.0 + seed
        np.testing.assert_allclose(blas.dgemm(alpha, a, b), alpha * a @ b, atol=1e-13)
        wanted = a @ b + alpha * c
        assert blas.dgemm(1.0, a, b, beta=alpha, c=c, overwrite_c=1) is c
        np.testing.assert_allclose(c, wanted, atol=1e-13)
    assert len(repeats) in range(4, 7)  # another test may have prepared the two kinds of calls


@pytest.mark.sampled(2)
def test_operands_that_may_not_be_overwritten_stay(repeats: list[Direct]) -> None:
    a, c = np.asfortranarray(np.triu(matrix(3)) + N * np.eye(N)), matrix(4)
    for b in (matrix(5), np.ascontiguousarray(matrix(6)), matrix(7), np.ascontiguousarray(matrix(8))):
        before = b.copy()
        np.testing.assert_allclose(blas.dtrmm(1.0, a, b), a @ b, atol=1e-12)
        np.testing.assert_allclose(a @ blas.dtrsm(1.0, a, b), b, atol=1e-12)
        np.testing.assert_allclose(blas.dgemm(1.0, a, a, beta=1.0, c=b), a @ a + b, atol=1e-12)
        np.testing.assert_array_equal(b, before)
        kept = c.copy(order="F")
        found = blas.dtrmm(1.0, a, kept, overwrite_b=1)
        np.testing.assert_allclose(found, a @ c, atol=1e-12)
    assert len(repeats) >= 5


def test_results_of_repeated_calls_stay() -> None:
    a = matrix(1)
    x = a[:, 0].copy()
    found = [(blas.dgemm(k, a, a), blas.dgemv(k, a, x), blas.ddot(x, a[:, 1])) for k in (1.0, 2.0, 3.0)]
    for k, (product, vector, dot) in enumerate(found, 1):
        np.testing.assert_allclose(product, k * a @ a, atol=1e-13)
        np.testing.assert_allclose(vector, k * a @ x, atol=1e-13)
        assert dot == pytest.approx(x @ a[:, 1])


def test_calls_that_differ_are_not_taken_for_equal() -> None:
    """Each call follows one that is like it but for one thing: type, shape, strides, step, option, 0."""
    a, x = matrix(2), np.arange(1.0, N + 1)
    wide, y = np.asfortranarray(np.ones((2 * N, N))), np.ones(N)
    wide[:N] = a
    for _ in range(2):
        np.testing.assert_allclose(blas.dgemv(1.0, a, x), a @ x, atol=1e-13)
        np.testing.assert_allclose(blas.dgemv(1.0, a, x, trans=1), a.T @ x, atol=1e-13)
        np.testing.assert_allclose(blas.dgemv(1.0, a, x.astype(np.float32)), a @ x, atol=1e-13)
        np.testing.assert_allclose(blas.dgemv(1.0, wide[:N], x), a @ x, atol=1e-13)
        np.testing.assert_allclose(blas.dgemv(1.0, a.T, x), a.T @ x, atol=1e-13)
        np.testing.assert_allclose(blas.dgemv(1.0, a[:, :4], x[:4]), a[:, :4] @ x[:4], atol=1e-13)
        np.testing.assert_allclose(blas.dgemv(1.0, a, x, incx=-1), a @ x[::-1], atol=1e-13)
        assert (blas.daxpy(x, y.copy(), a=0.0) == 1).all()
        np.testing.assert_array_equal(blas.daxpy(x, y.copy(), a=2.0), 1 + 2 * x)


def test_an_array_that_may_not_be_written_is_not() -> None:
    x, y = np.ones(5), np.arange(5.0)
    blas.daxpy(x, y)
    y.flags.writeable = False
    before = y.copy()
    np.testing.assert_array_equal(blas.daxpy(x, y), before + 1)
    np.testing.assert_array_equal(y, before)


def test_the_other_triangle_of_a_repeated_result_is_0() -> None:
    for seed, lower in itertools.product(range(3), (0, 1)):
        a = matrix(seed)
        found = blas.dsyrk(1.0, a, lower=lower)
        np.testing.assert_allclose(found, (np.tril if lower else np.triu)(a @ a.T), atol=1e-13)


def test_threads_of_python_call_at_once(taken: list[bool]) -> None:
    """Each thread has working memory of its own. Native code knows all of it afterwards."""
    given = [matrix(seed) for seed in range(8)]
    blas.dgemm(1.0, given[0], given[0])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda a: [blas.dgemm(1.0, a, a) for _ in range(50)], given))
    for a, products in zip(given, found, strict=True):
        assert all(np.allclose(p, a @ a, atol=1e-13) for p in products)
    for a in given[:4]:
        np.testing.assert_allclose(blas.dgemm(1.0, a, a), a @ a, atol=1e-13)
    assert taken[-1]


def test_a_result_of_another_type_than_its_operands() -> None:
    x = np.full(3, 0.5, np.float32)
    for _ in range(2):
        assert blas.isamax(x) == 0
        assert blas.dsdot(x, x) == 0.75


def test_a_fresh_array_of_an_update_begins_with_0() -> None:
    """The array isn't given, so its elements are those of memory that others have left."""
    x, y = np.ones(4), np.ones(3)
    for _ in range(3):
        left = [np.full((4, 3), np.nan, order="F") for _ in range(50)]
        del left
        np.testing.assert_array_equal(blas.dger(1.0, x, y), np.ones((4, 3)))


@pytest.mark.parametrize("overwritten", [0, 1])
def test_no_callers_array_is_kept(overwritten: int) -> None:
    a, b = matrix(1), matrix(2)
    held = weakref.ref(a), weakref.ref(b)
    for _ in range(2):
        result = blas.dgemm(1.0, a, b)
        own = blas.dgemm(1.0, a, a, beta=1.0, c=b, overwrite_c=overwritten)
    held = *held, weakref.ref(result), weakref.ref(own)
    del a, b, result, own
    assert [array() for array in held] == [None] * 4


def test_an_array_is_overwritten_after_one_that_may_not_be() -> None:
    a = matrix(1)
    for writeable in (False, True, False, True):
        c = matrix(2)
        c.flags.writeable = writeable
        result = blas.dgemm(1.0, a, a, c=c, overwrite_c=1)
        assert (result is c) == writeable
        np.testing.assert_allclose(result, a @ a, atol=1e-13)


def test_a_repeated_result_has_the_shape_of_the_first() -> None:
    """Operands with fewer axes than the routine's give results whose axes the first call chooses."""
    one = np.ones((1, 1))
    for _ in range(3):
        assert blas.dtrmm(2.0, np.eye(N), np.ones(N)).shape == (N,)
        assert blas.dtrsm(2.0, np.eye(N), np.ones(N)).shape == (N,)
        assert blas.daxpy(np.ones(1), np.ones(())).shape == (1,)
        assert blas.dgemm(1.0, one, one, c=np.ones(1)).shape == (1,)
        assert blas.dtrmv(np.eye(1), np.ones(())).shape == (1,)


def test_none_counts_as_not_given() -> None:
    a = matrix(1)
    for _ in range(2):
        result = blas.dgemm(1.0, a, a, None, None, trans_a=None, overwrite_c=None)
        np.testing.assert_allclose(result, a @ a, atol=1e-13)
        np.testing.assert_allclose(blas.dgemv(1.0, a, a[0].copy(), y=None, offx=None), a @ a[0], atol=1e-13)
    with pytest.raises(TypeError, match="lacks b"):
        blas.dgemm(1.0, a, None)


def test_threads_keep_kinds_of_calls_at_once() -> None:
    """Each thread puts new kinds among those that are kept, and the oldest ones are put out meanwhile."""
    kinds: dict[Hashable, Direct] = {}
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for job in [pool.submit(_keep_many, kinds, thread) for thread in range(4)]:
                job.result()
    finally:
        sys.setswitchinterval(before)
    assert len(kinds) == KINDS


def _keep_many(kinds: dict[Hashable, Direct], thread: int) -> None:
    for turn in range(20_000):
        keep(kinds, (thread, turn), None)  # type: ignore[arg-type]  # what is kept doesn't matter


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call was one that native code found equal to the last kind."""
    told: list[bool] = []
    take = Direct.taken

    def watched(self: Direct, values: tuple[object, ...]) -> object:
        result = take(self, values)
        told.append(result is not None)
        return result

    monkeypatch.setattr(Direct, "taken", watched)
    return told


def test_a_kind_of_call_that_comes_again_is_taken_by_native_code(taken: list[bool]) -> None:
    for seed in range(6):
        a, factor = matrix(seed), 0.5 + seed
        np.testing.assert_allclose(blas.dgemm(factor, a, a), factor * a @ a, atol=1e-13)
    assert taken[-2:] == [True, True]
    b, other = matrix(1), np.asfortranarray(np.ones((N, N + 1)))
    alike = [(2, b, b), (2.0, b.T, b), (2.0, b, b.astype(np.float32)), (2.0, b, other), (2.0, b[::-1], b)]
    for factor, left, right in alike:
        np.testing.assert_allclose(blas.dgemm(factor, left, right), 2.0 * left @ right, atol=1e-5)
        assert not taken[-1]
    np.testing.assert_allclose(blas.dgemm(np.float64(3), b, b), 3 * b @ b, atol=1e-13)
    np.testing.assert_allclose(blas.dgemm(3.0, b, b), 3 * b @ b, atol=1e-13)


def test_native_code_writes_into_a_callers_array_only_if_it_may(taken: list[bool]) -> None:
    x = np.arange(1.0, 8.0)
    for turn in range(5):
        y = np.ones(7)
        assert blas.daxpy(x, y, 7, 2.0) is y
        np.testing.assert_array_equal(y, 1 + 2 * x)
        assert taken[-1:] != [False] or turn < 3
    fixed = np.ones(7)
    fixed.flags.writeable = False
    np.testing.assert_array_equal(blas.daxpy(x, fixed, 7, 2.0), 1 + 2 * x)
    assert (fixed == 1).all()
    bad = np.full(7, np.nan)
    np.testing.assert_array_equal(blas.daxpy(bad, np.ones(7), 7, 0.0), np.ones(7))


def test_a_changed_number_of_threads_is_noticed(taken: list[bool]) -> None:
    a = matrix(3)
    try:
        for threads in (1, 2):
            blas.set_threads(threads)
            for _ in range(4):
                np.testing.assert_allclose(blas.dgemm(1.0, a, a), a @ a, atol=1e-13)
            assert taken[-1]
            blas.set_threads(3)
            blas.dgemm(1.0, a, a)
            assert not taken[-1]
    finally:
        blas.set_threads(None)
