"""The backend's other entry points, which the official runner doesn't use."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from jangin import onnx_backend
from jangin.ir.graph import CompileError


def test_one_node() -> None:
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    x = np.array([1, 2, 3], np.float32)
    (y,) = onnx_backend.run_node(node, [x, np.array(2, np.float32)])
    assert y.tolist() == [1, 2, 2]


def test_one_model() -> None:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        "g",
        [info("x", TensorProto.FLOAT, [2, 3]), info("shape", TensorProto.INT64, [2])],
        [info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    outputs = onnx_backend.run_model(model, [x, np.array([3, -1])])
    np.testing.assert_array_equal(outputs.y, x.reshape(3, 2))
    rep = onnx_backend.prepare(model)
    for shape in ([6, 1], [1, 6]):
        assert rep.run({"x": x, "shape": np.array(shape)})[0].shape == tuple(shape)


def test_what_is_not_supported() -> None:
    with pytest.raises(CompileError):
        onnx_backend.run_node(helper.make_node("Gradient", ["x"], ["z"], xs=["x"], y="x"), [np.ones(2)])
    assert onnx_backend.supports_device("CPU:0") and not onnx_backend.supports_device("CUDA")
