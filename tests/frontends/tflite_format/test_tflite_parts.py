"""TFLite's operators on parts of tensors, and in three dimensions, against LiteRT's reference kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert, the reference, isn't installed")

from files import Operator, Tensor
from test_tflite import SAME, VALID, check

RANDOM = np.random.default_rng(5)


def ints(*values: Any) -> Tensor:
    data = np.array(values, np.int32)
    return Tensor(data.shape, "int32", data=data)


def one(kind: str, value: Any) -> Tensor:
    return Tensor([], kind, data=value)


def floats(*shape: int) -> Tensor:
    return Tensor(shape, data=RANDOM.standard_normal(shape))


def segmented(count: int, third: int = 2) -> list[Tensor]:
    return [Tensor([5, 3]), ints(2, 0, third, 3, 0), one("int32", count), Tensor([count, 3])]


def boxes() -> list[Tensor]:
    corners = np.sort(RANDOM.random((12, 2, 2)), 1).reshape(12, 4)
    return [Tensor([12, 4], data=corners), Tensor([12]), one("int32", 9), one("float32", 0.3)]


CASES: dict[str, tuple[Sequence[Tensor], int, str, dict[str, Any]]] = {
    "REVERSE_SEQUENCE": (
        [Tensor([3, 5, 2]), ints(4, 0, 5), Tensor([3, 5, 2])], 1,
        "ReverseSequenceOptions", {"SeqDim": 1, "BatchDim": 0},
    ),
    "SPARSE_TO_DENSE": (
        [ints([0, 3], [2, 1], [2, 4]), ints(3, 5), floats(3), one("float32", 0.5), Tensor([3, 5])], 1,
        "SparseToDenseOptions", {"ValidateIndices": False},
    ),
    "SPARSE_TO_DENSE of a row": (
        [ints(1, 4), ints(6), Tensor([], data=2.0), one("float32", -1), Tensor([6])], 1, "", {},
    ),
    "UNSORTED_SEGMENT_SUM": (segmented(5), 1, "", {}),
    "UNSORTED_SEGMENT_PROD": (segmented(4), 1, "", {}),
    "UNSORTED_SEGMENT_MAX": (
        [Tensor([2, 3]), ints([1, 1, 0], [3, 0, 3]), one("int32", 5), Tensor([5])], 1, "", {}
    ),
    "UNSORTED_SEGMENT_MIN": (segmented(4, -1), 1, "", {}),
    "MATRIX_DIAG": ([Tensor([2, 3]), Tensor([2, 3, 3])], 1, "", {}),
    "MATRIX_SET_DIAG": ([Tensor([2, 4, 3]), floats(2, 3), Tensor([2, 4, 3])], 1, "", {}),
    "MATRIX_SET_DIAG of a wide one": ([Tensor([3, 5]), floats(3), Tensor([3, 5])], 1, "", {}),
    "UNIQUE": (
        [Tensor([9], "int32"), Tensor([0], "int32"), Tensor([9], "int32")], 2,
        "UniqueOptions", {"IdxOutType": 2},
    ),
    "BROADCAST_ARGS": ([ints(3, 1, 5), ints(4, 1), Tensor([3], "int32")], 1, "", {}),
    "RIGHT_SHIFT": (
        [Tensor([40], "int16", [1.0]), Tensor([40], "int16", data=RANDOM.integers(-3, 20, 40)),
         Tensor([40], "int16")], 1, "", {},
    ),
    "BITCAST": ([Tensor([4, 3]), Tensor([4, 3], "int32")], 1, "", {}),
    "BITCAST to bytes": ([Tensor([4, 3]), Tensor([4, 3, 4], "uint8")], 1, "", {}),
    "BITCAST from bytes": ([Tensor([3, 4], "uint8", [1.0]), Tensor([3], "int32")], 1, "", {}),
    "RELU_0_TO_1": ([Tensor([4, 30]), Tensor([4, 30])], 1, "", {}),
    "NON_MAX_SUPPRESSION_V4": (
        [*boxes(), one("float32", -0.5), Tensor([9], "int32"), Tensor([], "int32")], 2, "", {}
    ),
    "NON_MAX_SUPPRESSION_V5": (
        [*boxes(), one("float32", -0.5), one("float32", 0.0), Tensor([9], "int32"), Tensor([9]),
         Tensor([], "int32")], 3, "", {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_parts(name: str) -> None:
    tensors, outputs, table, options = CASES[name]
    count = len(tensors)
    places = list(range(count))
    operator = Operator(name.split()[0], places[:-outputs], places[-outputs:], table, options, 1)
    check(tensors, operator)


@pytest.mark.parametrize("padding", [SAME, VALID])
def test_convolutions_of_volumes(padding: int) -> None:
    options = {
        "Padding": padding, "StrideD": 2, "StrideH": 1, "StrideW": 2, "DilationDFactor": 1,
        "DilationHFactor": 1, "DilationWFactor": 1, "FusedActivationFunction": 1,
    }  # fmt: skip
    sizes = [3, 6, 4] if padding == SAME else [2, 4, 3]
    tensors = [Tensor([2, 5, 6, 7, 3]), floats(3, 3, 2, 3, 4), floats(4), Tensor([2, *sizes, 4])]
    check(tensors, Operator("CONV_3D", [0, 1, 2], [3], "Conv3DOptions", options, 1))
    whole = [10, 6, 14] if padding == SAME else [11, 8, 14]
    tensors = [ints(2, *whole, 4), floats(3, 3, 2, 4, 3), Tensor([2, 5, 6, 7, 3]), Tensor([2, *whole, 4])]
    check(tensors, Operator("CONV_3D_TRANSPOSE", [0, 1, 2], [3], "Conv3DOptions", options, 1))


@pytest.mark.parametrize("kind", ["float32", "int32", "int64"])
def test_buckets(kind: str) -> None:
    """The boundaries are floats among an operator's options."""
    tensors = [Tensor([7, 5], kind), Tensor([7, 5], "int32")]
    options = {"Boundaries": np.float32([-1.5, 0.25, 1.0, 2.0])}
    check(tensors, Operator("BUCKETIZE", [0], [1], "BucketizeOptions", options, 1))
