"""Models that can't be compiled raise one error that names the cause and the place."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import classifier, info, model, node
from onnx import TensorProto, helper

from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ir.graph import CompileError

X = info("x", [2, 3])


def refused(proto: onnx.ModelProto | bytes, *words: str) -> str:
    """Return the error's text, which must have every one of the words."""
    with pytest.raises(CompileError) as error:
        lower(load(proto))
    text = str(error.value)
    for word in words:
        assert word in text
    return text


def test_files_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="No such file"):
        load(tmp_path / "absent.onnx")
    with pytest.raises(CompileError, match=r"directory"):
        load(tmp_path)
    (tmp_path / "text.onnx").write_text("this is not a model, but a page of text")
    with pytest.raises(CompileError, match=r"text\.onnx, which starts with b.this is .* is of no format"):
        load(tmp_path / "text.onnx")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CompileError, match="is no file: read it, and give the bytes"):
        load(tmp_path / "pipe")
    refused(b"", "empty")
    refused(b"\x08\x07", "it holds no graph")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_model(share: float) -> None:
    raw = classifier().SerializeToString()
    refused(raw[: int(len(raw) * share)], "not an ONNX model, or is cut short", "copy the file again")


def test_every_unsupported_node_is_listed() -> None:
    nodes = [
        node("Frobnicate", "x", "a"),
        node("Relu", "a", "b"),
        helper.make_node("Sort", ["b"], ["y"], name="sorter", domain="com.example"),
    ]
    proto = model(nodes, [X], ["y"])
    proto.opset_import.append(helper.make_opsetid("com.example", 3))
    refused(
        proto,
        "2 nodes are not supported",
        "Frobnicate 'frobnicate_a' (ai.onnx 17)",
        "Sort 'sorter' (com.example 3)",
    )


def test_reasons_of_a_kind_have_their_remedy() -> None:
    fused = node("FusedConv", "x w", "y", activation="Erf", domain="com.microsoft")
    proto = model([fused], [info("x", [1, 2, 4, 4]), info("w", [2, 2, 3, 3])], ["y"])
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    refused(proto, "activation 'Erf' is none of ", ", and is not supported: give your own with operators=")
    eye = node("Reshape", "x shape", "y")
    ranked = model([eye], [X, info("shape", ["n"], TensorProto.INT64)], ["y"])
    refused(ranked, "the rank of its result", "must be known: fix sizes with shapes=")


def test_a_domain_that_is_not_imported() -> None:
    proto = model([helper.make_node("Sort", ["x"], ["y"], domain="com.example")], [X], ["y"])
    refused(proto, "Sort 'y'", "'com.example', which the model does not import (ai.onnx 17)")


def test_a_product_that_can_not_be() -> None:
    proto = model([node("MatMul", "x w", "y")], [X], ["y"], {"w": np.ones((4, 5), np.float32)})
    refused(proto, "MatMul 'matmul_y' (ai.onnx 17)", "x: f32[2, 3]", "w: f32[4, 5]", "3 and 4 differ")


def test_a_convolution_that_can_not_be() -> None:
    proto = model(
        [node("Conv", "x w", "y")], [info("x", [1, 3, 8, 8])], ["y"], {"w": np.ones((4, 5, 3, 3), np.float32)}
    )
    refused(proto, "Conv 'conv_y'", "3 channels", "5")


def test_an_attribute_that_the_operator_does_not_have() -> None:
    refused(model([node("Relu", "x", "y", beauty=3)], [X], ["y"]), "Relu 'relu_y'", "beauty")


def test_too_many_inputs() -> None:
    refused(model([node("Relu", "x x x", "y")], [X], ["y"]), "Relu 'relu_y'")


def test_an_input_that_must_be_there() -> None:
    refused(model([node("Add", "x -", "y")], [X], ["y"]), "Add 'add_y'")


def test_a_value_that_is_nowhere() -> None:
    refused(model([node("Add", "x ghost", "y")], [X], ["y"]), "Add 'add_y'", "'ghost' is defined nowhere")


def test_an_output_that_is_nowhere() -> None:
    refused(model([node("Relu", "x", "y")], [X], ["z"]), "output 'z'", "computed by no node")


def test_a_model_without_outputs() -> None:
    refused(model([node("Relu", "x", "y")], [X], []), "no outputs")


def test_a_cycle() -> None:
    nodes = [node("Add", "x b", "a"), node("Relu", "a", "b"), node("Neg", "b", "y")]
    refused(model(nodes, [X], ["y"]), "cycle", "Add 'add_a'", "Relu 'relu_b'")


def test_a_node_that_reads_itself() -> None:
    refused(model([node("Add", "x y", "y")], [X], ["y"]), "cycle", "Add 'add_y'")


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Relu", "x", "y"), node("Neg", "x", "y")],
        [node("Relu", "x", "x"), node("Neg", "x", "y")],
        [node("Relu", "x", "c"), node("Neg", "c", "y")],
    ],
)
def test_a_value_defined_twice(nodes: list[onnx.NodeProto]) -> None:
    refused(model(nodes, [X], ["y"], {"c": np.ones(2, np.float32)}), "is defined twice")


def test_names_given_twice() -> None:
    proto = model([node("Add", "x c", "y")], [X, X], ["y"], {"c": np.ones(3, np.float32)})
    refused(proto, "input 'x' is declared twice")
    proto = model([node("Add", "x c", "y")], [X], ["y"], {"c": np.ones(3, np.float32)})
    proto.graph.initializer.append(proto.graph.initializer[0])
    refused(proto, "constant 'c' is defined twice")
    refused(model([node("Relu", "x", "y")], [X], ["y", "y"]), "output 'y' of the model is listed twice")


def test_nodes_may_share_a_name() -> None:
    nodes = [node("Relu", "x", "a"), node("Relu", "a", "y")]
    nodes[1].name = nodes[0].name
    names = [n.name for n in load(model(nodes, [X], ["y"])).graph.nodes]
    assert len(set(names)) == 2


@pytest.mark.parametrize("dims", [[10**12], [1 << 40, 1 << 40], [-1], [5]])
def test_constants_that_do_not_hold_what_they_say(dims: list[int]) -> None:
    proto = model([node("Add", "x c", "y")], [X], ["y"], {"c": np.ones(3, np.float32)})
    proto.graph.initializer[0].ClearField("dims")
    proto.graph.initializer[0].dims.extend(dims)
    refused(proto, "constant 'c'")
    c = proto.graph.initializer[0]
    c.ClearField("raw_data")
    c.float_data.extend([1, 2, 3])
    refused(proto, "constant 'c'")


def test_a_dimension_that_is_too_large() -> None:
    refused(model([node("Relu", "x", "y")], [info("x", [1 << 40])], ["y"]), "sizes are from 0 to 2147483647")


def test_inputs_that_are_no_tensors() -> None:
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [2])
    refused(model([node("Relu", "x", "y")], [sequence], ["y"]), "its input 'X' is seq(tensor(float))")
    refused(model([node("Relu", "x", "y")], [onnx.ValueInfoProto(name="x")], ["y"]), "input 'x'")


def test_names_that_are_no_text() -> None:
    raw = model([node("Relu", "x", "y")], [X], ["y"]).SerializeToString().replace(b"relu_y", b"relu\xff\xfe")
    with pytest.raises(CompileError):
        lower(load(raw))


def test_a_result_larger_than_memory() -> None:
    """A graph may declare such a result, but compiling must not try it."""
    size = np.array([1 << 20, 1 << 20], np.int64)
    lower(load(model([node("Expand", "x s", "y")], [info("x", [1])], ["y"], {"s": size})))
    lower(load(model([node("ConstantOfShape", "s", "y")], [X], ["y"], {"s": size})))


def test_the_nearest_way_round() -> None:
    refused(
        model([node("Attention", "x x x", "y")], [X], ["y"]), "it came with opset 23: export the model for"
    )
    refused(model([node("FusedMatMul", "x x", "y")], [X], ["y"]), "but com.microsoft have")
    refused(model([node("Sofmax", "x", "y")], [X], ["y"]), "Softmax is called alike")
    refused(model([node("Frobnicate", "x", "y")], [X], ["y"]), "operators=[...]")
    taken = model([node("Gather", "x i", "y")], [X], ["y"], {"i": np.array([1, -3])})
    refused(taken, "Gather 'gather_y'", "index -3 is out of range for an axis of 2 entries")
    summed = model([node("ReduceSum", "x a", "y")], [X, info("a", [1], TensorProto.INT64)], ["y"])
    refused(summed, "axes must be a constant", "make it an initializer")
