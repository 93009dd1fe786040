"""Which parts of a model are worth smaller numbers, on this device: `--auto`.

Each part's time is measured in each kind of numbers, and its effect on the outputs by rounding it alone.
Parts that gain are taken, those first that gain most for what they cost, as long as the drop allows. As
numbers of two kinds side by side cost conversions, all parts in int8 that the drop allows are a second
proposal, and the quicker of both with what else gains in another kind a third. Each is measured whole, in
turns with float32, and the quickest of all it is.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from jangin.ir.graph import Array, CompileError
from jangin.ir.records import dataclass
from jangin.ir.sources import Sources
from jangin.quantization.parts import Part
from jangin.runtime.executable import Executable
from jangin.runtime.load import Runnable
from jangin.runtime.variants import VariantsExecutable

FLOAT = "float32"
ROUNDS, REPEATS = 4, 5
"""Turns that the models take, and runs in each."""
TURNS, TURN = 11, 0.1
"""Of whole runs: how many turns, and about how many seconds each."""
WORTH = 0.98
"""A part, or the whole, is quicker if it takes at most this share of the time."""


@dataclass(frozen=True)
class Option:
    """A part in one kind of numbers: its seconds a run, and its squared error, as a share of the outputs'
    squares, if it alone is so."""

    seconds: float
    cost: float


@dataclass(frozen=True)
class Decision:
    """What was found of one part: `source` names it; `options` by kind, float32 among them; `kind` is what
    was chosen, and `reason` why nothing smaller was."""

    name: str
    source: str
    options: Mapping[str, Option]
    kind: str = FLOAT
    reason: str = ""

    def gain(self, kind: str) -> float:
        """The seconds a run that a kind saves."""
        return self.options[FLOAT].seconds - self.options[kind].seconds

    @property
    def best(self) -> str:
        """The kind that saves most for its cost, float32 if none saves any."""
        least = self.options[FLOAT].seconds * (1 - WORTH)
        found = {
            k: self.gain(k) / max(o.cost, 1e-12) for k, o in self.options.items() if self.gain(k) > least
        }
        return max(found, key=lambda k: found[k]) if found else FLOAT


@dataclass(frozen=True)
class Report:
    """Why each part became what it is. `seconds`: a run's, in float32 and as chosen; `note`: what a reader
    should know of the whole."""

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
    """Each part's seconds a run: those of its launches, shared alike where a kernel computes several; what
    nothing owns goes by ""."""
    plan = exe.variant(feeds) if isinstance(exe, VariantsExecutable) else exe
    if not isinstance(plan, Executable):
        raise CompileError("the times of parts can be measured of models that are one plan")
    least: dict[int, float] = {}
    sources: dict[int, Sources] = {}
    for _ in range(rounds):
        for n, launch in enumerate(plan.profile(feeds, REPEATS)):
            least[n] = min(least.get(n, np.inf), launch.seconds)
            sources[n] = launch.launch.sources
    found: dict[str, float] = defaultdict(float)
    for n, seconds in least.items():
        parts = {owners[s.name] for s in sources[n] if s.name in owners} or {""}
        for part in parts:
            found[part] += seconds / len(parts)
    return found


def raced(first: Runnable, second: Runnable, feeds: Mapping[str, Array]) -> tuple[float, float]:
    """The seconds of a run of both, taken in turns: the median of the first, and that by the median ratio."""
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
    """All candidates where they fit, else as many in their order as do: of few runs a drop goes by steps, and
    may be less with more of them."""
    if fits(candidates):
        return list(candidates)
    low, high = 0, max(len(candidates) - 1, 0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(candidates[:middle]) else (low, middle - 1)
    return list(candidates[:low])


def ranked(decisions: Sequence[Decision]) -> list[Decision]:
    """The parts that gain by their best kind, those first that gain most for what they cost."""
    gaining = [replace(d, kind=d.best) for d in decisions if d.best != FLOAT]
    return sorted(gaining, key=lambda d: -d.gain(d.kind) / max(d.options[d.kind].cost, 1e-12))


def uniform(decisions: Sequence[Decision], kind: str) -> list[Decision]:
    """The parts in one kind, those first that cost least."""
    found = [replace(d, kind=kind) for d in decisions if kind in d.options]
    return sorted(found, key=lambda d: d.options[kind].cost)


def others(
    decisions: Sequence[Decision], taken: Sequence[Decision], fits: Callable[[Sequence[Decision]], bool]
) -> list[Decision]:
    """What gains beside the parts that are `taken`, in kinds that none of them has, as far as it fits."""
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
    """The decisions with what was chosen, and why the rest wasn't. `taken`: the parts of the quickest model;
    `fitting`: those that gain by themselves, and are within the drop."""
    chosen, gained = {d.name: d.kind for d in taken}, {d.name for d in fitting}
    kinds = {*chosen.values()}
    found = []
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
        found.append(replace(d, kind=kind, reason=reason))
    return found


def title(part: Part) -> str:
    """A part as the model's author calls it: "Conv 'conv1'"."""
    return part.node.source.title or part.name
