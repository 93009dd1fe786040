"""Work in forked processes: for Python code, which threads can't run side by side.

A fork copies one thread alone, so that only a process that runs no other (`compiler.isolated`) may use it.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

from jangin.compiler.orphans import end_with

T = TypeVar("T")

_jobs: Sequence[Callable[[], Any]] = ()
"""In a forked process, what there is to do: it found it in the memory it was forked with."""


def in_processes(
    jobs: Sequence[Callable[[], T]], processes: int, progress: Callable[[int, int], None] | None = None
) -> list[T]:
    """What the jobs give, in order, computed by forked processes, which hand the results back pickled.
    `progress(done, total)`. Raises what a job raises, and BrokenProcessPool where a process dies."""
    gc.freeze()  # collecting in a process would copy the pages of every object
    results: list[T] = []
    try:
        with ProcessPoolExecutor(processes, get_context("fork"), _take, (jobs, os.getpid())) as pool:
            for result in pool.map(_run, range(len(jobs))):
                results.append(result)
                if progress is not None:
                    progress(len(results), len(jobs))
    finally:
        gc.unfreeze()
    return results


def _take(jobs: Sequence[Callable[[], Any]], parent: int) -> None:
    global _jobs
    end_with(parent)
    _jobs = jobs


def _run(n: int) -> Any:
    return _jobs[n]()
