"""TFLite files as a whole: free sizes, constants behind the model, damage, and operators that are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import jangin
from jangin.runtime.artifact import Artifact

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert, the reference, isn't installed")

from files import Operator, Tensor, written
from test_tflite import CONV, check, image, weights


def rows(*shape: int) -> bytes:
    """Make a dense layer on any number of rows. `shape` is the input's shape in the file."""
    w, bias = weights([5, 4], "int8", 0)
    free = {"signature": [-1, 4]}
    tensors = [Tensor(shape, "int8", [0.05], [3], **free), w, bias, Tensor([shape[0], 5], "int8", [0.3], [3])]
    return written(tensors, [Operator("FULLY_CONNECTED", [0, 1, 2], [3], version=1)], [0], [3])


def test_free_sizes_of_1_have_a_variant() -> None:
    """A free size gets a variant for 1, the size that LiteRT takes by default.

    There is no variant if the code should be small, or if the caller's range leaves 1 out."""
    exe = jangin.compile(rows(1, 4), cache=False)
    assert [*exe.artifact.sizes] == [{}, {"t0_d0": 1}]
    random, fixed = np.random.default_rng(0), jangin.compile(rows(3, 4), cache=False)
    (name,) = (spec.name for spec in exe.inputs)
    assert isinstance(fixed, jangin.Executable)
    for count in (3, 1, 1, 1, 2, 1):
        x = random.integers(-128, 128, (count, 4), np.int8)
        np.testing.assert_array_equal(exe.run({name: x})["t3"], fixed.run({name: x})["t3"])
    few = jangin.compile(rows(1, 4), cache=False, shapes={"t0_d0": (2, 8)})
    assert isinstance(few, jangin.Executable)
    assert isinstance(jangin.build(rows(1, 4), target="armv7"), Artifact)


def test_constants_behind_the_model() -> None:
    """Constants of large models lie behind the flatbuffer."""
    w, bias = weights([5, 4], "int8", 0)
    tensors = [image([2, 4]), replace(w, at=1 << 14), replace(bias, at=1 << 15), image([2, 5], 0.3)]
    operator = Operator("FULLY_CONNECTED", [0, 1, 2], [3], version=1)
    check(tensors, operator)
    with pytest.raises(jangin.CompileError, match="tensor 't2' lies beyond the end"):
        jangin.compile(written(tensors, [operator], [0], [3])[:-1], cache=False)


def small() -> bytes:
    w, bias = weights([5, 3, 3, 4], "int8", 0)
    options = {**CONV, "FusedActivationFunction": 1}
    conv = Operator("CONV_2D", [0, 1, 2], [3], "Conv2DOptions", options)
    return written([image([1, 9, 7, 4]), w, bias, image([1, 5, 7, 5])], [conv], [0], [3])


def test_damaged_files_are_one_clear_error() -> None:
    """Each byte of the tables is changed in turn, and files are cut short. Each file is compiled or
    refused."""
    data, refused = small(), 0
    for n in range(8, len(data), 23):
        for damaged in (data[:n], data[:n] + bytes([data[n] ^ 0x85]) + data[n + 1 :]):
            try:
                jangin.build(damaged, "x86-64-v3", cache=False, isolated=False)
            except jangin.CompileError:
                refused += 1
    assert refused > 20


def test_unknown_operators_are_listed_with_names() -> None:
    model = written(
        [Tensor([4]), Tensor([4]), Tensor([4])],
        [Operator("CONCAT_EMBEDDINGS", [0], [1]), Operator("STABLEHLO_SORT", [1], [2])], [0], [2],
    )  # fmt: skip
    with pytest.raises(
        jangin.CompileError, match=r"(?s)2 nodes are not supported.*CONCAT_EMBEDDINGS.*STABLEHLO_SORT"
    ):
        jangin.compile(model, cache=False)


def test_quantized_operators_are_never_guessed() -> None:
    model = written([image([4]), image([4])], [Operator("COS", [0], [1])], [0], [1])
    with pytest.raises(
        jangin.CompileError, match=r"COS 't1' \(operator 0.*are quantized to i8, which is not supported: give"
    ):
        jangin.compile(model, cache=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scales": (0.0,), "zeros": (0,)}, "a scale of 0; scales are positive numbers"),
        ({"scales": (float("nan"),), "zeros": (0,)}, "a scale of nan; scales are positive numbers"),
        ({"scales": (1.0,), "zeros": (0, 1)}, "1 scales and 2 zero points"),
        ({"scales": (1.0,), "zeros": (300,)}, "a zero point of 300; those of i8 are -128 to 127"),
        ({"scales": (1.0,) * 4, "zeros": (0,) * 4, "axis": 2}, "4 scales along axis 2, and it has 2"),
        ({"scales": (1.0,) * 3, "zeros": (0,) * 3, "axis": 1}, "3 scales along axis 1 of 4"),
    ],
)
def test_wrong_quantization_is_refused(given: dict[str, Any], message: str) -> None:
    tensors = [Tensor((2, 4), "int8", **given), Tensor((2, 4))]
    model = written(tensors, [Operator("DEQUANTIZE", [0], [1])], [0], [1])
    with pytest.raises(
        jangin.CompileError, match=rf"tensor 't0' \(i8\[2, 4\]\) is quantized by {message}: convert"
    ):
        jangin.compile(model, cache=False)
