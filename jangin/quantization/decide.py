"""Decide which parts of a model are worth quantizing on this device: `--auto`.

Each part's time is measured in each kind of numbers. Its effect on the outputs is measured by quantizing it
alone. The first proposal takes the parts that gain, in order of gain per cost, as far as the drop allows.

Numbers of two kinds beside each other cost conversions. The second proposal is therefore all parts in int8
that the drop allows. The third is the quicker of both, with the parts that gain in another kind. Each
proposal is measured as a whole model, in turns with float32, and the quickest wins."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from jangin.ir.graph import Array, CompileError
from jangin.ir.program import IN_STEPS
from jangin.ir.records import dataclass
from jangin.ir.sources import Sources
from jangin.quantization.parts import Part
from jangin.runtime.executable import Executable
from jangin.runtime.load import Runnable
from jangin.runtime.variants import VariantsExecutable

FLOAT = "float32"
ROUNDS, REPEATS = 4, 5
"""Rounds in which the parts' times are measured, and runs of the model in each."""
TURNS, TURN = 11, 0.1
"""The number of turns that each of two models takes, and the seconds of a turn. The median of eleven ignores
five disturbed ones."""
WORTH = 0.98
"""A part or a model counts as quicker if it takes at most this share of the time. Smaller gains are taken for
noise."""


@dataclass(frozen=True)
class Option:
    """A part in one kind of numbers.

    `seconds` is the part's time in a run. `cost` is the outputs' squared error if only this part is
    quantized, as a share of the outputs' squares."""

    seconds: float
    cost: float


@dataclass(frozen=True)
class Decision:
    """The decision about one part. `source` names it. `options` has what was measured by kind, including
    float32.

    `kind` is the choice, and `reason` tells why no smaller kind was chosen."""

    name: str
    source: str
    options: Mapping[str, Option]
    kind: str = FLOAT
    reason: str = ""

    def gain(self, kind: str) -> float:
        """Return the seconds a run that a kind saves."""
        return self.options[FLOAT].seconds - self.options[kind].seconds

    @property
    def best(self) -> str:
        """The kind that saves most for its cost, or float32 if none saves time."""
        least = self.options[FLOAT].seconds * (1 - WORTH)
        gains = {
            k: self.gain(k) / max(o.cost, 1e-12) for k, o in self.options.items() if self.gain(k) > least
        }
        return max(gains, key=lambda k: gains[k]) if gains else FLOAT


@dataclass(frozen=True)
class Report:
    """The reasons for each part's kind. `before` and `after` are the seconds of a run in float32 and as
    chosen. `drop` is how much worse the outputs are, and `allowed` the limit. `note` is a remark about the
    whole model."""

    decisions: Sequence[Decision]
    before: float
    after: float
    drop: float
    allowed: float
    quality: str
    note: str = ""


def owned(
    exe: Runnable, feeds: Mapping[str, Array], owners: Mapping[str, str], rounds: int = ROUNDS
) -> dict[str, float]:
    """Return each part's seconds in a run, summed over its launches, by the part's name. A kernel's time is
    shared equally by the parts that it computes. Time that belongs to no part has the key "".

    Raises CompileError for a model that isn't one plan."""
    plan = exe.variant(feeds) if isinstance(exe, VariantsExecutable) else exe
    if not isinstance(plan, Executable):
        raise CompileError(f"the times of parts can't be measured: {IN_STEPS}")
    least: dict[int, float] = {}
    sources: dict[int, Sources] = {}
    for _ in range(rounds):
        for n, launch in enumerate(plan.profile(feeds, REPEATS)):
            least[n] = min(least.get(n, np.inf), launch.seconds)
            sources[n] = launch.launch.sources
    total_seconds: dict[str, float] = defaultdict(float)
    for n, seconds in least.items():
        parts = {owners[s.name] for s in sources[n] if s.name in owners} or {""}
        for part in parts:
            total_seconds[part] += seconds / len(parts)
    return total_seconds


def raced(first: Runnable, second: Runnable, feeds: Mapping[str, Array]) -> tuple[float, float]:
    """Run two models alternately, `TURNS` times each. Return the median seconds of a run of the first. The
    second result is this time multiplied by the median ratio of the second to the first."""
    times = [(_turn(first, feeds), _turn(second, feeds)) for _ in range(TURNS)]
    one = statistics.median(t[0] for t in times)
    return one, one * statistics.median(b / a for a, b in times)


def _turn(exe: Runnable, feeds: Mapping[str, Array]) -> float:
    exe.run(feeds)
    took: list[float] = []
    end = time.perf_counter() + TURN
    while not took or time.perf_counter() < end:
        start = time.perf_counter()
        exe.run(feeds)
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def most(candidates: Sequence[Decision], fits: Callable[[Sequence[Decision]], bool]) -> list[Decision]:
    """Return all candidates if they fit, else the longest fitting prefix that a binary search finds.

    With few runs a drop changes in steps, and it may be smaller with more candidates. The search may
    therefore miss a longer prefix."""
    if fits(candidates):
        return list(candidates)
    low, high = 0, max(len(candidates) - 1, 0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(candidates[:middle]) else (low, middle - 1)
    return list(candidates[:low])


def ranked(decisions: Sequence[Decision]) -> list[Decision]:
    """Return the parts that save time in their best kind, by falling seconds saved per cost."""
    gaining = [replace(d, kind=d.best) for d in decisions if d.best != FLOAT]
    return sorted(gaining, key=lambda d: -d.gain(d.kind) / max(d.options[d.kind].cost, 1e-12))


def uniform(decisions: Sequence[Decision], kind: str) -> list[Decision]:
    """Return all parts that can have the kind, in that kind, by rising cost."""
    alike = [replace(d, kind=kind) for d in decisions if kind in d.options]
    return sorted(alike, key=lambda d: d.options[kind].cost)


def others(
    decisions: Sequence[Decision], taken: Sequence[Decision], fits: Callable[[Sequence[Decision]], bool]
) -> list[Decision]:
    """Return further parts that save time beside the parts `taken`, in kinds that none of these has. They are
    reduced to as many as fit."""
    names, kinds = {d.name for d in taken}, {d.kind for d in taken}
    rest = [
        replace(d, options={k: o for k, o in d.options.items() if k not in kinds})
        for d in decisions
        if d.name not in names
    ]
    return most(ranked(rest), lambda more: fits([*taken, *more]))


def explained(
    decisions: Sequence[Decision], taken: Sequence[Decision], fitting: Sequence[Decision]
) -> list[Decision]:
    """Return all decisions with the chosen kinds, and with a reason for each part that stays in float32 or is
    slower.

    `taken` are the parts of the quickest model. `fitting` are the parts that gain by themselves and are
    within the drop."""
    chosen, gained = {d.name: d.kind for d in taken}, {d.name for d in fitting}
    kinds = {*chosen.values()}
    told = []
    for d in decisions:
        kind, reason = chosen.get(d.name, FLOAT), ""
        if kind == FLOAT and d.best == FLOAT:
            reason = "no smaller numbers are quicker here"
        elif kind == FLOAT and d.name in gained and d.best not in kinds:
            reason = f"{d.best} is quicker, but the whole model isn't with it"
        elif kind == FLOAT:
            reason = f"{d.best} would cost more than the drop allows{' beside the others' if taken else ''}"
        elif d.gain(kind) < 0:
            reason = "slower by itself, but its neighbours need no conversions"
        told.append(replace(d, kind=kind, reason=reason))
    return told


def title(part: Part) -> str:
    """Return a part's name by the model's author, such as "Conv 'conv1'"."""
    return part.node.source.title or part.name
