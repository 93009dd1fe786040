"""Quantized convolutions and products between DequantizeLinear and QuantizeLinear are found, and exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.frontends.onnx.qdq import fuse_quantized
from jangin.frontends.table import load

Array = np.ndarray[Any, Any]


def quantized(
    kind: str,
    shape: list[int],
    weights: Array,
    per_filter: bool = False,
    also: str = "",
    bias_unit: float = 1.0,
) -> onnx.ModelProto:
    """Make a model: x is quantized, `kind` has quantized weights (and a bias, except for MatMul), and its
    result is quantized.

    `also` is a second output. Gemm's weights are transposed."""
    rng = np.random.default_rng(0)
    axis = 1 if kind == "MatMul" else 0
    scales = rng.uniform(0.01, 0.02, weights.shape[axis] if per_filter else ()).astype(np.float32)
    constants = {
        "xs": np.float32(0.03), "xz": np.uint8(120), "w": weights, "ws": scales,
        "wz": np.zeros(scales.shape, np.int8), "ys": np.float32(0.2), "yz": np.uint8(100),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=axis),
    ]
    inputs = ["xd", "wd"]
    if kind != "MatMul":
        constants |= {"b": rng.integers(-2000, 2000, len(weights), np.int32)}
        constants |= {"bs": scales * np.float32(0.03 * bias_unit), "bz": np.zeros(scales.shape, np.int32)}
        nodes.append(helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["bd"], axis=0))
        inputs.append("bd")
    nodes += [
        helper.make_node(kind, inputs, ["r"], **({"transB": 1} if kind == "Gemm" else {})),
        helper.make_node("QuantizeLinear", ["r", "ys", "yz"], ["rq"]),
        helper.make_node("DequantizeLinear", ["rq", "ys", "yz"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", also) if n]
    graph = helper.make_graph(
        nodes, "quantized", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], outputs,
        [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def operators(model: onnx.ModelProto) -> list[str]:
    return [n.op.removeprefix("onnx.") for n in fuse_quantized(load(model).graph).nodes]


def integers(*shape: int) -> Array:
    """Return 7-bit weights, so that ONNX Runtime's 16-bit instructions don't saturate."""
    return np.random.default_rng(1).integers(-64, 64, shape, np.int8)


@pytest.mark.parametrize(
    ("kind", "shape", "weights", "per_filter"),
    [
        ("Conv", [2, 8, 9, 9], integers(16, 8, 3, 3), True),
        ("Conv", [1, 8, 9, 9], integers(16, 8, 3, 3), False),
        ("MatMul", [5, 40], integers(40, 24), False),
        ("MatMul", [3, 2100], integers(2100, 8), False),  # sums are too long to be exact in f32
        ("MatMul", [2, 5, 40], integers(40, 24), True),
        ("Gemm", [5, 40], integers(24, 40), False),
        ("Gemm", [5, 40], integers(24, 40), True),
    ],
)
def test_results_are_onnx_runtimes_to_the_bit(
    kind: str, shape: list[int], weights: Array, per_filter: bool
) -> None:
    model = quantized(kind, shape, weights, per_filter)
    assert {"Gemm": "com.microsoft.QGemm"}.get(kind, f"QLinear{kind}") in operators(model)
    x = np.random.default_rng(2).uniform(-3, 3, shape).astype(np.float32)
    (expected,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert len(np.unique(expected)) > 10
    np.testing.assert_array_equal(jangin.compile(model, cache=False)(x), expected)


@pytest.mark.parametrize("changes", [{"also": "r"}, {"bias_unit": 1.5}])
def test_what_integers_do_not_say_stays(changes: Any) -> None:
    """The product stays if its unrounded result is needed, or if the bias has another unit."""
    model = quantized("Conv", [1, 8, 9, 9], integers(16, 8, 3, 3), **changes)
    assert "Conv" in operators(model)
    x = np.random.default_rng(2).uniform(-3, 3, (1, 8, 9, 9)).astype(np.float32)
    expected = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    ours = list(jangin.compile(model, cache=False).run({"x": x}).values())
    np.testing.assert_allclose(ours[0], expected[0], atol=0.21)


@pytest.mark.parametrize("also", ["", "y"])
@pytest.mark.parametrize(
    ("kind", "shape", "weights", "per_filter"),
    [
        ("MatMul", [5, 40], integers(40, 24), False),
        ("MatMul", [2, 5, 2100], integers(2100, 24), True),
        ("Gemm", [5, 40], integers(24, 40), False),
        ("Gemm", [5, 40], integers(24, 40), True),
    ],
)
def test_results_that_stay_floats(
    kind: str, shape: list[int], weights: Array, per_filter: bool, also: str
) -> None:
    """Products are sums of integers, with integer weights, even if the result isn't quantized, or is needed
    unrounded too."""
    model = quantized(kind, shape, weights, per_filter, also)
    if not also:
        del model.graph.node[-2:]
    del model.graph.output[:]
    names = ["r", *([also] if also else [])]
    model.graph.output.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names)
    found = operators(model)
    assert {"MatMul": "com.microsoft.MatMulIntegerToFloat", "Gemm": "com.microsoft.QGemm"}[kind] in found
    assert kind not in found
    x = np.random.default_rng(2).uniform(-3, 3, shape).astype(np.float32)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    wanted = ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
    ours = list(jangin.compile(model, cache=False).run({"x": x}).values())
    np.testing.assert_allclose(ours[0], wanted[0], rtol=1e-5, atol=1e-5 * np.abs(wanted[0]).max())
    for a, b in zip(ours[1:], wanted[1:], strict=True):
        assert np.abs(a - b).max() <= 0.2001


def test_products_of_two_inputs_stay_floats() -> None:
    """Weights that a run gives stay floats."""
    model = quantized("MatMul", [5, 40], integers(40, 24))
    del model.graph.node[-2:]
    model.graph.output[0].name = "r"
    assert "MatMul" not in operators(model)
    (held,) = (t for t in model.graph.initializer if t.name == "w")
    model.graph.initializer.remove(held)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.INT8, [40, 24]))
    assert "MatMul" in operators(model)


def test_weights_of_integer_products_are_no_floats() -> None:
    """Dequantization for the product alone is removed. If the model also outputs the floats, it stays."""
    made = operators(quantized("MatMul", [5, 40], integers(40, 24), False))
    assert made.count("DequantizeLinear") == 1, "the result alone"


@pytest.mark.parametrize("after", [True, False])
def test_tables_are_gathered_as_integers(after: bool) -> None:
    """Embeddings stay 8-bit tables: the same floats as ONNX Runtime's, with a quarter of the memory."""
    rng = np.random.default_rng()
    constants = {
        "w": rng.integers(-128, 128, (300, 64), np.int8), "ws": np.float32(0.013), "wz": np.int8(-7),
        "ys": np.float32(0.02), "yz": np.int8(3),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        helper.make_node("Gather", ["wd", "at"], ["y" if not after else "r"], axis=0),
    ]
    if after:
        nodes.append(helper.make_node("QuantizeLinear", ["r", "ys", "yz"], ["y"]))
    kind = TensorProto.INT8 if after else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "table", [helper.make_tensor_value_info("at", TensorProto.INT64, [2, 5])],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    exe = jangin.compile(model, cache=False)
    at = rng.integers(-300, 300, (2, 5))
    (want,) = ort.InferenceSession(model.SerializeToString()).run(None, {"at": at})
    np.testing.assert_array_equal(exe(at), want)
    assert sum(c.nbytes for c in exe.plan.constants.values()) < 300 * 64 * 2
