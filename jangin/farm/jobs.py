"""Jobs of a farm, the answers of its devices, and when answers agree."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import field

from jangin.ir.records import dataclass

AGREE = 1.25
"""The largest factor between two devices' figures of one candidate. Neighbours and temperature change ratios
of candidates timed side by side by less."""
MARGIN = 0.99
"""A candidate wins if it takes at most this share of the untuned one's time on each believed device."""


@dataclass(frozen=True)
class Job:
    """A race of `candidates` of a kernel against its untuned one, on one device."""

    kernel: str
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """A device's figures. `ratios` has the time of each candidate as a share of the untuned one's, which is
    `seconds`. A candidate with a defect has None.

    `before` and `after` are the seconds of a loop beside the race, which is the same everywhere. `by` tells
    who signed the answer."""

    ratios: tuple[float | None, ...]
    seconds: float
    before: float = 0.0
    after: float = 0.0
    by: str = ""
    defects: tuple[str, ...] = ()
    proof: Mapping[str, str] = field(default_factory=dict)

    def agrees(self, other: Answer) -> bool:
        """Return whether both tell the same about each candidate."""
        return all(
            (a is None) == (b is None)
            and (a is None or b is None or abs(math.log(max(a, 1e-9) / max(b, 1e-9))) <= math.log(AGREE))
            for a, b in zip(self.ratios, other.ratios, strict=True)
        )


@dataclass(frozen=True)
class Event:
    """The end of a device's job: its answer, or the problem that there is none."""

    device: str
    answer: Answer | None
    problem: str = ""


@dataclass
class Votes:
    """The answers to a job by device, and the devices that work on it. `failures` counts devices that died or
    hung."""

    job: Job
    answers: dict[str, Answer] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    failures: int = 0

    @property
    def agreeing(self) -> dict[str, Answer]:
        """The largest group of answers of which each agrees with one of them."""
        groups = [
            {d: a for d, a in self.answers.items() if a.agrees(centre)} for centre in self.answers.values()
        ]
        return max(groups, key=len, default={})

    @property
    def open(self) -> bool:
        return not self.answers and not self.running

    @property
    def disputed(self) -> bool:
        """Whether devices disagree, and no two more of them agree than there are others."""
        return len(self.answers) > 1 and 2 * len(self.agreeing) <= len(self.answers)

    @property
    def confirmed(self) -> bool:
        return len(self.agreeing) > 1 and not self.disputed

    @property
    def believed(self) -> dict[str, Answer]:
        """The answers that count. A disputed job has none."""
        return {} if self.disputed else self.agreeing

    def best(self) -> tuple[str, float] | None:
        """Return the quickest candidate that every believed device found quicker than the untuned one, and
        its ratio in the middle of them."""
        winners = []
        for candidate, *ratios in zip(
            self.job.candidates, *(a.ratios for a in self.believed.values()), strict=True
        ):
            told = [r for r in ratios if r is not None]
            if told and len(told) == len(ratios) and max(told) <= MARGIN:
                winners.append((statistics.median(told), candidate))
        return (min(winners)[1], min(winners)[0]) if winners else None
