"""A machine whose power follows a known model, and whose sensors are files or lines."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from jangin.energy import Series
from jangin.energy.source import Rail

REST, WORK = 10.0, 35.0
"""The watts of the fake machine at rest, and of work in addition."""

METER = """
import sys, time
from pathlib import Path
busy, lines = Path(sys.argv[1]), int(sys.argv[2])
for _ in range(lines):
    print(time.time(), 45.0 if busy.exists() else 10.0, flush=True)
    time.sleep(0.005)
print("out of battery", file=sys.stderr)
sys.exit(3)
"""
"""A meter that prints `lines` lines and then dies. Its watts depend on whether a file exists."""


def meter(folder: Path, lines: int = 10**9) -> str:
    """Return the command of a meter. The machine works while the file `busy` is in the folder."""
    script = folder / "meter.py"
    script.write_text(METER)
    return f"{sys.executable} {script} {folder / 'busy'} {lines}"


def zone(root: Path, place: str, name: str, joules: float, most: float = 262143.328850) -> Path:
    """Write a counter of RAPL, and return its folder."""
    folder = root / "powercap" / place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{round(joules * 1e6)}\n")
    (folder / "max_energy_range_uj").write_text(f"{round(most * 1e6)}\n")
    return folder


def chip(root: Path, name: str, **files: object) -> Path:
    """Write a chip of hwmon, and return its folder."""
    folder = root / "hwmon" / f"hwmon{len([*(root / 'hwmon').glob('*')])}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(name)
    for file, value in files.items():
        (folder / file).write_text(f"{value}\n")
    return folder


class Machine:
    """A sampler on a simulated clock. Its watts are `REST`, and `WORK` more while `work` runs.

    `missing` are times (start, end) without samples. The meter's clock is behind by `behind` seconds until it
    is shifted, and the samples have `noise` (a share of the watts)."""

    def __init__(self, rail: Rail, spacing: float) -> None:
        self.rail, self.spacing, self.now = rail, spacing, 100.0
        self.busy: list[tuple[float, float]] = []
        self.missing: list[tuple[float, float]] = []
        self.names, self.cost, self.calls = ["fake"], 0.01, 0
        self.behind, self.noise = 0.0, 0.0
        self.shifted: float | None = None
        self.rng = np.random.default_rng(5)

    def is_apart(self, source: int) -> bool:
        return bool(self.behind) and self.shifted is None

    def shift(self, source: int, seconds: float) -> None:
        self.shifted = seconds

    def joules(self, times: np.ndarray) -> np.ndarray:
        found = REST * (times - 50)
        for start, end in self.busy:
            found += WORK * np.clip(times - start, 0, end - start)
        return found

    def series(self, source: int) -> list[Series]:
        times = np.arange(50.0, self.now + 2 * self.spacing, self.spacing)
        for start, end in self.missing:
            times = times[(times < start) | (times > end)]
        if self.rail.counts:
            values = self.joules(times)
            digit = self.rail.resolution or 1e-9
            values = np.floor(values / digit) * digit
            values = values % self.rail.wraps if self.rail.wraps else values
        else:
            values = np.full(times.shape, REST)
            for start, end in self.busy:
                values[(times >= start) & (times < end)] += WORK
            values *= 1 + self.noise * self.rng.standard_normal(values.shape)
        return [Series(self.rail, times - self.behind + (self.shifted or 0.0), values)]

    def pause(self, seconds: float) -> tuple[float, float]:
        start = self.now
        self.now += seconds
        return start, self.now

    def wait(self, source: int, until: float) -> None:
        self.now = max(self.now, until + self.behind - (self.shifted or 0.0))

    def work(self, seconds: float, call: float = 0.01) -> tuple[float, float, int]:
        """Work for some seconds, in calls of 10 ms."""
        start, calls = self.now + 0.3, max(1, round(seconds / call))
        self.busy.append((start, start + calls * call))
        self.now = start + calls * call
        self.calls += 1
        return start, self.now, calls
