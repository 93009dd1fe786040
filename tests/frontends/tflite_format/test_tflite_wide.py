"""TFLite's operators on 16-bit integers give the same integers as LiteRT's reference kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import jangin

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert, the reference, isn't installed")

from files import Operator, Tensor, written
from test_tflite import CONV, check, reference


def wide(shape: Sequence[int], scale: float = 0.001) -> Tensor:
    return Tensor(shape, "int16", [scale], [0])


@pytest.mark.parametrize("name", ["LOGISTIC", "TANH"])
def test_saturating_functions_of_16_bits(name: str) -> None:
    """A saturating function of every input, at scales that are powers of two and at others."""
    every = np.arange(-(1 << 15), 1 << 15).astype(np.int16)
    for scale in (2**-12, 2**-11, 2**-13, 0.001, 0.0003, 0.01):
        tensors = [wide(every.shape, scale), wide(every.shape, 2**-15)]
        model = written(tensors, [Operator(name, [0], [1])], [0], [1])
        (wanted,) = reference(model, [every])
        np.testing.assert_array_equal(jangin.compile(model, threads=1, cache=False)(every), wanted)


@pytest.mark.parametrize("name", ["EXP", "GELU", "LOG", "RSQRT", "SQRT"])
def test_functions_of_16_bits(name: str) -> None:
    """A function of every input in its domain."""
    every = np.arange(1 if "SQRT" in name else -(1 << 15), 1 << 15).astype(np.int16)
    table = "GeluOptions" if name == "GELU" else ""
    for step, made in ((1e-4, 0.001), (0.0005 if name == "EXP" else 0.003, 0.0002), (1e-4, 0.0301)):
        for option in ({"Approximate": False}, {"Approximate": True}) if table else ({},):
            operator = Operator(name, [0], [1], table, option)
            model = written([wide(every.shape, step), wide(every.shape, made)], [operator], [0], [1])
            (wanted,) = reference(model, [every])
            np.testing.assert_array_equal(jangin.compile(model, threads=1, cache=False)(every), wanted)


def test_softmax_of_16_bits() -> None:
    for step in (0.0002, 0.001, 0.004):
        tensors = [wide([9, 17], step), wide([9, 17], 2**-15)]
        check(tensors, Operator("SOFTMAX", [0], [1], "SoftmaxOptions", {"Beta": 1.0}))


def wide_weights(shape: Sequence[int], axis: int, bias: str = "int64") -> tuple[Tensor, Tensor]:
    """Make 8-bit weights, and a bias of type `bias`."""
    random, count = np.random.default_rng(7), shape[axis]
    scales = random.uniform(0.005, 0.02, count).tolist()
    data = random.integers(-127, 128, shape), random.integers(-50000, 50000, count)
    return (
        Tensor(shape, "int8", scales, [0] * count, axis, data[0]),
        Tensor([count], bias, [s * 0.001 for s in scales], [0] * count, 0, data[1]),
    )


def wide_products(name: str, bias: str = "int64") -> tuple[list[Tensor], Operator]:
    if name == "CONV_2D":
        made = [wide([1, 9, 7, 4]), *wide_weights([5, 3, 3, 4], 0, bias), wide([1, 5, 7, 5], 0.004)]
        options = {**CONV, "FusedActivationFunction": 1}
        return made, Operator(name, [0, 1, 2], [3], "Conv2DOptions", options)
    if name == "DEPTHWISE_CONV_2D":
        made = [wide([1, 9, 7, 4]), *wide_weights([1, 3, 3, 4], 3, bias), wide([1, 5, 7, 4], 0.004)]
        options = {**CONV, "DepthMultiplier": 1}
        return made, Operator(name, [0, 1, 2], [3], "DepthwiseConv2DOptions", options)
    w, b = wide_weights([5, 30], 0, bias)
    one = Tensor(w.shape, "int8", [0.01], [0], data=w.data), Tensor([5], bias, [1e-5], [0], data=b.data)
    return [wide([3, 30]), *one, wide([3, 5], 0.004)], Operator(
        name, [0, 1, 2], [3], "FullyConnectedOptions", {}
    )


@pytest.mark.parametrize("name", ["CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"])
def test_wide_activations(name: str) -> None:
    """16-bit activations, with 8-bit weights. A bias of 32 bits, which LiteRT doesn't take, is refused."""
    check(*wide_products(name))
    tensors, operator = wide_products(name, "int32")
    with pytest.raises(jangin.CompileError, match="bias of 64 bits"):
        jangin.compile(written(tensors, [operator], [0], [3]), cache=False)


WIDE = {
    **{n: ([200], [200], {}) for n in ("ADD", "SUB", "MUL")},
    "RELU6": ([200], None, {}), "LEAKY_RELU": ([200], None, {"Alpha": 0.3}),
    "BATCH_MATMUL": ([14, 14], [14, 14], {}), "CONCATENATION": ([200], [200], {"Axis": 0}),
}  # fmt: skip
TABLES = {"LEAKY_RELU": "LeakyReluOptions", "RELU6": "", "BATCH_MATMUL": "BatchMatMulOptions"}


@pytest.mark.parametrize("name", WIDE)
def test_wide_operators(name: str) -> None:
    x, y, options = WIDE[name]
    given = [wide(x)] if y is None else [wide(x), wide(y, 0.0007)]
    made = wide([400] if name == "CONCATENATION" else x, 0.0015)
    table = TABLES.get(name, f"{name.capitalize()}Options")
    check([*given, made], Operator(name, list(range(len(given))), [len(given)], table, options))
