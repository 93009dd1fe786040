"""The interface of a source of energy figures: rails, and samples of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

from jangin.ir.records import dataclass

Sample = tuple[float, Sequence[float]]
"""A time in seconds of the system's monotonic clock, and a value for each rail, NaN where there is none."""


class EnergyError(RuntimeError):
    """Energy can't be measured. The message has the reason and a remedy."""


@dataclass(frozen=True)
class Rail:
    """A supply whose energy a sensor measures.

    - `counts` tells whether its values are joules since some start. Otherwise they are watts.
    - `wraps` is the number of joules at which a counter starts again at 0.
    - `resolution` is the value of the last digit, and `period` the seconds between two updates of the sensor.
    - `inside` tells whether other rails include this one, so that it doesn't count in the source's sum.
    """

    name: str
    counts: bool = False
    wraps: float = 0.0
    resolution: float = 0.0
    period: float = 0.0
    inside: bool = False


@dataclass(frozen=True)
class Source:
    """A sensor or meter. `samples()` yields its samples for as long as it lasts.

    A source that `ends` yields them by itself, such as a meter, and its end is an error. Others are read at
    regular times. `lag` returns the seconds between the last sample's timestamp and its arrival."""

    name: str
    rails: tuple[Rail, ...]
    samples: Callable[[], Iterator[Sample]]
    lag: Callable[[], float] | None = None


def polled(read: Callable[[], Sequence[float]], interval: float) -> Callable[[], Iterator[Sample]]:
    """Return a function `samples` for a source that `read` reads every `interval` seconds. A sample's time is
    the middle of its reading. If a reading is late, the intervals missed are left out."""

    def samples() -> Iterator[Sample]:
        due = time.monotonic()
        while True:
            before = time.monotonic()
            values = read()
            after = time.monotonic()
            yield (before + after) / 2, values
            due = max(due + interval, after - interval)
            time.sleep(max(0.0, due - time.monotonic()))

    return samples


def number(text: str) -> float:
    """Return the number in a text, or NaN if it has none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
