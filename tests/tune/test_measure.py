"""Decisions from timed rounds, and races of real kernels."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from jangin.compiler.kernels import kernel_candidates, kernel_workload, make_kernel
from jangin.compiler.pipeline import import_model
from jangin.ir.expr import Binary
from jangin.ir.graph import Graph, Node
from jangin.options import Options
from jangin.targets import resolve
from jangin.templates.scheduled import Scheduled
from jangin.tune.contest import Contest
from jangin.tune.measure import Trial, WrongResult, agree, timings

from .tuned_kernels import conv

OPTIONS = Options(resolve())


def test_a_ratio_is_of_times_side_by_side() -> None:
    slow_moments = [1.0, 5.0, 1.0, 9.0, 1.0, 1.0, 2.0]
    first, second = timings([[m, 0.8 * m] for m in slow_moments])
    assert (first.ratio, first.low, first.high) == (1, 1, 1)
    assert second.ratio == pytest.approx(0.8)
    assert second.least == pytest.approx(0.8)


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
    assert all(t.least > 0 for t in times)
    assert len(race.time(0.0, [0, 2])) == 2


def defective(node: Node, graph: Graph) -> Scheduled:
    """Return a kernel that adds an operand once more than the node does."""
    _, workload, _ = kernel_workload(node, graph, OPTIONS)
    (stage,) = workload.stages
    assert isinstance(stage.body, Binary)
    wrong = replace(workload, name="wrong", stages=(replace(stage, body=stage.body + stage.body.a),))
    return make_kernel(wrong, OPTIONS)


def test_a_way_that_computes_something_else_is_found() -> None:
    node, graph = kernel()
    good, _ = ways(node, graph, 2)
    trial = Trial(node, graph, OPTIONS, 1, {}, 1 << 16)
    with pytest.raises(WrongResult, match="defect of the template"):
        trial.build([good, defective(node, graph)])


def test_another_machine_races_what_was_built_here() -> None:
    """A candidate that computes something else has no time, and the others do. Equal ones have one time."""
    node, graph = kernel()
    good, other = ways(node, graph, 2)
    trial = Trial(node, graph, OPTIONS, 1, {}, 1 << 16)
    built = trial.built([good, defective(node, graph), other])
    sent = pickle.loads(pickle.dumps(Contest(built, (0, 1, 2, 2), 1.0)))
    (same, nothing, *rest), seconds, defects = sent.run(0.0, 0.0)
    assert same == 1.0 and nothing is None and rest[0] == rest[1] > 0 and seconds > 0
    assert len(defects) == 1 and "defect of the template" in defects[0]
    assert Contest(None, (0, 0), 2.0).run(0.0, 0.0) == ([1.0, 1.0], 2.0, [])


def test_a_step_of_rounding_is_no_other_result() -> None:
    """Sums in another order may fall on either side of a step if floats are rounded to few bits."""
    a = np.random.default_rng(0).integers(-100, 100, 10_000).astype(np.int8)
    few, far = a.copy(), a.copy()
    few[:9] += 1
    far[0] += 2
    assert agree(a, few, rounded=True)
    assert not agree(a, few, rounded=False)
    assert not agree(a, far, rounded=True)
    assert not agree(a, a + np.int8(1), rounded=True)


def test_layer_norms_rounded_to_8_bits_race() -> None:
    """The candidates add in different orders."""
    w, b = (numpy_helper.from_array(np.full(384, v, np.float32), n) for v, n in ((1, "w"), (0, "b")))
    scale = numpy_helper.from_array(np.array(0.02, np.float32), "s")
    zero = numpy_helper.from_array(np.array(0, np.int8), "z")
    nodes = [
        helper.make_node("LayerNormalization", ["x", "w", "b"], ["n"]),
        helper.make_node("QuantizeLinear", ["n", "s", "z"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (4096, 384))
    y = helper.make_tensor_value_info("y", TensorProto.INT8, None)
    whole = helper.make_graph(nodes, "g", [x], [y], [w, b, scale, zero])
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    graph = import_model(model.SerializeToString(), OPTIONS)
    (node,) = (n for n in graph.nodes if n.op == "kernel")
    made = ways(node, graph, 6)
    assert len(Trial(node, graph, OPTIONS, 1, {}, 1 << 16).build(made).time(0.0)) == len(made) > 1
