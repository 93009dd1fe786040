"""Models that request too much are refused at once by one error, or reduced to what matters."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from models import info, model, node
from onnx import TensorProto, helper

import jangin
from jangin.ir.graph import CompileError

HUGE = 2**31 - 1
SECONDS = 5.0
"""Seconds in which each model must be refused. A quiet machine takes a hundredth."""


def refused(proto: onnx.ModelProto, why: str) -> None:
    start = time.perf_counter()
    with pytest.raises(CompileError, match=why):
        jangin.compile(proto, cache=False, isolated=False)
    assert time.perf_counter() - start < SECONDS


@pytest.mark.parametrize("size", [1, 4, 5, 9, 10, 11, 100, HUGE])
def test_a_response_norm_ends_at_the_channels(size: int) -> None:
    x = np.random.default_rng(size).standard_normal((2, 5, 3, 3)).astype(np.float32)
    proto = model([node("LRN", "x", "y", size=size, alpha=2.0)], [info("x", list(x.shape))], ["y"], opset=22)
    squares = np.zeros_like(x)
    for c in range(5):
        first, last = max(0, c - (size - 1) // 2), min(4, c + size // 2)
        squares[:, c] = (x[:, first : last + 1] ** 2).sum(1)
    want = x / (1 + 2.0 / size * squares) ** 0.75
    found = jangin.compile(proto, cache=False, isolated=False)(x)
    np.testing.assert_allclose(found, want, rtol=1e-5)  # sums are taken in another order


@pytest.mark.parametrize("shape", [[1, 1, 5, 5], [1, 1, "h", "w"]])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    "attrs", [{"pads": [HUGE // 2] * 4}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}]
)
def test_windows(shape: list[Any], op: str, attrs: dict[str, Any]) -> None:
    for size in (2**20, HUGE):
        proto = model([node(op, "x", "y", kernel_shape=[size, size], **attrs)], [info("x", shape)], ["y"])
        refused(proto, "a window of .* must have between 1 and 67108864 elements")


FEW, MANY = 10**6, 10**11
X = [info("x", [2, 2])]


@pytest.mark.parametrize("op, inputs, given", [
    ("Range", "abc", {"a": np.array(0), "b": np.array(MANY), "c": np.array(1)}),
    ("HannWindow", "n", {"n": np.array(MANY)}),
    ("Pad", "xp", {"p": np.array([0, 0, FEW, FEW])}),
    ("Tile", "xr", {"r": np.array([FEW, FEW])}),
    ("OneHot", "idv", {"i": np.zeros(4, np.int64), "d": np.array(MANY), "v": np.zeros(2, np.float32)}),
    ("Expand", "xs", {"s": np.array([2**40, 2**40, 2, 2])}),
    ("ConstantOfShape", "s", {"s": np.array([2**32, 2**32])}),
    ("CenterCropPad", "xs", {"s": np.array([FEW, FEW])}),
    ("MatMul", "ab", {"a": np.zeros((FEW, 1), np.float32), "b": np.zeros((1, FEW), np.float32)}),
])  # fmt: skip
def test_results_no_machine_holds(op: str, inputs: str, given: dict[str, Any]) -> None:
    """2**64 elements are refused too, although their product is 0 in 64 bits."""
    x = X if "x" in inputs else []
    refused(model([node(op, " ".join(inputs), "y")], x, ["y"], given, opset=18), f"{op} .*takes [0-9]+ bytes")


def test_a_resize_no_machine_holds() -> None:
    sizes = {"s": np.array([FEW, FEW])}
    nodes = [node("Resize", "x - - s", "y")]
    refused(model(nodes, X, ["y"], sizes, opset=18), "Resize .*takes [0-9]+ bytes")


def test_mel_weights_no_machine_holds() -> None:
    given = {n: np.array(v) for n, v in (("b", FEW), ("n", FEW), ("r", 8192), ("l", 0.0), ("u", 4096.0))}
    proto = model([node("MelWeightMatrix", "b n r l u", "y")], [], ["y"], given)
    refused(proto, r"MelWeightMatrix .*mel weights \[500001, 1000000\]: both sizes must be")


@pytest.mark.sampled(3)
def test_a_long_range_is_computed() -> None:
    count = 2**24 + 3
    given = {"a": np.array(5), "b": np.array(5 + 3 * count), "c": np.array(3)}
    proto = model([node("Range", "a b c", "y")], [], ["y"], given)
    found = jangin.compile(proto, cache=False, isolated=False)
    np.testing.assert_array_equal(found(), 5 + 3 * np.arange(count))


def test_an_output_that_memory_cannot_hold_is_named() -> None:
    proto = model(
        [node("Tile", "x r", "y")], [info("x", ["n", "m"]), info("r", [2], TensorProto.INT64)], ["y"]
    )
    found = jangin.compile(proto, cache=False, isolated=False)
    feeds = {"x": np.ones((2, 2), np.float32), "r": np.array([HUGE, HUGE])}
    with pytest.raises(MemoryError, match="output 'y' float32"):
        found.run(feeds)


def test_other_counts() -> None:
    x = [info("x", [1, 1, 5, 5])]
    refused(model([node("LRN", "x", "y", size=HUGE)], [info("x", [1, "c", 5, 5])], ["y"]), "a window of")
    refused(
        model([node("Split", "x", "y", num_outputs=10**9)], x, ["y"], opset=18), "but the node has 1 output"
    )
    length = {"n": np.array(10**9)}
    signal = [info("x", [1, 128, 1])]
    refused(model([node("DFT", "x n", "y")], signal, ["y"], length), "length 1000000000: it is a product")
    frames = {"s": np.array(1), "l": np.array(10**9)}
    refused(model([node("STFT", "x s - l", "y")], signal, ["y"], frames), "length 1000000000")
    for step in (0, -3):
        steps = {"s": np.array(step), "w": np.ones(16, np.float32)}
        refused(model([node("STFT", "x s w", "y")], signal, ["y"], steps), f"the step of frames is {step}")
    boxes = [info("r", [1, 4]), info("b", [1], TensorProto.INT64)]
    refused(model([node("RoiAlign", "x r b", "y", sampling_ratio=HUGE)], x + boxes, ["y"]), "samples a side")


def ngrams(**changes: Any) -> onnx.ModelProto:
    attrs: dict[str, Any] = {
        "mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0, "ngram_counts": [0, 1],
        "ngram_indexes": [0, 1], "pool_int64s": [1, 2, 3],
    }  # fmt: skip
    proto = [node("TfIdfVectorizer", "t", "y", **(attrs | changes))]
    return model(proto, [info("t", [5], TensorProto.INT64)], ["y"])


def test_n_grams() -> None:
    text = np.array([1, 2, 9, 9, 3])
    for changes, counts in (
        ({"max_skip_count": HUGE}, [1, 1]),
        ({"max_gram_length": HUGE}, [1, 0]),
        ({"max_gram_length": HUGE, "max_skip_count": HUGE}, [1, 1]),
    ):
        found = jangin.compile(ngrams(**changes), cache=False, isolated=False)(text)
        assert found.tolist() == counts
    refused(ngrams(ngram_indexes=[0, HUGE]), "ngram_indexes must be between 0 and")
    refused(ngrams(ngram_counts=[HUGE, HUGE]), "ngram_counts .* don't lie in order in a pool of 3")
    refused(ngrams(min_gram_length=3), "there are no n-grams of 3 to 2 items")


def nested(depth: int, width: int) -> onnx.ModelProto:
    """Return functions that each call the next one `width` times."""
    proto = model([helper.make_node("F0", ["x"], ["y"], domain="d")], [info("x", [4])], ["y"])
    proto.opset_import.append(helper.make_opsetid("d", 1))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    for i in range(depth):
        last = i + 1 == depth
        names = ["a", *(f"t{k}" for k in range(1, width)), "b"]
        calls = [
            helper.make_node("Neg" if last else f"F{i + 1}", [a], [b], domain="" if last else "d")
            for a, b in pairwise(names)
        ]
        proto.functions.append(helper.make_function("d", f"F{i}", ["a"], ["b"], calls, imports))
    return proto


def test_functions_that_multiply() -> None:
    refused(nested(8, 10), "more than 1000000 nodes, its functions expanded")
    refused(nested(30, 2), "more than 1000000 nodes")
    refused(nested(40, 1), "'F0' calls itself, or is nested more than 32 deep")
    found = jangin.compile(nested(3, 3), cache=False, isolated=False)(np.ones(4, np.float32))
    assert found.tolist() == [-1] * 4


def test_a_functions_attribute_outside_of_one() -> None:
    proto = model([node("LeakyRelu", "x", "y", alpha=0.5)], [info("x", [4])], ["y"])
    proto.graph.node[0].attribute[0].ref_attr_name = "slope"
    refused(proto, "LeakyRelu 'leakyrelu_y' takes its attribute 'alpha' from 'slope' of a function, but")


@pytest.mark.parametrize("op", ["BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift", "And", "Or", "Xor"])
def test_bits_of_floats(op: str) -> None:
    attrs = {"direction": "LEFT"} if op == "BitShift" else {}
    for opset in (11, 22):
        if opset == 11 and op.startswith("Bitwise"):
            continue
        refused(model([node(op, "x x", "y", **attrs)], [info("x", [4])], ["y"], opset=opset), f"{op} '")
    if op.startswith("Bitwise"):
        refused(model([node("BitwiseNot", "x", "y")], [info("x", [4])], ["y"], opset=22), "BitwiseNot '")


@pytest.mark.parametrize(
    ("pads", "dilations", "ceil"),
    [([3, 4], [1], 0), ([2, 2], [1], 0), ([1, 1], [2], 0), ([5, 0], [2], 1), ([0, 6], [3], 0)],
)
@pytest.mark.parametrize("count_include_pad", [0, 1])
def test_means_of_windows_beyond_the_input(
    pads: list[int], dilations: list[int], ceil: int, count_include_pad: int
) -> None:
    """A window without elements of the input gives 0, like one over zeros."""
    x = np.arange(1, 4, dtype=np.float32).reshape(1, 1, 3)
    attrs = {
        "kernel_shape": [2], "pads": pads, "dilations": dilations, "ceil_mode": ceil,
        "count_include_pad": count_include_pad,
    }  # fmt: skip
    proto = model([node("AveragePool", "x", "y", **attrs)], [info("x", [1, 1, 3])], ["y"], opset=22)
    found = jangin.compile(proto, cache=False, isolated=False)(x).reshape(-1)
    for i, value in enumerate(found):
        places = [i - pads[0] + k * dilations[0] for k in range(2)]
        inside = [x[0, 0, p] for p in places if 0 <= p < 3]
        among = [p for p in places if -pads[0] <= p < 3 + pads[1]] if count_include_pad else inside
        assert value == (sum(inside) / len(among) if among else 0)
