"""Large reductions to few results are made of parts, with the same result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from jangin.ir.core import Reduce
from jangin.ir.dtype import F16, F32, I32, DType
from jangin.ir.expr import Var, const
from jangin.ir.graph import Graph
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.passes.fusion.reductions import reductions

N = Var("n")


def reduction(
    dtype: DType, combiner: str, sizes: Sequence[int | Var], axes: Sequence[int], keepdims: bool = False
) -> Graph:
    b = Builder("reduction", {s: (const(1), None) for s in sizes if isinstance(s, Var)})
    x = b.input("x", dtype, tuple(s if isinstance(s, Var) else const(s) for s in sizes))
    return b.graph([b.reduce(combiner, x, axes, keepdims)], ["y"])


def reduced(graph: Graph) -> list[tuple[int, ...]]:
    return [n.attrs.axes for n in graph.nodes if isinstance(n.attrs, Reduce)]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(
    ("sizes", "axes", "parts"),
    [
        ((4, 96, 700), (0, 1, 2), (2,)),
        ((1, 700, 400), (0, 1, 2), (2,)),
        ((2, 64, 50, 60), (1, 2, 3), (2, 3)),
        ((300_000,), (0,), (1,)),
        ((4096, 80), (0,), (1,)),
        ((3, 100_000), (1,), (2,)),
        ((N, 60, 384), (0, 1, 2), (2,)),
        ((1, N, 2048), (0, 1, 2), (2,)),
    ],
    ids=str,
)
@pytest.mark.parametrize("combiner", ["sum", "max"])
def test_parts(
    combiner: str, sizes: tuple[int | Var, ...], axes: tuple[int, ...], parts: tuple[int, ...], keepdims: bool
) -> None:
    graph = reduction(F32, combiner, sizes, axes, keepdims)
    apart = reductions(graph)
    assert reduced(apart) == [parts, axes]
    x = np.random.default_rng(0).standard_normal([5 if s is N else s for s in sizes]).astype(np.float32)
    want, got = (run_graph(g, {"x": x})["y"] for g in (graph, apart))
    assert got.shape == want.shape
    if combiner == "max":
        np.testing.assert_array_equal(got, want)
    else:  # terms are about 0, so that a sum's error is relative to its terms
        exact = x.astype(np.float64).sum(axes, keepdims=keepdims)
        assert np.abs(got - exact).max() <= 1e-7 * np.abs(x).sum(axes).max()


def test_whole_numbers_wrap_around_alike() -> None:
    graph = reduction(I32, "sum", (64, 5000), (0, 1))
    x = np.random.default_rng(0).integers(-(2**31), 2**31, (64, 5000), np.int32)
    want, got = (run_graph(g, {"x": x})["y"] for g in (graph, reductions(graph)))
    assert len(reduced(reductions(graph))) == 2 and got == want


@pytest.mark.parametrize(
    ("dtype", "sizes", "axes"),
    [
        (F32, (64, 100_000), (1,)),  # there are already as many results as tasks are needed
        (F32, (8, 8000), (0, 1)),  # a thread's waking would cost more
        (F32, (1, 7, 7, 2048), (1, 2)),  # the parts' results would have a seventh of the input's size
        (F32, (299_993,), (0,)),  # the length is a prime number
        (F16, (64, 5000), (0, 1)),  # the sums of parts would be rounded
    ],
    ids=str,
)
def test_what_is_reduced_at_once(dtype: DType, sizes: tuple[int, ...], axes: tuple[int, ...]) -> None:
    graph = reduction(dtype, "sum", sizes, axes)
    assert reductions(graph).nodes == graph.nodes


def test_maps_are_computed_where_they_are_read() -> None:
    """Maps are computed inside the reduction. A reshape between them would have their results written to
    memory first."""
    b = Builder("mean", {})
    x = b.input("x", F32, (const(300_000),))
    graph = b.graph([b.reduce("sum", b.map(lambda v: v * v, x), [0], False)], ["y"])
    assert len(reduced(graph)) == 1 and reductions(graph).nodes == graph.nodes
