"""TFLite's general gathers, scatters and windows, and sums of sparse rows, against LiteRT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import jangin

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert, the reference, isn't installed")

from files import Operator, SubGraph, Tensor, written
from test_tflite import check, reference

RANDOM = np.random.default_rng(8)


def longs(*values: int) -> Any:
    return np.array(values, np.int64)


def same(tensors: Sequence[Tensor], operator: Operator, feeds: Sequence[Any], *bodies: SubGraph) -> None:
    """Compare one run with LiteRT: integers are equal, and floats are close."""
    given = [i for i in operator.inputs if tensors[i].data is None]
    model = written(tensors, [operator], given, list(operator.outputs), *bodies)
    want = reference(model, feeds)[0]
    got = jangin.compile(model, threads=1, cache=False)(*feeds)
    assert got.shape == want.shape and got.dtype == want.dtype
    if got.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(got, want)


GATHERS: list[tuple[Any, ...]] = [
    # x, positions, the result, and offset, collapsed, mapped axes, the numbers' axis, the slices' sizes
    ([3, 4, 2], [2, 3, 2], [2, 3, 2, 2], (2, 3), (0,), (1, 0), 2, (1, 2, 2)),
    ([5, 6], [4, 1], [3, 4, 2], (0, 2), (), (1,), 1, (3, 2)),
    ([7, 3], [2, 5], [5, 3], (1,), (0,), (0, 1), 0, (1, 3)),
]


@pytest.mark.parametrize("number", range(len(GATHERS)))
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_gather(number: int, kind: str) -> None:
    """Positions beyond x are moved inside."""
    x, at, y, windows, gone, mapped, vector, sizes = GATHERS[number]
    options = {
        "OffsetDims": longs(*windows), "CollapsedSliceDims": longs(*gone), "StartIndexMap": longs(*mapped),
        "IndexVectorDim": vector, "SliceSizes": longs(*sizes),
    }  # fmt: skip
    operator = Operator("STABLEHLO_GATHER", [0, 1], [2], "StablehloGatherOptions", options, 1)
    feeds = [RANDOM.standard_normal(x).astype(np.float32), RANDOM.integers(-3, 9, at).astype(kind)]
    same([Tensor(x), Tensor(at, kind), Tensor(y)], operator, feeds)


@pytest.mark.parametrize(
    ("body", "kind"),
    [(None, "float32"), (None, "int8"), ("ADD", "int64"), ("ADD", "float32"), ("MULTIPLY", "int8"),
     ("MAXIMUM", "float32"), ("MINIMUM", "int64")],
)  # fmt: skip
def test_scatter(body: str | None, kind: str) -> None:
    """Slices overlap, and reach beyond x."""
    number = Tensor([], kind)
    one = [Operator(f"STABLEHLO_{body}", [0, 1], [2], version=1)] if body else []
    joined = SubGraph([number, number, number], one, [0, 1], [2] if body else [1])
    cases = (
        ([6, 5, 3], [4, 2], [4, 2, 3], (1, 2), (0,), (0, 1), 1),
        ([5, 7], [1, 6], [3, 6], (0,), (1,), (1,), 0),
    )
    for x, at, updates, windows, gone, mapped, vector in cases:
        options = {
            "UpdateWindowDims": longs(*windows), "InsertedWindowDims": longs(*gone), "IndexVectorDim": vector,
            "ScatterDimsToOperandDims": longs(*mapped), "UpdateComputationSubgraphIndex": 1,
        }  # fmt: skip
        operator = Operator("STABLEHLO_SCATTER", [0, 1, 2], [3], "StablehloScatterOptions", options, 1)
        feeds = [RANDOM.integers(-5, 6, s).astype(kind) for s in (x, updates)]
        feeds.insert(1, RANDOM.integers(-2, 7, at).astype(np.int32))
        tensors = [Tensor(x, kind), Tensor(at, "int32"), Tensor(updates, kind), Tensor(x, kind)]
        same(tensors, operator, feeds, joined)


WINDOWS: list[tuple[Any, ...]] = [
    # x, the result, padding, windows' sizes, strides and dilations, x's dilations
    ([4, 9], [3, 4], ((0, 0), (1, 2)), (2, 3), (1, 2), (1, 2), (1, 1)),
    ([3, 5, 4], [4, 4, 4], ((1, 1), (-1, 0), (2, 0)), (2, 1, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    ([5, 3], [4, 3], ((0, 0), (1, 0)), (3, 2), (2, 2), (1, 1), (2, 2)),
]


@pytest.mark.parametrize("body", ["ADD", "MUL", "MAXIMUM", "STABLEHLO_MINIMUM"])
@pytest.mark.parametrize("number", range(len(WINDOWS)))
def test_windows_of_stablehlo(number: int, body: str) -> None:
    x, y, padding, sizes, strides, dilations, base = WINDOWS[number]
    around = longs(*sum(padding, ()))
    options = {
        "WindowDimensions": longs(*sizes), "WindowStrides": longs(*strides), "Padding": around,
        "WindowDilations": longs(*dilations), "BaseDilations": longs(*base), "BodySubgraphIndex": 1,
    }  # fmt: skip
    one = Tensor([])
    table = {"ADD": "AddOptions", "MUL": "MulOptions", "MAXIMUM": "MaximumMinimumOptions"}.get(body, "")
    joined = SubGraph([one, one, one], [Operator(body, [0, 1], [2], table, {}, 1)], [0, 1], [2])
    operator = Operator("STABLEHLO_REDUCE_WINDOW", [0, 1], [2], "StablehloReduceWindowOptions", options, 1)
    feeds = [RANDOM.standard_normal(x).astype(np.float32), np.float32(0.75)]
    same([Tensor(x), one, Tensor(y)], operator, feeds, joined)


@pytest.mark.parametrize("function", range(1, 5))
@pytest.mark.parametrize("kind", ["float32", "int8", "int32"])
def test_windows(function: int, kind: str) -> None:
    """Bytes overflow as in LiteRT."""
    given = [Tensor([3], "int64", data=longs(*v)) for v in ((2, 1, 3), (1, 2, 1), (2, 1, 1))]
    tensors = [Tensor([4, 5, 6], kind), Tensor([], kind), *given, Tensor([2, 3, 4], kind)]
    options = {"ReduceFunction": function}
    operator = Operator("REDUCE_WINDOW", [0, 1, 2, 3, 4], [5], "ReduceWindowOptions", options, 1)
    high = 100 if kind == "int8" else 9
    same(tensors, operator, [RANDOM.integers(-high, high, [4, 5, 6]).astype(kind), np.array(3, kind)])


@pytest.mark.parametrize("function", [5, 6])
def test_windows_of_truth_values(function: int) -> None:
    given = [Tensor([2], "int64", data=longs(*v)) for v in ((2, 2), (1, 1), (1, 1))]
    tensors = [Tensor([6, 7], "bool"), Tensor([], "bool", data=function == 5), *given, Tensor([5, 6], "bool")]
    options = {"ReduceFunction": function}
    check(tensors, Operator("REDUCE_WINDOW", [0, 1, 2, 3, 4], [5], "ReduceWindowOptions", options, 1))


@pytest.mark.parametrize("combiner", range(3))
def test_sparse_rows(combiner: int) -> None:
    """Sums of sparse rows, also from a table with two axes, and with rows that have no entry."""
    at = np.int32([[0, 0, 2], [0, 2, 0], [0, 2, 1], [1, 0, 0], [1, 0, 1], [1, 0, 3]])
    tensors = [
        Tensor([6], "int32", data=np.int32([1, 4, 0, 2, 1, 1])), Tensor([6, 3], "int32", data=at),
        Tensor([3], "int32", data=np.int32([2, 3, 4])), Tensor([6]), Tensor([5, 3, 2]), Tensor([2, 3, 3, 2]),
    ]  # fmt: skip
    options = {"Combiner": combiner}
    operator = Operator(
        "EMBEDDING_LOOKUP_SPARSE", [0, 1, 2, 3, 4], [5], "EmbeddingLookupSparseOptions", options, 1
    )
    check(tensors, operator)


@pytest.mark.parametrize("wrong", range(3))
def test_windows_that_are_none(wrong: int) -> None:
    """Windows with sizes, strides or dilations of 0 are refused."""
    data = [[2, 1, 2], [1, 1, 2], [1, 1, 1]]
    data[wrong][1] = 0
    given = [Tensor([3], "int64", data=longs(*v)) for v in data]
    options = {"ReduceFunction": 1}
    operator = Operator("REDUCE_WINDOW", [0, 1, 2, 3, 4], [5], "ReduceWindowOptions", options, 1)
    model = written([Tensor([4, 5, 6]), Tensor([]), *given, Tensor([3, 5, 3])], [operator], [0, 1], [5])
    with pytest.raises(jangin.CompileError, match="all must be 1 or more"):
        jangin.compile(model, cache=False)


def test_an_operator_without_its_options() -> None:
    operator = Operator("STABLEHLO_SCATTER", [0, 1, 2], [3], version=1)
    tensors = [Tensor([4]), Tensor([1, 1], "int32"), Tensor([1]), Tensor([4])]
    with pytest.raises(jangin.CompileError, match=r"damaged.*update_computation_subgraph_index"):
        jangin.compile(written(tensors, [operator], [0, 1, 2], [3]), cache=False)


def test_a_reduction_of_several_operators_is_refused() -> None:
    one = Tensor([])
    both = [Operator("ADD", [0, 1], [2], "AddOptions", {}, 1), Operator("NEG", [2], [3], version=1)]
    options = {
        "WindowDimensions": longs(2), "WindowStrides": longs(1), "Padding": longs(0, 0),
        "WindowDilations": longs(1), "BaseDilations": longs(1), "BodySubgraphIndex": 1,
    }  # fmt: skip
    operator = Operator("STABLEHLO_REDUCE_WINDOW", [0, 1], [2], "StablehloReduceWindowOptions", options, 1)
    body = SubGraph([one, one, one, one], both, [0, 1], [3])
    model = written([Tensor([4]), one, Tensor([3])], [operator], [0, 1], [2], body)
    with pytest.raises(jangin.CompileError, match="reduction by ADD, NEG is not supported"):
        jangin.compile(model, cache=False)
