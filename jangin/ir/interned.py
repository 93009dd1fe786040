"""Interned objects: equal objects are the same object, for as long as another object refers to it.

A table finds an object by its parts and refers to it weakly, so the tables keep nothing of past compilations.
Unpickled objects are looked up too."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from itertools import count
from threading import RLock
from typing import TypeVar
from weakref import ref

from jangin.ir.limits import tick
from jangin.runtime.system import renew_lock

T = TypeVar("T")

Known = dict[Hashable, Callable[[], T | None]]
"""The objects of one class, by their parts. The values are weak references."""

_lock = RLock()
"""Held while an entry is made or removed. Garbage collection may remove entries while one is being made."""


renew_lock(globals(), "_lock", RLock)


def absent() -> None:
    """Return None. A table gives this function in place of a weak reference for a missing key."""


class _Entry(ref[T]):
    """A table's reference to an object. It knows its table and key, so that it can drop its entry."""

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
"""The number of objects that are made between two checks of the compilation's budget. Making so many takes
about a millisecond, so checks cost little and come often."""
_made = count(1)


def keep(known: Known[T], key: Hashable, made: T) -> T:
    """Enter `made` in the table under `key`, and return it. If another thread has entered an equal object
    before, return that object."""
    if not next(_made) % EACH:
        tick()
    entry = _Entry(made, _drop)
    entry.known, entry.key = known, key
    with _lock:
        present = known.get(key, absent)()
        if present is None:
            known[key] = entry
            return made
        return present
