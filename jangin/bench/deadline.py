"""Measure whether the runs of a model keep a deadline: on a quiet machine, and with load on all cores."""

from __future__ import annotations

import gc
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.table import Table

from jangin.ir.records import dataclass

LEAST_RUNS = 1000
"""The fewest timed runs. The slowest of a thousand runs, which the report shows, is then at least one run."""
LONGEST_PERIOD = 0.02
"""The most seconds from the begin of a run to that of the next. The processor has gone to sleep by then, and
1,000 runs that wait for longer would take minutes."""
LOAD = (
    "import numpy as np\n"
    "a, b = np.ones((256, 256), np.float32), np.zeros(1 << 22, np.float32)\n"
    "print(flush=True)\n"
    "while True:\n"
    "    a @ a\n"
    "    b += 1\n"
)
"""The program of a process that loads a core by products, and memory by 16 MB that no cache keeps. It writes
a line when it begins."""


@dataclass(frozen=True)
class Latencies:
    """The seconds of a model's runs, in ascending order, and the deadline that each should meet. `load` is
    the number of busy processes that ran at the same time."""

    model: str
    threads: int
    load: int
    deadline: float
    seconds: tuple[float, ...]

    def percentile(self, share: float) -> float:
        """Return the least number of seconds within which this share of the runs ended."""
        return self.seconds[max(0, math.ceil(share * len(self.seconds)) - 1)]

    @property
    def misses(self) -> int:
        return sum(s > self.deadline for s in self.seconds)

    def as_json(self) -> dict[str, object]:
        shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "worst": 1.0}
        figures = {f"{name}_ms": 1e3 * self.percentile(share) for name, share in shares.items()}
        return {
            "model": self.model, "threads": self.threads, "load": self.load, "runs": len(self.seconds),
            "deadline_ms": 1e3 * self.deadline, **figures, "misses": self.misses,
        }  # fmt: skip


def parse_deadline(text: str) -> float:
    """Return the seconds of a text such as "5ms", "800us" or "1s". Raises ValueError for any other text."""
    match = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+) *(us|ms|s)", text.strip())
    if match and 0 < (seconds := float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]]) < math.inf:
        return seconds
    raise ValueError(f"--deadline {text!r} is no time: write for example 5ms, 800us or 1s")


def latencies(
    run: Callable[[], object], deadline: float, seconds: float, least: int = LEAST_RUNS
) -> list[float]:
    """Return the seconds of a function's runs, in ascending order.

    A run begins every `deadline` seconds, or at once if the previous run ended late. The period is at most
    `LONGEST_PERIOD`. There are as many runs as fit `seconds`, and at least `least`.
    """
    run()
    period = min(deadline, LONGEST_PERIOD)
    times: list[float] = []
    enabled = gc.isenabled()
    gc.disable()
    try:
        begin = time.perf_counter()
        while len(times) < least or time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
            time.sleep(max(0.0, start + period - time.perf_counter()))
    finally:
        if enabled:
            gc.enable()
    return sorted(times)


@contextmanager
def loaded(processes: int) -> Iterator[Sequence[subprocess.Popen[bytes]]]:
    """Inside this context, run so many other processes that compute and use memory. The context's value lists
    them."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(processes):
            started.append(subprocess.Popen([sys.executable, "-c", LOAD], stdout=subprocess.PIPE))
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        yield started
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.communicate()


def table(found: Sequence[Latencies]) -> Table:
    """Return the latencies as a table with a row for each."""
    shown = Table(title=f"runs with a deadline of {1e3 * found[0].deadline:g} ms", title_justify="left")
    for heading in ("model", "threads", "load", "runs", "p50", "p99", "p99.9", "worst", "misses"):
        shown.add_column(heading, justify="left" if heading in ("model", "load") else "right")
    for x in found:
        load = f"{x.load} processes" if x.load else "none"
        times = (f"{1e3 * x.percentile(share):.3f} ms" for share in (0.5, 0.99, 0.999, 1.0))
        misses = f"{x.misses} ({100 * x.misses / len(x.seconds):.1f} %)"
        shown.add_row(x.model, str(x.threads), load, str(len(x.seconds)), *times, misses)
    return shown
