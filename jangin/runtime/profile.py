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
"""Runs before the runs that count."""
EMPTY = 20
"""Timed calls of each kernel with nothing to do."""

Call = tuple[Any, ...]
"""A launch: the arguments of the device's function."""


@dataclass(frozen=True)
class LaunchTime:
    """`seconds`: the median over the repeats, less the time of an empty call from Python. `flops` and
    `bytes`: the launch's, for the sizes of the run."""

    launch: Launch
    seconds: float
    flops: int
    bytes: int


class Launches:
    """A run's launches as calls: `run(*calls[n])` makes the n-th, for the sizes of `layout`. `idle`: similar
    calls that do nothing. `held` keeps their memory alive."""

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
        """Each launch's time, over `repeats` runs."""
        return self.medians(self.passes(repeats))

    def passes(self, repeats: int) -> list[list[float]]:
        """Each launch's seconds in each of `repeats` runs, after a warm-up."""
        times: list[list[float]] = [[] for _ in self.calls]
        for turn in range(repeats + WARM_UP):
            for n, call in enumerate(self.calls):
                seconds = self.seconds(call)
                if turn >= WARM_UP:
                    times[n].append(seconds)
        return times

    def medians(self, times: Sequence[Sequence[float]]) -> list[LaunchTime]:
        """The results of `passes`, reduced to one time for each launch."""
        idle = self.call_seconds()
        value = self.layout.value
        return [
            LaunchTime(x, max(0.0, float(np.median(t)) - idle), value(x.flops), value(x.bytes))
            for x, t in zip(self.plan.launches, times, strict=True)
        ]

    def call_seconds(self) -> float:
        """The median time of an empty call from Python."""
        empty = [self.seconds(call) for call in self._idle for _ in range(EMPTY)]
        return float(np.median(empty)) if empty else 0.0

    def seconds(self, call: Call) -> float:
        """The time of one call from Python."""
        start = time.perf_counter()
        self.run(*call)
        return time.perf_counter() - start
