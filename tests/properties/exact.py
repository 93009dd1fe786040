"""Runs exact random models for a given time, and prints the outcomes. It exits with 1 if anything was wrong.

    `python -m tests.properties.exact --minutes 600` runs all targets of this machine.
    `python -m tests.properties.exact --target x86-64-v4 --seed 7 --count 1` runs one model again.
    `python -m tests.properties.exact --target x86-64-v4 --seed 7 --smallest` prints the least faulty part.

Models run in child processes, so that a model that crashes is told by its seed.
"""

from __future__ import annotations

import argparse
import math
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
PATHS = ("properties", ".", "ahead", "opencl", "cuda", "backends", "..")
sys.path[:0] = [str(HERE.parent / name) for name in PATHS]
BATCH = 20
"""Models that each process gets."""
SECONDS = 120
"""The most seconds that a model may take."""
APART = 1_000_000
"""The distance between two targets' first seeds, so that each target has its own models."""
EVERY = 5
"""Seconds between two lines of progress."""


@dataclass
class Tally:
    """The outcomes of the models of one target, from a `first` seed on.

    `wrong` has each fault, and how to make its model again. `given` is the number of seeds that were handed
    out, and `busy` the number of unfinished batches."""

    first: int
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    given: int = 0
    busy: int = 0

    @property
    def next(self) -> int:
        return self.first + self.given

    @property
    def count(self) -> int:
        return self.ends.total()

    def add(self, target: str, ends: dict[int, str], seconds: float) -> list[str]:
        """Count a finished batch, and return its faults."""
        self.busy, self.seconds = self.busy - 1, self.seconds + seconds
        self.ends.update(ended.partition(" ")[0] for ended in ends.values())
        wrong = {seed: ended[6:] for seed, ended in ends.items() if ended.startswith("WRONG")}
        told = [f"--target {target} --seed {seed} --count 1: {what}" for seed, what in wrong.items()]
        self.wrong += told
        return told


def batch(target: str, first: int, count: int) -> dict[int, str]:
    """Run the models of some seeds, in as many processes as needed, and return how they ended."""
    ends: dict[int, str] = {}
    while len(ends) < count:
        ends |= outcomes(target, first + len(ends), first + count)
    return ends


def outcomes(target: str, first: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield each seed and how its model ended, as far as one process came."""
    command = [sys.executable, __file__, "--worker", "--target", target, "--seed", str(first)]
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*command, "--count", str(end - first)], **given)  # type: ignore[call-overload]
    try:
        said, errors = process.communicate(timeout=SECONDS * (end - first))
    except subprocess.TimeoutExpired:
        process.kill()
        said, errors = process.communicate()
    seed = first - 1
    for line in said.splitlines():
        number, _, ended = line.partition(" ")
        if number.isdecimal():
            seed = int(number)
            yield seed, ended
    if seed + 1 < end:
        last = " ".join(errors.split())[-300:]
        yield seed + 1, f"WRONG the process ended with {process.returncode}: {last}"


def worker(target: str, first: int, count: int) -> None:
    """Print a line for each seed that says how its model ended."""
    from exact_check import outcome

    for seed in range(first, first + count):
        print(seed, outcome(seed, target), flush=True)


def show(seed: int, target: str, least: bool) -> None:
    """Print one model, and how it ends."""
    from exact_check import case_of, net_of, outcome, smallest, text

    case = smallest(seed, target) if least else case_of(seed, net_of(seed))
    print(text(case.model), flush=True)
    print(seed, outcome(seed, target))


class Campaign:
    """Models for all targets in turn, for `seconds`, or `count` models for each target."""

    def __init__(self, targets: list[str], first: int, seconds: float, count: int, console: Console) -> None:
        self.tallies = {target: Tally(first + n * APART) for n, target in enumerate(targets)}
        self.count, self.console = count, console
        self.begin = self.told = time.monotonic()
        self.end = math.inf if count else self.begin + seconds
        self.lock = threading.Lock()

    def next(self) -> tuple[str, int, int] | None:
        """Return the target that had the least time so far, and its next seeds."""
        with self.lock:
            left = {n: t for n, t in self.tallies.items() if not 0 < self.count <= t.given}
            if not left or time.monotonic() > self.end:
                return None
            target = min(left, key=lambda n: left[n].seconds + left[n].busy)
            tally = left[target]
            first, count = tally.next, min(BATCH, self.count - tally.given) if self.count else BATCH
            tally.given, tally.busy = tally.given + count, tally.busy + 1
            return target, first, count

    def run(self) -> None:
        while (given := self.next()) is not None:
            target, first, count = given
            begin, ends = time.monotonic(), batch(target, first, count)
            with self.lock:
                for text in self.tallies[target].add(target, ends, time.monotonic() - begin):
                    self.console.print(text, markup=False, highlight=False)
                self.tell()

    def tell(self) -> None:
        now = time.monotonic()
        if now - self.told > EVERY:
            self.told = now
            models = sum(t.count for t in self.tallies.values())
            wrong = sum(len(t.wrong) for t in self.tallies.values())
            self.console.print(f"{now - self.begin:6.0f} s: {models} models, {wrong} wrong")


def table(tallies: dict[str, Tally]) -> Table:
    made = Table("target", title="exact models")
    ends = ("fine", "skipped", "WRONG")
    for heading in ("count", *map(str.lower, ends), "seconds"):
        made.add_column(heading, justify="right")
    for name, t in tallies.items():
        made.add_row(name, str(t.count), *(str(t.ends[e]) for e in ends), f"{t.seconds:.0f}")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.properties.exact", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--target", action="append", help="of these only (default: all that are here)")
    parser.add_argument("--seed", type=int, help="of the first model (default: another each time)")
    parser.add_argument("--count", type=int, default=0, help="models for each target, whatever time it takes")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once (default: 1)")
    parser.add_argument("--smallest", action="store_true", help="look for the least part that fails")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    first = secrets.randbelow(1 << 30) if given.seed is None else given.seed
    if given.worker:
        return worker(given.target[0], first, given.count)
    from exact_ways import ways

    if unknown := [n for n in given.target or () if n not in ways()]:
        parser.error(f"--target {unknown[0]} isn't one of this machine's: {', '.join(ways())}")
    if given.smallest or (given.count == 1 and len(given.target or ()) == 1):
        return show(first, given.target[0], given.smallest)
    console = Console(soft_wrap=True)
    console.print(f"seed {first}")
    targets = given.target or [*ways()]
    campaign = Campaign(targets, first, 60 * given.minutes, given.count, console)
    with ThreadPoolExecutor(given.jobs) as jobs:
        for job in [jobs.submit(campaign.run) for _ in range(given.jobs)]:
            job.result()
    console.print(table(campaign.tallies))
    sys.exit(any(t.wrong for t in campaign.tallies.values()))


if __name__ == "__main__":
    main()
