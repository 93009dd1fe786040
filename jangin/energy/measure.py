"""Joules for one call of a model: windows of calls beside a sampler, with the power at rest subtracted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field

import numpy as np

from jangin.energy.marks import align
from jangin.energy.sampler import Sampler
from jangin.energy.series import Gap, Series
from jangin.energy.source import EnergyError
from jangin.ir.records import dataclass

DOUBT = 0.02
"""A window is long enough if its energy is known within this share, by the sensor's updates and digits.
Engines that differ by less aren't told apart."""
HEADROOM = 1.1
"""Windows are longer than needed by this factor, because a call may take a little less than before."""
LEAST_SECONDS, MOST_SECONDS = 1.0, 60.0
"""The shortest and the longest window, in seconds. A shorter one has few updates of most sensors, and a
longer one makes users wait."""
WINDOWS = 5
"""The number of windows for one figure. Five are the fewest with quartiles between the extremes. The
quartiles are the figure's spread."""
REPEATS = 10
"""The most windows that are repeated because samples were missing. A source that fails so often has a fault,
which an error then tells."""
POINTS = 200
"""The most points of a curve of power over time, so that a report of many engines stays small."""

UNSEEN = "the meter doesn't show the marked load, so its clock is taken as it is"

Work = Callable[[float], tuple[float, float, int]]
"""A function that calls the model for about so many seconds. It returns the monotonic times of the beginning
and the end, and the number of calls."""


@dataclass(frozen=True)
class Idle:
    """The watts of each rail of a source at rest."""

    watts: tuple[float, ...]


@dataclass(frozen=True)
class Used:
    """The energy of one call, by one source.

    - `joules` has the idle power subtracted. `low` and `high` are its quartiles over the windows.
    - `gross` includes the idle power.
    - `watts` is the power during the work, and `idle` the power at rest.
    - `rails` has the watts of each rail during the work.
    - `doubt` is the largest relative error of `gross` by the sensor's coarseness, and `net_doubt` that of
      `joules`. `warning` says so if it is large.
    - `cost` is the share of a core that sampling took.
    - `power` has pairs of seconds and watts over all windows.
    """

    source: str
    joules: float
    low: float
    high: float
    gross: float
    watts: float
    idle: float
    windows: int
    seconds: float
    calls: int
    doubt: float
    net_doubt: float
    warning: str = ""
    cost: float = 0.0
    rails: Mapping[str, float] = field(default_factory=dict)
    power: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class _Window:
    """One window: its times, calls, and the joules of each rail."""

    start: float
    end: float
    calls: int
    joules: tuple[float, ...]

    @property
    def seconds(self) -> float:
        return self.end - self.start


def rest(sampler: Sampler, source: int, seconds: float) -> Idle:
    """Measure the power of a source while nothing runs, for `seconds`, or longer if the sensor is coarse.
    Raises EnergyError if it can't be measured."""

    def nothing(seconds: float) -> tuple[float, float, int]:
        return *sampler.pause(seconds), 1

    window = _window(sampler, source, nothing, seconds)
    if window.seconds < (needed := _needed(sampler.series(source), window)):
        window = _window(sampler, source, nothing, needed)
    return Idle(tuple(j / window.seconds for j in window.joules))


def joules_per_call(sampler: Sampler, source: int, work: Work, idle: Idle, windows: int = WINDOWS) -> Used:
    """Measure the energy of a call in several windows, each as long as the sensor needs.

    A source with a clock of its own is aligned first, once. Raises EnergyError if the source ends, or if
    samples are missing again and again."""
    unseen = sampler.is_apart(source) and not align(sampler, source, work)
    first = _window(sampler, source, work, LEAST_SECONDS)
    seconds = max(LEAST_SECONDS, _needed(sampler.series(source), first))
    enough = first.seconds >= seconds or seconds <= LEAST_SECONDS
    taken = [first] if enough else []
    while len(taken) < windows:
        taken.append(_window(sampler, source, work, seconds))
    series = sampler.series(source)
    counted = _counted(series)
    gross = [sum(w.joules[n] for n in counted) / w.calls for w in taken]
    resting = sum(idle.watts[n] for n in counted)
    net = [g - resting * w.seconds / w.calls for g, w in zip(gross, taken, strict=True)]
    low, median, high = (float(q) for q in np.percentile(net, (25, 50, 75)))
    whole, calls = sum(w.seconds for w in taken), sum(w.calls for w in taken)
    watts = [sum(w.joules[n] for w in taken) / whole for n in range(len(series))]
    doubt = max(_doubt(series, w) for w in taken)
    total = sum(watts[n] for n in counted)
    net_doubt = doubt * (total + resting) / abs(total - resting) if total != resting else float("inf")
    return Used(
        sampler.names[source], median, low, high, float(np.median(gross)), total, resting, len(taken),
        float(np.median([w.seconds for w in taken])), calls, doubt, net_doubt,
        UNSEEN if unseen else _warning(doubt, net_doubt), sampler.cost,
        {s.rail.name: w for s, w in zip(series, watts, strict=True)}, _power(series, taken),
    )  # fmt: skip


def _window(sampler: Sampler, source: int, work: Work, seconds: float) -> _Window:
    """Run one window, again if samples are missing."""
    for _ in range(REPEATS):
        start, end, calls = work(seconds)
        sampler.wait(source, end)
        try:
            return _Window(start, end, calls, tuple(s.joules(start, end) for s in sampler.series(source)))
        except Gap as error:
            missing = error
    raise EnergyError(f"{sampler.names[source]}: samples were missing in {REPEATS} windows: {missing}")


def _counted(series: list[Series]) -> list[int]:
    """Return the numbers of the rails whose sum is the source's energy."""
    return [n for n, s in enumerate(series) if not s.rail.inside]


def _doubt(series: list[Series], window: _Window) -> float:
    return max(series[n].doubt(window.start, window.end) for n in _counted(series))


def _needed(series: list[Series], window: _Window) -> float:
    """Return the seconds of a window in which the sensor's relative error is small enough, within limits. If
    a rail used nothing, the longest window is needed, because its resolution isn't known then."""
    counted = [series[n] for n in _counted(series)]
    longest = max(s.seconds_for(DOUBT, window.start, window.end) for s in counted)
    return min(MOST_SECONDS, HEADROOM * longest)


def _warning(doubt: float, net_doubt: float) -> str:
    if doubt > DOUBT:
        return f"the sensor is too coarse: the energy may be off by {doubt:.0%}, even in the longest window"
    if net_doubt > 10 * DOUBT:
        off = f"{net_doubt:.0%}" if math.isfinite(net_doubt) else "any factor"
        return f"the work adds little to the power at rest: what it adds may be off by {off}"
    return ""


def _power(series: list[Series], taken: list[_Window]) -> tuple[tuple[float, float], ...]:
    """Return the watts of all windows over time, with the windows joined without gaps."""
    curve: list[tuple[float, float]] = []
    before = 0.0
    for w in taken:
        curves = [series[n].power(w.start, w.end, POINTS // len(taken)) for n in _counted(series)]
        count = min(map(len, curves))
        if any(len(c) != count for c in curves):  # rails with other updates
            curves = [series[n].power(w.start, w.end, count) for n in _counted(series)]
        curve += [(before + p[0][0], sum(w for _, w in p)) for p in zip(*curves, strict=True)]
        before += w.seconds
    return tuple((round(t, 4), round(w, 4)) for t, w in curve)
