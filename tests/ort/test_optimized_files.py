"""Files that ONNX Runtime optimized give the results of the original files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array

import jangin
import jangin.onnxruntime
from jangin.frontends.onnx.format import OnnxFormat

RTOL = 1e-5
"""Relative tolerance of sums of at most 300 float32 products, in another order."""
LEVELS = ("ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
rng = np.random.default_rng(0)


def model(channels: int) -> onnx.ModelProto:
    """Make a network of every kind of layer that ONNX Runtime moves to blocks of channels, and a Gemm."""
    shapes = {
        "a": (channels, 3, 3, 3), "b": (channels, channels, 1, 1), "c": (channels, 1, 3, 3),
        "d": (channels + 8, channels, 3, 3), "e": (channels, channels // 2, 3, 3),
        "g": (5, channels + 8), "h": (5,),
    }  # fmt: skip
    weights = {n: rng.standard_normal(s).astype(np.float32) * 0.2 for n, s in shapes.items()}
    weights |= {"bias": rng.standard_normal(channels).astype(np.float32)}
    weights |= {"none": np.zeros(0, np.float32), "twice": np.array([1, 1, 2, 2], np.float32)}
    same = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}

    def node(op: str, inputs: str, output: str, **attrs: Any) -> onnx.NodeProto:
        return helper.make_node(op, inputs.split(), [output], **attrs)

    nodes = [
        node("Conv", "x a bias", "v1", strides=[2, 2], **same), node("Relu", "v1", "v2"),
        node("Conv", "v2 b", "v3"), node("Add", "v3 v2", "v4"), node("Relu", "v4", "v5"),
        node("Conv", "v5 c", "v6", group=channels, **same), node("LeakyRelu", "v6", "v7", alpha=0.1),
        node("MaxPool", "v7", "v8", **same, strides=[2, 2]), node("Conv", "v8 e", "v9", group=2, **same),
        node("AveragePool", "v9", "v10", kernel_shape=[2, 2]),
        node("Resize", "v10 none twice", "v11", mode="nearest", nearest_mode="floor",
             coordinate_transformation_mode="asymmetric"),
        node("Conv", "v11 d", "v12", **same), node("GlobalAveragePool", "v12", "v13"),
        node("Flatten", "v13", "v14"), node("Gemm", "v14 g h", "v15", transB=1),
        node("LeakyRelu", "v15", "y", alpha=0.3),
    ]  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 20, 20])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 5])
    graph = helper.make_graph(nodes, "layers", [x], [y], [from_array(w, n) for n, w in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)


def optimized(given: onnx.ModelProto, level: str, path: Path) -> onnx.ModelProto:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath, options.log_severity_level = str(path), 3
    onnxruntime.InferenceSession(given.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels", [24, 32])
def test_optimized_files(channels: int, level: str, tmp_path: Path) -> None:
    given = model(channels)
    made = optimized(given, level, tmp_path / "made.onnx")
    kinds = {n.domain + "." + n.op_type for n in made.graph.node}
    if level == "ORT_ENABLE_ALL" and not any("nchwc" in kind for kind in kinds):
        pytest.skip("this processor has no blocks of channels in ONNX Runtime")
    if level != "ORT_ENABLE_BASIC":
        assert "com.microsoft.FusedGemm" in kinds and kinds & {
            "com.microsoft.FusedConv", "com.microsoft.nchwc.Conv"
        }  # fmt: skip
    x = rng.standard_normal((2, 3, 20, 20)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (wanted,) = onnxruntime.InferenceSession(given.SerializeToString(), options).run(None, {"x": x})
    got = jangin.compile(made, cache=False, isolated=False)(x)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=RTOL * np.abs(wanted).max())


def test_blocks_that_nothing_tells(tmp_path: Path) -> None:
    """The sizes don't tell whether blocks have 8 or 16 channels, because all are multiples of 16, as in
    ResNets. The caller must say it."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 32, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32, 8, 8])
    w = rng.standard_normal((32, 32, 1, 1)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])], "g", [x], [y], [from_array(w, "w")]
    )
    given = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    made = optimized(given, "ORT_ENABLE_ALL", tmp_path / "made.onnx")
    if not any("nchwc" in n.domain for n in made.graph.node):
        pytest.skip("this processor has no blocks of channels in ONNX Runtime")
    with pytest.raises(jangin.CompileError, match=r"blocks of 8 or of 16: give formats=\[OnnxFormat"):
        jangin.compile(made, cache=False, isolated=False)
    values = rng.standard_normal((1, 32, 8, 8)).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(given.SerializeToString()).run(None, {"x": values})
    errors = []
    for block in (8, 16):
        formats = [OnnxFormat(block=block)]
        got = jangin.compile(made, formats=formats, cache=False, isolated=False)(values)
        errors.append(float(np.abs(got - wanted).max()))
    assert min(errors) < RTOL * np.abs(wanted).max() < max(errors)
    session = jangin.onnxruntime.InferenceSession(made.SerializeToString())
    np.testing.assert_allclose(
        session.run(None, {"x": values})[0], wanted, rtol=0, atol=RTOL * np.abs(wanted).max()
    )
    with pytest.raises(ValueError, match="block=4 is unknown"):
        OnnxFormat(block=4)
