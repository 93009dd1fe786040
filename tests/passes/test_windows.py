"""Large pooling windows are computed one axis after the other, with the same result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from jangin.ir.core import Pool
from jangin.ir.dtype import BF16, F16, F32, F64, I8, I32, U8, DType
from jangin.ir.expr import Expr, Var, const
from jangin.ir.graph import Array, Graph
from jangin.ops.builder import Builder
from jangin.ops.core_window import window_extent
from jangin.ops.interpret import run_graph
from jangin.passes.windows.pools import windows


def pool(
    dtype: DType, combiner: str, average: str, spatial: Sequence[Expr | int], kernel: Sequence[int],
    strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int], more: int = 0,
) -> Graph:  # fmt: skip
    """Make a pool of 3 channels. Each axis has `more` windows than fit, as if sizes were rounded up."""
    ranges = {s: (const(1), const(64)) for s in spatial if isinstance(s, Var)}
    b, rank = Builder("pool", ranges), len(kernel)
    sizes = [s if isinstance(s, Expr) else const(s) for s in spatial]
    x = b.input("x", dtype, (const(2), const(3), *sizes))
    extents = [
        window_extent(sizes[i], kernel[i], strides[i], dilations[i], pads[i] + pads[i + rank]) + more
        for i in range(rank)
    ]
    y = b.pool(
        x, combiner=combiner, average=average, kernel=tuple(kernel), strides=tuple(strides),
        dilations=tuple(dilations), pads=tuple(pads), extents=tuple(extents), layout="first",
    )  # fmt: skip
    return b.graph([y], ["y"])


def numbers(dtype: DType, shape: Sequence[int]) -> Array:
    rng = np.random.default_rng(0)
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)


def pools(graph: Graph) -> list[tuple[int, ...]]:
    return [n.attrs.kernel for n in graph.nodes if isinstance(n.attrs, Pool)]


def assert_same(graph: Graph, shape: Sequence[int], taken: Sequence[tuple[int, ...]]) -> None:
    apart = windows(graph)
    assert pools(apart) == list(taken)
    (dtype,) = {graph.dtype(n) for n in graph.inputs}
    x = numbers(dtype, shape)
    want, got = (run_graph(g, {"x": x})["y"] for g in (graph, apart))
    assert got.dtype == want.dtype and got.shape == want.shape
    (node,) = (n for n in graph.nodes if isinstance(n.attrs, Pool))
    if node.attrs.combiner == "max" or not dtype.is_float:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16, I8, U8, I32], ids=str)
def test_maxima_keep_their_bits(dtype: DType) -> None:
    graph = pool(dtype, "max", "", (13, 11), (7, 5), (1, 1), (1, 1), (3, 2, 3, 2))
    assert_same(graph, (2, 3, 13, 11), [(7, 1), (1, 5)])


@pytest.mark.parametrize("average", ["", "valid", "all"])
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_sums_and_means(dtype: DType, average: str) -> None:
    graph = pool(dtype, "sum", average, (13, 12), (7, 6), (2, 1), (1, 2), (3, 5, 4, 4), more=1)
    assert_same(graph, (2, 3, 13, 12), [(7, 1), (1, 6)])


def test_sums_of_whole_numbers_wrap() -> None:
    graph = pool(I8, "sum", "", (9, 9), (9, 9), (1, 1), (1, 1), (4,) * 4)
    assert_same(graph, (2, 3, 9, 9), [(9, 1), (1, 9)])


def test_what_leaves_least_comes_first() -> None:
    graph = pool(F32, "sum", "valid", (9, 20), (9, 9), (1, 4), (1, 1), (4, 0, 4, 0))
    assert_same(graph, (2, 3, 9, 20), [(1, 9), (9, 1)])


def test_three_axes() -> None:
    graph = pool(F32, "sum", "all", (5, 6, 7), (5, 4, 5), (1, 1, 1), (1, 1, 1), (2,) * 6)
    assert_same(graph, (2, 3, 5, 6, 7), [(5, 1, 1), (1, 1, 5), (1, 4, 1)])


@pytest.mark.parametrize(("stride", "pad"), [(2, 0), (1, 2)])
def test_an_axis_whose_window_is_one_element(stride: int, pad: int) -> None:
    graph = pool(F32, "max", "", (9, 9, 5), (9, 9, 1), (1, 1, stride), (1, 1, 1), (4, 4, pad) * 2)
    rows = [(9, 1, 1), (1, 9, 1)]
    assert_same(graph, (2, 3, 9, 9, 5), [*rows, (1, 1, 1)] if pad else [(1, 1, 1), *rows])


def test_sizes_of_a_run() -> None:
    graph = pool(F32, "max", "", (Var("h"), Var("w")), (9, 9), (1, 1), (1, 1), (4,) * 4)
    assert_same(graph, (2, 3, 8, 21), [(9, 1), (1, 9)])


@pytest.mark.parametrize(
    ("dtype", "combiner", "average", "kernel", "strides"),
    [
        (F32, "max", "", (3, 3), (1, 1)),  # the window is small
        (F32, "sum", "valid", (9, 9), (9, 9)),  # windows don't overlap
        (F32, "sum", "valid", (1, 9), (1, 1)),  # the window has one axis
        (F16, "sum", "valid", (9, 9), (1, 1)),  # sums would be rounded twice
        (I32, "sum", "valid", (9, 9), (1, 1)),  # sums would be rounded twice
    ],
    ids=str,
)
def test_what_stays(
    dtype: DType, combiner: str, average: str, kernel: Sequence[int], strides: Sequence[int]
) -> None:
    graph = pool(dtype, combiner, average, (18, 18), kernel, strides, (1, 1), (0,) * 4)
    assert windows(graph) is graph
