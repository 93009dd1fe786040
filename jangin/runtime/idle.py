"""Working memory that waits for the next run: how much of it is kept, and how it is given back."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

from jangin.runtime.system import in_children
from jangin.runtime.threads import default_threads


class Holder(Protocol):
    """An object that keeps working memory between runs."""

    def renew(self) -> None:
        """Drops the memory and makes new locks, in a forked process. The memory knows thread pools that have
        no threads there, and a thread that isn't there may hold a lock."""


_holders: WeakSet[Holder] = WeakSet()


def kept() -> int:
    """The runs whose working memory is kept for the next ones: as many as can go on at once."""
    return max(2, default_threads())


def renewed_in_children(holder: Holder) -> None:
    """Have an object renewed in each process that is forked from this one."""
    _holders.add(holder)


def _renew() -> None:
    for holder in list(_holders):
        holder.renew()


in_children(_renew)
