"""The pool's workers are divided among its callers."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from pools import Pool, job

from jangin.backends.llvm.pool import pool_module
from jangin.backends.llvm.pool_callers import PATIENCE
from jangin.targets.x86 import V2

_CLOCK = """
@time = internal global [2 x i64] zeroinitializer
define i32 @clock(i32 %which, ptr %into) {
  %now = load atomic i64, ptr getelementptr (i64, ptr @time, i64 1) seq_cst, align 8
  %rest = getelementptr i64, ptr %into, i64 1
  store i64 0, ptr %into
  store i64 %now, ptr %rest
  ret i32 0
}
define void @pass(i64 %nanoseconds) {
  %was = atomicrmw add ptr getelementptr (i64, ptr @time, i64 1), i64 %nanoseconds seq_cst
  ret void
}
"""


class Timed(Pool):
    """The pool's functions with a clock that stands until `passes` moves it."""

    def __init__(self) -> None:
        text = pool_module(V2).replace("declare i32 @clock_gettime(i32, ptr)", "")
        super().__init__(text.replace("@clock_gettime", "@clock") + _CLOCK)
        self.passes = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self.image.address("pass"))


@pytest.fixture(scope="module")
def pool() -> Iterator[Timed]:
    yield Timed()


def helpers(pool: Pool, made: int | None, scratch: np.ndarray) -> set[int]:
    """Return the numbers of the workers that took part in a job."""
    ran = job(pool, made, 400, 1, len(scratch), slow=True, scratch=scratch)
    return {n for n in range(1, len(ran)) if ran[n]}


def seen(pool: Pool, made: int | None, scratch: np.ndarray, expected: set[int]) -> set[int]:
    """Return the workers of jobs, of as many as it takes to see all those expected, or of a minute."""
    found, deadline, more = set(), time.monotonic() + 60, 20
    while more > 0 or (not found >= expected and time.monotonic() < deadline):
        found |= helpers(pool, made, scratch)
        more -= 1
    return found


def memory(threads: int, team: int, teams: int) -> np.ndarray:
    """Return scratch memory by which the pool first tries the place `team`."""
    pages = np.zeros((teams + 2) * 4096, np.uint8)
    start = -pages.ctypes.data % 4096
    start += 4096 * ((team - ((pages.ctypes.data + start) >> 12)) % teams)
    return pages[start : start + 64 * threads].view(np.int64).reshape(threads, 8)


@pytest.mark.parametrize(
    ("threads", "processors", "callers", "teams"),
    [
        (2, 2, 1, [{1}]),
        (2, 2, 2, [set()]),
        (3, 3, 2, [{1}]),
        (6, 6, 1, [{1, 2, 3, 4, 5}]),
        (6, 6, 2, [{1, 3}, {2, 4}]),
        (6, 6, 3, [{1}, {2}, {3}]),
        (6, 6, 5, [{1}]),
        (6, 6, 9, [set()]),
        (2, 6, 2, [{1}]),
        (4, 6, 2, [{1, 3}, {2}]),
    ],
)
def test_workers_are_divided_among_callers(
    pool: Timed, threads: int, processors: int, callers: int, teams: list[set[int]]
) -> None:
    made = pool.create(threads, processors)
    for _ in range(callers):
        pool.enter(made)
    for number, team in enumerate(teams):
        assert seen(pool, made, memory(threads, number, len(teams)), team) == team
    for _ in range(callers):
        pool.leave(made)
    pool.destroy(made)


def test_a_caller_takes_another_team_if_its_own_is_taken(pool: Timed) -> None:
    """Three callers of a pool for two teams and a half. Each job has the workers of one team."""
    made = pool.create(5)
    teams, failures = [{1}, {2}, set()], []
    for _ in range(3):
        pool.enter(made)

    def work() -> None:
        scratch = memory(5, 0, 2)
        for _ in range(200):
            found = helpers(pool, made, scratch)
            if found not in teams:
                failures.append(found)

    callers = [threading.Thread(target=work) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for _ in range(3):
        pool.leave(made)
    pool.destroy(made)
    assert not failures


def test_a_place_is_kept_for_a_caller_who_is_soon_back(pool: Timed) -> None:
    made, scratch = pool.create(2), memory(2, 0, 1)
    pool.enter(made)
    pool.enter(made)
    pool.passes(5 * PATIENCE)
    pool.leave(made)
    pool.passes(PATIENCE)
    assert seen(pool, made, scratch, set()) == set()
    pool.enter(made)
    pool.passes(5 * PATIENCE)
    pool.leave(made)
    pool.passes(PATIENCE)
    assert seen(pool, made, scratch, set()) == set()
    pool.passes(1)
    assert seen(pool, made, scratch, {1}) == {1}
    pool.leave(made)
    pool.destroy(made)


def test_a_short_run_keeps_no_place(pool: Timed) -> None:
    made, scratch = pool.create(2), memory(2, 0, 1)
    pool.enter(made)
    for _ in range(3):
        pool.enter(made)
        pool.passes(PATIENCE // 50)
        assert seen(pool, made, scratch, set()) == set()
        pool.leave(made)
        pool.passes(PATIENCE // 50 + 1)
        assert seen(pool, made, scratch, {1}) == {1}
    pool.leave(made)
    pool.destroy(made)


@pytest.mark.sampled(3)
def test_callers_come_and_go_while_jobs_run(pool: Timed) -> None:
    """Every task runs once, however the crowd changes."""
    made = pool.create(4)
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            while not stop.is_set():
                pool.enter(made)
                for _ in range(int(rng.integers(1, 20))):
                    job(pool, made, int(rng.integers(1, 300)), 1, 4, slow=rng.random() < 0.1)
                pool.passes(int(rng.integers(0, 2 * PATIENCE)))
                pool.leave(made)
                if rng.random() < 0.1:
                    time.sleep(0.001)
        except BaseException as error:
            failures.append(error)

    callers = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for caller in callers:
        caller.start()
    time.sleep(1.5)
    stop.set()
    for caller in callers:
        caller.join(30)
    assert not failures and not any(caller.is_alive() for caller in callers)
    assert ctypes.c_int32.from_address(made or 0).value == 0  # nobody is counted any more
    pool.destroy(made)
