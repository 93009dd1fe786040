"""Inputs that share a symbol. The symbol's name is a hint. If a node needs the sizes to be equal, a run's
error names the node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from build import body, info, model
from onnx import TensorProto, helper

import jangin
from jangin.compiler.pipeline import plan_model
from jangin.ir.text import print_plan
from jangin.options import Options
from jangin.targets import NAMED

node = helper.make_node
Array = np.ndarray[Any, Any]


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def apart() -> onnx.ModelProto:
    nodes = [node("ReduceSum", ["a"], ["s"], keepdims=0), node("Add", ["s", "b"], ["y"])]
    return model(nodes, [info("a", ["N"]), info("b", ["N"])], ["y"])


def test_lengths_that_differ() -> None:
    exe = jangin.compile(apart(), cache=False)
    np.testing.assert_array_equal(exe(ones(4), ones(3)), [5, 5, 5])
    np.testing.assert_array_equal(exe(ones(2), ones(2)), [3, 3])
    session = jangin.InferenceSession(apart().SerializeToString())
    np.testing.assert_array_equal(session.run(None, {"a": ones(4), "b": ones(3)})[0], [5, 5, 5])


def test_one_input_of_two_lengths() -> None:
    m = model([node("ReduceSum", ["a"], ["y"])], [info("a", ["N", "N"])], ["y"])
    assert jangin.compile(m, cache=False)(ones(3, 4)) == 12


def test_the_node_that_needs_them_equal_is_named(tmp_path: Path) -> None:
    """Only the inputs that meet in a node must have equal sizes; the third input has any length."""
    nodes = [node("Add", ["b", "c"], ["y"]), node("Relu", ["a"], ["z"])]
    m = model(nodes, [info(n, ["n"]) for n in "abc"], ["y", "z"])
    exe = jangin.compile(m, cache=False)
    exe.save(tmp_path / "m.jgn")
    for run in (exe, jangin.load(tmp_path / "m.jgn")):
        assert [y.shape for y in run(ones(4), ones(3), ones(3))] == [(3,), (4,)]
        with pytest.raises(ValueError, match=r"input c .*must be 3, got .*Add 'y' .* as long as in input b"):
            run(ones(4), ones(3), ones(2))


def test_in_a_program() -> None:
    sizes = [info("a", ["N"]), info("b", ["N"])]
    found = node("NonZero", ["a"], ["i"])
    exe = jangin.compile(model([found, node("Relu", ["b"], ["y"])], sizes, ["i", "y"]), cache=False)
    assert exe(ones(4), ones(3))[1].shape == (3,)
    exe = jangin.compile(model([found, node("Add", ["a", "b"], ["y"])], sizes, ["i", "y"]), cache=False)
    with pytest.raises(ValueError, match=r"b has shape \(3,\).*Add 'y' .* as long as in input a"):
        exe(ones(4), ones(3))


def test_what_a_loop_carries_is_of_one_length() -> None:
    """Values that change places in a loop must have one length."""
    inner = body(
        "inner",
        [node("Identity", ["c"], ["d"]), node("Relu", ["v"], ["r"]), node("Relu", ["u"], ["s"])],
        [
            info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL), info("u", ["N"]),
            info("v", ["N"]),
        ],
        ["d", "r", "s"],
    )  # fmt: skip
    loop = node("Loop", ["count", "", "a", "b"], ["y", "z"], body=inner)
    inputs = [info("count", [], TensorProto.INT64), info("a", ["N"]), info("b", ["N"])]
    exe = jangin.compile(model([loop], inputs, ["y", "z"]), cache=False)
    assert [s.shape for s in exe.inputs[1:]] == [("N",), ("N",)]


@pytest.mark.parametrize("bound", [{"N": 4}, {"N": (2, 4)}])
def test_shapes_speak_of_all(bound: dict[str, Any]) -> None:
    exe = jangin.compile(apart(), cache=False, shapes=bound)
    np.testing.assert_array_equal(exe(ones(4), ones(4)), [5] * 4)
    for a, b in ((4, 5), (5, 4)):
        with pytest.raises(ValueError, match=r"must be 4|may be 2 to 4"):
            exe(ones(a), ones(b))


def test_plans_have_one_symbol_where_lengths_meet() -> None:
    """Plans have one symbol where lengths must be equal, so that a hint costs kernels nothing."""
    nodes = [node("MatMul", ["a", "w"], ["h"]), node("Add", ["h", "b"], ["y"])]
    inputs = [info("a", ["batch", "N", 8]), info("b", ["batch", "N", 4])]
    m = model(nodes, inputs, ["y"], {"w": ones(8, 4)})
    plan = plan_model(m, Options(NAMED["x86-64-v3"])).plans[0]
    assert [v.name for v, _ in plan.symbols] == ["batch", "N"]
    assert 'joined ("b[0]" from (Add y ai.onnx 21), "b[1]" from' in print_plan(plan)
