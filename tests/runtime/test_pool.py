"""The thread pool under stress: every task of every job runs exactly once, in its own job."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from forks import in_a_fork
from pools import Pool, job

from jangin.backends.llvm.pool import UNITS_PER_THREAD, pool_module
from jangin.runtime.devices import pools
from jangin.runtime.devices.pools import Pool as Shared
from jangin.runtime.devices.pools import pool_for
from jangin.runtime.functions import POOL_CREATE
from jangin.targets.x86 import V2


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    yield Pool()


@pytest.mark.parametrize("threads", [2, 3, 4, 16])
def test_every_task_once(pool: Pool, threads: int) -> None:
    made = pool.create(threads)
    rng = np.random.default_rng(threads)
    for _ in range(1500):
        job(pool, made, int(rng.integers(1, 400)), int(rng.integers(0, 40)), threads, slow=rng.random() < 0.1)
    pool.destroy(made)


def test_workers_help_and_wake(pool: Pool) -> None:
    made = pool.create(2)
    helped, deadline = 0, time.monotonic() + 30
    while helped < 10 and time.monotonic() < deadline:
        time.sleep(0.002)  # long enough to put the worker to sleep
        helped += int(job(pool, made, 4096, 1, 2, slow=True)[1] > 0)
    pool.destroy(made)
    assert helped >= (10 if len(os.sched_getaffinity(0)) > 1 else 0)


def test_a_worker_with_one_core_stays_there(pool: Pool) -> None:
    before, core = set(os.listdir("/proc/self/task")), min(os.sched_getaffinity(0))
    made = pool.create(2)
    (worker,) = (int(t) for t in set(os.listdir("/proc/self/task")) - before)
    os.sched_setaffinity(worker, {core})

    def pinned() -> None:
        os.sched_setaffinity(0, {core})
        for _ in range(20):
            time.sleep(0.002)
            job(pool, made, 400, 1, 2, slow=True)

    caller = threading.Thread(target=pinned)
    caller.start()
    caller.join()
    assert os.sched_getaffinity(worker) == {core}
    pool.destroy(made)


def test_runs_are_no_smaller_than_the_grain(pool: Pool) -> None:
    made = pool.create(3)
    for tasks in (1, 2, 7, 3 * UNITS_PER_THREAD, 3 * UNITS_PER_THREAD + 1, 1000):
        for grain in (0, 1, tasks - 1, tasks, tasks + 1):
            ran = job(pool, made, tasks, max(0, grain), 3)
            if grain == 0 or tasks <= grain:
                assert ran[0] == tasks  # the caller alone runs all tasks
    pool.destroy(made)


@pytest.mark.parametrize(("tasks", "grain", "unit"), [(128, 27, 32), (63, 2, 2), (30, 9, 15), (6, 4, 4)])
def test_each_thread_gets_as_many_units(pool: Pool, tasks: int, grain: int, unit: int) -> None:
    """Shares are whole units, divided evenly. With five pieces of 27 of 128 tasks, one of two threads would
    have three."""
    made = pool.create(2)
    for _ in range(50):
        caller, worker = job(pool, made, tasks, grain, 2, slow=True)
        assert caller % unit == 0 or worker % unit == 0
        assert caller % unit in (0, tasks % unit)
    pool.destroy(made)


def test_no_pool_and_no_tasks(pool: Pool) -> None:
    assert pool.create(1) is None and pool.create(0) is None
    assert job(pool, None, 100, 1, 1)[0] == 100
    assert job(pool, None, 0, 1, 1)[0] == 0
    pool.destroy(None)


def test_create_and_destroy(pool: Pool) -> None:
    for cycle in range(200):
        made = pool.create(2 + cycle % 3)
        if cycle % 2:
            job(pool, made, 50, 1, 4)
        if cycle % 10 == 0:
            time.sleep(0.001)
        pool.destroy(made)


def test_models_share_a_pool_of_as_many_threads(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that uses fewer processors loads models for fewer threads. The scratch memory of a run is for
    the threads of its model, so workers of a larger pool would write beyond it."""
    codes = [POOL_CREATE.name.encode()]

    def shared(threads: int) -> Shared:
        monkeypatch.setattr(pools, "default_threads", lambda: threads)
        return pool_for(pool.image, codes, threads)

    four, two = shared(4), shared(2)
    assert four is not two and shared(4) is four and shared(2) is two


def test_several_callers_of_one_pool(pool: Pool) -> None:
    made = pool.create(3)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(500):
                job(pool, made, int(rng.integers(1, 300)), 1, 3, slow=rng.random() < 0.2)
        except BaseException as error:
            failures.append(error)

    callers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    pool.destroy(made)
    assert not failures


def test_no_wait_for_workers_that_took_nothing(pool: Pool) -> None:
    """A forked child has the pool's memory but none of its workers. Jobs finish anyway."""
    made = pool.create(4)
    in_a_fork(lambda: all(job(pool, made, 300, 1, 4)[0] == 300 for _ in range(50)), 20)
    pool.destroy(made)


def test_unknown_architecture() -> None:
    with pytest.raises(ValueError, match="nothing is known of code for mips"):
        pool_module(replace(V2, triple="mips-unknown-linux-gnu"))
