"""How many threads this process may keep busy."""

from __future__ import annotations

import math
import os
import time
from functools import cache
from operator import index
from pathlib import Path, PurePosixPath
from typing import SupportsIndex

import numpy as np

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
    """The processors in this process's affinity mask, at most what its control groups' CPU quotas
    allow (rounded up). `root` is where /proc and /sys are read."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        allowed = os.cpu_count() or 1
    return max(1, min([allowed, *(math.ceil(quota) for quota in _quotas(root))]))


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


@cache
def _quotas(root: Path) -> list[float]:
    """CPUs that each control group from the process's own up to the top may use (Linux kernel
    documentation: admin-guide/cgroup-v2, `cpu.max`; scheduler/sched-bwc, `cpu.cfs_quota_us`), as they were
    when the process first asked: to look takes a dozen files."""
    quotas: list[float] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = PurePosixPath(path)
        base = root / "sys/fs/cgroup"
        bases = [base / controllers, base / "cpu"] if controllers else [base, base / "unified"]
        for place in (group, *group.parents):
            for folder in (b / str(place).lstrip("/") for b in bases):
                quotas.extend(_quota(folder))
    return quotas


def _quota(folder: Path) -> list[float]:
    limit = _read(folder / "cpu.max").split() or [
        _read(folder / "cpu.cfs_quota_us").strip(),
        _read(folder / "cpu.cfs_period_us").strip(),
    ]
    if len(limit) == 2 and limit[0].isdigit() and limit[1].isdigit() and int(limit[1]):
        return [int(limit[0]) / int(limit[1])]
    return []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
