"""The memory and the time that processes use, and limits on the memory."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

_DATA = 5
"""The index, in a process's `statm`, of its data pages (Linux's proc(5))."""


def own_memory() -> int:
    """Return the bytes of memory that belong to this process alone, or 0 if the system doesn't report
    them."""
    if pages := _pages():
        return (pages[1] - pages[2]) * mmap.PAGESIZE  # resident, less shared
    return 0


def limit_own_memory(more: int) -> None:
    """Limit this process's data memory to its present size plus `more` bytes. Nothing is done on systems
    without this kind of limit."""
    try:
        import resource
    except ImportError:
        return
    if (pages := _pages()) is None:
        pages = (0,) * (_DATA + 1)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = pages[_DATA] * mmap.PAGESIZE + more
    resource.setrlimit(resource.RLIMIT_DATA, (limit if most < 0 else min(limit, most), most))


def _pages() -> tuple[int, ...] | None:
    """Return numbers of this process's pages: all, resident, shared, of its code, 0, of its data. Return None
    if they aren't reported."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return tuple(map(int, file.read().split()))
    except OSError:
        return None


def children_bytes() -> int:
    """Return the largest resident size in bytes of any process that this one, or one of its children, started
    and waited for. Return 0 if it isn't reported."""
    return _largest("RUSAGE_CHILDREN")


def peak_bytes() -> int:
    """Return this process's largest resident size so far in bytes, or 0 if it isn't reported."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return _largest("RUSAGE_SELF")


def _largest(who: str) -> int:
    try:
        import resource
    except ImportError:
        return 0
    size = int(resource.getrusage(getattr(resource, who)).ru_maxrss)
    return size if sys.platform == "darwin" else size << 10


def runnable(process: int) -> bool:
    """Return whether a thread of a process runs or waits for a core. Return False if the system doesn't
    report it."""
    try:
        texts = [p.read_text(encoding="utf-8") for p in Path(f"/proc/{process}/task").glob("*/stat")]
    except OSError:  # a thread ended meanwhile
        return True
    return any(text.rpartition(")")[2].split()[0] == "R" for text in texts)


def busy_seconds(process: int | None = None) -> float:
    """Return the CPU seconds, over all cores, that a process has used, with a precision of about a hundredth.
    Without `process`, return those of all processes, stolen time included. Return 0 if the system doesn't
    report it."""
    try:
        if process is None:
            with open("/proc/stat", encoding="ascii") as file:
                fields = [int(n) for n in file.readline().split()[1:]]
            ticks = sum(fields[:3]) + sum(fields[5:8])  # not idle, not waiting for disks
        else:
            with open(f"/proc/{process}/stat", encoding="utf-8") as file:
                own = file.read().rpartition(")")[2].split()
            ticks = int(own[11]) + int(own[12])
    except OSError:
        return 0.0
    return ticks / os.sysconf("SC_CLK_TCK")
