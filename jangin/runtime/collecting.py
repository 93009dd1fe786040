"""Pauses Python's collector of cyclic garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from jangin.runtime.system import in_children

_lock = Lock()
_inside, _was_on = [0], [False]


@contextmanager
def uncollected() -> Iterator[None]:
    """Inside this context the collector rests, in the whole process.

    Importing the front end and reading a model make many objects that stay. The collector would look at all
    of them again and again, which takes a third of the time. At the end they count as old, so that the next
    collection doesn't look at them either."""
    with _lock:
        if not _inside[0]:
            _was_on[0] = gc.isenabled()
            gc.disable()
        _inside[0] += 1
    try:
        yield
    finally:
        with _lock:
            _inside[0] -= 1
            if not _inside[0] and _was_on[0]:
                if not gc.get_freeze_count():  # else the caller has objects there, which would come back
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()


def _renew() -> None:
    """Let the collector work again in a process that another thread forked meanwhile."""
    global _lock
    _lock = Lock()
    if _inside[0]:
        _inside[0] = 0
        if _was_on[0]:
            gc.enable()


in_children(_renew)
