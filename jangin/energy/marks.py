"""The clock of a meter that isn't this machine's, found by a marked load.

The machine works and rests by a pattern that fits no other time. The meter's watts show the pattern at the
times of its own clock."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import numpy as np

from jangin.energy.sampler import Sampler
from jangin.energy.series import Series
from jangin.ir.graph import Array

PATTERN = (1, 1, 2, 1, 1, 2, 3, 1, 1, 3)
"""The lengths of work and rest in turn. Shifted by any length, less than 60 % of it agree."""
LEAST_UNIT, SAMPLES = 0.25, 4
"""The seconds of the shortest mark, and the samples that it has at least. Processors take some 0.1 s to reach
their full power, and the first and last sample of a mark are mixed."""
REACH = 3.0
"""The most seconds by which a clock may differ. Timestamps that differ by over two are shifted before."""
FINE = 0.001
"""Seconds between two times that are tried. It is far less than a sample's spacing, so that it doesn't limit
the accuracy."""
NEAR = 0.9
"""The middle of all times whose contrast is this near to the best counts, because a peak has two flanks."""
CLEAR = 0.8
"""The contrast of any other time is below this share of the best one's if the pattern is really seen. Noise
alone has several times of nearly equal contrast."""

Work = Callable[[float], tuple[float, float, int]]


def align(sampler: Sampler, source: int, work: Work) -> bool:
    """Shift a source's times so that the marked load lies where it was. Return whether the source shows it.
    Its times stay as they are if it doesn't."""
    unit = max(LEAST_UNIT, SAMPLES * max(s.spacing for s in sampler.series(source)))
    marks: list[tuple[float, float, bool]] = []
    for length, works in zip(PATTERN, cycle((True, False)), strict=False):
        start, end = work(length * unit)[:2] if works else sampler.pause(length * unit)
        marks.append((start, end, works))
    sampler.wait(source, marks[-1][1] + REACH)
    shift = shift_of([s for s in sampler.series(source) if not s.rail.inside], marks, unit)
    sampler.shift(source, shift or 0.0)
    return shift is not None


def shift_of(series: list[Series], marks: list[tuple[float, float, bool]], unit: float) -> float | None:
    """Return the seconds to add to the times of samples, or None if they don't show the marks. A mark is a
    beginning, an end, and whether the machine worked."""
    tried = np.arange(-REACH, REACH, FINE)
    sums = {works: np.zeros(tried.shape) for works in (True, False)}
    seconds = {works: sum(end - start for start, end, w in marks if w == works) for works in sums}
    for start, end, works in marks:
        sums[works] += _joules(series, end - tried) - _joules(series, start - tried)
    contrast = sums[True] / seconds[True] - sums[False] / seconds[False]
    best = int(np.argmax(contrast))
    far = contrast[np.abs(tried - tried[best]) > unit]
    if contrast[best] <= 0 or far.max(initial=0.0) > CLEAR * contrast[best]:
        return None
    near = (contrast >= NEAR * contrast[best]) & (np.abs(tried - tried[best]) < unit)
    return float(tried[near].mean())


def _joules(series: list[Series], times: Array) -> Array:
    """Return the energy until each time."""
    return np.asarray(sum(np.interp(times, s.times, s.total) for s in series))
