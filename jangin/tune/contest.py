"""A race of candidates against a kernel's untuned one, whose figures are shares of the untuned one's time."""

from __future__ import annotations

from jangin.ir.records import dataclass
from jangin.tune.measure import Built

ALL = 3
"""The most candidates, with the untuned one, that all race for the full time. With more of them, the two
quickest race again."""


@dataclass(frozen=True)
class Contest:
    """Some candidates of a kernel that are ready to race, on the machine for which they were compiled.

    `places` has the number of each candidate among those of `built`. Equal kernels have one number, and 0 is
    the untuned one. `built` is None if all are equal to it. A run of it then takes `untuned` seconds."""

    built: Built | None
    places: tuple[int, ...]
    untuned: float

    def run(self, screen: float, full: float) -> tuple[list[float | None], float, list[str]]:
        """Race the candidates. The two quickest race again for `full` seconds, after all have raced for
        `screen` seconds. Return their times as shares of the untuned one's, its seconds, and a sentence about
        each candidate with other results. Such a candidate has no time."""
        if self.built is None:
            return [1.0 for _ in self.places], self.untuned, []
        race, wrong = self.built.race()
        right = [n for n in range(len(self.built.ways)) if n not in wrong]
        times = dict(zip(right, race.time(full if len(right) <= ALL else screen, right), strict=True))
        if len(right) > ALL:
            again = [0, *sorted(right[1:], key=lambda n: times[n].ratio)[:2]]
            times |= zip(again, race.time(full, again), strict=True)
        shares = [None if p in wrong else times[p].ratio if p else 1.0 for p in self.places]
        return shares, times[0].least, [*wrong.values()]
