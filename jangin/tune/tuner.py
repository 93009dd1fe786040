"""Spends a budget of seconds on measuring candidates, first where a run of the model can gain most.

A kernel's possible gain is the time that its launches take together, less what they would take at the
bound that the processor's figures set. Candidates come in the order of their estimates, a few at a time, and
race the best one known; what estimates to be much slower than the best estimate is left out. The two
quickest race it again, and one wins only if it is quicker by more than noise; all winners together count
unless the whole model is slower.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from jangin.compiler.build import build
from jangin.compiler.kernels import (
    kernel_candidates,
    kernel_workload,
    make_kernel,
    make_plan,
    schedule_kernels,
)
from jangin.ir.graph import Array, Graph, Node
from jangin.ir.own_names import own_name
from jangin.ir.records import dataclass
from jangin.ir.sources import Sources
from jangin.ir.text import print_func
from jangin.options import Options
from jangin.passes.stages import is_opaque
from jangin.runtime.executable import Executable
from jangin.runtime.libraries import FINDERS
from jangin.templates.scheduled import Scheduled
from jangin.templates.template import EXPECTED, Candidate, Workload
from jangin.tune.measure import Timing, Trial, random_feeds, timings
from jangin.tune.store import Finding

Progress = Callable[[float, float, str], None]

BATCH = 6
"""Candidates that race the best one together."""
SCREEN_SECONDS = 0.2
"""To find the two quickest of them; these race the best one again for"""
RACE_SECONDS = 0.4
MARGIN = 0.99
"""A winner's time must be at most this share of the one before, by the median and at the best moment."""
HOPELESS = 1.6
"""Candidates whose estimate is so many times the best estimate are pruned."""
FRUITLESS = 0.5
"""How much is left of the hope in a kernel after a race that nothing new won."""
FINAL_SECONDS = 3.0
FINAL_ROUNDS = 12
"""To compare whole runs, tuned and not: at least so many."""


@dataclass
class Tuned:
    """What became of one kernel, of the nodes `sources`. Seconds are of all its launches in a run of the
    model; `bound` is what they would take at the processor's full rate. `tried`: candidates measured, by
    template or library; `earlier`: how many an earlier tuning had measured; `pruned`: how many were left
    out."""

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

    @property
    def after(self) -> float:
        return self.before * self.gain


@dataclass(frozen=True)
class Outcome:
    """The results of tuning a model.

    `kernels` begins with the longest. `findings` are by digest. `before` is the seconds of a run of the model
    untuned. `tuned` is the timing of the tuned model, measured beside the untuned one. `tuned` is None if the
    user stopped tuning first. `spent` is the seconds of the whole tuning. `stopped` says if the user stopped.
    `defects` are candidates that can't be made or compute something else. `unkept` says why the findings
    couldn't be stored, or is ""."""

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


@dataclass
class _Kernel:
    """A kernel with what is left to try. `way`, `queue`: as made now, and candidates still to be tried;
    `seen`: the texts of those that were; `tried`: their names; `earlier`: how many times as fast as
    untuned an earlier tuning made it."""

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

    @property
    def promise(self) -> float:
        """Seconds that a run of the model may gain here."""
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
) -> Outcome:
    """Tune the kernels of a fused graph for some `budget` seconds. `sizes`: what to take for symbols
    (EXPECTED, or what their ranges allow, for the others). `known`: findings of an earlier tuning, which
    goes on. An interrupt (Ctrl-C) ends the measuring, and what was found counts."""
    start = time.perf_counter()

    def left() -> float:
        return budget - (time.perf_counter() - start)

    def tell(what: str) -> None:
        if progress is not None:
            progress(min(budget, time.perf_counter() - start), budget, what)

    tell("the model as it is")
    model = _Model(graph, options, threads, _sizes(graph, sizes))
    untuned = model.executable(options)
    kernels = model.kernels(untuned, known or {})
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


def _sizes(graph: Graph, given: Mapping[str, int]) -> dict[str, int]:
    found = {}
    for var, (low, high) in graph.symbols.items():
        least, most = (None if e is None else int(str(e)) for e in (low, high))
        name = own_name(var)
        found[name] = given.get(name, max(least or 1, min(most or EXPECTED, EXPECTED)))
    return found


def _text(way: Scheduled) -> str:
    """What tells ways apart, whatever their names."""
    return f"{way.label if way.call else ''} {print_func(replace(way.func, name='way'))}"


@dataclass(frozen=True)
class _Model:
    """A fused graph and how it is to be run."""

    graph: Graph
    options: Options
    threads: int
    sizes: Mapping[str, int]

    def executable(self, options: Options) -> Executable:
        plan = make_plan(self.graph, schedule_kernels(self.graph, options), options)
        return Executable(build(plan, options.target), self.threads)

    def kernels(self, exe: Executable, known: Mapping[str, Finding]) -> list[_Kernel]:
        """The kernels that have candidates, with the time they take now."""
        found: dict[str, _Kernel] = {}
        nodes, machine = [n for n in self.graph.nodes if n.op == "kernel"], self.options.target.machine
        for node, taken in zip(nodes, exe.profile(random_feeds(exe, self.sizes), 5), strict=True):
            if is_opaque(node):
                continue
            digest, workload, _ = kernel_workload(node, self.graph, self.options)
            kernel = found.get(digest) or self._kernel(digest, node, workload, known.get(digest))
            found[digest] = kernel
            kernel.report.launches += 1
            kernel.report.before += taken.seconds
            kernel.report.bound += machine.least_seconds(taken.flops, taken.bytes, self.threads)
        return list(found.values())

    def _kernel(self, digest: str, node: Node, workload: Workload, known: Finding | None) -> _Kernel:
        ranked = kernel_candidates(workload, self.options)
        way = make_kernel(replace(workload, name="way_0"), self.options, self.options.choices.get(digest))
        first = Candidate(way.template, way.params)
        tried = set(known.tried) if known else set()
        hopeful = [c for c, s in ranked if s <= HOPELESS * ranked[0][1] and c != first]
        queue = [c for c in _libraries_first(hopeful, [c for c, _ in ranked]) if str(c) not in tried]
        pruned = len(ranked) - len(hopeful) - 1
        report = Tuned(node.name, node.source, 0, 0.0, 0.0, first, first, earlier=len(tried), pruned=pruned)
        possible = self._trial(node, workload).possible
        gained = known.untuned / known.seconds if known and known.better and known.candidate == first else 1.0
        return _Kernel(
            digest, node, workload, way, report, queue if possible else [], {_text(way)}, tried, gained
        )

    def _trial(self, node: Node, workload: Workload) -> Trial:
        """Between two runs of a kernel a run of the model touches all its weights; of that, as much passes
        through the caches as they hold. A kernel whose own weights are few misses only its data, in L2."""
        constants = sum(a.nbytes for a in self.graph.constants.values())
        own = sum(self.graph.constants[n].nbytes for n in node.inputs if n in self.graph.constants)
        between = min(constants, self.options.target.machine.between_runs(own))
        return Trial(node, self.graph, self.options, self.threads, self.sizes, between)

    def race(self, kernel: _Kernel) -> list[str]:
        """Let the next candidates of a kernel race its best. The defects that were found."""
        batch, kernel.queue = kernel.queue[:BATCH], kernel.queue[BATCH:]
        kernel.hope *= FRUITLESS
        try:
            self._race(kernel, batch)
        except Exception:  # whatever a defective candidate raises; alone, each shows whether it is the one
            return [found for candidate in batch for found in self._race_alone(kernel, candidate)]
        return []

    def _race_alone(self, kernel: _Kernel, candidate: Candidate) -> list[str]:
        try:
            self._race(kernel, [candidate])
        except Exception as error:
            return [f"{kernel.report.name}, {candidate}: {type(error).__name__}: {error}"]
        return []

    def _race(self, kernel: _Kernel, batch: Sequence[Candidate]) -> None:
        report = kernel.report
        seen = {_text(kernel.way): report.best}
        ways = [kernel.way]
        kernel.tried.update(map(str, batch))
        for candidate in batch:
            named = replace(kernel.workload, name=f"way_{len(kernel.seen) + len(ways)}")
            way = make_kernel(named, self.options, candidate)
            if _text(way) not in kernel.seen and seen.setdefault(_text(way), candidate) is candidate:
                ways.append(way)
        if len(ways) > 1:
            race = self._trial(kernel.node, kernel.workload).build(ways)
            times = race.time(SCREEN_SECONDS)
            hopeful = sorted(range(1, len(ways)), key=lambda i: times[i].ratio)[:2]
            own, *again = race.time(RACE_SECONDS, [0, *hopeful])
            timing, best = min(zip(again, hopeful, strict=True), key=lambda x: x[0].ratio)
            gain = max(timing.ratio, timing.seconds / own.seconds)
            if gain <= MARGIN and timing.high < 1:
                kernel.way, report.best, kernel.hope = ways[best], list(seen.values())[best], 1.0
                report.gain *= gain
        kernel.seen |= seen.keys()
        report.tried.update(c.template for c in list(seen.values())[1:])
        report.pruned += len(batch) + 1 - len(ways)

    def final(self, untuned: Executable, kernels: Sequence[_Kernel]) -> tuple[float, Timing | None]:
        """Seconds of a run of the model before, and its time after beside that. Where that is slower, all
        stays as it was; after an interrupt, the kernels' own races must do."""
        won = {k.digest: k.report.best for k in kernels if k.report.gain < 1}
        try:
            choices = {**self.options.choices, **won}
            tuned = self.executable(self.options.but(choices=choices)) if won else untuned
            before, after = self._compare(untuned, tuned)
        except KeyboardInterrupt:
            return sum(k.report.before for k in kernels), None
        slower = after.ratio > 1
        if slower:
            for k in kernels:
                k.report.best, k.report.gain = k.report.first, 1.0
        return before.seconds, before if slower or not won else after

    def _compare(self, untuned: Executable, tuned: Executable) -> tuple[Timing, Timing]:
        """A run of each, in turns."""
        feeds = random_feeds(untuned, self.sizes)
        rounds: list[list[float]] = []
        start = time.perf_counter()
        while len(rounds) < FINAL_ROUNDS or time.perf_counter() - start < FINAL_SECONDS:
            rounds.append([_seconds(exe, feeds) for exe in (untuned, tuned)])
        before, after = timings(rounds)
        return before, after


def _seconds(exe: Executable, feeds: Mapping[str, Array]) -> float:
    """Of a run after a run."""
    exe.run(feeds)
    start = time.perf_counter()
    exe.run(feeds)
    return time.perf_counter() - start


def _libraries_first(hopeful: Sequence[Candidate], ranked: Sequence[Candidate]) -> list[Candidate]:
    """The candidates to try, each library's best before all others, however it estimates."""
    best = {c.template: c for c in reversed(ranked) if c.template in FINDERS}
    return [*best.values(), *(c for c in hopeful if c not in best.values())]
