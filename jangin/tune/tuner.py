"""Spends a budget of seconds on measuring candidates, first where a run of the model can gain most.

A kernel's possible gain is the time that its launches take together, less what they would take at the
bound that the processor's figures set. Candidates come in the order of their estimates, a few at a time, and
race the best one known; what estimates to be much slower than the best estimate is left out. One wins only
if it is quicker by more than noise, twice; and all winners together only if the whole model is.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from jangin.codegen.build import build
from jangin.ir.graph import Graph, Node
from jangin.ir.text import print_func
from jangin.kernels import kernel_candidates, kernel_problem, make_kernel, make_plan, schedule_kernels
from jangin.options import Options
from jangin.passes.stages import is_opaque
from jangin.runtime.executable import Executable
from jangin.runtime.profile import LaunchTime
from jangin.targets.target import Target
from jangin.templates.scheduled import Scheduled
from jangin.templates.template import EXPECTED, Candidate, Problem
from jangin.tune.measure import Trial, random_feeds
from jangin.tune.store import Winner

Progress = Callable[[float, float, str], None]

BATCH = 5
"""Candidates that race the best one together."""
RACE_SECONDS = 0.3
MARGIN = 0.98
"""A winner's time must be at most this share of the one before; that much is noise."""
HOPELESS = 1.6
"""Candidates whose estimate is so many times the best estimate are pruned."""
FRUITLESS = 0.5
"""How much is left of the hope in a kernel after a race that nothing new won."""
FINAL_RUNS = 15


@dataclass
class Tuned:
    """What became of one kernel. Seconds are of all its launches in a run of the model; `bound` is what
    they would take at the processor's full rate."""

    name: str
    launches: int
    before: float
    bound: float
    first: Candidate
    best: Candidate
    gain: float = 1.0
    tried: int = 0
    pruned: int = 0

    @property
    def after(self) -> float:
        return self.before * self.gain


@dataclass(frozen=True)
class Outcome:
    """`kernels`, the longest first; `winners` by digest; seconds of a run of the model `before` and
    `after`; `spent` seconds on it all."""

    kernels: tuple[Tuned, ...]
    winners: Mapping[str, Winner]
    before: float
    after: float
    spent: float

    @property
    def choices(self) -> dict[str, Candidate]:
        return {digest: w.candidate for digest, w in self.winners.items()}


@dataclass
class _Kernel:
    """A kernel with what is left to try."""

    digest: str
    node: Node
    problem: Problem
    way: Scheduled
    report: Tuned
    queue: list[Candidate]
    seen: set[str] = field(default_factory=set)
    hope: float = 1.0

    @property
    def promise(self) -> float:
        """Seconds that a run of the model may gain here."""
        r = self.report
        return self.hope * max(0.0, r.after - r.bound) if self.queue else 0.0


def tune(
    graph: Graph,
    options: Options,
    threads: int,
    sizes: Mapping[str, int],
    budget: float,
    progress: Progress | None = None,
) -> Outcome:
    """Tune the kernels of a fused graph for some `budget` seconds. `sizes`: what to take for symbols
    (EXPECTED, or what their ranges allow, for the others). Raises measure.WrongResult where a candidate
    computes something else than another."""
    start = time.perf_counter()

    def left() -> float:
        return budget - (time.perf_counter() - start)

    def tell(what: str) -> None:
        if progress is not None:
            progress(min(budget, time.perf_counter() - start), budget, what)

    tell("the model as it is")
    model = _Model(graph, options, threads, _sizes(graph, sizes))
    untuned = model.executable(options)
    kernels = model.kernels(untuned)
    reserve = time.perf_counter() - start
    while left() > reserve:
        kernel = max(kernels, key=lambda k: k.promise, default=None)
        if kernel is None or kernel.promise <= 0:
            break
        tell(kernel.report.name)
        model.race(kernel)
    tell("the model tuned")
    won = {k.digest: k for k in kernels if k.report.gain < 1}
    tuned = (
        model.executable(replace(options, choices={**options.choices, **_choices(won)})) if won else untuned
    )
    before, after = model.compare(untuned, tuned)
    if not won or after >= before:
        won, after = {}, before
        for k in kernels:
            k.report.best, k.report.gain = k.report.first, 1.0
    winners = {d: _winner(k.report) for d, k in won.items()}
    reports = sorted((k.report for k in kernels), key=lambda r: -r.before)
    return Outcome(tuple(reports), winners, before, after, time.perf_counter() - start)


def _choices(won: Mapping[str, _Kernel]) -> dict[str, Candidate]:
    return {d: k.report.best for d, k in won.items()}


def _winner(r: Tuned) -> Winner:
    return Winner(r.best, r.after / r.launches, r.before / r.launches)


def bound(target: Target, time: LaunchTime, threads: int) -> float:
    """Seconds that a launch takes at least: multiply-adds without a pause, or all bytes from the L3 cache."""
    operations = 2 * target.multiply_adds * target.lanes(4) * target.clock * threads
    return max(time.flops / operations, time.bytes / (target.l3_rate * target.clock * threads))


def _sizes(graph: Graph, given: Mapping[str, int]) -> dict[str, int]:
    found = {}
    for var, (low, high) in graph.symbols.items():
        least, most = (None if e is None else int(str(e)) for e in (low, high))
        found[var.name] = given.get(var.name, max(least or 1, min(most or EXPECTED, EXPECTED)))
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

    @property
    def between(self) -> int:
        """Bytes that a run touches between two runs of one kernel, as far as caches tell."""
        return min(sum(a.nbytes for a in self.graph.constants.values()), self.options.target.l3)

    def kernels(self, exe: Executable) -> list[_Kernel]:
        """The kernels that have candidates, with the time they take now."""
        found: dict[str, _Kernel] = {}
        nodes = [n for n in self.graph.nodes if n.op == "kernel"]
        for node, taken in zip(nodes, exe.profile(random_feeds(exe, self.sizes), 5), strict=True):
            if is_opaque(node):
                continue
            digest, problem, _ = kernel_problem(node, self.graph, self.options)
            kernel = found.get(digest) or self._kernel(digest, node, problem)
            found[digest] = kernel
            kernel.report.launches += 1
            kernel.report.before += taken.seconds
            kernel.report.bound += bound(self.options.target, taken, self.threads)
        return list(found.values())

    def _kernel(self, digest: str, node: Node, problem: Problem) -> _Kernel:
        known = kernel_candidates(problem, self.options)
        way = make_kernel(replace(problem, name="way_0"), self.options, self.options.choices.get(digest))
        first = Candidate(way.template, way.params)
        queue = [c for c, s in known if s <= HOPELESS * known[0][1] and c != first]
        report = Tuned(node.name, 0, 0.0, 0.0, first, first, pruned=len(known) - len(queue) - 1)
        return _Kernel(digest, node, problem, way, report, queue, {_text(way)})

    def race(self, kernel: _Kernel) -> None:
        """Let the next candidates of a kernel race its best."""
        report = kernel.report
        ways, names = [kernel.way], [report.best]
        while kernel.queue and len(ways) <= BATCH:
            candidate = kernel.queue.pop(0)
            named = replace(kernel.problem, name=f"way_{report.tried + report.pruned + 1}")
            way = make_kernel(named, self.options, candidate)
            if _text(way) in kernel.seen:
                report.pruned += 1
                continue
            report.tried += 1
            kernel.seen.add(_text(way))
            ways.append(way)
            names.append(candidate)
        kernel.hope *= FRUITLESS
        if len(ways) == 1:
            return
        trial = Trial(kernel.node, self.graph, self.options, self.threads, self.sizes, self.between)
        try:
            race = trial.build(ways)
        except ValueError:  # the kernel's inputs alone don't tell all its sizes
            kernel.queue.clear()
            return
        times = race.time(RACE_SECONDS)
        best = min(range(len(ways)), key=lambda i: times[i].ratio)
        if times[best].high > MARGIN:
            return
        again = race.time(RACE_SECONDS)[best]
        if again.high <= MARGIN:
            kernel.way, report.best, kernel.hope = ways[best], names[best], 1.0
            report.gain *= max(times[best].ratio, again.ratio)

    def compare(self, untuned: Executable, tuned: Executable) -> tuple[float, float]:
        """Seconds of a run of each, in turns."""
        feeds = random_feeds(untuned, self.sizes)
        times: list[list[float]] = [[], []]
        for _ in range(FINAL_RUNS):
            for exe, taken in ((untuned, times[0]), (tuned, times[1])):
                exe.run(feeds)
                start = time.perf_counter()
                exe.run(feeds)
                taken.append(time.perf_counter() - start)
        return statistics.median(times[0]), statistics.median(times[1])
