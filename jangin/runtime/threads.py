"""The number of threads that this process may keep busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from operator import index
from pathlib import Path
from typing import SupportsIndex, TypeVar

import numpy as np

from jangin.runtime.system.processor import usable_processors

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
MOST = 2048
"""The most threads of a pool. The parts of a job, a few for each thread, are counted in 16 bits (see
`backends.llvm.pool`)."""


def counted(threads: SupportsIndex | None, name: str = "threads") -> int:
    """Return the number of threads that a caller requests, by default as many as the process may use. `name`
    is the argument's name in messages.

    Raises TypeError for anything but a whole number, and ValueError for less than 1 or more than MOST."""
    if threads is None:
        return default_threads()
    try:
        if isinstance(threads, (bool, np.bool_)):
            raise TypeError
        count = index(threads)
    except TypeError:
        raise TypeError(f"{name} is how many threads to use, a whole number, not {threads!r}") from None
    if not 1 <= count <= MOST:
        raise ValueError(f"{name} must be at least 1 and at most {MOST}, got {count}")
    return count


def default_threads(root: Path = Path("/")) -> int:
    """Return the number of processors that this process may use (see `usable_processors`)."""
    return usable_processors(root)


def handover(turns: int = 20) -> float:
    """Return the median seconds from handing work to another thread until its end is known, over `turns`
    trials."""
    from concurrent.futures import ThreadPoolExecutor

    taken = []
    with ThreadPoolExecutor(1) as other:
        for _ in range(turns):
            start = time.perf_counter()
            other.submit(int).result()
            taken.append(time.perf_counter() - start)
    return sorted(taken)[turns // 2]


def side_by_side(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Return the results of `work`, in order. Other threads do it if several processors can share it."""
    threads = min(default_threads(), len(items))
    if threads < 2:
        return [work(one) for one in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        return [*pool.map(work, items)]
