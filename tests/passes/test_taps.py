"""Convolutions lose the taps that see only padding, as a whole or in bands, and give the same results."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from jangin.ir.core import Concat, Conv
from jangin.ir.dtype import F32, F64, I32, DType
from jangin.ir.expr import Expr, Var, const
from jangin.ir.graph import Array, Graph
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.passes.windows.taps import Axis, taps

RNG = np.random.default_rng(5)


def numbers(dtype: DType, shape: Sequence[int]) -> Array:
    return RNG.integers(-9, 9, shape).astype(dtype.numpy)


def conv(
    spatial: Sequence[int | Expr], kernel: Sequence[int], pads: Sequence[int], dilations: Sequence[int],
    strides: Sequence[int] = (1, 1), *, groups: int = 1, layout: str = "first", dtype: DType = F64,
    weights: Array | None = None,
) -> Graph:  # fmt: skip
    """Make a convolution of two images with 4 channels and 6 outputs."""
    symbols = {s: (const(1), const(64)) for s in spatial if isinstance(s, Var)}
    b = Builder("conv", symbols)
    sizes = [s if isinstance(s, Expr) else const(s) for s in spatial]
    shape = (const(2), const(4), *sizes) if layout == "first" else (const(2), *sizes, const(4))
    x = b.input("x", dtype, shape)
    w = numbers(dtype, (6, 4 // groups, *kernel)) if weights is None else weights
    attrs = Conv(tuple(kernel), tuple(strides), tuple(dilations), tuple(pads), groups, layout)
    y = b.node(attrs, [x, b.const(w)])
    return b.graph([y], ["y"])


def windows(graph: Graph) -> list[tuple[int, ...]]:
    return [n.attrs.kernel for n in graph.nodes if isinstance(n.attrs, Conv)]


def assert_same(graph: Graph, cut: Graph, sizes: Sequence[int] = ()) -> None:
    """Check that results are equal. The numbers are integers in f64, whose sums are exact in any order."""
    (name,) = graph.inputs
    shape = [int(str(d)) if not isinstance(d, Var) else sizes[0] for d in graph.shape(name)]
    x = numbers(graph.dtype(name), shape)
    want, got = (run_graph(g, {"x": x})["y"] for g in (graph, cut))
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("layout", ["first", "last"])
def test_a_window_of_which_one_tap_sees_the_image(layout: str) -> None:
    graph = conv((8, 9), (3, 3), (9, 9, 9, 9), (9, 9), layout=layout)
    cut = taps(graph)
    assert windows(cut) == [(1, 1)]
    assert not any(n.attrs.pads != (0, 0, 0, 0) for n in cut.nodes if isinstance(n.attrs, Conv))
    assert_same(graph, cut)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("layout", ["first", "last"])
def test_bands_that_see_fewer_taps(layout: str, groups: int) -> None:
    graph = conv((24, 28), (3, 3), (12, 13, 12, 13), (12, 13), groups=groups, layout=layout)
    cut = taps(graph)
    assert len(windows(cut)) > 1
    assert sum(isinstance(n.attrs, Concat) for n in cut.nodes) > 1
    assert max(windows(cut)) == (2, 3)
    assert_same(graph, cut)


def test_windows_of_one_channel_stay_whole() -> None:
    graph = conv((14, 14), (27, 29), (13, 14, 13, 14), (1, 1), weights=numbers(F64, (4, 1, 27, 29)), groups=4)
    cut = taps(graph)
    assert windows(cut) == [(27, 27)]
    assert_same(graph, cut)


def test_one_axis_in_bands_the_other_cut() -> None:
    graph = conv((90, 3), (3, 3), (64, 4, 64, 4), (64, 4))
    cut = taps(graph)
    assert {k[1] for k in windows(cut)} == {1}
    assert len(windows(cut)) > 1
    assert_same(graph, cut)


@pytest.mark.parametrize(
    "graph",
    [
        conv((20, 20), (3, 3), (1, 1, 1, 1), (1, 1)),
        conv((4, 4), (3, 3), (2, 2, 2, 2), (2, 2)),
        conv((8, 2), (3, 3), (9, 0, 9, 0), (9, 1)),
        conv((8, 8), (3, 3), (30, 30, 30, 30), (9, 9)),
        conv((Var("n"), 8), (3, 3), (9, 9, 9, 9), (9, 9)),
        conv((8, 8), (3, 3), (9, 9, 9, 9), (9, 9), weights=np.full((6, 4, 3, 3), np.inf)),
    ],
    ids=["usual", "bands too small", "no outputs", "windows outside", "free size", "infinite weights"],
)
def test_these_stay(graph: Graph) -> None:
    assert taps(graph) is graph


@pytest.mark.parametrize("dtype", [F32, I32])
def test_one_axis_of_other_types(dtype: DType) -> None:
    """A causal convolution whose first tap lies before the signal's beginning."""
    graph = conv((60,), (3,), (64, 0), (32,), (1,), dtype=dtype)
    cut = taps(graph)
    assert (3,) not in windows(cut)
    assert_same(graph, cut)


def test_random_windows() -> None:
    """Random windows with odd sizes, strides, and padding on one side."""
    rng = np.random.default_rng(7)
    changed = 0
    for _ in range(100):
        spatial, kernel = rng.integers(1, 40, 2).tolist(), rng.integers(1, 5, 2).tolist()
        dilations, strides = rng.integers(1, 20, 2).tolist(), rng.integers(1, 3, 2).tolist()
        pads = [min(20, int(n)) for n in rng.integers(0, 40, 4)]
        windows = zip(spatial, kernel, strides, dilations, pads[:2], pads[2:], strict=True)
        if all(Axis(*w).outputs > 0 for w in windows):
            graph = conv(spatial, kernel, pads, dilations, strides)
            cut = taps(graph)
            changed += cut is not graph
            assert_same(graph, cut)
    assert changed > 5


def test_bands_hold_the_taps_that_see_something() -> None:
    """The bands are compared with a count of each output's taps."""
    for size, k, s, d, a, b in itertools.product((1, 7, 16), (2, 3), (1, 2), (1, 5), (0, 6), (3, 6)):
        axis = Axis(size, k, s, d, a, b)
        if axis.outputs > 0:
            bands = axis.bands()
            for o in range(axis.outputs):
                (band,) = (n for n in bands if n.first <= o < n.last)
                inside = [i for i in range(k) if 0 <= o * s - a + i * d < size]
                assert inside == list(range(band.low, band.high)) or (not inside and band.taps <= 0)
            assert sum(band.outputs for band in axis.best(1)[1]) == axis.outputs
