"""Gradients of random graphs: against differences of the graph's own results, and the core operators' own
rules against the general rule. Each seed repeats its case."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from smooth_graphs import feeds, smooth_graph

from jangin.compiler.pipeline import build_plan
from jangin.gradients import core
from jangin.gradients.general import by_stages
from jangin.gradients.reverse import differentiate
from jangin.ir.core import LoopNest, Map, Pool, Reduce, Reshape
from jangin.ir.graph import Array, Graph
from jangin.ir.verify import verify_graph
from jangin.ops.core import CORE
from jangin.ops.interpret import run_graph
from jangin.options import Options
from jangin.runtime.load import executable

STEP = 1e-6
QUICK, MANY = range(24), range(24, 1000)


def gradients(graph: Graph, given: dict[str, Array]) -> dict[str, Array]:
    made = differentiate(graph, "y", graph.inputs)
    verify_graph(made, CORE)
    found = run_graph(made, given)
    return dict(zip(graph.inputs, (found[n] for n in made.outputs[1:]), strict=True))


def check_slopes(seed: int) -> None:
    """Along a random direction: central differences of results of size 1 are good to 1e-8, of which products
    of many terms lose some."""
    graph = smooth_graph(seed, 2 + seed % 7)
    given = feeds(graph, seed)
    rng = np.random.default_rng(seed)
    ways = {n: rng.uniform(-1, 1, a.shape) for n, a in given.items()}
    ends = [
        run_graph(graph, {n: a + sign * STEP * ways[n] for n, a in given.items()})["y"] for sign in (1, -1)
    ]
    slope = float(ends[0] - ends[1]) / (2 * STEP)
    found = gradients(graph, given)
    along = sum(float((found[n] * ways[n]).sum()) for n in given)
    size = sum(float(np.abs(found[n] * ways[n]).sum()) for n in given)
    assert along == pytest.approx(slope, rel=1e-5, abs=1e-7 + 1e-6 * size), f"smooth_graph({seed}, ...)"


def check_rules(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = smooth_graph(seed, 2 + seed % 7)
    given = feeds(graph, seed)
    own = gradients(graph, given)
    kept = (LoopNest, Map, Pool, Reduce, Reshape)
    with monkeypatch.context() as patch:
        for attrs in core.RULES:
            if attrs not in kept:
                patch.setitem(core.RULES, attrs, lambda step, _: by_stages(step))
        general = gradients(graph, given)
    for name, found in own.items():
        np.testing.assert_allclose(found, general[name], 1e-8, 1e-9, err_msg=f"smooth_graph({seed}, ...)")


@pytest.mark.parametrize("seed", QUICK)
def test_gradients_are_slopes(seed: int) -> None:
    check_slopes(seed)


@pytest.mark.parametrize("seed", range(0, 60, 7))
def test_own_rules_are_the_general_rule(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_rules(seed, monkeypatch)


def check_second(seed: int) -> None:
    """The gradient's own slope along a random direction, as `check_slopes` has the result's."""
    graph = smooth_graph(seed, 2 + seed % 7)
    given = feeds(graph, seed)
    once = differentiate(graph, "y", ["x0"])
    name = once.outputs[1]
    twice = differentiate(once, name, ["x0"])
    verify_graph(twice, CORE)
    way = np.random.default_rng(seed).uniform(-1, 1, given["x0"].shape)
    ends = [run_graph(once, given | {"x0": given["x0"] + sign * STEP * way})[name].sum() for sign in (1, -1)]
    found = run_graph(twice, given)[twice.outputs[-1]]
    size = float(np.abs(found * way).sum())
    wanted = pytest.approx((ends[0] - ends[1]) / (2 * STEP), rel=1e-5, abs=1e-6 + 1e-6 * size)
    assert float((found * way).sum()) == wanted, f"smooth_graph({seed}, ...)"


@pytest.mark.parametrize("seed", [1, 4, 13, 28, 96, 103, 164, 311])  # the last of loops
def test_second_gradients_are_slopes(seed: int) -> None:
    check_second(seed)


@pytest.mark.slow  # a thousand graphs, interpreted
def test_many_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in MANY:
        check_slopes(seed)
        check_rules(seed, monkeypatch)
        check_second(seed)


def check_compiled(seed: int) -> None:
    """Machine code gives what the interpreter gives; sums are in another order."""
    graph = smooth_graph(seed, 2 + seed % 7)
    made, given = differentiate(graph, "y", graph.inputs), feeds(graph, seed)
    found: Any = executable(build_plan(made, Options(verify=True)), 1)
    wanted = run_graph(made, given)
    for name, array in found.run(given).items():
        np.testing.assert_allclose(array, wanted[name], 1e-7, 1e-9, err_msg=f"smooth_graph({seed}, ...)")


@pytest.mark.parametrize("seed", [3, 8])
def test_gradients_compiled(seed: int) -> None:
    check_compiled(seed)


@pytest.mark.slow  # a compilation each
def test_many_gradients_compiled() -> None:
    for seed in range(100):
        check_compiled(seed)
