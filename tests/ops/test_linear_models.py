"""Linear models (ai.onnx.ml) whose attributes don't fit each other, as ONNX Runtime computes them."""

from __future__ import annotations

import numpy as np
import pytest
from against import onnxruntime_outputs
from onnx import TensorProto, helper

import jangin

X = np.random.default_rng(0).standard_normal((4, 2)).astype(np.float32)


def linear(op: str, count: int, **attributes: object) -> bytes:
    coefficients = np.random.default_rng(1).standard_normal(count).round(2).tolist()
    outputs = ["label", "y"] if op == "LinearClassifier" else ["y"]
    kinds = {"label": TensorProto.INT64, "y": TensorProto.FLOAT}
    made = helper.make_node(op, ["x"], outputs, domain="ai.onnx.ml", coefficients=coefficients, **attributes)
    graph = helper.make_graph(
        [made], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 2])],
        [helper.make_tensor_value_info(n, kinds[n], None) for n in outputs],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 1)], ir_version=8)


CLASSIFIER = {"classlabels_ints": [4, 5, 6], "intercepts": [0.5, 0.0, -0.5], "post_transform": "LOGISTIC"}
REGRESSOR = {"targets": 3, "intercepts": [0.5, 0.0, -0.5]}


@pytest.mark.parametrize("count", [6, 12])
@pytest.mark.parametrize(
    ("op", "attributes"), [("LinearClassifier", CLASSIFIER), ("LinearRegressor", REGRESSOR)]
)
def test_further_coefficients_are_ignored(op: str, attributes: dict[str, object], count: int) -> None:
    """ONNX Runtime's own example, logreg_iris.onnx, has coefficients of twice as many features."""
    proto = linear(op, count, **attributes)
    want = onnxruntime_outputs(proto, {"x": X})
    for got, right in zip(jangin.compile(proto, cache=False).run({"x": X}).values(), want, strict=True):
        np.testing.assert_allclose(got, right, 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("op", "attributes"), [("LinearClassifier", CLASSIFIER), ("LinearRegressor", REGRESSOR)]
)
def test_too_few_coefficients(op: str, attributes: dict[str, object]) -> None:
    with pytest.raises(jangin.CompileError, match="5 coefficients are too few for 3 rows of 2"):
        jangin.compile(linear(op, 5, **attributes), cache=False)
