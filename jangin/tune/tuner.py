"""Spend a budget of seconds on measuring candidates, first where a run of the model can gain most.

A kernel's possible gain is the time of all its launches, minus the time at the bound that the processor's
figures set. Candidates come in order of their estimates, a few at a time, and race the best known one.
Candidates whose estimate is far above the best estimate are left out.

The two quickest race again, by the objective's figure, and one wins only if it is better by more than noise.
All winners together count unless the whole model is worse."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import partial

from jangin.compiler.build import build
from jangin.compiler.kernels import (
    kernel_candidates,
    kernel_workload,
    make_kernel,
    schedule_kernels,
)
from jangin.compiler.plans import make_plan
from jangin.energy import EnergyError
from jangin.ir.graph import Array, Graph, Node
from jangin.ir.own_names import own_name
from jangin.ir.records import dataclass
from jangin.ir.text import print_func
from jangin.options import Options
from jangin.passes.fusion.stages import is_opaque
from jangin.runtime.artifact import Artifact
from jangin.runtime.executable import Executable
from jangin.runtime.libraries import FINDERS
from jangin.runtime.profile import LaunchTime
from jangin.templates.scheduled import Scheduled
from jangin.templates.template import EXPECTED, Candidate, Workload
from jangin.tune.contest import Contest
from jangin.tune.joules import Meter
from jangin.tune.measure import Timing, Trial, random_feeds, timings
from jangin.tune.outcome import Attempt, Outcome, Tuned
from jangin.tune.store import Finding

Progress = Callable[[float, float, str], None]

BATCH = 6
"""The most candidates that race the best known one together. They are compiled into one plan, whose
compilation would delay the first result if there were more."""
SCREEN_SECONDS = 0.2
"""Seconds of the race that finds the two quickest candidates of a batch. It needn't be exact, because those
two race again."""
RACE_SECONDS = 0.4
"""Seconds of the race between the two quickest candidates of a batch and the best known one. It lasts twice
as long as the screening, because it decides."""
MARGIN = 0.99
"""A candidate wins if it takes at most this share of the earlier best's time, by the median and in the best
round. Smaller gains are within the noise of a race."""
HOPELESS = 1.6
"""A candidate isn't tried if its estimate exceeds the best estimate by more than this factor. The number is a
choice: a larger one costs tuning time, and a smaller one misses winners with wrong estimates."""
FRUITLESS = 0.5
"""A kernel's expected gain is multiplied by this factor after each race that has no new winner. Other kernels
thus soon get their turn."""
FINAL_SECONDS = 3.0
"""The least seconds for which whole runs of the tuned and of the untuned model are compared. It is longer
than a race, because the result decides about all kernels."""
PROFILED = 5
"""Runs over which the time of each kernel is a median before it is tuned. It only orders the kernels."""
FINAL_ROUNDS = 12
"""The least number of rounds in this comparison. Each round runs both models, and the median of twelve
ignores five disturbed ones."""


@dataclass
class TuningKernel:
    """A kernel with the candidates that remain.

    `way` is the current best, and `queue` has the candidates still to be tried. `seen` has the texts of tried
    candidates, and `tried` their names. `earlier` is the speed-up over untuned that an earlier tuning found.
    `estimates` are in seconds, by candidate."""

    digest: str
    node: Node
    workload: Workload
    way: Scheduled
    report: Tuned
    queue: list[Candidate]
    seen: set[str]
    tried: set[str]
    earlier: float
    hope: float = 1.0
    estimates: Mapping[str, float] = field(default_factory=dict)
    far: Collection[str] = ()
    """The candidates whose estimates are too far from the best."""

    @property
    def promise(self) -> float:
        """The seconds that a run of the model may gain by this kernel."""
        r = self.report
        return self.hope * max(0.0, r.after - r.bound) if self.queue else 0.0

    @property
    def finding(self) -> Finding:
        r = self.report
        untuned = r.before / r.launches * self.earlier
        return Finding(r.best, r.after / r.launches, untuned, frozenset(self.tried))


def tune(
    graph: Graph,
    options: Options,
    threads: int,
    sizes: Mapping[str, int],
    budget: float,
    progress: Progress | None = None,
    known: Mapping[str, Finding] | None = None,
    meter: Meter | None = None,
    every: bool = False,
) -> Outcome:
    """Tune the kernels of a fused graph for about `budget` seconds, and return the outcome. For another
    objective than latency, `meter` measures the joules. `every`: candidates are measured too whose estimates
    are too far from the best.

    `sizes` are the sizes of symbols by name. Other symbols get EXPECTED, or the nearest size in their range.
    `known` has findings of an earlier tuning, by the kernel's digest, which is continued. An interrupt
    (Ctrl-C) ends the measuring, and the findings so far count."""
    start = time.perf_counter()

    def left() -> float:
        return budget - (time.perf_counter() - start)

    def tell(what: str) -> None:
        if progress is not None:
            progress(min(budget, time.perf_counter() - start), budget, what)

    tell("the model as it is")
    model = TuningModel(graph, options, threads, sizes_of(graph, sizes), meter, every)
    untuned = model.executable(options)
    kernels = model.kernels(profiled(untuned, model.sizes), known or {})
    reserve = time.perf_counter() - start + FINAL_SECONDS
    stopped = False
    defects: list[str] = []
    try:
        while left() > reserve:
            kernel = max(kernels, key=lambda k: k.promise, default=None)
            if kernel is None or kernel.promise <= 0:
                break
            tell(kernel.report.name)
            defects += model.race(kernel)
    except KeyboardInterrupt:
        stopped = True
    tell("the model tuned")
    before, tuned = model.final(untuned, kernels)
    reports = sorted((k.report for k in kernels), key=lambda r: -r.before)
    findings = {k.digest: k.finding for k in kernels if k.tried}
    spent = time.perf_counter() - start
    return Outcome(tuple(reports), findings, before, tuned, spent, stopped, tuple(defects))


def executable_of(graph: Graph, options: Options, threads: int) -> Executable:
    """Compile a fused graph with the options' candidates, and load it."""
    return Executable(artifact_of(graph, options), threads)


def artifact_of(graph: Graph, options: Options) -> Artifact:
    """Compile a fused graph with the options' candidates."""
    return build(make_plan(graph, schedule_kernels(graph, options), options), options.target)


def profiled(exe: Executable, sizes: Mapping[str, int]) -> list[LaunchTime]:
    """Return the times of a model's kernels in a run, given the sizes of its symbols."""
    return exe.profile(random_feeds(exe, sizes), PROFILED)


def sizes_of(graph: Graph, given: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of a graph's symbols by name: those given, and else EXPECTED or the nearest size in
    the range."""
    sizes = {}
    for var, (low, high) in graph.symbols.items():
        least, most = (None if e is None else int(str(e)) for e in (low, high))
        name = own_name(var)
        sizes[name] = given.get(name, max(least or 1, min(most or EXPECTED, EXPECTED)))
    return sizes


def _text(way: Scheduled) -> str:
    """Return a text that is equal for equal kernels, whatever their names."""
    return f"{way.label if way.call else ''} {print_func(replace(way.func, name='way'))}"


@dataclass(frozen=True)
class TuningModel:
    """A fused graph that is tuned, with the options of its runs."""

    graph: Graph
    options: Options
    threads: int
    sizes: Mapping[str, int]
    meter: Meter | None = None
    every: bool = False

    def executable(self, options: Options) -> Executable:
        return executable_of(self.graph, options, self.threads)

    def kernels(self, times: Sequence[LaunchTime], known: Mapping[str, Finding]) -> list[TuningKernel]:
        """Return the kernels that can be tuned, with the seconds that they take in a run of the model.
        `times` is the untuned model's profile, and `known` has earlier findings."""
        kernels: dict[str, TuningKernel] = {}
        nodes, machine = [n for n in self.graph.nodes if n.op == "kernel"], self.options.target.machine
        for node, taken in zip(nodes, times, strict=True):
            if is_opaque(node):
                continue
            digest, workload, _ = kernel_workload(node, self.graph, self.options)
            kernel = kernels.get(digest) or self._kernel(digest, node, workload, known.get(digest))
            kernels[digest] = kernel
            kernel.report.launches += 1
            kernel.report.before += taken.seconds
            kernel.report.bound += machine.least_seconds(taken.flops, taken.bytes, self.threads)
        return list(kernels.values())

    def _kernel(self, digest: str, node: Node, workload: Workload, known: Finding | None) -> TuningKernel:
        ranked = kernel_candidates(workload, self.options)
        way = make_kernel(replace(workload, name="way_0"), self.options, self.options.choices.get(digest))
        first = Candidate(way.template, way.params)
        tried = set(known.tried) if known else set()
        every = [c for c, _ in ranked]
        hopeful = [c for c in hopeful_of(ranked) if c != first]
        wanted = [c for c in every if c != first] if self.every else hopeful
        queue = [c for c in _libraries_first(wanted, every) if str(c) not in tried]
        report = Tuned(node.name, node.source, 0, 0.0, 0.0, first, first, earlier=len(tried),
                       pruned=len(every) - len(hopeful) - 1, known=len(every))  # fmt: skip
        possible = self._trial(node, workload).possible
        gained = known.untuned / known.seconds if known and known.better and known.candidate == first else 1.0
        return TuningKernel(
            digest,
            node,
            workload,
            way,
            report,
            queue if possible else [],
            {_text(way)},
            tried,
            gained,
            estimates={str(c): s for c, s in ranked},
            far={str(c) for c in every if c not in hopeful and c.template not in FINDERS},
        )

    def _trial(self, node: Node, workload: Workload) -> Trial:
        """Return a trial of a kernel, with the amount of other data that passes through the caches before
        each run.

        In a run of the model, the other kernels' weights pass through the caches between two runs of a
        kernel. No more passes than the caches hold. Less passes if the kernel's own weights fit the L2 cache,
        because then only that cache matters."""
        constants = sum(a.nbytes for a in self.graph.constants.values())
        own = sum(self.graph.constants[n].nbytes for n in node.inputs if n in self.graph.constants)
        between = min(constants, self.options.target.machine.between_runs(own))
        return Trial(node, self.graph, self.options, self.threads, self.sizes, between)

    def race(self, kernel: TuningKernel) -> list[str]:
        """Let the next candidates of a kernel race its best. Return texts about the candidates that have a
        defect."""
        batch, kernel.queue = kernel.queue[:BATCH], kernel.queue[BATCH:]
        kernel.hope *= FRUITLESS
        try:
            self._race(kernel, batch)
        except EnergyError:
            raise
        except Exception:  # a defective candidate may raise anything; alone, each shows if it is the one
            return [winner for candidate in batch for winner in self._race_alone(kernel, candidate)]
        return []

    def _race_alone(self, kernel: TuningKernel, candidate: Candidate) -> list[str]:
        try:
            self._race(kernel, [candidate])
        except EnergyError:
            raise
        except Exception as error:  # a defective candidate may raise anything, and is told
            return [f"{kernel.report.name}, {candidate}: {type(error).__name__}: {error}"]
        return []

    def _race(self, kernel: TuningKernel, batch: Sequence[Candidate]) -> None:
        report = kernel.report
        seen = {_text(kernel.way): report.best}
        ways = [kernel.way]
        kernel.tried.update(map(str, batch))
        for candidate in batch:
            named = replace(kernel.workload, name=f"way_{len(kernel.seen) + len(ways)}")
            way = make_kernel(named, self.options, candidate)
            if _text(way) not in kernel.seen and seen.setdefault(_text(way), candidate) is candidate:
                ways.append(way)
            else:  # the same kernel as another
                report.pruned += str(candidate) not in kernel.far
        if len(ways) > 1:
            race = self._trial(kernel.node, kernel.workload).build(ways)
            times = race.time(SCREEN_SECONDS)
            own = kernel.estimates.get(str(report.first), math.nan)
            for candidate, found in zip([*seen.values()][1:], times[1:], strict=True):
                guess = kernel.estimates.get(str(candidate), math.nan) / own
                far = str(candidate) in kernel.far
                report.attempts.append(Attempt(str(candidate), guess, found.ratio * report.gain, far))
            hopeful = sorted(range(1, len(ways)), key=lambda i: times[i].ratio)[:2]
            if self.meter is None:
                best_now, *again = race.time(RACE_SECONDS, [0, *hopeful])
            else:
                best_now, *again = race.costs(self.meter, self.options.objective, [0, *hopeful])
            timing, best = min(zip(again, hopeful, strict=True), key=lambda x: x[0].ratio)
            gain = max(timing.ratio, timing.least / best_now.least)
            if gain <= MARGIN and timing.high < 1:
                kernel.way, report.best, kernel.hope = ways[best], list(seen.values())[best], 1.0
                report.gain *= gain
        kernel.seen |= seen.keys()
        report.tried.update(c.template for c in list(seen.values())[1:])

    def measure(
        self, kernel: TuningKernel, candidates: Sequence[Candidate]
    ) -> tuple[list[float | None], float, list[str]]:
        """Race candidates against a kernel's untuned one, without changing the kernel. Return their times as
        shares of the untuned one's, its seconds, and texts about candidates that have a defect. A defective
        candidate has no time."""
        try:
            return self.contest(kernel, candidates).run(SCREEN_SECONDS, RACE_SECONDS)
        except (
            Exception
        ) as error:  # a defective candidate may raise anything; alone, each shows if it is the one
            if len(candidates) == 1:
                told = f"{kernel.report.name}, {candidates[0]}: {type(error).__name__}: {error}"
                return [None], 0.0, [told]
        alone = [self.measure(kernel, [c]) for c in candidates]
        return [s for a in alone for s in a[0]], max(a[1] for a in alone), [d for a in alone for d in a[2]]

    def contest(self, kernel: TuningKernel, candidates: Sequence[Candidate]) -> Contest:
        """Compile candidates for a race against a kernel's untuned one."""
        ways, places = [kernel.way], []
        texts = {_text(kernel.way): 0}
        for candidate in candidates:
            way = make_kernel(replace(kernel.workload, name=f"way_{len(ways)}"), self.options, candidate)
            place = texts.setdefault(_text(way), len(ways))
            if place == len(ways):
                ways.append(way)
            places.append(place)
        built = self._trial(kernel.node, kernel.workload).built(ways) if len(ways) > 1 else None
        return Contest(built, tuple(places), kernel.report.before / kernel.report.launches)

    def final(self, untuned: Executable, kernels: Sequence[TuningKernel]) -> tuple[float, Timing | None]:
        """Run the tuned and the untuned model side by side. Return the figure of an untuned run, and the
        timing of the tuned model relative to it.

        If the tuned model is worse, all kernels stay untuned, and the timing is the untuned model's. After an
        interrupt, the kernels' own races decide, and the timing is None. Joules aren't known then."""
        won = {k.digest: k.report.best for k in kernels if k.report.gain < 1}
        try:
            choices = {**self.options.choices, **won}
            tuned = self.executable(self.options.but(choices=choices)) if won else untuned
            before, after = self.compare(untuned, tuned)
        except KeyboardInterrupt:
            seconds = sum(k.report.before for k in kernels)
            return seconds if self.meter is None else math.nan, None
        worse = after.ratio > 1
        if worse:
            for k in kernels:
                k.report.best, k.report.gain = k.report.first, 1.0
        return before.least, before if worse or not won else after

    def compare(self, untuned: Executable, tuned: Executable) -> tuple[Timing, Timing]:
        """Run both models alternately, and return the timings of the untuned and of the tuned one."""
        feeds, objective = random_feeds(untuned, self.sizes), self.options.objective
        if self.meter is not None:
            models = [untuned] if tuned is untuned else [untuned, tuned]
            costs = self.meter.rounds([partial(exe.run, feeds) for exe in models])
            ends = timings([[cost.figure(objective) for cost in turn] for turn in costs])
            return ends[0], ends[-1]
        return side_by_side(untuned, tuned, feeds)


def side_by_side(
    untuned: Executable, tuned: Executable, feeds: Mapping[str, Array], share: float = 1.0
) -> tuple[Timing, Timing]:
    """Run two models alternately for a share of FINAL_SECONDS, and return the timings of both."""
    rounds: list[list[float]] = []
    start = time.perf_counter()
    while len(rounds) < FINAL_ROUNDS or time.perf_counter() - start < share * FINAL_SECONDS:
        rounds.append([_seconds(exe, feeds) for exe in (untuned, tuned)])
    before, after = timings(rounds)
    return before, after


def _seconds(exe: Executable, feeds: Mapping[str, Array]) -> float:
    """Return the seconds of a run that follows another run."""
    exe.run(feeds)
    start = time.perf_counter()
    exe.run(feeds)
    return time.perf_counter() - start


def hopeful_of(ranked: Sequence[tuple[Candidate, float]]) -> list[Candidate]:
    """Return the candidates that are worth a trial, of those with their estimates, the quickest first. An
    estimate of a library's time is a guess, and discards no template's candidate."""
    best = next((s for c, s in ranked if c.template not in FINDERS), math.inf)
    return [c for c, s in ranked if s <= HOPELESS * best]


def _libraries_first(hopeful: Sequence[Candidate], ranked: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates to try. Each library's best comes first, whatever its estimate."""
    best = {c.template: c for c in reversed(ranked) if c.template in FINDERS}
    return [*best.values(), *(c for c in hopeful if c not in best.values())]
