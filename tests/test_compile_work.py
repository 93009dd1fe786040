"""The work of compiling is proportional to a model's nodes and kernels. It is counted in lines of Python that
run, which no other load disturbs. Each turn of a loop counts, whether it calls anything or not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import jangin
from jangin.backends.llvm.backend import LLVM
from jangin.backends.llvm.module import emit_kernel
from jangin.compiler.pipeline import plan_model
from jangin.compiler.source import Source
from jangin.ir.graph import Graph
from jangin.options import Options
from jangin.passes.table import GRAPH_PASSES, Pass
from jangin.targets import Target, resolve

TraceFunction = Callable[[FrameType, str, Any], Any]
Make = Callable[[int, str, str, str], list[onnx.NodeProto]]
"""Makes the nodes of one step from its number, the value that it reads, the value before, and its result."""


def node(op: str, inputs: list[str], output: str) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output])


STEPS: dict[str, Make] = {
    "maps": lambda i, x, _, y: [node(("Relu", "Sin", "Neg", "Exp")[i % 4], [x], y)],
    "scales": lambda i, x, _, y: [node(("Mul", "Add")[i % 2], [x, "c"], y)],
    "squares": lambda i, x, _, y: [node("Mul", [x, x], y)],
    "sums of two before": lambda i, x, before, y: [node("Add", [x, before], y)],
    "residuals": lambda i, x, _, y: [node("Sin", [x], f"{y}s"), node("Add", [x, f"{y}s"], y)],
    "layers": lambda i, x, _, y: [node("MatMul", [x, "w"], f"{y}m"), node("Relu", [f"{y}m"], y)],
    "an epilogue": lambda i, x, _, y: [node("Sin", [x], y) if i else node("MatMul", [x, "w"], y)],
}


def model(kind: str, steps: int) -> onnx.ModelProto:
    names = ["x", *(f"t{i}" for i in range(steps))]
    nodes = [n for i in range(steps) for n in STEPS[kind](i, names[i], names[max(0, i - 1)], names[i + 1])]
    constants = {"c": np.full([], 1.5, np.float32), "w": np.full([4, 4], 0.5, np.float32)}
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4, 4]) for n in ("x", names[-1]))
    held = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "chain", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


def lines(work: Callable[[], object]) -> int:
    """Return how many lines of Python `work` runs, in this thread."""
    count = 0

    def tell(frame: FrameType, event: str, arg: object) -> TraceFunction:
        nonlocal count
        count += 1
        return tell

    before = sys.gettrace()
    sys.settrace(tell)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", STEPS)
def test_work_is_linear_in_nodes(kind: str) -> None:
    options = Options(resolve("x86-64-v3"))
    plan_model(model(kind, 10), options)  # the first call imports modules
    few, many = (lines(partial(plan_model, model(kind, n), options)) for n in (200, 800))
    assert many < 5 * few, "four times the nodes: what is quadratic takes sixteen times the lines"


def products(count: int) -> onnx.ModelProto:
    """Return a chain of products of different sizes."""
    names = ["x", *(f"t{i}" for i in range(count))]
    nodes = [node("MatMul", [names[i], f"w{i}"], names[i + 1]) for i in range(count)]
    weights = [numpy_helper.from_array(np.ones([16 + i, 17 + i], np.float32), f"w{i}") for i in range(count)]
    x, y = (
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4, size])
        for n, size in (("x", 16), (names[-1], 16 + count))
    )
    graph = helper.make_graph(nodes, "chain", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


@pytest.mark.sampled(3)
def test_work_is_linear_in_kernels() -> None:
    """Scheduling and printing kernels is linear in their number."""
    target = resolve("x86-64-v3")

    def kernels(count: int) -> None:
        made = plan_model(products(count), Options(target)).plans[0].kernels
        assert len(made) == count, "no two are equal"
        for func in made.values():
            emit_kernel(func, target)

    kernels(2)  # the first call imports modules
    few, many = (lines(partial(kernels, n)) for n in (6, 24))
    assert many < 5 * few, "four times the kernels: what is quadratic takes sixteen times the lines"


@pytest.mark.sampled(3)
def test_a_model_of_ten_thousand_maps() -> None:
    """No expression, kernel or pass is as deep as the model is long."""
    plan = plan_model(model("maps", 10_000), Options(resolve("x86-64-v3"))).plans[0]
    assert 25 <= len(plan.launches) <= 200
    assert len(plan.kernels) <= 8, "equal parts of a chain are one kernel"


def test_a_square_of_squares_is_shared() -> None:
    """x*x twenty times names x a million times. The written code stays small and right."""
    x = (1 - np.linspace(0, 1e-5, 16)).astype(np.float32).reshape(4, 4)
    y = jangin.compile(model("squares", 20), cache=False)(x)
    want = x.astype(np.float64)
    for _ in range(20):
        want = want * want
    # Each square doubles the relative error of a rounding, so there are 2^20 roundings of 2^-24 in all.
    np.testing.assert_allclose(y, want, rtol=0.07, atol=1e-30)


def trees(count: int) -> onnx.ModelProto:
    """Return a regressor of `count` trees, each with a test and two leaves."""
    nodes = 3 * count
    attrs = {
        "nodes_treeids": np.repeat(np.arange(count), 3), "nodes_nodeids": np.arange(nodes) % 3,
        "nodes_featureids": np.zeros(nodes, int), "nodes_truenodeids": np.arange(nodes) % 3 == 0,
        "nodes_falsenodeids": (np.arange(nodes) % 3 == 0) * 2,
        "target_treeids": np.repeat(np.arange(count), 2),
        "target_nodeids": np.arange(2 * count) % 2 + 1, "target_ids": np.zeros(2 * count, int),
    }  # fmt: skip
    made = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"] * count, nodes_values=[0.5] * nodes,
        target_weights=[1.0] * (2 * count), **{k: v.astype(int).tolist() for k, v in attrs.items()},
    )  # fmt: skip
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4, 1]) for n in "xy")
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph([made], "trees", [x], [y]), opset_imports=opsets)


@pytest.mark.sampled(2)
def test_nodes_of_trees_are_no_work_one_by_one(tmp_path: Path) -> None:
    """The millions of nodes of trees cost nothing one by one. The cache's search for names of files skips
    them, too."""
    options = Options(resolve("x86-64-v3"))

    def compiled(count: int) -> None:
        path = tmp_path / f"{count}.onnx"
        plan_model(path, options)
        assert Source.of(path) is not None

    for count in (10, 20_000, 80_000):  # each attribute of these models is large
        onnx.save(trees(count), tmp_path / f"{count}.onnx")
    compiled(10)  # the first call imports modules
    few, many = (lines(partial(compiled, n)) for n in (20_000, 80_000))
    assert many < 1.05 * few, "four times the nodes: what does anything for each takes four times the lines"


@pytest.mark.sampled(3)
def test_what_is_quadratic_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quadratic work is noticed: a pass that looks at all nodes for each node, and kernels that are compared
    with all before them."""

    def all_for_each(graph: Graph, _: Target) -> Graph:
        for _ in graph.nodes:
            graph.producers()
        return graph

    monkeypatch.setattr(LLVM, "passes", lambda *_: (Pass("each", all_for_each), *GRAPH_PASSES))
    with pytest.raises(AssertionError, match="quadratic"):
        test_work_is_linear_in_nodes("layers")
    monkeypatch.undo()
    before, emitted = list[object](), emit_kernel

    def compared(*given: object) -> str:
        before.append(given)
        for _ in before:
            for _ in range(10_000):
                pass
        return emitted(*given)  # type: ignore[arg-type]

    monkeypatch.setitem(globals(), "emit_kernel", compared)
    with pytest.raises(AssertionError, match="quadratic"):
        test_work_is_linear_in_kernels()
