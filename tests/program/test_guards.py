"""An If with a branch that can't be right for any sizes, as exporters write guards."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.runtime.executable import Executable


def guarded(by_size: bool, otherwise: bool = False) -> onnx.ModelProto:
    """Make a model with a guard. If x [rows, columns] has three columns (or `flag` is true), x is multiplied
    by a matrix.

    The other branch transposes x as if it had three axes. `otherwise`: the branches change places."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", "columns"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    fine = helper.make_node("MatMul", ["x", "w"], ["a"])
    wrong = helper.make_node("Transpose", ["x"], ["b"], perm=[0, 2, 1])
    branches = [
        helper.make_graph(
            [node], node.op_type, [], [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)]
        )
        for node, out in ((fine, "a"), (wrong, "b"))
    ]
    then, orelse = branches[::-1] if otherwise else branches
    test = [
        helper.make_node("Shape", ["x"], ["shape"], start=1),
        helper.make_node("Equal", ["shape", "three"], ["flag"]),
    ]
    nodes = [
        *(test if by_size else ()),
        helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=orelse),
    ]
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [1])
    constants = {"w": np.arange(6, dtype=np.float32).reshape(3, 2), "three": np.array([3])}
    if otherwise:
        constants["three"] = np.array([4])
    graph = helper.make_graph(
        nodes, "guarded", [x] if by_size else [x, flag], [y],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("otherwise", [False, True])
def test_a_condition_on_sizes_becomes_a_requirement(otherwise: bool) -> None:
    exe = jangin.compile(guarded(True, otherwise), cache=False)
    assert isinstance(exe, Executable)  # the model is one plan
    x = np.random.default_rng(0).random((5, 3), np.float32)
    np.testing.assert_allclose(exe(x), x @ np.arange(6).reshape(3, 2), rtol=1e-5)
    with pytest.raises(ValueError, match=r"columns = 4.* do not meet"):
        exe(np.zeros((5, 4), np.float32))


def test_a_condition_on_data_is_an_error_of_the_run() -> None:
    exe = jangin.compile(guarded(False), cache=False)
    x = np.random.default_rng(0).random((5, 3), np.float32)
    np.testing.assert_allclose(exe(x, np.array([True])), x @ np.arange(6).reshape(3, 2), rtol=1e-5)
    with pytest.raises(ValueError, match="Transpose"):
        exe(x, np.array([False]))
