"""Where a run's time goes: each launch timed by itself, in the order and memory of a real run."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jangin.ir.plan import Launch, Plan
from jangin.runtime.elf import Image
from jangin.runtime.functions import POOL_ROUNDS

if TYPE_CHECKING:
    from jangin.runtime.executable import _Context, _Layout

WARM_UP = 1
"""Runs before those that count."""
EMPTY = 20
"""Calls of each kernel that are timed with nothing to do."""

Call = tuple[Any, ...]
"""(pool, kernel, arguments, sizes, tasks, grain, scratch, bytes of scratch a worker, rounds,
where a round finds its number)."""


@dataclass(frozen=True)
class LaunchTime:
    """`seconds`: median over the repeats, less what a call from Python takes that does nothing; `flops`
    and `bytes`: the launch's, for the sizes of the run."""

    launch: Launch
    seconds: float
    flops: int
    bytes: int


class Launches:
    """A run's launches as calls of the pool: `run(*calls[n])` makes the n-th, for the sizes `sizes`.
    `held` keeps alive what they point at."""

    def __init__(
        self, plan: Plan, image: Image, pool: int | None, sizes: _Layout, context: _Context, held: Any
    ) -> None:
        self.run: Callable[..., None] = POOL_ROUNDS.at(image.address(POOL_ROUNDS.name))
        self.plan = plan
        self.sizes, self._held = sizes, held
        index = {b.name: i for i, b in enumerate(plan.buffers)}
        self.calls: list[Call] = []
        for launch in plan.launches:
            args = (ctypes.c_void_p * len(launch.args))(*(context.table[index[n]] for n in launch.args))
            symbols = (ctypes.c_int64 * (len(launch.symbols) + 1))(*map(sizes.value, launch.symbols))
            rounds, last = sizes.value(launch.rounds), ctypes.addressof(symbols) + 8 * len(launch.symbols)
            kernel, tasks = image.address(launch.kernel), sizes.value(launch.tasks)
            own, grain = (pool if launch.grain else None), max(1, launch.grain)
            where = (context.scratch_at, sizes.stride)
            self.calls.append((own, kernel, args, symbols, tasks, grain, *where, rounds, last))

    def times(self, repeats: int) -> list[LaunchTime]:
        """Each launch's time, over `repeats` runs."""
        return self.medians(self.passes(repeats))

    def passes(self, repeats: int) -> list[list[float]]:
        """For each launch its seconds in each of `repeats` runs, after a warm-up."""
        times: list[list[float]] = [[] for _ in self.calls]
        for turn in range(repeats + WARM_UP):
            for n, call in enumerate(self.calls):
                seconds = self.seconds(call)
                if turn >= WARM_UP:
                    times[n].append(seconds)
        return times

    def medians(self, times: Sequence[Sequence[float]]) -> list[LaunchTime]:
        """What `passes` gave, as one time for each launch."""
        idle = self.call_seconds()
        value = self.sizes.value
        return [
            LaunchTime(x, max(0.0, statistics.median(t) - idle), value(x.flops), value(x.bytes))
            for x, t in zip(self.plan.launches, times, strict=True)
        ]

    def call_seconds(self) -> float:
        """What a call from here takes that does nothing: the median."""
        empty = [self.seconds((*c[:4], 0, *c[5:8], 1, c[9])) for c in self.calls for _ in range(EMPTY)]
        return statistics.median(empty) if empty else 0.0

    def seconds(self, call: Call) -> float:
        """What one call takes, from here."""
        start = time.perf_counter()
        self.run(*call)
        return time.perf_counter() - start
