"""Repeated calls: what an earlier call prepared gives the same results on other memory."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.linalg.blas
from forks import in_a_fork

from jangin import blas
from jangin.blas import calls, compiled, direct
from jangin.blas.direct import KINDS, Direct, keep
from jangin.runtime import rows
from jangin.runtime.calls import are_known

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


def test_threads_of_python_call_at_once(general: list[object]) -> None:
    """Each thread has working memory of its own. Native code still knows the call afterwards."""
    given = [matrix(seed) for seed in range(8)]
    blas.dgemm(1.0, given[0], given[0])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda a: [blas.dgemm(1.0, a, a) for _ in range(50)], given))
    for a, products in zip(given, found, strict=True):
        assert all(np.allclose(p, a @ a, atol=1e-13) for p in products)
    before = len(general)
    for a in given[:4]:
        np.testing.assert_allclose(blas.dgemm(1.0, a, a), a @ a, atol=1e-13)
    assert len(general) == before


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
def general(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The arguments of each call that native code didn't know."""
    if not are_known():
        pytest.skip("this Python or NumPy isn't one that native code knows")
    told: list[object] = []
    kind_of = calls.same_kind
    monkeypatch.setattr(calls, "same_kind", lambda *given: (told.append(given), kind_of(*given))[1])
    return told


def test_a_kind_of_call_that_comes_again_is_taken_by_native_code(general: list[object]) -> None:
    for seed in range(6):
        a, factor = matrix(seed), 0.5 + seed
        np.testing.assert_allclose(blas.dgemm(factor, a, a), factor * a @ a, atol=1e-13)
    assert len(general) <= 3
    b, other = matrix(1), np.asfortranarray(np.ones((N, N + 1)))
    alike = [(2, b, b), (2.0, b.T, b), (2.0, b, b.astype(np.float32)), (2.0, b, other), (2.0, b[::-1], b)]
    for count, (factor, left, right) in enumerate(alike, len(general) + 1):
        np.testing.assert_allclose(blas.dgemm(factor, left, right), 2.0 * left @ right, atol=1e-5)
        assert len(general) == count
    np.testing.assert_allclose(blas.dgemm(np.float64(3), b, b), 3 * b @ b, atol=1e-13)
    np.testing.assert_allclose(blas.dgemm(3.0, b, b), 3 * b @ b, atol=1e-13)


def test_native_code_writes_into_a_callers_array_only_if_it_may(general: list[object]) -> None:
    x = np.arange(1.0, 8.0)
    for _ in range(6):
        y = np.ones(7)
        assert blas.daxpy(x, y, 7, 2.0) is y
        np.testing.assert_array_equal(y, 1 + 2 * x)
    assert len(general) <= 3
    fixed = np.ones(7)
    fixed.flags.writeable = False
    np.testing.assert_array_equal(blas.daxpy(x, fixed, 7, 2.0), 1 + 2 * x)
    assert (fixed == 1).all()
    bad = np.full(7, np.nan)
    np.testing.assert_array_equal(blas.daxpy(bad, np.ones(7), 7, 0.0), np.ones(7))


def test_a_changed_number_of_threads_is_noticed(general: list[object]) -> None:
    a = matrix(3)
    try:
        for threads in (1, 2):
            blas.set_threads(threads)
            before = len(general)
            for _ in range(6):
                np.testing.assert_allclose(blas.dgemm(1.0, a, a), a @ a, atol=1e-13)
            assert 0 < len(general) - before <= 3
            blas.set_threads(3)
            before = len(general)
            blas.dgemm(1.0, a, a)
            assert len(general) == before + 1
    finally:
        blas.set_threads(None)


@pytest.mark.parametrize("letter", "sdcz")
def test_native_code_returns_what_the_general_function_does(letter: str, general: list[object]) -> None:
    """Numbers, new arrays, copies and own arrays, by arguments in order and by name."""
    dtype = np.dtype({"s": "f4", "d": "f8", "c": "c8", "z": "c16"}[letter])
    rng = np.random.default_rng(4)
    unit = 1j if letter in "cz" else 1
    x, a, b = ((rng.standard_normal(s) + unit).astype(dtype, order="F") for s in (7, (7, 7), (7, 7)))
    dot = "dot" if letter in "sd" else "dotu"
    nrm2 = {"c": "scnrm2", "z": "dznrm2"}.get(letter, f"{letter}nrm2")
    asked = [
        (f"{letter}{dot}", lambda: (x, x), {}),
        (nrm2, lambda: (x,), {}),
        (f"i{letter}amax", lambda: (x,), {}),
        (f"{letter}gemm", lambda: (1.0, a, b), {"trans_b": 1}),
        (f"{letter}gemm", lambda: (1.0, a, b), {"beta": 2.0, "c": b}),
        (f"{letter}trmm", lambda: (1.0, a, b), {"lower": 1}),
        (f"{letter}trsv", lambda: (a, x), {}),
        (f"{letter}copy", lambda: (x, x.copy()), {}),
    ]
    for name, arguments, named in asked:
        routine, wanted = getattr(blas, name), getattr(scipy.linalg.blas, name)(*arguments(), **named)
        results = [routine(*arguments(), **named) for _ in range(3)]
        before = len(general)
        results += [routine(*arguments(), **named) for _ in range(3)]
        assert len(general) == before, name
        for result in results:
            assert type(result) is type(results[0])
            assert np.asarray(result).dtype == np.asarray(results[0]).dtype
            np.testing.assert_allclose(result, wanted, rtol=2e-4 if letter in "sc" else 1e-11, err_msg=name)
    assert not any(np.shares_memory(results[0], r) for r in results[1:])


def test_names_of_arguments_are_compared(general: list[object]) -> None:
    a, b = matrix(1), matrix(2)
    for _ in range(4):
        np.testing.assert_allclose(blas.dgemm(1.0, a, b, trans_a=1), a.T @ b, atol=1e-13)
    before = len(general)
    np.testing.assert_allclose(blas.dgemm(1.0, a, b, trans_b=1), a @ b.T, atol=1e-13)
    np.testing.assert_allclose(blas.dgemm(1.0, a, b, 1), a @ b, atol=1e-13)
    np.testing.assert_allclose(blas.dgemm(alpha=1.0, a=a, b=b, trans_a=1), a.T @ b, atol=1e-13)
    assert len(general) == before + 3
    with pytest.raises(TypeError, match="trans_c"):
        blas.dgemm(1.0, a, b, trans_c=1)


def test_native_calls_keep_counts_of_references() -> None:
    a, b, c = matrix(1), matrix(2), matrix(3)
    dtype = np.dtype(np.float64)
    for _ in range(4):
        blas.dgemm(1.0, a, b)
    before = [sys.getrefcount(one) for one in (a, b, dtype)]
    results = [blas.dgemm(1.0, a, b) for _ in range(100)]
    del results
    assert [sys.getrefcount(one) for one in (a, b, dtype)] == before
    for _ in range(100):
        assert blas.dgemm(1.0, a, b, c=c, overwrite_c=1) is c
    assert sys.getrefcount(c) == 2


def test_a_forked_process_calls_on() -> None:
    a = np.asfortranarray(np.random.default_rng(5).standard_normal((300, 300)))
    for _ in range(4):
        blas.dgemm(1.0, a, a)
    in_a_fork(lambda: all(np.allclose(blas.dgemm(1.0, a, a), a @ a) for _ in range(4)))


def test_locks_that_another_thread_held_are_free_in_a_forked_process() -> None:
    """A fork may come while another thread makes a kernel or keeps a call."""
    with ThreadPoolExecutor(1) as pool:
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with compiled._making, direct._keeping, rows._LOCK:
                held.set()
                done.wait()

        job = pool.submit(hold)
        held.wait()
        try:
            in_a_fork(_locks_are_free)
        finally:
            done.set()
        job.result()


def _locks_are_free() -> bool:
    return all(lock.acquire(blocking=False) for lock in (compiled._making, direct._keeping, rows._LOCK))
