"""Objects that exist once: what is equal is the same object, for as long as something holds it.

A table finds an object by what it is made of and holds it weakly, so that the tables keep nothing of
compilations that are over. Objects that were pickled are looked up when they are made again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from itertools import count
from threading import RLock
from typing import TypeVar
from weakref import ref

from jangin.ir.limits import tick
from jangin.runtime.system import in_children

T = TypeVar("T")

Known = dict[Hashable, Callable[[], T | None]]
"""The objects of one class, by what they are made of: weak references, as they are called."""

_lock = RLock()
"""Held where an entry is made or dropped; dropping may come in the midst of making, when memory is
collected."""


def _renew_lock() -> None:
    """In a forked process, which has none of the threads that may have held it."""
    global _lock
    _lock = RLock()


in_children(_renew_lock)


def absent() -> None:
    """What a table gives for a key that it hasn't: a reference to nothing."""


class _Entry(ref[T]):
    """What a table holds of an object: finds the way back to its entry, to drop it."""

    __slots__ = ("key", "known")
    known: Known[T]
    key: Hashable


def _drop(entry: _Entry[T], ends: Callable[[], bool] = sys.is_finalizing) -> None:
    if ends():  # this module's names may be gone
        return
    with _lock:
        if entry.known.get(entry.key) is entry:
            del entry.known[entry.key]


EACH = 1024
"""Objects after which it is asked whether there is time to make more."""
_made = count(1)


def keep(known: Known[T], key: Hashable, made: T) -> T:
    """The object of `key`: `made`, unless another thread was quicker."""
    if not next(_made) % EACH:
        tick()
    entry = _Entry(made, _drop)
    entry.known, entry.key = known, key
    with _lock:
        found = known.get(key, absent)()
        if found is None:
            known[key] = entry
            return made
        return found
