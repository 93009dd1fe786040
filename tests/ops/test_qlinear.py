"""ONNX Runtime's quantized operators against ONNX Runtime: the results are equal, except for one unit if a
quotient falls on a half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from against import check, interpreted, onnxruntime_outputs
from one_node import Array, f32, lowered, model
from onnx import helper

from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ir.graph import CompileError

MS: dict[str, Any] = {"domain": "com.microsoft"}


def scale(value: float) -> Array:
    return np.asarray(value, np.float32)


def data(*shape: int, seed: int = 0, dtype: type = np.uint8) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


def weights(*shape: int) -> Array:
    """Return 7-bit weights. Beyond 7 bits, ONNX Runtime's sums of u8 times i8 overflow without VNNI."""
    return (data(*shape, seed=1, dtype=np.int8) // 2).astype(np.int8)


def near(op: str, inputs: Sequence[Array | None], dims: Mapping[int, Any], **attrs: Any) -> None:
    """Check that a node gives ONNX Runtime's integers, for fixed and for symbolic sizes."""
    feeds = {f"in{i}": a for i, a in enumerate(inputs) if a is not None}
    (want,) = onnxruntime_outputs(model(op, inputs, 17, **MS, **attrs), feeds)
    for shapes in (None, dims):
        graph = lowered(op, inputs, 17, dims=shapes, **MS, **attrs)
        (got,) = interpreted(graph, feeds)
        same(got, want)


def same(got: Array, want: Array) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    away = np.abs(got.astype(np.int64) - want.astype(np.int64))
    assert away.max() <= 1 and (away > 0).mean() < 0.05


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_two_tensors(op: str, dtype: type) -> None:
    x, y = data(4, 3, 5, dtype=dtype), data(3, 5, seed=1, dtype=dtype)
    zero = np.asarray(7, dtype)
    inputs = [x, scale(0.02), zero, y, scale(0.03), zero, scale(0.05), np.asarray(3, dtype)]
    near(op, inputs, {0: ["n", 3, 5]})


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.2}),
        ("QLinearGlobalAveragePool", {"channels_last": 0}),
        ("QLinearGlobalAveragePool", {"channels_last": 1}),
        ("QLinearAveragePool", {"kernel_shape": [2, 2], "strides": [2, 1], "pads": [1, 0, 0, 1]}),
    ],
)
def test_one_tensor(op: str, attrs: dict[str, Any]) -> None:
    inputs = [data(2, 3, 6, 5), scale(0.03), np.uint8(120), scale(0.01), np.uint8(10)]
    near(op, [np.asarray(a) for a in inputs], {0: ["n", 3, 6, 5]}, **attrs)


def test_softmax() -> None:
    """The operator's attribute "opset" has the name of a field of every imported node."""
    inputs = [data(3, 7), scale(0.05), np.asarray(100, np.uint8), scale(1 / 256), np.asarray(0, np.uint8)]
    proto = model("QLinearSoftmax", inputs, 17, axis=-1, **MS)
    proto.graph.node[0].attribute.append(helper.make_attribute("opset", 13))
    feeds = {f"in{i}": a for i, a in enumerate(inputs)}
    (want,) = onnxruntime_outputs(proto, feeds)
    same(*interpreted(lower(load(proto)), feeds), want)


def test_concatenation() -> None:
    zero = np.asarray(128, np.uint8)
    inputs: list[Array | None] = [scale(0.05), zero]
    for n in range(3):
        inputs += [data(2, n + 1, 4, seed=n), scale(0.02 * (n + 1)), zero]
    near("QLinearConcat", inputs, {2: ["n", 1, 4], 5: ["n", 2, 4], 8: ["n", 3, 4]}, axis=1)


def test_choice() -> None:
    zero = np.asarray(100, np.uint8)
    chosen = np.random.default_rng(0).random((4, 5)) < 0.5
    inputs = [chosen, data(4, 5), scale(0.02), zero, data(4, 5, seed=1), scale(0.04), zero, scale(0.03), zero]
    near("QLinearWhere", inputs, {})


@pytest.mark.parametrize("channels_last", [0, 1])
def test_convolution(channels_last: int) -> None:
    x, w = data(1, 3, 6, 5), weights(4, 3, 3, 3)
    x = np.moveaxis(x, 1, -1).copy() if channels_last else x
    inputs = [x, scale(0.02), np.asarray(128, np.uint8), w, np.float32([0.01, 0.02, 0.03, 0.01]),
              np.zeros(4, np.int8), scale(0.5), np.asarray(128, np.uint8)]  # fmt: skip
    near("QLinearConv", inputs, {}, channels_last=channels_last, pads=[1, 1, 1, 1])


@pytest.mark.parametrize("rescaled", [True, False])
def test_gemm(rescaled: bool) -> None:
    x, w, bias = data(4, 8), weights(8, 6), np.arange(6, dtype=np.int32) * 100
    parts = [x, scale(0.02), np.asarray(128, np.uint8), w, np.float32([0.01] * 6), np.zeros(6, np.int8), bias]
    if rescaled:
        near("QGemm", [*parts, scale(0.2), np.asarray(128, np.uint8)], {0: ["m", 8]}, alpha=1.0)
    else:
        check("QGemm", parts, 17, dims={0: ["m", 8]}, tolerance=1e-4, **MS)


def test_products_of_integers_as_floats() -> None:
    x, w = data(2, 4, 8), weights(8, 6)
    settings = {"dims": {0: ["n", 4, 8]}, "tolerance": 1e-4, **MS}
    zero, bias = np.asarray(128, np.uint8), f32(6, seed=1)
    check("MatMulIntegerToFloat", [x, w, scale(0.02), np.abs(f32(6)), zero, None, bias], 17, **settings)
    inputs = [f32(2, 4, 8), w, np.abs(f32(6)), np.zeros(6, np.int8), bias]
    check("DynamicQuantizeMatMul", inputs, 17, **settings)


@pytest.mark.parametrize("zeros", ["", "packed", "float"])
@pytest.mark.parametrize("bits", [4, 8])
def test_products_with_few_bits(bits: int, zeros: str) -> None:
    k, n, block = 48, 6, 16
    blocks = k // block
    if zeros == "float" and bits == 8:
        pytest.skip("ONNX Runtime has no float zero points of 8 bits")
    x, packed = f32(3, k), data(n, blocks, block * bits // 8)
    inputs: list[Array | None] = [x, packed, np.abs(f32(n * blocks, seed=1))]
    if zeros == "packed":
        inputs.append(data(n * -(-blocks * bits // 8), seed=2))
    elif zeros == "float":
        inputs.append(np.abs(f32(n * blocks, seed=3)) * 8)
    constants = {i: a for i, a in enumerate(inputs) if i and a is not None}
    settings = {"K": k, "N": n, "bits": bits, "block_size": block, "constants": constants, **MS}
    check("MatMulNBits", inputs, 17, dims={0: ["m", k]}, tolerance=1e-3, **settings)


def test_other_numbers_of_bits_are_refused() -> None:
    sizes = {"K": 16, "N": 4, "bits": 3, "block_size": 16}
    with pytest.raises(CompileError, match="bits"):
        lowered("MatMulNBits", [f32(3, 16), data(4, 1, 6), f32(4)], 17, **sizes, **MS)


BLOCKS: dict[str, Any] = {"K": 16, "N": 4, "bits": 4, "block_size": 16}
PACKED, FACTORS = data(4, 1, 8), np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("constants", "changes", "message"),
    [
        ({1: PACKED, 2: FACTORS}, {"block_size": 0}, "blocks of 0 weights of 4 bits"),
        ({1: PACKED, 2: FACTORS[:3]}, {}, r"the scales f32\[3\] don't fit 4 rows of 16 weights"),
        ({1: PACKED, 2: FACTORS}, {"K": 20}, r"the weights u8\[4, 1, 8\] don't fit .* there should be 64"),
        ({1: PACKED, 2: FACTORS, 3: data(9)}, {}, r"the zero points u8\[9\] don't fit .* there should be 4"),
        ({1: PACKED, 2: FACTORS * np.nan}, {}, r"the scale 'in2' is nan at \[0\]"),
    ],
)
def test_wrong_blocks_are_refused(constants: dict[int, Array], changes: Any, message: str) -> None:
    given = {**BLOCKS, **changes, "constants": constants, **MS}
    x = f32(3, given["K"])
    with pytest.raises(CompileError, match=rf"MatMulNBits 'node'.*in0: f32.*{message}"):
        lowered("MatMulNBits", [x, *constants.values()], 17, **given)
    constants = {1: PACKED, 2: FACTORS * 0}  # a block of zeros
    lowered("MatMulNBits", [f32(3, 16), PACKED, FACTORS], 17, constants=constants, **BLOCKS, **MS)


SIXTEEN = np.int8(np.ones((4, 16)))


@pytest.mark.parametrize(
    ("op", "wrong", "axis", "message"),
    [
        ("QuantizeLinear", 0.0, 1, "the scale 'in1' is 0, and scales are above 0: quantize the model again"),
        ("QuantizeLinear", np.nan, 1, "the scale 'in1' is nan"),
        ("QuantizeLinear", -1.0, 1, "the scale 'in1' is -1"),
        ("QuantizeLinear", [1.0] * 15, 1, "'in1' has 15 entries for the 16 of axis 1"),
        ("DequantizeLinear", 0.0, 1, "the scale 'in1' is 0, and scales are finite and not 0"),
        ("DequantizeLinear", [1.0, 1.0, np.inf, 1.0], 0, r"the scale 'in1' is inf at \[2\]"),
        ("DequantizeLinear", [1.0] * 3, 0, "'in1' has 3 entries for the 4 of axis 0"),
        ("DequantizeLinear", [1.0] * 4, 2, "axis 2 is out of range for a tensor of rank 2"),
    ],
)
def test_wrong_scales_are_refused(op: str, wrong: Any, axis: int, message: str) -> None:
    """Each error names the node, its operator, its operands' shapes, and the wrong scale."""
    x = f32(4, 16) if op == "QuantizeLinear" else SIXTEEN
    constants = {1: np.asarray(wrong, np.float32)}
    with pytest.raises(CompileError, match=rf"{op} 'node'.*\[4, 16\].*{message}"):
        lowered(op, [x, constants[1]], 21, constants=constants, axis=axis)


def test_wrong_scales_of_products_are_refused() -> None:
    """Wrong scales of either operand and of the result are refused, for the standard's and for ONNX Runtime's
    product."""
    zero = np.asarray(0, np.int8)
    for op, domain in (("QLinearMatMul", {}), ("QGemm", MS)):
        for place in (1, 4, 6 if op == "QLinearMatMul" else 7):
            inputs: list[Any] = [SIXTEEN, scale(1), zero, SIXTEEN.T.copy(), scale(1), zero]
            inputs += [*[None] * (op == "QGemm"), scale(1), zero]
            inputs[place] = scale(0)
            constants = {i: a for i, a in enumerate(inputs) if i and a is not None}
            with pytest.raises(CompileError, match=f"{op} 'node'.*the scale 'in{place}' is 0"):
                lowered(op, inputs, 21, constants=constants, **domain)
