"""TFLite's operators on parts of tensors, and in three dimensions, against LiteRT's reference kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import jangin

tflite = pytest.importorskip(
    "tflite", reason="the package tflite isn't installed: the extra `tflite` brings it"
)
pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert, the reference, isn't installed")

from ai_edge_litert.interpreter import Interpreter  # noqa: E402
from files import Operator, SubGraph, Tensor, written  # noqa: E402
from test_tflite import SAME, VALID, check, reference  # noqa: E402

from jangin.frontends.tflite.importer import BODIES  # noqa: E402
from jangin.frontends.tflite.left_out import LEFT_OUT, NO_KERNEL  # noqa: E402
from jangin.frontends.tflite.operators import BUILTINS  # noqa: E402

RANDOM = np.random.default_rng(5)


def ints(*values: Any) -> Tensor:
    data = np.array(values, np.int32)
    return Tensor(data.shape, "int32", data=data)


def longs(*values: int) -> Any:
    return np.array(values, np.int64)


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
    "HASHTABLE_LOOKUP": (
        [Tensor([5], "int32"), ints(0, 2, 3), floats(3, 4), Tensor([5, 4]), Tensor([5], "uint8")], 2, "", {}
    ),
    "DILATE": (
        [Tensor([3, 4]), ints(2, 3), one("float32", -1), Tensor([5, 10])], 1, "DilateOptions", {}
    ),
    "STABLEHLO_PAD": (
        [Tensor([3, 4]), one("float32", 0.5), Tensor([7, 11])], 1, "StablehloPadOptions",
        {"EdgePaddingLow": longs(2, -1), "EdgePaddingHigh": longs(0, 2), "InteriorPadding": longs(1, 2)},
    ),
    "STABLEHLO_ADD": ([Tensor([3, 4]), Tensor([3, 4]), Tensor([3, 4])], 1, "", {}),
    "STABLEHLO_MULTIPLY": ([Tensor([3, 4]), Tensor([3, 4]), Tensor([3, 4])], 1, "", {}),
    "STABLEHLO_MAXIMUM": ([Tensor([3, 4]), Tensor([3, 4]), Tensor([3, 4])], 1, "", {}),
    "STABLEHLO_MINIMUM": ([Tensor([3, 4]), Tensor([3, 4]), Tensor([3, 4])], 1, "", {}),
    "RELU_0_TO_1": ([Tensor([4, 30]), Tensor([4, 30])], 1, "", {}),
    "NON_MAX_SUPPRESSION_V4": (
        [*boxes(), one("float32", -0.5), Tensor([9], "int32"), Tensor([], "int32")], 2, "", {}
    ),
    "NON_MAX_SUPPRESSION_V4 as much": (
        [Tensor([3, 4], data=np.float32([[0, 0, 1, 2], [0, 1, 1, 2], [0, 0, 1, 3]])),
         Tensor([3], data=np.float32([0.5, 0.75, 0.25])), one("int32", 3), one("float32", 0.5),
         one("float32", -0.5), Tensor([3], "int32"), Tensor([], "int32")], 2, "", {},
    ),
    "NON_MAX_SUPPRESSION_V5 softly": (
        [*boxes(), one("float32", 0.1), one("float32", 0.4), Tensor([9], "int32"), Tensor([9]),
         Tensor([], "int32")], 3, "", {},
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
    """BUCKETIZE has its boundaries as floats among its options."""
    tensors = [Tensor([7, 5], kind), Tensor([7, 5], "int32")]
    options = {"Boundaries": np.float32([-1.5, 0.25, 1.0, 2.0])}
    check(tensors, Operator("BUCKETIZE", [0], [1], "BucketizeOptions", options, 1))


def test_composites_are_what_they_consist_of() -> None:
    body = SubGraph([Tensor([4]), Tensor([4])], [Operator("NEG", [0], [1], version=1)], [0], [1])
    options = {"Name": "own", "DecompositionSubgraphIndex": 1, "CompositeAttributes": np.zeros(0, np.uint8)}
    operator = Operator("STABLEHLO_COMPOSITE", [0], [1], "StableHLOCompositeOptions", options, 1)
    model = written([Tensor([4]), Tensor([4])], [operator], [0], [1], body)
    x = np.float32([1, -2, 3, 0.5])
    np.testing.assert_array_equal(jangin.compile(model, threads=1, cache=False)(x), reference(model, [x])[0])


@pytest.mark.parametrize("name", sorted(n for n, why in LEFT_OUT.items() if why == NO_KERNEL))
def test_litert_has_no_kernel_for_it_either(name: str) -> None:
    model = written([Tensor([4]), Tensor([4])], [Operator(name, [0], [1], version=1)], [0], [1])
    with pytest.raises(ValueError, match="Didn't find op"):
        Interpreter(model_content=model)


@pytest.mark.parametrize(
    ("name", "meant"), [("STABLEHLO_AND", np.bitwise_and), ("STABLEHLO_SHIFT_LEFT", np.left_shift)]
)
def test_bits(name: str, meant: np.ufunc) -> None:
    """LiteRT's reference kernels lack these operators. NumPy has the same."""
    x, y = RANDOM.integers(-999, 999, 40, np.int32), RANDOM.integers(0, 20, 40, np.int32)
    tensors = [Tensor([40], "int32") for _ in range(3)]
    model = written(tensors, [Operator(name, [0, 1], [2], version=1)], [0, 1], [2])
    np.testing.assert_array_equal(jangin.compile(model, threads=1, cache=False)(x, y), meant(x, y))


def test_segments_whose_number_the_last_says() -> None:
    """LiteRT's reference kernels lack SEGMENT_SUM, so NumPy sums whole numbers."""
    numbers, x = np.int32([0, 0, 1, 2, 2]), np.float32(RANDOM.integers(-9, 9, (5, 3)))
    tensors = [Tensor([5, 3]), Tensor([5], "int32", data=numbers), Tensor([3, 3])]
    model = written(tensors, [Operator("SEGMENT_SUM", [0, 1], [2], version=1)], [0], [2])
    want = np.zeros((3, 3), np.float32)
    np.add.at(want, numbers, x)
    np.testing.assert_array_equal(jangin.compile(model, threads=1, cache=False)(x), want)
    tensors[1] = Tensor([5], "int32")
    model = written(tensors, [Operator("SEGMENT_SUM", [0, 1], [2], version=1)], [0, 1], [2])
    with pytest.raises(jangin.CompileError, match="segments' numbers must be a constant"):
        jangin.compile(model, cache=False)


def test_every_builtin_operator_is_lowered_or_said_to_be_left_out() -> None:
    handled = {"VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE", "STABLEHLO_COMPOSITE"}
    handled |= {"CUSTOM", "PLACEHOLDER_FOR_GREATER_OP_CODES", "HASHTABLE", "HASHTABLE_IMPORT"} | set(BODIES)
    every = {n for n in vars(tflite.BuiltinOperator) if n[0].isupper()}
    assert every - handled == (set(BUILTINS) | set(LEFT_OUT)) & every
    builtins = {n for n in LEFT_OUT if not n.startswith("Flex")}
    assert not set(LEFT_OUT) & set(BUILTINS) and builtins <= every
    model = written([Tensor([4]), Tensor([4])], [Operator("CALL", [0], [1], version=1)], [0], [1])
    with pytest.raises(
        jangin.CompileError, match="CALL is not supported: LiteRT itself has no kernel for it;"
    ):
        jangin.compile(model, cache=False)


def test_bytes_of_another_type_between_shapes() -> None:
    """A slice, and bitcasts between reshapes, give the right bytes."""
    tensors = [
        Tensor([9, 2], "int32"), ints(1, 0), ints(6, 2), Tensor([6, 2], "int32"), Tensor([2, 3, 2], "int32"),
        Tensor([2, 3], "int64"), Tensor([3, 2], "int64"), Tensor([3, 2, 2], "int32"), Tensor([12], "int32"),
    ]  # fmt: skip
    operators = [
        Operator("SLICE", [0, 1, 2], [3], version=1),
        Operator("RESHAPE", [3], [4], "ReshapeOptions", {"NewShape": [2, 3, 2]}, 1),
        Operator("BITCAST", [4], [5], version=1),
        Operator("RESHAPE", [5], [6], "ReshapeOptions", {"NewShape": [3, 2]}, 1),
        Operator("BITCAST", [6], [7], version=1),
        Operator("RESHAPE", [7], [8], "ReshapeOptions", {"NewShape": [12]}, 1),
    ]
    x = RANDOM.integers(-(2**31), 2**31, (9, 2)).astype(np.int32)
    for last in (6, 8):
        model = written(tensors, operators[: last - 2], [0], [last])
        found = jangin.compile(model, threads=1, cache=False)(x)
        np.testing.assert_array_equal(found, reference(model, [x])[0])


@pytest.mark.parametrize("last", ["REAL", "IMAG", "COMPLEX_ABS", "CAST"])
def test_complex_numbers(last: str) -> None:
    """Real parts, imaginary parts and absolute values of a Fourier transform, without the axis of size 1."""
    tensors = [
        Tensor([2, 1, 6, 13]), ints(4, 16), Tensor([2, 1, 4, 9], "complex64"), Tensor([2, 4, 9], "complex64"),
        Tensor([2, 4, 9]),
    ]  # fmt: skip
    options: tuple[str, dict[str, Any]] = ("", {})
    if last == "CAST":
        options = "CastOptions", {"InDataType": 8, "OutDataType": 0}
    operators = [
        Operator("RFFT2D", [0, 1], [2], version=1),
        Operator("SQUEEZE", [2], [3], "SqueezeOptions", {"SqueezeDims": [1]}, 1),
        Operator(last, [3], [4], *options, version=1),
    ]  # fmt: skip
    model = written(tensors, operators, [0], [4])
    x = RANDOM.standard_normal((2, 1, 6, 13)).astype(np.float32)
    got = jangin.compile(model, threads=1, cache=False)(x)
    np.testing.assert_allclose(got, reference(model, [x])[0], atol=1e-5)
