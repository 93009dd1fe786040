"""Profiling: each launch timed by itself, in the order and memory of a real run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jangin.ir.plan import Launch, Plan
from jangin.ir.records import dataclass
from jangin.runtime.layout import Layout

WARM_UP = 1
"""Untimed runs before the runs that count. The first run brings code and weights into the caches and takes
memory."""
EMPTY = 20
"""Timed calls of each kernel without work, which measure the cost of a call."""

Call = tuple[Any, ...]
"""A launch: the arguments of the device's function."""


@dataclass(frozen=True)
class LaunchTime:
    """A launch's time. `seconds` is the median over the repeats, less the time of an empty call from Python.
    `flops` and `bytes` are the launch's, for the sizes of the run."""

    launch: Launch
    seconds: float
    flops: int
    bytes: int


class Launches:
    """A run's launches as calls. `run(*calls[n])` makes the n-th, for the sizes of `layout`. `idle` are
    similar calls that do nothing, and `held` keeps the calls' memory alive."""

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        run: Callable[..., None],
        calls: Sequence[Call],
        idle: Sequence[Call],
        held: Any,
    ) -> None:
        self.plan, self.layout = plan, layout
        self.run, self.calls = run, calls
        self._idle, self._held = idle, held

    def times(self, repeats: int) -> list[LaunchTime]:
        """Time each launch over `repeats` runs, and return the times."""
        return self.medians(self.passes(repeats))

    def passes(self, repeats: int) -> list[list[float]]:
        """Return the seconds of each launch in each of `repeats` runs, after a warm-up: one list for each
        launch."""
        times: list[list[float]] = [[] for _ in self.calls]
        for turn in range(repeats + WARM_UP):
            for n, call in enumerate(self.calls):
                seconds = self.seconds(call)
                if turn >= WARM_UP:
                    times[n].append(seconds)
        return times

    def medians(self, times: Sequence[Sequence[float]]) -> list[LaunchTime]:
        """Reduce the results of `passes` to one time for each launch, less the time of an empty call."""
        idle = self.call_seconds()
        value = self.layout.value
        return [
            LaunchTime(x, max(0.0, float(np.median(t)) - idle), value(x.flops), value(x.bytes))
            for x, t in zip(self.plan.launches, times, strict=True)
        ]

    def call_seconds(self) -> float:
        """Return the median seconds of an empty call from Python, or 0 if there are no empty calls."""
        empty = [self.seconds(call) for call in self._idle for _ in range(EMPTY)]
        return float(np.median(empty)) if empty else 0.0

    def seconds(self, call: Call) -> float:
        """Return the seconds of one call from Python."""
        start = time.perf_counter()
        self.run(*call)
        return time.perf_counter() - start
