"""The samples of one rail (a supply whose energy is measured), and the energy between two times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jangin.energy.source import EnergyError, Rail
from jangin.ir.graph import Array
from jangin.once import once

LEAST_GAP = 0.2
"""Samples that are less than these seconds apart have no gap between them, because a busy machine may delay a
reading so long."""
GAP = 3.0
"""Samples are missing between two samples if these are this many times as far apart as usual. Smaller
distances come from late readings."""
UNSEEN = 60.0
"""A counter may have started again more than once, unseen, if it wasn't read for more seconds than this.
RAPL's smallest range lasts so long at 1 kW."""

MOST_WATTS = 1e4
"""No rail of a computer takes so much. A counter that rises faster by its range didn't wrap around. It was
reset, as after a suspended machine wakes, and its energy isn't known."""


class Gap(EnergyError):
    """The energy can't be computed, because samples are missing between the two times."""


class Series:
    """The samples of one rail. NaN values are left out. A counter that started again at 0 is continued, so
    that it never falls."""

    def __init__(self, rail: Rail, times: Sequence[float] | Array, values: Sequence[float] | Array) -> None:
        at, readings = np.asarray(times, np.float64), np.asarray(values, np.float64)
        known = ~np.isnan(readings)
        order = np.argsort(at[known], kind="stable")
        self.rail, self.times = rail, at[known][order]
        self.values = continued(readings[known][order], rail.wraps) if rail.counts else readings[known][order]
        self._resets = _resets(self.times, self.values) if rail.counts and rail.wraps else np.zeros(0)

    @property
    def last(self) -> float:
        """The time of the last sample, or minus infinity if there is none."""
        return float(self.times[-1]) if self.times.size else -np.inf

    @once
    def spacing(self) -> float:
        """The usual seconds between two samples."""
        return float(np.median(np.diff(self.times))) if self.times.size > 1 else np.inf

    @once
    def total(self) -> Array:
        """The joules from the first sample to each."""
        if self.rail.counts:
            return np.asarray(self.values - self.values[0])
        pieces = np.diff(self.times) * (self.values[1:] + self.values[:-1]) / 2
        return np.concatenate([[0.0], np.cumsum(pieces)])

    def joules(self, start: float, end: float) -> float:
        """Return the energy between two times. Raises Gap if samples are missing between them. A counter
        needs samples around both times only."""
        if self.times.size < 2 or start < self.times[0] or end > self.times[-1]:
            raise Gap(f"{self.rail.name}: there are no samples before and after the run")
        first = int(np.searchsorted(self.times, start, "right")) - 1
        after = min(int(np.searchsorted(self.times, end, "left")), self.times.size - 1)
        apart = np.diff(self.times[first : after + 1])
        edges = [float(n) for n in (apart[0], apart[-1])] if apart.size else [0.0]
        allowed = max(LEAST_GAP, GAP * self.spacing)
        longest = max(edges) if self.rail.counts else float(apart.max(initial=0.0))
        if longest > allowed or float(apart.max(initial=0.0)) > UNSEEN:
            raise Gap(f"{self.rail.name}: no samples for {max(longest, float(apart.max())):.2f} s of the run")
        if np.any((self._resets > self.times[first]) & (self._resets <= self.times[after])):
            raise Gap(f"{self.rail.name}: the counter was reset during the run")
        at = np.interp([start, end], self.times, self.total)
        return float(at[1] - at[0])

    def doubt(self, start: float, end: float) -> float:
        """Return the largest relative error of the energy between two times. The sensor's last update before
        each time may be old, and its last digit is rounded."""
        period, digit = self._coarseness(start, end)
        share = digit / (end - start) if self.rail.counts else digit
        return period / (end - start) + share

    def seconds_for(self, doubt: float, start: float, end: float) -> float:
        """Return how long a window must be so that the relative error of its energy is at most `doubt`. The
        power is taken to be that from `start` to `end`. The result is infinite if no length is enough."""
        period, digit = self._coarseness(start, end)
        if self.rail.counts:
            return (period + digit) / doubt
        return period / (doubt - digit) if doubt > digit else np.inf

    def _coarseness(self, start: float, end: float) -> tuple[float, float]:
        """Return the seconds between the sensor's updates, and its last digit as a share of the mean power.
        For a counter the second number is in seconds, because its digit is in joules."""
        watts = abs(self.joules(start, end)) / (end - start)
        digit = self.rail.resolution / watts if watts else np.inf
        return max(self.rail.period, self.spacing), digit if self.rail.resolution else 0.0

    def power(self, start: float, end: float, points: int) -> list[tuple[float, float]]:
        """Return the power over time as at most `points` pairs (seconds since `start`, mean watts since the
        pair before). There are no more pairs than updates of the sensor."""
        period = max(self.rail.period, self.spacing)
        count = int(max(1, min(points, (end - start) / period)))
        edges = np.linspace(start, end, count + 1)
        joules = np.diff(np.interp(edges, self.times, self.total))
        return [(float(t - start), float(w)) for t, w in zip(edges[1:], joules / np.diff(edges), strict=True)]


def continued(values: Array, wraps: float) -> Array:
    """Return a counter's values as if it had never started again at 0. A counter wraps around at `wraps`. If
    `wraps` is 0, a fall means that the counter was reset, and its new value is added."""
    steps = np.diff(values)
    again = np.where(steps < 0, steps + wraps if wraps else values[1:], steps)
    return np.concatenate([values[:1], values[:1] + np.cumsum(again)])


def _resets(times: Array, values: Array) -> Array:
    """Return the times of samples before which a continued counter rose faster than any rail supplies."""
    return np.asarray(times[1:][np.diff(values) > MOST_WATTS * np.maximum(np.diff(times), LEAST_GAP)])
