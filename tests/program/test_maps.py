"""Maps, which are dictionaries in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import jangin

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def compiled(op: str, key: int, value: int, **attrs: Any) -> Any:
    kind = helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, []))
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], domain="ai.onnx.ml", **attrs)],
        "g",
        [helper.make_value_info("x", kind)],
        [helper.make_empty_tensor_value_info("y")],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1)]
    return jangin.compile(helper.make_model(graph, opset_imports=opsets), cache=False)


def test_values_by_key() -> None:
    exe = compiled("DictVectorizer", STRING, FLOAT, string_vocabulary=["a", "c", "b", "z"])
    np.testing.assert_array_equal(exe({"a": 4.0, "c": 8.0}), np.float32([4, 8, 0, 0]), strict=True)
    exe = compiled("DictVectorizer", INT64, STRING, int64_vocabulary=[7, 3])
    assert exe({3: "x"}).tolist() == ["", "x"]


@pytest.mark.parametrize(
    ("to", "form", "wanted"),
    [
        ("TO_FLOAT", "DENSE", np.float32([[0.5, 1.75]])),
        ("TO_INT64", "SPARSE", np.array([[0, 0, 0, 1, 0]])),
        ("TO_STRING", "DENSE", np.array([["0.5", "1.75"]], object)),
    ],
)
def test_a_map_as_a_row(to: str, form: str, wanted: np.ndarray) -> None:
    exe = compiled("CastMap", INT64, FLOAT, cast_to=to, map_form=form, max_map=5)
    np.testing.assert_array_equal(exe({3: 1.75, 1: 0.5}), wanted, strict=True)


def test_a_key_outside() -> None:
    exe = compiled("CastMap", INT64, FLOAT, map_form="SPARSE", max_map=2)
    with pytest.raises(ValueError, match=r"CastMap 'y' .*key 3 is outside 0\.\.1"):
        exe({3: 1.0})


@pytest.mark.parametrize("values", [np.array(["b", "q"], object), np.array([8, 1])])
def test_categories(values: np.ndarray) -> None:
    code = STRING if values.dtype == object else INT64
    attrs = {"cats_strings": ["a", "b"], "cats_int64s": [4, 8]}
    graph = helper.make_graph(
        [helper.make_node("CategoryMapper", ["x"], ["y"], domain="ai.onnx.ml", **attrs)],
        "g",
        [helper.make_tensor_value_info("x", code, ["n"])],
        [helper.make_empty_tensor_value_info("y")],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1)]
    exe = jangin.compile(onnx.helper.make_model(graph, opset_imports=opsets), cache=False)
    assert exe(values).tolist() == ([8, -1] if code == STRING else ["b", "_Unused"])
