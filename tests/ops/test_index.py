"""Gathers, scatters, one-hot and top-k (indices out of range: `program/test_out_of_range.py`)."""

from __future__ import annotations

import numpy as np
import pytest
from against import check, ints
from one_node import Array, f32, run

X = f32(2, 3, 4, 6)


def indices(low: int, high: int, *shape: int) -> Array:
    return np.random.default_rng(1).integers(low, high, shape)


def test_gather() -> None:
    check("Gather", [X, ints(0, -1, 2)], 13, axis=1)
    check("Gather", [X, np.array([[1, 0]], np.int32)], 13, axis=-1)
    check("Gather", [X], 13, axis=2, constants={1: np.array(1)})
    check("GatherElements", [X, indices(-3, 3, 2, 5, 4, 6)], 13, axis=1)


def test_gather_nd() -> None:
    sizes = ["a", "b", "c", "d"]
    check("GatherND", [X, indices(-2, 2, 5, 2)], 13, dims={0: sizes, 1: ["e", 2]})
    check("GatherND", [X, indices(-2, 2, 2, 5, 2)], 13, batch_dims=1, dims={0: sizes, 1: ["a", "f", 2]})


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter(reduction: str) -> None:
    once = reduction == "none"
    where = np.argsort(X, 1)[:, :2] if once else indices(-3, 3, 2, 2, 4, 6)
    check("ScatterElements", [X, where, f32(2, 2, 4, 6, seed=4)], 18, axis=1, reduction=reduction)
    pairs = np.array([[0, 1], [1, -1], [0, 0] if once else [0, 1]])
    dims = {0: ["a", "b", "c", "d"], 1: ["e", 2]}
    check("ScatterND", [X, pairs, f32(3, 4, 6, seed=5)], 18, reduction=reduction, dims=dims)


def test_scatter_of_booleans() -> None:
    data, where, new = np.array([True, False, False]), ints(1, 1, 0), np.array([True, False, False])
    (out,) = run("ScatterElements", [data, where, new], 18, reduction="add")
    assert out.tolist() == [True, True, False]


def test_max_unpool() -> None:
    x, where = np.array([[[[1, 2], [3, 4]]]], np.float32), np.array([[[[5, 7], [13, 15]]]])
    want = np.zeros(16, np.float32)
    want[[5, 7, 13, 15]] = 1, 2, 3, 4
    check("MaxUnpool", [x, where], 11, want=[want.reshape(1, 1, 4, 4)], kernel_shape=[2, 2], strides=[2, 2])


def test_one_hot() -> None:
    check("OneHot", [ints(0, 3, -1, 9)], 11, axis=0, constants={1: np.array([5]), 2: f32(2)})
    want = np.zeros((3, 5), np.int64)
    want[0, 2] = want[1, 0] = want[2, 4] = 7
    x = np.array([2.9, -0.5, -1.2], np.float32)
    check("OneHot", [x], 11, want=[want], constants={1: np.array(5), 2: np.array([0, 7])})


@pytest.mark.parametrize(("k", "axis", "largest"), [(2, -1, 1), (3, 1, 0), (6, -1, 1), (1, 2, 0)])
def test_top_k(k: int, axis: int, largest: int) -> None:
    x, dims = np.round(X * 2) / 2, {0: ["a", 3, 4, 6]}
    check("TopK", [x], 11, outputs=2, axis=axis, largest=largest, constants={1: ints(k)}, dims=dims)


@pytest.mark.parametrize(("shape", "k"), [((40,), 40), ((3, 70), 33), ((2, 19, 4), 7)])
def test_top_k_of_many_equal_values(shape: tuple[int, ...], k: int) -> None:
    x = np.random.default_rng(0).integers(0, 9, shape).astype(np.float32)
    axis = min(1, len(shape) - 1)
    for largest in (0, 1):
        check("TopK", [x], 11, outputs=2, axis=axis, largest=largest, constants={1: ints(k)})


def test_top_k_before_opset_11() -> None:
    check("TopK", [(X * 3).astype(np.float32)], 10, outputs=2, constants={1: ints(3)})
    order = np.argsort(-X, -1, kind="stable")[..., :3]
    check("TopK", [X], 1, want=[np.take_along_axis(X, order, -1), order], outputs=2, k=3)
