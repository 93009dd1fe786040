"""Measure the joules of a call, for tuning by energy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from jangin.energy import EnergyError, Sampler, Wanted, joules_per_call, rest
from jangin.ir.records import dataclass
from jangin.options import LATENCY

REST_SECONDS = 2.0
"""The least seconds for which the power at rest is measured, before anything else. In a shorter time, most
sensors give too few samples."""
SETTLE_SECONDS = 0.3
"""Seconds after which the threads of a pool have stopped to wait for work actively. They do so within a
millisecond, and processors take longer to lower their power."""
ROUNDS = 5
"""The number of rounds in a comparison by joules. Each round measures every call once, for a second or
longer. Five are the fewest whose median ignores two disturbed rounds."""
LEAST = 1e-12
"""Figures aren't less than this, so that they have ratios. Work that adds nothing to the power at rest has a
figure of about 0."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Cost:
    """The seconds of a call, and its joules above rest."""

    seconds: float
    joules: float

    def figure(self, objective: str) -> float:
        """Return what the objective makes least: seconds, joules, or their product."""
        joules = max(self.joules, LEAST)
        return {"latency": self.seconds, "energy": joules, "edp": joules * self.seconds}[objective]

    def less(self, other: Cost) -> Cost:
        """Return the cost without that of another call, which is a part of this one."""
        return Cost(max(self.seconds - other.seconds, LEAST), self.joules - other.joules)


class Meter:
    """Measures calls in this process beside a running sampler. The first of its sources counts. `warning` is
    that of the most doubtful measurement so far, or ""."""

    def __init__(self, sampler: Sampler) -> None:
        self.warning, self._doubt = "", 0.0
        sampler.pause(SETTLE_SECONDS)
        self._sampler, self._idle = sampler, rest(sampler, 0, REST_SECONDS)

    @property
    def source(self) -> str:
        return self._sampler.names[0]

    def cost(self, call: Call) -> Cost:
        """Return the cost of a call, measured for a second, or longer if the sensor is coarse. Raises
        EnergyError if the source ends."""

        def work(seconds: float) -> tuple[float, float, int]:
            call()
            began, calls = time.monotonic(), 0
            while True:
                call()
                calls += 1
                if (now := time.monotonic()) - began >= seconds:
                    return began, now, calls

        used = joules_per_call(self._sampler, 0, work, self._idle, windows=1)
        if used.warning and used.net_doubt >= self._doubt:
            self.warning, self._doubt = used.warning, used.net_doubt
        return Cost(used.windows * used.seconds / used.calls, used.joules)

    def rounds(self, calls: Sequence[Call]) -> list[list[Cost]]:
        """Return the costs of all calls in each of some rounds."""
        return [[self.cost(call) for call in calls] for _ in range(ROUNDS)]


@contextmanager
def measuring(wanted: Wanted, objective: str) -> Iterator[Meter]:
    """Open a meter for as long as the context lasts. Raises EnergyError, with a reason for each kind of
    source, if there is none."""
    try:
        sampler = Sampler(wanted)
    except EnergyError as error:
        if objective == LATENCY:
            raise
        raise EnergyError(f"objective={objective!r} is reached by measured joules only: {error}") from None
    with sampler:
        yield Meter(sampler)


def middle(rounds: Sequence[Sequence[Cost]], which: int, objective: str) -> Cost:
    """Return a call's cost in the round whose figure is the median of all."""
    costs = sorted((r[which] for r in rounds), key=lambda c: c.figure(objective))
    return costs[len(costs) // 2]
