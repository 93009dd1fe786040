"""How many threads this process may keep busy."""

from __future__ import annotations

import time
from operator import index
from pathlib import Path
from typing import SupportsIndex

import numpy as np

from jangin.runtime.system.processor import usable_processors

MOST = 2048
"""Threads of a pool: a job's units, some for each, must fit 16 bits (see `backends.llvm.pool`)."""


def counted(threads: SupportsIndex | None, name: str = "threads") -> int:
    """How many threads a caller asks for, by default as many as the process may use. Raises TypeError for
    what is no whole number, ValueError for less than one or more than there can be. `name`: its name."""
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
    """One for each processor that this process may use (see `usable_processors`)."""
    return usable_processors(root)


def handover(turns: int = 20) -> float:
    """Seconds from when one thread has work for another until it knows that it was done: the median."""
    from concurrent.futures import ThreadPoolExecutor

    taken = []
    with ThreadPoolExecutor(1) as other:
        for _ in range(turns):
            start = time.perf_counter()
            other.submit(int).result()
            taken.append(time.perf_counter() - start)
    return sorted(taken)[turns // 2]
