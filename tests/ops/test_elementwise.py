"""Elementwise operators: old versions, types and known sizes, which the ONNX node tests leave out."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from one_node import f32, lowered, run
from onnx import TensorProto, helper

from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ir.graph import CompileError
from jangin.ops.interpret import run_graph


def test_opset_6_broadcasts_from_an_axis() -> None:
    x, y = f32(2, 3, 4), f32(3, seed=1)
    (out,) = run("Add", [x, y], 6, axis=1, broadcast=1)
    np.testing.assert_array_equal(out, x + y[:, None])


def test_opset_1_hints_are_ignored() -> None:
    (out,) = run("Relu", [f32(5)], 1, consumed_inputs=[0])
    np.testing.assert_array_equal(out, np.maximum(f32(5), 0))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ["Add", "Mul", "Div", "Max", "Greater"])
def test_16_bit_floats_are_computed_in_f32_and_rounded_once(name: str, dtype: type) -> None:
    x, y = f32(64).astype(dtype), f32(64, seed=1).astype(dtype)
    numpy = {"Add": np.add, "Mul": np.multiply, "Div": np.divide, "Max": np.maximum, "Greater": np.greater}
    want = numpy[name](x.astype(np.float32), y.astype(np.float32))
    (out,) = run(name, [x, y], 14)
    assert out.dtype == (np.bool_ if name == "Greater" else dtype)
    np.testing.assert_array_equal(out, want.astype(out.dtype))


def test_operands_of_different_types_are_refused() -> None:
    with pytest.raises(CompileError, match=r"f32.*f64.*must be of one type.*Cast"):
        lowered("Add", [f32(2), f32(2).astype(np.float64)], 14)


@pytest.mark.parametrize("exponent", [0.5, 0.75, 1.0, 2.0, 3.0, -0.5, -1.0, 1.7, 0.0])
def test_power_by_a_constant(exponent: float) -> None:
    x = np.abs(f32(50)) + 0.1
    (out,) = run("Pow", [x], 15, constants={1: np.array(exponent, np.float32)})
    np.testing.assert_allclose(out, x**exponent, 1e-6)


def test_power_keeps_the_type_of_its_base() -> None:
    (out,) = run("Pow", [np.array([3, 9], np.int32), np.array([19, 0.5], np.float32)], 15)
    np.testing.assert_array_equal(out, np.array([3**19, 3], np.int32))


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_integer_division_truncates(dtype: type) -> None:
    x, y = np.array([7, 250, 9], dtype), np.array([2, 7, 4], dtype)
    x = -x if dtype is np.int32 else x
    (out,) = run("Div", [x, y], 14)
    np.testing.assert_array_equal(out, np.trunc(x / y).astype(dtype))


@pytest.mark.parametrize("opset", [1, 6])
def test_clip_with_attributes(opset: int) -> None:
    x = f32(20) * 3
    np.testing.assert_array_equal(run("Clip", [x], opset, min=-1.0, max=0.5)[0], np.clip(x, -1, 0.5))
    infinite = np.array([np.inf, -np.inf], np.float32)
    np.testing.assert_array_equal(run("Clip", [infinite], opset)[0], infinite)


def test_clip_with_one_bound_of_another_type_in_range() -> None:
    x = np.array([-3, 200], np.int16)
    (out,) = run("Clip", [x], 13, constants={2: np.array(7, np.int16)})
    np.testing.assert_array_equal(out, [-3, 7])


@pytest.mark.parametrize("y", [-1, 0, 7, 8, 100])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts_beyond_the_width(y: int, direction: str) -> None:
    x = np.array([-128, -3, 5, 127], np.int8)
    (out,) = run("BitShift", [x, np.array(y, np.int8)], 28, direction=direction)
    if not 0 <= y < 8:
        want = np.where(x < 0, -1, 0) if direction == "RIGHT" else np.zeros(4)
    else:
        want = x.astype(int) >> y if direction == "RIGHT" else (x.astype(int) << y).astype(np.int8)
    np.testing.assert_array_equal(out, want.astype(np.int8))


@pytest.mark.parametrize("opset, mask", [(6, np.float32), (7, np.float32), (10, np.bool_), (13, np.bool_)])
def test_dropout_passes_its_input_on(opset: int, mask: type) -> None:
    x = f32(3, 2)
    out, kept = run("Dropout", [x], opset, outputs=2)
    np.testing.assert_array_equal(out, x)
    assert kept.dtype == mask and kept.all() and kept.shape == x.shape


def test_cast_of_opset_1_names_its_type() -> None:
    (out,) = run("Cast", [np.array([1.9, -1.9], np.float32)], 1, to="INT32")
    np.testing.assert_array_equal(out, np.array([1, -1], np.int32))


def test_cast_refuses_types_that_tensors_cannot_have() -> None:
    with pytest.raises(CompileError, match="not supported"):
        lowered("Cast", [f32(2)], 19, to=int(TensorProto.COMPLEX64))


def test_arithmetic_of_sizes_vanishes() -> None:
    """x reshaped to [batch / 2 * 2, -1 replaced by 6] keeps only the reshape."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Mul", ["shape", "two"], ["doubled"]),
        helper.make_node("Div", ["doubled", "two"], ["halved"]),
        helper.make_node("Equal", ["wish", "minus"], ["open"]),
        helper.make_node("Where", ["open", "halved", "wish"], ["target"]),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"two": [2], "wish": [-1, 6], "minus": [-1]}
    graph = helper.make_graph(
        nodes,
        "sizes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])],
        [helper.make_empty_tensor_value_info("y")],
        [helper.make_tensor(n, TensorProto.INT64, [len(v)], v) for n, v in constants.items()],
    )
    done = lower(load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)])))
    assert [n.op for n in done.nodes] == ["reshape"]
    x = f32(5, 6)
    np.testing.assert_array_equal(run_graph(done, {"x": x})["y"], x)
