"""Concatenations and splits of very many parts: no recursion, and a time that grows with their number."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import jangin
from jangin.ops.builder import MOST_SYMBOLIC


def joined(count: int, distinct: bool) -> onnx.ModelProto:
    """Of two inputs again and again, or of as many inputs."""
    names = [f"x{i}" for i in range(count if distinct else 2)]
    node = helper.make_node("Concat", [names[i % len(names)] for i in range(count)], ["y"], axis=1)
    inputs = [helper.make_tensor_value_info(n, 1, [2, 1 + i % 3]) for i, n in enumerate(names)]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


@pytest.mark.parametrize("count", [64, 65, 66, 130, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("distinct", [False, True])
def test_concatenations(count: int, distinct: bool) -> None:
    exe = jangin.compile(joined(count, distinct), cache=False, isolated=False)
    rng = np.random.default_rng(count)
    arrays = {s.name: rng.random(s.shape).astype(np.float32) for s in exe.inputs}
    parts = [*arrays.values()]
    want = np.concatenate([parts[i % len(parts)] for i in range(count)], 1)
    np.testing.assert_array_equal(exe.run(arrays)["y"], want)


@pytest.mark.parametrize("count", [130, pytest.param(3000, marks=pytest.mark.slow)])
def test_splits(count: int) -> None:
    node = helper.make_node("Split", ["x"], [f"y{i}" for i in range(count)], axis=0, num_outputs=count)
    outputs = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(count)]
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", 1, [count * 4])], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    x = np.arange(count * 4, dtype=np.float32)
    found = jangin.compile(model, cache=False, isolated=False)(x)
    np.testing.assert_array_equal(np.concatenate(found), x)


def test_a_concatenation_of_many_symbols() -> None:
    """Each kernel joins a few: in one of all, the places would be as many sums of as many symbols."""
    count = 20
    names = [f"x{i}" for i in range(count)]
    node = helper.make_node("Concat", names, ["y"], axis=0)
    inputs = [helper.make_tensor_value_info(n, 1, [f"s{i}"]) for i, n in enumerate(names)]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    exe = jangin.compile(model, cache=False, isolated=False)
    assert max(len(launch.args) for launch in exe.plan.launches) <= MOST_SYMBOLIC + 1
    arrays = [np.full(1 + i % 4, i, np.float32) for i in range(count)]
    found = exe.run(dict(zip(names, arrays, strict=True)))["y"]
    np.testing.assert_array_equal(found, np.concatenate(arrays))
