"""Jobs of a farm, the answers of its devices, and when answers agree."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from jangin.ir.records import dataclass

AGREE = 1.25
"""The largest factor between two devices' figures of one candidate. Neighbours and temperature change ratios
of candidates timed side by side by less."""
MARGIN = 0.99
"""A candidate wins if it takes at most this share of the untuned one's time on each believed device."""


@dataclass(frozen=True)
class Job:
    """A race of `candidates` of a kernel against the kernel's untuned candidate, on one device."""

    kernel: str
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """A device's answer to a job.

    - `ratios` has each candidate's time as a share of the untuned candidate's, which is `seconds`. It is None
      for a candidate with a defect, and NaN for one that wasn't measured.
    - `before` and `after` are the seconds of a calibration loop before and after the race. All devices run
      the same loop.
    - `by` names the owner of the key that signed the answer.
    """

    ratios: tuple[float | None, ...]
    seconds: float
    before: float = 0.0
    after: float = 0.0
    by: str = ""
    defects: tuple[str, ...] = ()
    proof: Mapping[str, str] = field(default_factory=dict)

    def agrees(self, other: Answer) -> bool:
        """Return whether two answers agree on each candidate that both have measured. Ratios agree if their
        factor is at most `AGREE`."""
        return all(
            (a is None) == (b is None)
            and (a is None or b is None or abs(math.log(max(a, 1e-9) / max(b, 1e-9))) <= math.log(AGREE))
            for a, b in zip(self.ratios, other.ratios, strict=True)
            if _measured(a) and _measured(b)
        )

    @property
    def whole(self) -> bool:
        """Whether all candidates were measured."""
        return all(map(_measured, self.ratios))

    def placed(self, job: Job, candidate: str, earlier: Answer | None) -> Answer:
        """Return the answer to the whole `job`, given this answer to its `candidate` alone. The other
        candidates have the ratios of the device's `earlier` answer, or NaN."""
        before = earlier.ratios if earlier is not None else (math.nan,) * len(job.candidates)
        (ratio,) = self.ratios
        together = zip(job.candidates, before, strict=True)
        return replace(self, ratios=tuple(ratio if c == candidate else r for c, r in together))


@dataclass(frozen=True)
class Event:
    """The end of a job on a device: the answer, or the problem because of which there is none."""

    device: str
    answer: Answer | None
    problem: str = ""


@dataclass
class Votes:
    """The answers to a job, by device. `running` has the devices that work on the job. `failures` counts
    devices that died or hung while they worked on it."""

    job: Job
    answers: dict[str, Answer] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    failures: int = 0
    _agreeing: tuple[dict[str, Answer], dict[str, Answer]] = field(default=({}, {}), repr=False)

    @property
    def agreeing(self) -> dict[str, Answer]:
        """The largest group of answers that all agree with one answer of the group. It is found once for the
        same answers, because comparing all pairs takes long if many devices have answered."""
        if self._agreeing[0] != self.answers:
            centres = self.answers.values()
            groups = [{d: a for d, a in self.answers.items() if a.agrees(centre)} for centre in centres]
            self._agreeing = {**self.answers}, max(groups, key=len, default={})
        return self._agreeing[1]

    @property
    def open(self) -> bool:
        return not self.running and not any(a.whole for a in self.answers.values())

    @property
    def disputed(self) -> bool:
        """Whether answers disagree and no majority agrees."""
        return len(self.answers) > 1 and 2 * len(self.agreeing) <= len(self.answers)

    @property
    def alone(self) -> str:
        """The job's quickest candidate if only one believed device has measured it, else ""."""
        best = self.best()
        return best[0] if best is not None and len(self._told(best[0], self.believed)) < 2 else ""

    def lacks(self, device: str) -> bool:
        """Return whether a device hasn't measured the job's quickest candidate, or hasn't answered the
        job."""
        best = self.best()
        return device not in self.answers or (best is not None and not self._told(best[0], [device]))

    def _told(self, candidate: str, devices: Iterable[str]) -> list[float | None]:
        """Return a candidate's ratios on those of the `devices` that have measured it."""
        at = self.job.candidates.index(candidate)
        return [r for d in devices if _measured(r := self.answers[d].ratios[at])]

    @property
    def believed(self) -> dict[str, Answer]:
        """The answers that count: those of the majority. A disputed job has none."""
        return {} if self.disputed else self.agreeing

    def best(self) -> tuple[str, float] | None:
        """Return the quickest candidate, and the median of its ratios. Every believed device must have found
        it quicker than the untuned candidate. Return None if there is none."""
        winners, believed = [], self.believed
        for candidate in self.job.candidates:
            ratios = self._told(candidate, believed)
            told = [r for r in ratios if r is not None]
            if told and len(told) == len(ratios) and max(told) <= MARGIN:
                winners.append((statistics.median(told), candidate))
        return (min(winners)[1], min(winners)[0]) if winners else None


def _measured(ratio: float | None) -> bool:
    return ratio is None or not math.isnan(ratio)
