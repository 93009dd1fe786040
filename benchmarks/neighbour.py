"""Time engines beside a busy neighbour: another process that loads one core fully, in turns with an idle
one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jangin.bench.engine import Job
from jangin.bench.measure import Options, Turn, Worker, kept_turns, make_jobs, take_turns

THREADS = 2


class Neighbour:
    """A process that computes or stands still."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        os.kill(self.process.pid, signal.SIGSTOP)

    @contextmanager
    def busy(self) -> Iterator[None]:
        os.kill(self.process.pid, signal.SIGCONT)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGSTOP)

    def __enter__(self) -> Neighbour:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def measure(model: Path, options: Options, tell: Callable[[int], None]) -> dict[str, Any]:
    """Return, for each engine that runs, {"quiet/1", "quiet/2", "loaded/2"}. Each has the median and
    quartiles of milliseconds a run."""
    turns: dict[tuple[str, str], list[Turn]] = {}
    once = replace(options, rounds=1)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        jobs = [
            j for j in make_jobs(model, 1, options, Path(folder)) if j.engine not in ("sgemm", "reference")
        ]
        teams = {}
        for threads in (1, THREADS):
            started = [
                stack.enter_context(Worker(replace(job, threads=threads), options.pythons.get(job.engine)))
                for job in jobs
            ]
            teams[threads] = [w for w in started if "error" not in w.ready]
        core = stack.enter_context(Worker(Job("fma", 1)))
        neighbour = stack.enter_context(Neighbour())
        for i in range(options.rounds):
            tell(i)
            for threads, workers in teams.items():
                add(turns, f"quiet/{threads}", take_turns(workers, core, once))
            with neighbour.busy():
                add(turns, f"loaded/{THREADS}", take_turns(teams[THREADS], core, once))
    fastest = max(t.speed for taken in turns.values() for t in taken)
    found: dict[str, Any] = {}
    for (engine, state), taken in turns.items():
        counted = kept_turns(taken, fastest) if state.startswith("quiet") else taken
        low, median, high = np.percentile([t.nanoseconds / 1e6 for t in counted], (25, 50, 75))
        found.setdefault(engine, {})[state] = {"median": median, "low": low, "high": high}
    return {engine: states for engine, states in found.items() if len(states) == len(teams) + 1}


def add(turns: dict[tuple[str, str], list[Turn]], state: str, taken: dict[str, list[Turn]]) -> None:
    for engine, more in taken.items():
        turns.setdefault((engine, state), []).extend(more)
