"""Threads of devices: order, exceptions, the end of a thread, and waiting that can't last for ever."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from typing import Any

import pytest

from jangin.runtime import device_threads
from jangin.runtime.device_threads import DeviceThread, Later


def test_functions_are_called_in_order_in_one_thread() -> None:
    thread = DeviceThread()
    called: list[tuple[int, int]] = []
    laters = [thread.submit(lambda n=n: called.append((n, threading.get_ident()))) for n in range(20)]
    for later in laters:
        later.wait()
    assert [n for n, _ in called] == list(range(20))
    assert len({ident for _, ident in called}) == 1 and called[0][1] != threading.get_ident()


def test_an_exception_is_raised_to_who_asks_and_the_thread_goes_on() -> None:
    thread = DeviceThread()
    failed, right = thread.submit(lambda: 1 // 0), thread.submit(lambda: 7)
    with pytest.raises(ZeroDivisionError):
        failed.result()
    assert right.result() == 7 and failed.done() and right.done()


def test_a_dropped_thread_ends() -> None:
    thread = DeviceThread()
    before = thread.submit(threading.get_ident).result()
    assert before in sys._current_frames()
    del thread
    gc.collect()
    end = time.monotonic() + 60
    while before in sys._current_frames() and time.monotonic() < end:
        time.sleep(0.01)
    assert before not in sys._current_frames()


def test_a_finished_job_is_not_kept() -> None:
    class Kept:
        pass

    thread, kept = DeviceThread(), Kept()
    seen = weakref.ref(kept)
    thread.submit(lambda kept=kept: None).wait()
    thread.submit(lambda: None).wait()
    del kept
    gc.collect()
    assert seen() is None


def test_a_lock_that_stays_closed_delays_but_does_not_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C just after a waiting thread has taken the lock leaves it closed."""
    monkeypatch.setattr(device_threads, "LOOK", 0.01)
    later = Later[int]()
    later.set(3)
    later._pending.acquire()
    assert later.result() == 3
    other = Later[int]()
    waiting = DeviceThread().submit(other.result)
    other._value, other._done = 5, True
    assert waiting.result() == 5


def test_a_thread_that_cannot_begin_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_threads, "LOOK", 0.001)
    monkeypatch.setattr(device_threads, "start_new_thread", lambda *_: None)
    with pytest.raises(MemoryError, match="couldn't begin"):
        DeviceThread()


def test_a_thread_that_begins_too_late_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread begins when nobody waits for it any longer."""
    go, ended, serve = threading.Event(), threading.Event(), device_threads._serve

    def late(*given: Any) -> None:
        go.wait()
        serve(*given)
        ended.set()

    monkeypatch.setattr(device_threads, "LOOK", 0.001)
    monkeypatch.setattr(device_threads, "_serve", late)
    with pytest.raises(MemoryError, match="couldn't begin"):
        DeviceThread()
    go.set()
    assert ended.wait(60)


def test_a_thread_is_looked_for_several_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is stopped for longer than a look doesn't take its thread for one that can't begin."""
    looks: list[float] = []

    class Slow:
        def acquire(self, timeout: float = -1) -> bool:
            looks.append(timeout)
            return len(looks) == 4

    monkeypatch.setattr(device_threads, "allocate_lock", Slow)
    monkeypatch.setattr(device_threads, "start_new_thread", lambda *_: None)
    DeviceThread()
    assert looks == [-1, *[device_threads.LOOK] * 3]


def test_a_thread_that_a_failed_allocation_ends_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job that it had is told to whoever waits, instead of being awaited for ever."""
    failures = iter([MemoryError("none left")])
    as_it_is = device_threads._carry_out

    def carry_out(work: Any, later: Any) -> None:
        for error in failures:
            raise error
        as_it_is(work, later)

    monkeypatch.setattr(device_threads, "_carry_out", carry_out)
    monkeypatch.setattr(device_threads, "LOOK", 0.01)
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    thread = DeviceThread()
    part, lost = thread.later(), thread.submit(lambda: 1)
    for later in (lost, part):
        with pytest.raises(MemoryError, match="has ended for lack of memory"):
            later.result()
    assert thread.submit(lambda: 2).result() == 2
    assert thread.submit(lambda: 3).result() == 3
