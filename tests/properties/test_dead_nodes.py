"""Nodes that no output needs change no result, and cause no error.

`pytest -m slow tests/properties/test_dead_nodes.py` tries a thousand more models, with operators of all
kinds.
"""

from __future__ import annotations

import warnings
from collections import Counter
from random import Random

import numpy as np
import onnx
import pytest
from dead_nodes import KINDS, scalar, untyped, with_dead_nodes
from onnx import TensorProto, helper, numpy_helper
from onnx_nets import Array
from onnx_operators import random_net

import jangin

QUICK = tuple(kind for kind in KINDS if kind != "operator")
"""The kinds without the operators of ONNX's node tests, which take seconds to make."""


def info(name: str, shape: list[int | str], code: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, code, shape)


def nested(trips: int) -> onnx.ModelProto:
    """Make a model with a function, and with a loop around a branch around a scan."""
    step = helper.make_graph(
        [helper.make_node("Add", ["s", "row"], ["t"]), helper.make_node("Identity", ["t"], ["o"])], "scan",
        [info("s", [4]), info("row", [4])], [info("t", [4]), info("o", [4])],
    )  # fmt: skip
    scan = helper.make_node("Scan", ["v", "x"], ["last", "rows"], body=step, num_scan_inputs=1)
    then = helper.make_graph([scan, helper.make_node("Relu", ["last"], ["p"])], "then", [], [untyped("p")])
    orelse = helper.make_graph([helper.make_node("F", ["v"], ["q"], domain="f")], "else", [], [untyped("q")])
    zero = helper.make_node("Constant", [], ["zero"], value=numpy_helper.from_array(np.array(0, np.float32)))
    inner = [
        zero, helper.make_node("ReduceSum", ["v"], ["sum"], keepdims=0),
        helper.make_node("Less", ["sum", "zero"], ["negative"]),
        helper.make_node("If", ["negative"], ["w"], then_branch=then, else_branch=orelse),
        helper.make_node("Identity", ["c"], ["d"]),
    ]  # fmt: skip
    body = helper.make_graph(
        inner, "body", [scalar("k", TensorProto.INT64), scalar("c", TensorProto.BOOL), info("v", [4])],
        [scalar("d", TensorProto.BOOL), info("w", [4])],
    )  # fmt: skip
    count = numpy_helper.from_array(np.array(trips, np.int64), "n")
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "a"], ["y"], body=body)], "g",
        [info("x", [3, 4]), info("a", [4])], [untyped("y")], [count],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("f", 1)]
    halved = [
        helper.make_node("Mul", ["v", "v"], ["m"]), helper.make_node("Tanh", ["m"], ["h"]),
        helper.make_node("Neg", ["h"], ["y"]),
    ]  # fmt: skip
    function = helper.make_function("f", "F", ["v"], ["y"], halved, opsets[:1])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=[function])


def results(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    exe = jangin.compile(model, threads=1, cache=False, isolated=False)
    return [np.asarray(v) for v in exe.run(feeds).values()]


def check(seed: int, kinds: tuple[str, ...] = QUICK) -> list[str]:
    """Compare one model with dead nodes and without, and return what the nodes are."""
    rng = Random(seed)
    if seed % 3:
        net = random_net(seed, 1 + seed % 5)
        if not net.steps:
            return []
        model, feeds = net.model(), net.feeds
    else:
        model, feeds = (
            nested(rng.choice((2, 100))),
            {
                "x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
                "a": np.arange(-1, 3, dtype=np.float32),
            },
        )
    mutant, added = with_dead_nodes(model, rng, 1 + seed % 4, kinds)
    for ours, theirs in zip(results(mutant, feeds), results(model, feeds), strict=True):
        what = f"check({seed}, {kinds}), which added {', '.join(added)}"
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, what
        assert ours.tobytes() == theirs.tobytes(), what
    return added


@pytest.mark.sampled(3)
def test_nothing_comes_of_them() -> None:
    added = Counter(kind for seed in range(36) for kind in check(seed))
    assert all(added[kind] > 2 for kind in QUICK), added


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 50))
def test_nothing_comes_of_many(first: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ONNX's reference warns as it makes the node tests
        for seed in range(first, first + 50):
            check(seed, tuple(KINDS))
