"""Threads that work for one device each, and results that come later.

Python's executors aren't used here. If an allocation fails in them, one of their locks can stay closed. The
next run would then wait for ever. No failed allocation leaves a lock of this module closed."""

from __future__ import annotations

import weakref
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
LOOKS = 10
"""The looks at a new thread until it counts as one that can't begin. One that finds no memory never begins
and can't tell. A time wouldn't do: if the process is stopped meanwhile, only one look is lost."""
LOOK = 1.0
"""The seconds between two looks at a new thread or a result. If Ctrl-C stops a waiting thread just when it
has the lock, the lock stays closed."""


class _State:
    """Whether a thread has ended."""

    __slots__ = ("ended",)

    def __init__(self) -> None:
        self.ended = False


class Later(Generic[T]):
    """A result that a thread sets once: a value, or the exception in its place. `state` is the thread's."""

    __slots__ = ("_done", "_error", "_pending", "_state", "_value")

    def __init__(self, state: _State | None = None) -> None:
        self._value: T | None = None
        self._error: BaseException | None = None
        self._done = False
        self._state = state or _State()
        self._pending = allocate_lock()
        self._pending.acquire()

    def set(self, value: T) -> None:
        self._value = value
        self._done = True
        self._pending.release()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._done = True
        self._pending.release()

    def done(self) -> bool:
        return self._done

    def wait(self) -> None:
        """Wait until the result is set, or the thread has ended without it."""
        # A `with` statement would need memory to open the lock again.
        while not self._done and not self._state.ended:
            if self._pending.acquire(timeout=LOOK):
                self._pending.release()

    def result(self) -> T:
        """Wait, and return the value or raise the exception."""
        self.wait()
        if not self._done:
            raise MemoryError("the thread of a device has ended for lack of memory")
        if self._error is not None:
            raise self._error
        return cast(T, self._value)


Job = tuple[Callable[[], Any], Later[Any]]


class DeviceThread:
    """A thread that carries out functions one after another. It ends when this object is dropped.

    If a failed allocation ends the thread, the next function begins another one. Raises MemoryError if a
    thread can't begin."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._state = _State()
        begun = allocate_lock()
        begun.acquire()
        # A thread that begins after this object is dropped ends too.
        weakref.finalize(self, self._jobs.put, None)
        start_new_thread(_serve, (self._jobs, begun, self._state))
        if not any(begun.acquire(timeout=LOOK) for _ in range(LOOKS)):
            raise MemoryError("the thread of a device couldn't begin")

    def submit(self, work: Callable[[], T]) -> Later[T]:
        """Let the thread call `work` after all earlier functions. Return its result, which comes later."""
        later: Later[T] = self.later()
        self._jobs.put((work, later))
        return later

    def later(self) -> Later[T]:
        """Return a result that a function of this thread will set. Whoever waits for it is told if the thread
        ends first."""
        if self._state.ended:
            self._begin()
        return Later[T](self._state)


def _serve(jobs: SimpleQueue[Job | None], begun: LockType, state: _State) -> None:
    begun.release()
    try:
        while (job := jobs.get()) is not None:
            work, later = job
            del job
            _carry_out(work, later)
            # The results and inputs of a finished job aren't kept while the thread waits.
            del work, later
    finally:  # the queue itself may find no memory
        state.ended = True


def _carry_out(work: Callable[[], Any], later: Later[Any]) -> None:
    try:
        value = work()
    except BaseException as error:  # whoever asks for the result gets it
        later.fail(error)
    else:
        later.set(value)
