"""Times several makings of one kernel side by side, with the caches as a run of its model leaves them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jangin.codegen.build import build
from jangin.ir.dtype import F32
from jangin.ir.expr import Var, const
from jangin.ir.graph import Array, Graph, Node, Value
from jangin.ir.plan import Plan
from jangin.kernels import kernel_problem, make_kernel, make_plan
from jangin.options import Options
from jangin.runtime.executable import Executable
from jangin.runtime.sizes import Evaluator
from jangin.templates.scheduled import Scheduled

REPEATS = 3
"""Runs of which a round takes the median."""
ROUNDS = 5
"""Rounds at least, and at most so many times as many while there is time:"""
MOST_ROUNDS = 4
TOLERANCE = 1e-3
"""Difference of two makings' results, as a share of the largest, that rounding may make: sums of some
thousand terms in another order."""
SWEEP = "@sweep"


class WrongResult(RuntimeError):
    """A candidate computes something else than the others: a defect of its template."""


@dataclass(frozen=True)
class Timing:
    """`seconds`: of the least disturbed round; `ratio`: to the first of those timed together, median of
    the rounds; `high`: its upper quartile."""

    seconds: float
    ratio: float
    high: float


@dataclass(frozen=True)
class Trial:
    """A kernel of a fused graph, to be timed for `sizes` of its symbols on `threads` threads, after
    `between` bytes of other data went through the caches."""

    node: Node
    graph: Graph
    options: Options
    threads: int
    sizes: Mapping[str, int]
    between: int

    def build(self, ways: Sequence[Scheduled]) -> Race:
        """The ways, whose kernels have different names, compiled together. Raises WrongResult
        where one differs from the first, KeyError for a symbol without a size, ValueError where the
        kernel's inputs don't tell all its sizes."""
        exe = Executable(build(self._plan(ways), self.options.target), self.threads)
        feeds = random_feeds(exe, self.sizes)
        self._compare(exe.run(feeds), ways)
        return Race(exe, feeds, len(ways))

    def _plan(self, ways: Sequence[Scheduled]) -> Plan:
        """The kernel once in each way, other data before each."""
        node, graph, body = self.node, self.graph, self.node.attrs["body"]
        other = _other_data(max(self.between // 8, 1024))
        problem = kernel_problem(other, other.attrs["body"], self.options, "sweep")[1]
        sweep = make_kernel(problem, self.options)
        (result,) = node.outputs
        values = {n: graph.values[n] for n in node.inputs} | dict(other.attrs["body"].values)
        constants = {n: graph.constants[n] for n in node.inputs if n in graph.constants}
        nodes: list[Node] = []
        chosen: dict[str, tuple[Scheduled, tuple[str, ...]]] = {}
        for i, way in enumerate(ways):
            before, end = f"{SWEEP}.{i}", f"@way.{i}"
            values[before] = replace(values[f"{SWEEP}.out"], name=before)
            values[end] = replace(body.values[result], name=end)
            nodes += [replace(other, outputs=(before,)), replace(node, name=end, outputs=(end,))]
            chosen[before] = (sweep, (SWEEP, before))
            chosen[end] = (way, (*node.inputs, end))
        inputs = (SWEEP, *(n for n in dict.fromkeys(node.inputs) if n not in constants))
        ends = tuple(n.outputs[0] for n in nodes[1::2])
        trial = Graph("trial", inputs, ends, tuple(nodes), constants, values, body.symbols)
        return make_plan(trial, chosen, self.options)

    def _compare(self, results: Mapping[str, Array], ways: Sequence[Scheduled]) -> None:
        first, *others = (results[f"@way.{i}"] for i in range(len(ways)))
        for way, other in zip(ways[1:], others, strict=True):
            if not _same(first, other):
                raise WrongResult(
                    f"{self.node.name}: {way.label} computes something else than {ways[0].label}; "
                    f"this is a defect of the template {way.template}"
                )


@dataclass(frozen=True)
class Race:
    """Ways to make one kernel, compiled and found to agree."""

    exe: Executable
    feeds: Mapping[str, Array]
    count: int

    def time(self, seconds: float) -> list[Timing]:
        """Time the ways in turns, for some `seconds`."""
        rounds: list[list[float]] = []
        start = time.perf_counter()
        while len(rounds) < ROUNDS or (
            time.perf_counter() - start < seconds and len(rounds) < MOST_ROUNDS * ROUNDS
        ):
            rounds.append([t.seconds for t in self.exe.profile(self.feeds, REPEATS)[1::2]])
        return [_timing([r[i] for r in rounds], [r[0] for r in rounds]) for i in range(self.count)]


def _other_data(count: int) -> Node:
    """A kernel that reads and writes `count` floats each."""
    shape = (const(count),)
    values = {n: Value(n, F32, shape) for n in (SWEEP, f"{SWEEP}.out")}
    add: dict[str, Any] = {"body": Var("x0", F32) + const(1.0, F32)}
    node = Node("map", "sweep", (SWEEP,), (f"{SWEEP}.out",), add)
    body = Graph("sweep", node.inputs, node.outputs, (node,), {}, values)
    return Node("kernel", "sweep", node.inputs, node.outputs, {"body": body})


def random_feeds(exe: Executable, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Inputs for sizes of the symbols: floats in -1..1; integers 0 or 1, which are right for any table."""
    rng = np.random.default_rng(0)
    value = Evaluator({v: sizes[v.name] for v, _ in exe.plan.symbols})
    feeds: dict[str, Array] = {}
    for spec in exe.inputs:
        shape = value.shape(exe.plan.buffer(spec.name).shape)
        whole = spec.dtype.kind in "iub"
        array = rng.integers(0, 2, shape) if whole else rng.random(shape, np.float32) * 2 - 1
        feeds[spec.name] = array.astype(spec.dtype)
    return feeds


def _same(a: Array, b: Array) -> bool:
    if a.dtype.kind in "iub":
        return bool(np.array_equal(a, b))
    wide_a, wide_b = (x.astype(np.float64) for x in (a, b))
    scale = float(np.max(np.abs(wide_a[np.isfinite(wide_a)]), initial=0.0))
    return bool(np.allclose(wide_a, wide_b, rtol=0, atol=TOLERANCE * scale, equal_nan=True))


def _timing(seconds: Sequence[float], first: Sequence[float]) -> Timing:
    ratios = sorted(s / f if f else 1.0 for s, f in zip(seconds, first, strict=True))
    return Timing(min(seconds), statistics.median(ratios), ratios[len(ratios) * 3 // 4])
