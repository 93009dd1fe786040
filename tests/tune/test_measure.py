"""What is made of timed rounds, and races of real kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jangin.compiler.kernels import kernel_candidates, kernel_workload, make_kernel
from jangin.compiler.options import Options
from jangin.compiler.pipeline import import_model
from jangin.ir.expr import Binary
from jangin.ir.graph import Graph, Node
from jangin.targets import resolve
from jangin.templates.scheduled import Scheduled
from jangin.tune.measure import Trial, WrongResult, timings

from .tuned_kernels import conv

OPTIONS = Options(resolve("cpu"))


def test_a_ratio_is_of_times_side_by_side() -> None:
    slow_moments = [1.0, 5.0, 1.0, 9.0, 1.0, 1.0, 2.0]
    first, second = timings([[m, 0.8 * m] for m in slow_moments])
    assert (first.ratio, first.low, first.high) == (1, 1, 1)
    assert second.ratio == pytest.approx(0.8)
    assert second.seconds == pytest.approx(0.8)


def test_doubt_shrinks_with_rounds() -> None:
    noise = [[1.0, 0.9], [1.0, 1.1], [1.0, 1.0], [1.0, 0.95]]
    few, many = timings(noise)[1], timings(noise * 25)[1]
    assert few.low < many.low < many.ratio < many.high < few.high


def kernel() -> tuple[Node, Graph]:
    graph = import_model(conv(8, 16, 24).SerializeToString(), OPTIONS)
    return next((n, graph) for n in graph.nodes if n.name == "p.last")


def ways(node: Node, graph: Graph, count: int) -> list[Scheduled]:
    _, workload, _ = kernel_workload(node, graph, OPTIONS)
    found = kernel_candidates(workload, OPTIONS)[:count]
    return [make_kernel(replace(workload, name=f"way_{n}"), OPTIONS, c) for n, (c, _) in enumerate(found)]


def test_a_race_times_each_way_or_those_named() -> None:
    node, graph = kernel()
    trial = Trial(node, graph, OPTIONS, 1, {}, 1 << 16)
    assert trial.possible
    race = trial.build(ways(node, graph, 3))
    times = race.time(0.0)
    assert len(times) == 3
    assert all(t.seconds > 0 for t in times)
    assert len(race.time(0.0, [0, 2])) == 2


def test_a_way_that_computes_something_else_is_found() -> None:
    node, graph = kernel()
    good, _ = ways(node, graph, 2)
    _, workload, _ = kernel_workload(node, graph, OPTIONS)
    (stage,) = workload.stages
    assert isinstance(stage.body, Binary)
    wrong = replace(workload, name="wrong", stages=(replace(stage, body=stage.body + stage.body.a),))
    trial = Trial(node, graph, OPTIONS, 1, {}, 1 << 16)
    with pytest.raises(WrongResult, match="defect of the template"):
        trial.build([good, make_kernel(wrong, OPTIONS)])
