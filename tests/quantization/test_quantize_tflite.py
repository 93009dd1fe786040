"""Quantized models as TensorFlow Lite files: LiteRT's reference kernels give Jangin's integers, and the ONNX
file's numbers to a step or two."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_nets
from onnx import helper

import jangin

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert, the reference, isn't installed")

sys.path.insert(0, str(Path(__file__).parents[1] / "frontends" / "tflite_format"))

from test_tflite import reference
from test_tflite_writer import operators

from jangin.quantization.tflite import written

BATCH = {"batch": 1}
STEPS = 2
"""The largest difference, in steps. A step is 1/256 of a result's range, or of 1 for probabilities. TFLite
rescales products by fixed-point numbers, which rounds differently."""


def check(quantized: Any, feeds: list[Any], steps: float = STEPS) -> Counter[str]:
    """Compare a quantized model's file on inputs of its calibration. Returns how often it has each
    operator."""
    data = quantized.tflite()
    back = jangin.compile(data, threads=1, cache=False)
    for x in feeds:
        (found,) = reference(data, [x])
        np.testing.assert_array_equal(back(x), found)
        wanted = quantized.executable(x)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=steps * max(np.ptp(wanted), 1) / 255)
    return Counter(operators(data))


def net(nodes: list[Any], weights: dict[str, Any], out: list[int]) -> bytes:
    return small_nets.made(nodes, [1, 3, 16, 16], out, weights)


def normal(*shape: int) -> Any:
    rng = np.random.default_rng(len(shape) + shape[0])
    return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def test_convolutions_are_whole_numbers_throughout() -> None:
    """All operators are integers. Floats stand only at both ends, and the order of axes changes once."""
    data = small_nets.pictures()
    made = jangin.quantize(small_nets.convolutions(), data, shapes=BATCH, threads=1)
    found = check(made, small_nets.pictures(3))
    whole = {"CONV_2D": 3, "DEPTHWISE_CONV_2D": 1, "ADD": 1, "MAX_POOL_2D": 1, "LOGISTIC": 1, "MEAN": 1}
    ends = {"QUANTIZE": 1, "DEQUANTIZE": 1, "TRANSPOSE": 1, "PAD": 1, "FULLY_CONNECTED": 1}
    assert found == whole | ends


def test_what_lies_between() -> None:
    """A concatenation whose parts have its scale, a gate, swish, a bounded sum, averages, padding with zeros,
    and a resize."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0"], ["a"], pads=[1] * 4), node("Sigmoid", ["a"], ["s"]),
        node("Mul", ["a", "s"], ["b"]),
        node("Conv", ["b", "w1"], ["c"]), node("Relu", ["c"], ["d"]),
        node("Conv", ["b", "w2"], ["e"], pads=[1] * 4),
        node("Concat", ["d", "e"], ["f"], axis=1),
        node("AveragePool", ["f"], ["g"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Pad", ["g", "pads"], ["h"]),
        node("GlobalAveragePool", ["h"], ["i"]), node("Conv", ["i", "w3"], ["j"]),
        node("Sigmoid", ["j"], ["k"]), node("Mul", ["h", "k"], ["l"]),
        node("Resize", ["l", "", "scale"], ["m"], mode="nearest"),
        node("Conv", ["m", "w3"], ["n"]), node("Add", ["m", "n"], ["o"]), node("Relu", ["o"], ["p"]),
        node("ReduceMean", ["p", "axes"], ["q"], keepdims=0), node("MatMul", ["q", "w4"], ["r"]),
        node("Add", ["r", "bias"], ["z"]), node("Softmax", ["z"], ["y"], axis=1),
    ]  # fmt: skip
    weights = {
        "w0": normal(8, 3, 3, 3), "w1": normal(4, 8, 1, 1), "w2": normal(8, 8, 3, 3),
        "w3": normal(12, 12, 1, 1), "w4": normal(12, 5), "bias": normal(5), "axes": np.array([2, 3]),
        "pads": np.array([0, 0, 1, 0, 0, 0, 0, 1]), "scale": np.float32([1, 1, 2, 2]),
    }  # fmt: skip
    made = jangin.quantize(net(nodes, weights, [1, 5]), small_nets.pictures(), threads=1)
    found = check(made, small_nets.pictures(3))
    assert (found["QUANTIZE"], found["DEQUANTIZE"], found["TRANSPOSE"]) == (1, 1, 1)
    assert found["SOFTMAX"] == found["RESIZE_NEAREST_NEIGHBOR"] == found["AVERAGE_POOL_2D"] == 1


@pytest.mark.parametrize("name", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("bound", [False, True])
def test_constants_between(name: str, bound: bool) -> None:
    """Constants with a number for each channel are int8 too, which rounds once more than the ONNX file."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0"], ["a"]), node("Relu", ["a"], ["r"]), node(name, ["each", "r"], ["b"]),
        *([node("Clip", ["b", "zero", "six"], ["c"])] if bound else []),
        node("Conv", ["c" if bound else "b", "w1"], ["y"]),
    ]  # fmt: skip
    weights = {
        "w0": normal(6, 3, 3, 3), "w1": normal(4, 6, 3, 3), "each": normal(6, 1, 1) + 0.7,
        "zero": np.float32(0), "six": np.float32(6),
    }  # fmt: skip
    made = jangin.quantize(net(nodes, weights, [1, 4, 12, 12]), small_nets.pictures(), threads=1)
    found = check(made, small_nets.pictures(2), STEPS + 1)
    assert (found[name.upper()], found["DEQUANTIZE"], found["RELU6"]) == (1, 1, 0)


def test_what_has_no_integers_stays_float() -> None:
    """An operator that LiteRT has for floats alone stays float, between two quantized ones."""
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"]),
        helper.make_node("Abs", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["y"]),
    ]
    weights = {"w0": normal(4, 3, 3, 3), "w1": normal(4, 4, 3, 3)}
    made = jangin.quantize(net(nodes, weights, [1, 4, 12, 12]), small_nets.pictures(), threads=1)
    found = check(made, small_nets.pictures(2))
    assert (found["QUANTIZE"], found["DEQUANTIZE"]) == (2, 2)


def test_products_of_rows_are_dynamic() -> None:
    """Products whose results have no scale have 8-bit weights, and each run quantizes their rows
    symmetrically.

    This has up to a bit less precision than the ranges that calibration saw."""
    node = helper.make_node
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "b"], ["a"]), node("Relu", ["a"], ["y"])]
    weights = {"w": normal(64, 24), "b": normal(24)}
    source = small_nets.made(nodes, [1, 7, 64], [1, 7, 24], weights)
    made = jangin.quantize(source, small_nets.rows(), threads=1)
    data, exact = made.tflite(), jangin.compile(source, threads=1, cache=False)
    back = jangin.compile(data, threads=1, cache=False)
    for x in small_nets.rows(2, seed=9):
        (found,) = reference(data, [x])
        np.testing.assert_allclose(back(x), found, rtol=0, atol=2e-6)
        assert np.abs(found - exact(x)).max() < 2 * np.abs(made.executable(x) - exact(x)).max()
    assert operators(data) == ["FULLY_CONNECTED"]
    assert len(data) < 64 * 24 * 2


def test_half_precision_keeps_the_weights_so() -> None:
    made = jangin.quantize(
        small_nets.convolutions(), small_nets.pictures(), "float16", shapes=BATCH, threads=1
    )
    data = made.tflite()
    x = small_nets.pictures(1, seed=9)[0]
    (found,) = reference(data, [x])
    np.testing.assert_allclose(found, made.executable(x), rtol=0, atol=2e-3)
    np.testing.assert_allclose(jangin.compile(data, threads=1, cache=False)(x), found, rtol=0, atol=1e-5)
    assert Counter(operators(data))["QUANTIZE"] == 0


def test_refused_in_one_list_and_nothing_is_written(tmp_path: Path) -> None:
    """Weights of 4 bits are refused."""
    made = jangin.quantize(small_nets.products(), small_nets.rows(), "int4", shapes={"rows": 7}, threads=1)
    with pytest.raises(jangin.CompileError, match="TFLite can't express 2 parts") as told:
        made.save(tmp_path / "out.tflite")
    assert str(told.value).count("weights in int4") == 2
    assert not any(tmp_path.iterdir())


def test_saved(tmp_path: Path) -> None:
    made = jangin.quantize(small_nets.convolutions(), small_nets.pictures(), shapes=BATCH, threads=1)
    made.save(tmp_path / "out.tflite")
    assert (tmp_path / "out.tflite").read_bytes() == made.tflite()


@pytest.mark.parametrize("left", range(5))
def test_parts_left_in_floats(left: int) -> None:
    """`auto` may leave some parts in floats. Floats are around these parts alone."""
    source = small_nets.convolutions()
    made = jangin.quantize(source, small_nets.pictures(), shapes=BATCH, threads=1)
    graph, parts, chosen, ranges, described = made.tflite.args
    assert len(parts) == 5
    kept = {n: c for n, c in chosen.items() if n != parts[left].name}
    data = written(graph, parts, kept, ranges, described)
    exact = jangin.compile(source, threads=1, shapes=BATCH, cache=False)
    back = jangin.compile(data, threads=1, cache=False)
    for x in small_nets.pictures(2):
        (found,) = reference(data, [x])
        for got in (found, back(x)):
            np.testing.assert_allclose(got, exact(x), rtol=0, atol=0.03)
    types = Counter(operators(data))
    assert types["DEQUANTIZE"] + types["QUANTIZE"] <= 6


def test_a_block_of_a_transformer() -> None:
    """Normalization and GELU stay floats, around two quantized products."""
    source, shapes = small_nets.products(), {"rows": 7}
    made = jangin.quantize(source, small_nets.rows(), shapes=shapes, threads=1)
    data, exact = made.tflite(), jangin.compile(source, threads=1, shapes=shapes, cache=False)
    back = jangin.compile(data, threads=1, cache=False)
    for x in small_nets.rows(2, seed=9):
        (found,) = reference(data, [x])
        np.testing.assert_allclose(back(x), found, rtol=0, atol=0.01)
        np.testing.assert_allclose(found, exact(x), rtol=0, atol=0.1)
    types = Counter(operators(data))
    assert (types["FULLY_CONNECTED"], types["GELU"], types["QUANTIZE"]) == (2, 1, 0)
