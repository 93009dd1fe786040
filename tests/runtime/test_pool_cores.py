"""Workers wake on another core than the caller's, and may use the same cores afterwards as before."""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from pools import Pool, job

from jangin.backends.llvm.pool import pool_module
from jangin.runtime.system.waiting import CORES
from jangin.targets.x86 import V2

_SYSTEM = f"""
@allowed = global [1 x i64] zeroinitializer
@set = global [1 x i64] zeroinitializer
@count = global [1 x i64] zeroinitializer
@log = global [4096 x [2 x i64]] zeroinitializer
define i32 @core() {{
  ret i32 0
}}
define i32 @get(i32 %thread, i64 %size, ptr %mask) {{
  %set = load atomic i64, ptr @set seq_cst, align 8
  %allowed = load i64, ptr @allowed
  %bits = and i64 %set, %allowed
  store i64 %bits, ptr %mask
  ret i32 {CORES // 8}
}}
define i32 @put(i32 %thread, i64 %size, ptr %mask) {{
entry:
  %bits = load i64, ptr %mask
  %allowed = load i64, ptr @allowed
  %left = and i64 %bits, %allowed
  %none = icmp eq i64 %left, 0
  br i1 %none, label %refuse, label %accept
refuse:
  ret i32 -1
accept:
  store atomic i64 %bits, ptr @set seq_cst, align 8
  %n = atomicrmw add ptr @count, i64 1 seq_cst
  %row = and i64 %n, 4095
  %at = getelementptr [2 x i64], ptr @log, i64 %row
  %next = getelementptr i64, ptr %at, i64 1
  %wide = zext i32 %thread to i64
  store i64 %wide, ptr %at
  store i64 %bits, ptr %next
  ret i32 0
}}
"""


class OneCore(Pool):
    """The pool's functions on a system that says that every thread is on core 0. It keeps one set of cores,
    limited to the `allowed` ones as by a control group, and logs the changes."""

    def __init__(self, mask: int, allowed: int) -> None:
        text = re.sub(r"declare i32 @sched_(getcpu|[gs]etaffinity).*", "", pool_module(V2))
        for name, ours in (("getcpu", "core"), ("getaffinity", "get"), ("setaffinity", "put")):
            text = text.replace(f"@sched_{name}", f"@{ours}")
        super().__init__(text + _SYSTEM)
        self._word("allowed")[0], self._word("set")[0] = allowed, mask

    def _word(self, name: str, count: int = 1) -> ctypes.Array[ctypes.c_uint64]:
        return (ctypes.c_uint64 * count).from_address(self.image.address(name))

    @property
    def mask(self) -> int:
        return int(self._word("set")[0])

    @property
    def log(self) -> list[tuple[int, int]]:
        """The thread and the new set of each change. Thread 0 is the calling one."""
        count, words = self._word("count")[0], self._word("log", 8192)
        return [(words[2 * n], words[2 * n + 1]) for n in range(min(4096, count))]


EVERY = (1 << 64) - 1
"""The first 64 cores."""


def worker_numbers(before: set[str]) -> list[int]:
    return [int(t) for t in set(os.listdir("/proc/self/task")) - before]


@pytest.mark.parametrize(
    ("mask", "allowed", "narrowed", "after"),
    [
        (EVERY, 0b1111, 0b1110, EVERY),  # all cores of the control group: also those that it gets later
        (0b0111, 0b1111, 0b0110, 0b0111),  # narrowed by the user
        (0b0110, 0b1111, 0b0110, 0b0110),  # kept off the core by the user
        (0b0011, 0b1111, 0b0010, 0b0011),
        (0b0001, 0b1111, None, 0b0001),  # on this core alone
        (EVERY, 0b0001, None, EVERY),
    ],
)
def test_a_worker_is_woken_off_the_callers_core(
    mask: int, allowed: int, narrowed: int | None, after: int
) -> None:
    """The caller narrows the set of a worker that it wakes, and the worker restores it."""
    pool, before = OneCore(mask, allowed), set(os.listdir("/proc/self/task"))
    made = pool.create(2)
    (worker,) = worker_numbers(before)
    for _ in range(200):
        time.sleep(0.002)
        job(pool, made, 400, 1, 2, slow=True)
        if narrowed is None or any(thread == worker for thread, _ in pool.log):
            break
    pool.destroy(made)
    assert pool.mask == after
    if narrowed is None:
        assert pool.log == []
    else:
        assert (worker, narrowed) in pool.log
        assert {bits for _, bits in pool.log} <= {narrowed, EVERY, after}


def last_core(thread: int) -> int:
    return int(Path(f"/proc/self/task/{thread}/stat").read_text().rsplit(")", 1)[1].split()[36])


@pytest.mark.parametrize("threads", [2, 5])
def test_affinities_survive_callers_on_every_core(threads: int) -> None:
    """Callers are pinned to each core in turn. The workers' sets of cores stay what they are, as soon as the
    workers run."""
    pool, before, cores = Pool(), set(os.listdir("/proc/self/task")), os.sched_getaffinity(0)
    made = pool.create(threads)
    workers = worker_numbers(before)

    def pinned(core: int) -> None:
        os.sched_setaffinity(0, {core})
        for _ in range(20):
            time.sleep(0.001)
            job(pool, made, 400, 1, threads, slow=True)

    for core in sorted(cores)[:4] * 2:
        caller = threading.Thread(target=pinned, args=(core,))
        caller.start()
        caller.join()
        deadline = time.monotonic() + 20
        while any(os.sched_getaffinity(worker) != cores for worker in workers):
            assert time.monotonic() < deadline
            time.sleep(0.001)
    pool.destroy(made)


def wakes(pool: Pool, made: int, worker: int, core: int, cores: set[int]) -> list[tuple[int, int]]:
    """Let a worker sleep on the caller's core ten times. Return the cores where it slept and where it ran
    next."""
    found = []

    def pinned() -> None:
        os.sched_setaffinity(0, {core})
        for _ in range(10):
            os.sched_setaffinity(worker, {core})
            ran = np.zeros(2)
            while not ran[1]:  # until the worker ran on this core
                ran = job(pool, made, 400, 1, 2, slow=True)
            time.sleep(0.01)
            slept = last_core(worker)
            os.sched_setaffinity(worker, cores)
            job(pool, made, 4096, 1, 2, slow=True)
            found.append((slept, last_core(worker)))

    caller = threading.Thread(target=pinned)
    caller.start()
    caller.join()
    return found


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no other beside it")
def test_a_worker_that_slept_on_the_callers_core_wakes_on_another() -> None:
    """Eight of ten wake on another core in one of three rounds, as a busy system may move a worker back."""
    pool, before, cores = Pool(), set(os.listdir("/proc/self/task")), os.sched_getaffinity(0)
    core = min(cores)
    made = pool.create(2)
    (worker,) = worker_numbers(before)
    rounds = []
    for _ in range(3):
        found = wakes(pool, made, worker, core, cores)
        assert [slept for slept, _ in found] == [core] * 10
        rounds.append(sum(woken != core for _, woken in found))
        if rounds[-1] >= 8:
            break
    pool.destroy(made)
    assert max(rounds) >= 8, rounds
