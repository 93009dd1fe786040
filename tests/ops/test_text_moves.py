"""Text passes through operators that move elements, with the reference's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import jangin

CASES = [
    ("Concat", ["x", "y"], {"axis": 1}),
    ("Gather", ["x", np.array([[2, 0], [-1, 1]])], {"axis": 1}),
    ("Gather", ["x", np.array(1)], {"axis": 0}),
    ("Reshape", ["x", np.array([-1, 2])], {}),
    ("Slice", ["x", np.array([1]), np.array([9]), np.array([1]), np.array([2])], {}),
    ("Transpose", ["x"], {"perm": [1, 0]}),
    ("Where", [np.array([[True], [False]]), "x", "y"], {}),
    ("Tile", ["x", np.array([1, 2])], {}),
    ("Unsqueeze", ["x", np.array([0])], {}),
    ("Expand", ["x", np.array([3, 1, 1])], {}),
    ("Compress", ["x", np.array([True, False, True])], {"axis": 1}),
    ("Shape", ["x"], {}),
    ("Identity", ["x"], {}),
]


@pytest.mark.parametrize(("kind", "inputs", "attrs"), CASES, ids=[f"{c[0]}{i}" for i, c in enumerate(CASES)])
def test_moves(kind: str, inputs: list[Any], attrs: dict[str, Any]) -> None:
    names = [v if isinstance(v, str) else f"c{i}" for i, v in enumerate(inputs)]
    constants = [numpy_helper.from_array(v, n) for v, n in zip(inputs, names, strict=True) if v is not n]
    given = [helper.make_tensor_value_info(n, TensorProto.STRING, ["rows", 4]) for n in names if n in "xy"]
    made = TensorProto.INT64 if kind == "Shape" else TensorProto.STRING
    graph = helper.make_graph(
        [helper.make_node(kind, names, ["out"], **attrs)],
        "text",
        given,
        [helper.make_tensor_value_info("out", made, None)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    words = np.array([f"word {i}é" for i in range(16)], object)
    feeds = {n: v.reshape(2, 4) for n, v in zip("xy", (words[:8], words[8:]), strict=True) if n in names}
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    ours = jangin.compile(onnx.ModelProto.FromString(model.SerializeToString()), cache=False)(*feeds.values())
    assert ours.shape == np.shape(expected)
    assert ours.tolist() == np.asarray(expected).tolist()
