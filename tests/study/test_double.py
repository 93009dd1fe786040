"""The float64 reference of a model's errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from jangin.bench.double import doubled, float64
from jangin.bench.engine import Job

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(1, 1, 3, 4)


def computed(tmp_path: Path, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray]) -> tuple:
    """Return what a model of `x` computes in float64, and what computed it."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 3, 4])
    y = helper.make_empty_tensor_value_info("y")
    stored = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    np.savez(tmp_path / "x.npz", x=X)
    engine = float64(Job("float64", 1, str(path), str(tmp_path / "x.npz"), ("y",)))
    return engine.call()["y"], engine.version


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_products_are_of_doubles(tmp_path: Path, dtype: type) -> None:
    w = np.random.default_rng(0).standard_normal((4, 5)).astype(dtype)
    cast = [helper.make_node("Cast", ["x"], ["c"], to=int(helper.np_dtype_to_tensor_dtype(w.dtype)))]
    y, version = computed(tmp_path, [*cast, helper.make_node("MatMul", ["c", "w"], ["y"])], {"w": w})
    assert y.dtype == np.float64 and version.endswith("in float64")
    np.testing.assert_allclose(y, X.astype(np.float64) @ w.astype(np.float64), rtol=1e-14)


def test_onnx_s_reference_takes_over_where_onnx_runtime_has_no_doubles(tmp_path: Path) -> None:
    w = np.random.default_rng(1).standard_normal((2, 1, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    y, version = computed(tmp_path, [node], {"w": w})
    wide, taps = X.astype(np.float64)[0, 0], w.astype(np.float64)[:, 0]
    want = [[(wide[:, c : c + 3] * t).sum() for c in range(2)] for t in taps]
    assert version.startswith("ONNX's reference") and "in float64 (ONNX Runtime" in version
    assert "failed: NotImplemented" in version and "Conv" in version, "the report says why"
    np.testing.assert_allclose(y[0, :, 0], want, rtol=1e-13)


def test_constants_and_sizes(tmp_path: Path) -> None:
    """Constants of every form are doubles. Scales of Resize stay floats, because ONNX has no others."""
    node = helper.make_node
    nodes = [
        node("Constant", [], ["half"], value_float=0.5),
        node("Shape", ["x"], ["s"]),
        node("ConstantOfShape", ["s"], ["zeros"]),
        node("Add", ["x", "zeros"], ["a"]),
        node("Mul", ["a", "half"], ["b"]),
        node("Resize", ["b", "", "scales"], ["y"], mode="nearest"),
    ]
    y, version = computed(tmp_path, nodes, {"scales": np.array([1, 1, 2, 2], np.float32)})
    assert "in float64 (ONNX Runtime" in version and "Resize" in version
    np.testing.assert_array_equal(y, (X.astype(np.float64) / 2).repeat(2, 2).repeat(2, 3))


def test_operators_without_doubles_are_computed_in_float32_and_said_so(tmp_path: Path) -> None:
    node = helper.make_node("FusedConv", ["x", "w"], ["y"], domain="com.microsoft", activation="Relu")
    y, version = computed(tmp_path, [node], {"w": np.ones((2, 1, 3, 3), np.float32)})
    assert y.dtype == np.float32 and "in float32 (ONNX Runtime" in version
    assert version.count(" failed: ") == 2 and version.count("FusedConv") == 2


def test_functions_are_refused() -> None:
    model = helper.make_model(helper.make_graph([], "g", [], []))
    model.functions.append(onnx.FunctionProto(name="f"))
    with pytest.raises(ValueError, match="functions"):
        doubled(model)
