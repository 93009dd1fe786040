"""Working memory that waits for the next run: how much of it is kept, and how forked processes drop it."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

from jangin.runtime.system import in_children
from jangin.runtime.threads import default_threads


class Holder(Protocol):
    """An object that keeps working memory between runs."""

    def renew(self) -> None:
        """Drop the memory and make new locks, in a forked process. The memory refers to thread pools whose
        threads don't exist there, and a thread that doesn't exist may hold a lock."""


_holders: WeakSet[Holder] = WeakSet()


def kept() -> int:
    """Return the number of runs whose working memory is kept for later runs: as many as can run at once, at
    least 2."""
    return max(2, default_threads())


def renewed_in_children(holder: Holder) -> None:
    """Have `holder.renew` called in each process that is forked from this one."""
    _holders.add(holder)


def _renew() -> None:
    for holder in list(_holders):
        holder.renew()


in_children(_renew)
