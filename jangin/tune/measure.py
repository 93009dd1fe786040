"""Time several candidates of one kernel side by side, with the caches in the state in which a run of the
model leaves them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from jangin.compiler.build import build
from jangin.compiler.kernels import kernel_workload, make_kernel
from jangin.compiler.plans import make_plan
from jangin.ir.core import Kernel, Map
from jangin.ir.dtype import F32
from jangin.ir.expr import Var, const
from jangin.ir.graph import Array, Graph, Node
from jangin.ir.plan import Plan
from jangin.ir.records import dataclass
from jangin.ir.sources import NO_SOURCE
from jangin.ops.editor import Editor, kernel_node
from jangin.options import Options
from jangin.runtime.artifact import Artifact
from jangin.runtime.executable import Executable
from jangin.runtime.outputs import aligned
from jangin.runtime.profile import Call
from jangin.runtime.sizes import Evaluator
from jangin.templates.scheduled import Scheduled
from jangin.tune.joules import Meter

ROUNDS = 7
"""The fewest rounds that are timed. Their median ignores three disturbed ones."""
MOST_ROUNDS = 20
"""The most rounds that are timed while there is time, in multiples of `ROUNDS`. Quick kernels would otherwise
be timed thousands of times, after which their medians no longer change."""
NOTCH = 1.57
"""The half-width of a median's 95% confidence interval, in quartile ranges divided by the square root of the
count. Source: McGill, Tukey, Larsen: "Variations of box plots", 1978."""
TOLERANCE = 1e-3
"""The largest difference that rounding may cause between two candidates' results, as a share of the largest
result. Sums of some thousand terms in another order differ by less.

It is also the largest share of rounded results that may differ by 1."""
SWEEP = "@sweep"
"""The name of the value that passes other data through the caches between two timed kernels."""


class WrongResult(RuntimeError):
    """A candidate computes other results than the others, so its template has a defect."""


@dataclass(frozen=True)
class Timing:
    """The timing of one candidate, or its figure by another objective than the time.

    `least` is the least figure of a round: seconds, joules or their product. `ratio` is the median, over
    rounds, of the ratio to the first candidate measured together. It lies between `low` and `high` with 95%
    confidence."""

    least: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Trial:
    """A kernel of a fused graph that is to be timed, for `sizes` of its symbols and on `threads` threads.

    Before each timing, `between` bytes of other data pass through the caches."""

    node: Node
    graph: Graph
    options: Options
    threads: int
    sizes: Mapping[str, int]
    between: int

    @property
    def possible(self) -> bool:
        """Tell if the kernel's inputs determine all its sizes. They must, because the kernel runs alone."""
        inputs = (n for n in self.node.inputs if n not in self.graph.constants)
        told = {d for n in inputs for d in self.graph.shape(n)}
        return told.issuperset(self.node.of(Kernel).body.symbols)

    def build(self, ways: Sequence[Scheduled]) -> Race:
        """Compile all candidates together, and return them as a race. Their kernels must have different
        names.

        Raises WrongResult if a candidate's results differ from the first one's, and KeyError for a symbol
        without a size."""
        race, wrong = self.built(ways).race()
        for sentence in wrong.values():
            raise WrongResult(sentence)
        return race

    def built(self, ways: Sequence[Scheduled]) -> Built:
        """Compile all candidates together for the options' target. Their kernels must have different
        names."""
        artifact = build(self._plan(ways), self.options.target)
        body = self.node.of(Kernel).body
        rounded = any(v.dtype is not None and v.dtype.is_float for v in body.values.values())
        names = tuple((way.label, way.template) for way in ways)
        ends = tuple(map(self._ends, range(len(ways))))
        return Built(artifact, self.node.name, names, ends, rounded, self.sizes, self.threads)

    def _plan(self, ways: Sequence[Scheduled]) -> Plan:
        """Return a plan that runs the kernel once by each candidate. Before each run, another kernel passes
        other data through the caches."""
        node, graph, body = self.node, self.graph, self.node.of(Kernel).body
        other = _other_data(max(self.between // 8, 1024))
        workload = kernel_workload(other, other.of(Kernel).body, self.options, "sweep")[1]
        sweep = make_kernel(workload, self.options)
        values = {n: graph.values[n] for n in node.inputs} | dict(other.of(Kernel).body.values)
        constants = {n: graph.constants[n] for n in node.inputs if n in graph.constants}
        nodes: list[Node] = []
        chosen: dict[str, tuple[Scheduled, tuple[str, ...]]] = {}
        for i, way in enumerate(ways):
            before, ends = f"{SWEEP}.{i}", self._ends(i)
            values[before] = replace(values[f"{SWEEP}.out"], name=before)
            values |= {e: replace(body.values[n], name=e) for e, n in zip(ends, node.outputs, strict=True)}
            nodes += [replace(other, outputs=(before,)), replace(node, name=ends[0], outputs=ends)]
            chosen[before] = (sweep, (SWEEP, before))
            chosen[ends[0]] = (way, (*node.inputs, *ends))
        inputs = (SWEEP, *(n for n in dict.fromkeys(node.inputs) if n not in constants))
        ends = tuple(e for n in nodes[1::2] for e in n.outputs)
        trial = Graph("trial", inputs, ends, tuple(nodes), constants, values, body.symbols)
        return make_plan(trial, chosen, self.options)

    def _ends(self, way: int) -> tuple[str, ...]:
        """Return the names of the kernel's results by one candidate."""
        return tuple(f"@way.{way}.{n}" for n in range(len(self.node.outputs)))


@dataclass(frozen=True)
class Built:
    """Candidates of the kernel `name` that are compiled together. Another machine may have compiled them.

    - `artifact` runs the kernel once by each candidate.
    - `ways` has each candidate's label and template, and `ends` has the names of its results.
    - `rounded` tells if results come from floats.
    - `sizes` and `threads` are those of the runs.
    """

    artifact: Artifact
    name: str
    ways: tuple[tuple[str, str], ...]
    ends: tuple[tuple[str, ...], ...]
    rounded: bool
    sizes: Mapping[str, int]
    threads: int

    def race(self) -> tuple[Race, dict[int, str]]:
        """Load the candidates on this machine, and return them as a race. Also return a sentence for each
        candidate whose results differ from the first one's, by its number."""
        exe = Executable(self.artifact, self.threads)
        feeds = random_feeds(exe, self.sizes)
        return Race(exe, feeds), self._wrong(exe.run(feeds))

    def _wrong(self, results: Mapping[str, Array]) -> dict[int, str]:
        first, *others = ([results[n] for n in ends] for ends in self.ends)
        return {
            n: f"{self.name}: {label} computes something else than {self.ways[0][0]}; "
            f"this is a defect of the template {template}: please report it"
            for n, ((label, template), other) in enumerate(zip(self.ways[1:], others, strict=True), 1)
            if not all(agree(a, b, self.rounded) for a, b in zip(first, other, strict=True))
        }


class Race:
    """Candidates of one kernel that are loaded on this machine."""

    def __init__(self, exe: Executable, feeds: Mapping[str, Array]) -> None:
        self._launches = exe.launches(feeds)
        self._idle = self._launches.call_seconds()

    def time(self, seconds: float, ways: Sequence[int] | None = None) -> list[Timing]:
        """Time the candidates, or those whose numbers are in `ways`, and return their timings in order.

        Each round runs every candidate once. After an untimed round, rounds go on for `seconds`, but at least
        `ROUNDS` and at most `MOST_ROUNDS` times `ROUNDS` of them."""
        calls = self._launches.calls
        chosen = range(len(calls) // 2) if ways is None else ways
        rounds: list[list[float]] = []
        start = time.perf_counter()
        while len(rounds) <= ROUNDS or (
            time.perf_counter() - start < seconds and len(rounds) < MOST_ROUNDS * ROUNDS
        ):
            rounds.append([self._seconds(calls[2 * i], calls[2 * i + 1]) for i in chosen])
        return timings(rounds[1:])

    def costs(self, meter: Meter, objective: str, ways: Sequence[int]) -> list[Timing]:
        """Measure the joules of some candidates, and return their figures by an objective as timings.

        A candidate's call follows one that passes other data through the caches. The cost of that one alone
        is subtracted."""
        calls, run = self._launches.calls, self._launches.run

        def with_other_data(way: int) -> Callable[[], None]:
            def call() -> None:
                run(*calls[2 * way])
                run(*calls[2 * way + 1])

            return call

        other = calls[2 * ways[0]]
        rounds = meter.rounds([lambda: run(*other), *map(with_other_data, ways)])
        return timings([[cost.less(first).figure(objective) for cost in rest] for first, *rest in rounds])

    def _seconds(self, before: Call, call: Call) -> float:
        self._launches.seconds(before)
        return max(self._launches.seconds(call) - self._idle, 1e-9)


def timings(rounds: Sequence[Sequence[float]]) -> list[Timing]:
    """Return the timings of candidates, given rounds that have one figure for each, in seconds or by another
    objective. Ratios are to the first candidate."""
    bounds = []
    for times in zip(*rounds, strict=True):
        low, middle, high = statistics.quantiles((t / r[0] for t, r in zip(times, rounds, strict=True)), n=4)
        doubt = NOTCH * (high - low) / math.sqrt(len(rounds))
        bounds.append(Timing(min(times), middle, middle - doubt, middle + doubt))
    return bounds


def _other_data(count: int) -> Node:
    """Return a kernel that reads and writes `count` floats."""
    editor = Editor({})
    source = editor.declare(SWEEP, F32, (const(count),))
    out = editor.add(Map(Var("x0", F32) + const(1.0, F32)), [source], f"{SWEEP}.out")
    return kernel_node(editor.rewritten(Graph("sweep", (source,), (out,), (), {}, {})), NO_SOURCE)


def random_feeds(exe: Executable, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Return random inputs, given sizes of the symbols. Their memory begins at cache lines, like that of
    values within a model.

    Floats are in -1..1. Integers are 0 or 1, which are valid indices of any table with two rows."""
    rng = np.random.default_rng(0)
    value = Evaluator({v: sizes[v.name] for v, _ in exe.plan.symbols})
    feeds: dict[str, Array] = {}
    for spec in exe.inputs:
        shape = value.shape(exe.plan.buffer(spec.name).shape)
        whole = spec.dtype.kind in "iub"
        array = rng.integers(0, 2, shape) if whole else rng.random(shape, np.float32) * 2 - 1
        feeds[spec.name] = aligned(array.shape, spec.dtype)
        feeds[spec.name][...] = array
    return feeds


def agree(a: Array, b: Array, rounded: bool) -> bool:
    """Tell if two candidates' results differ only by rounding.

    `rounded` tells if the results come from floats. Small integers may then differ by 1, because a sum in
    another order may fall on the other side of a half."""
    if a.dtype.kind in "iub":
        if not rounded or a.dtype.kind == "b" or a.dtype.itemsize > 2:
            return bool(np.array_equal(a, b))
        apart = np.abs(a.astype(np.int32) - b)
        few = max(1.0, TOLERANCE * a.size)
        return bool(apart.max(initial=0) <= 1 and np.count_nonzero(apart) <= few)
    wide_a, wide_b = (x.astype(np.float64) for x in (a, b))
    scale = float(np.max(np.abs(wide_a[np.isfinite(wide_a)]), initial=0.0))
    return bool(np.allclose(wide_a, wide_b, rtol=0, atol=TOLERANCE * scale, equal_nan=True))
