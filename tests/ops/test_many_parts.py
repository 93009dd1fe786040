"""Concatenations and splits of very many parts work without recursion, in a time that grows with their
number."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import jangin
from jangin.ops.builder import MOST_SYMBOLIC


def joined(count: int, distinct: bool) -> onnx.ModelProto:
    """Make a concatenation of `count` parts: of two inputs again and again, or of `count` inputs."""
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [130, pytest.param(3000, marks=pytest.mark.slow)])
def test_splits(count: int) -> None:
    node = helper.make_node("Split", ["x"], [f"y{i}" for i in range(count)], axis=0, num_outputs=count)
    outputs = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(count)]
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", 1, [count * 4])], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    x = np.arange(count * 4, dtype=np.float32)
    found = jangin.compile(model, cache=False, isolated=False)(x)
    np.testing.assert_array_equal(np.concatenate(found), x)


def symbolic(count: int) -> onnx.ModelProto:
    """Make a concatenation of `count` inputs, each with a size that is known only at run time."""
    names = [f"x{i}" for i in range(count)]
    node = helper.make_node("Concat", names, ["y"], axis=0)
    inputs = [helper.make_tensor_value_info(n, 1, [f"s{i}", 2]) for i, n in enumerate(names)]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [20, 150])
def test_a_concatenation_of_many_symbols(count: int) -> None:
    """Each kernel joins a few parts, and takes their sizes as symbols, even if they are sums.

    In one kernel of all parts, the offsets would be `count` sums of up to `count` symbols."""
    exe = jangin.compile(symbolic(count), cache=False, isolated=False)
    launches = exe.plan.launches
    assert max(len(launch.args) for launch in launches) <= MOST_SYMBOLIC + 1
    assert max(len(launch.symbols) for launch in launches) <= MOST_SYMBOLIC
    assert len(launches) <= count / (MOST_SYMBOLIC - 1) + 3, "each element is copied once a level"
    rng = np.random.default_rng(count)
    arrays = [rng.random((1 + i % 4, 2)).astype(np.float32) for i in range(count)]
    found = exe.run({f"x{i}": a for i, a in enumerate(arrays)})["y"]
    np.testing.assert_array_equal(found, np.concatenate(arrays))


def test_symbolic_parts_must_fit() -> None:
    """Parts must fit, also those that a kernel of its own joins."""
    inputs = [helper.make_tensor_value_info(f"x{i}", 1, [f"s{i}", f"w{i}"]) for i in range(12)]
    node = helper.make_node("Concat", [i.name for i in inputs], ["y"], axis=0)
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    exe = jangin.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]), cache=False)
    arrays = [np.ones((2, 3), np.float32)] * 12
    assert exe(*arrays).shape == (24, 3)
    for odd in (2, 11):
        with pytest.raises(ValueError, match="do not meet"):
            exe(*arrays[:odd], np.ones((2, 4), np.float32), *arrays[odd + 1 :])
