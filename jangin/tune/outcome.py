"""The findings of a tuning: the attempts, the outcome for each kernel, and that of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field

from jangin.ir.records import dataclass
from jangin.ir.sources import Sources
from jangin.templates.template import Candidate
from jangin.tune.measure import Timing
from jangin.tune.store import Finding

NEAR = 1 / 1.1
"""The least share of the untuned time at which a kernel's first choice still counts as good. It is then
within 10 % of the best."""


@dataclass(frozen=True)
class Attempt:
    """A candidate that was measured. `estimated` is its estimated time, and `measured` the time found, as
    shares of the first candidate's. `far`: its estimate is too far from the best."""

    candidate: str
    estimated: float
    measured: float
    far: bool = False


@dataclass
class Tuned:
    """The outcome for one kernel, which computes the nodes `sources`. Seconds are those of all its launches
    in a run of the model.

    `gain` is the ratio of the best candidate's figure to the first one's, by the objective. `bound` is the
    time at the processor's full rate. `tried` counts measured candidates, by template or library. `earlier`
    counts those that an earlier tuning had measured, and `pruned` those whose estimates were too far from the
    best. `known` counts all. `attempts` tells each that was measured, the quickest by its estimate first."""

    name: str
    sources: Sources
    launches: int
    before: float
    bound: float
    first: Candidate
    best: Candidate
    gain: float = 1.0
    tried: Counter[str] = field(default_factory=Counter)
    earlier: int = 0
    pruned: int = 0
    known: int = 0
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def after(self) -> float:
        return self.before * self.gain

    @property
    def lost(self) -> float | None:
        """The time of the quickest whose estimate isn't too far, as a multiple of the quickest's of all. It
        is None if none with an estimate too far was measured."""
        far = [a.measured for a in self.attempts if a.far]
        near = [1.0, *(a.measured for a in self.attempts if not a.far)]
        return max(1.0, min(near) / min(far)) if far else None


@dataclass(frozen=True)
class Outcome:
    """The results of tuning a model.

    `kernels` begins with the longest. `findings` are by digest. `before` is the figure of a run of the model
    untuned, by the objective: seconds, joules or their product. `tuned` is the timing of the tuned model,
    measured beside the untuned one. `tuned` is None if the user stopped tuning first. `spent` is the seconds
    of the whole tuning. `stopped` says if the user stopped. `defects` are candidates that can't be made or
    compute something else. `unkept` says why the findings couldn't be stored, or is ""."""

    kernels: tuple[Tuned, ...]
    findings: Mapping[str, Finding]
    before: float
    tuned: Timing | None
    spent: float
    stopped: bool
    defects: tuple[str, ...]
    unkept: str = ""

    @property
    def choices(self) -> dict[str, Candidate]:
        return {digest: f.candidate for digest, f in self.findings.items() if f.better}

    @property
    def measured(self) -> Sequence[Tuned]:
        """The kernels of which other candidates were measured."""
        return [r for r in self.kernels if r.tried]

    @property
    def near(self) -> int:
        """The number of measured kernels whose first choice, the estimate's, is good."""
        return sum(r.gain >= NEAR for r in self.measured)

    @property
    def pruned(self) -> float:
        """The share of all candidates that wasn't measured, because others were estimated to be quicker."""
        return sum(r.pruned for r in self.kernels) / max(1, sum(r.known for r in self.kernels))

    @property
    def lost(self) -> Sequence[float]:
        """The loss by pruning, for each kernel of which pruned candidates were measured (see `Tuned`)."""
        return [r.lost for r in self.kernels if r.lost is not None]
