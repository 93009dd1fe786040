"""Reductions: axes as an attribute and as an input, no axes, empty tensors, and types."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from one_node import Array, f32, lowered, run

Numpy = Callable[..., Array]
REFERENCE: dict[str, Numpy] = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceProd": np.prod,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceL1": lambda x, **k: np.sum(np.abs(x), **k),
    "ReduceL2": lambda x, **k: np.sqrt(np.sum(x * x, **k)),
    "ReduceSumSquare": lambda x, **k: np.sum(x * x, **k),
    "ReduceLogSum": lambda x, **k: np.log(np.sum(x, **k)),
    "ReduceLogSumExp": lambda x, **k: np.log(np.sum(np.exp(x), **k)),
}


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes_as_attribute(name: str, keepdims: int) -> None:
    x = np.abs(f32(3, 4, 5)) + 0.1
    (out,) = run(name, [x], 11, axes=[-1, 0], keepdims=keepdims)
    want = REFERENCE[name](x.astype(np.float64), axis=(0, 2), keepdims=bool(keepdims))
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, want, 1e-5)


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("noop", [0, 1])
def test_empty_axes_mean_all_or_none(name: str, noop: int) -> None:
    x = np.abs(f32(2, 3)) + 0.1
    constants = {1: np.array([], np.int64)}
    (out,) = run(name, [x], 18, constants=constants, noop_with_empty_axes=noop, keepdims=0)
    want = REFERENCE[name](x.astype(np.float64)[..., None], axis=-1) if noop else REFERENCE[name](x)
    np.testing.assert_allclose(out, want, 1e-5, 1e-6)


def test_a_symbolic_extent_is_counted_at_run_time() -> None:
    x = f32(7, 3)
    (out,) = run("ReduceMean", [x], 18, constants={1: np.array([0])}, dims={0: ["n", 3]}, keepdims=0)
    np.testing.assert_allclose(out, x.mean(0), 1e-5)


def test_a_mean_of_16_bit_floats_does_not_overflow() -> None:
    x = np.full((4, 64), 30000, np.float16)
    (out,) = run("ReduceMean", [x], 13, axes=[1], keepdims=0)
    np.testing.assert_array_equal(out, np.full(4, 30000, np.float16))


def test_log_sum_exp_of_large_and_infinite_numbers() -> None:
    x = np.array([[1000, 1000], [-np.inf, -np.inf], [np.inf, 0]], np.float32)
    (out,) = run("ReduceLogSumExp", [x], 13, axes=[1], keepdims=0)
    np.testing.assert_allclose(out, [1000 + np.log(2), -np.inf, np.inf], 1e-6)


@pytest.mark.parametrize("name", ["ReduceL2", "ReduceMean", "ReduceSum", "ReduceMax"])
def test_integers(name: str) -> None:
    x = np.array([[3, 4], [-5, 12]], np.int32)
    (out,) = run(name, [x], 13, constants={1: np.array([1])} if name == "ReduceSum" else {}, keepdims=0,
                 **({} if name == "ReduceSum" else {"axes": [1]}))  # fmt: skip
    want = REFERENCE[name](x.astype(np.float64), axis=1).astype(np.int32)
    np.testing.assert_array_equal(out, want)
    assert out.dtype == np.int32


def test_truth_values_combine() -> None:
    x = np.array([[True, False], [True, True]])
    axes = {1: np.array([1])}
    np.testing.assert_array_equal(run("ReduceMax", [x], 20, constants=axes, keepdims=0)[0], [True, True])
    np.testing.assert_array_equal(run("ReduceMin", [x], 20, constants=axes, keepdims=0)[0], [False, True])


@pytest.mark.parametrize("name, combine", [("ArgMax", np.argmax), ("ArgMin", np.argmin)])
@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.float64])
def test_arg_of_equals(name: str, combine: Numpy, dtype: type) -> None:
    x = np.array([[2, 7, 7, 2], [0, 0, 0, 0]], dtype)
    np.testing.assert_array_equal(run(name, [x], 11, axis=1, keepdims=0)[0], combine(x, axis=1))
    (last,) = run(name, [x], 13, axis=-1, select_last_index=1)
    np.testing.assert_array_equal(last, 3 - combine(x[:, ::-1], axis=1, keepdims=True))
    assert last.dtype == np.int64


NAN, INF = np.nan, np.inf
UNORDERED = [
    [1, NAN, 3, NAN],
    [NAN, 1, 2, 3],
    [NAN] * 4,
    [-INF] * 4,
    [INF, INF, -INF, NAN],
    [-INF, 2, INF, 0],
]
"""Rows with ties, NaN or infinities, in which the index of the largest element is easily wrong."""


@pytest.mark.parametrize("name, combine", [("ArgMax", np.argmax), ("ArgMin", np.argmin)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_first_nan_is_the_largest_and_the_smallest(name: str, combine: Numpy, dtype: type) -> None:
    x = np.array(UNORDERED, dtype)
    np.testing.assert_array_equal(run(name, [x], 13, axis=1, keepdims=0)[0], combine(x, axis=1))
    (last,) = run(name, [x], 13, axis=1, select_last_index=1, keepdims=0)
    np.testing.assert_array_equal(last, 3 - combine(x[:, ::-1], axis=1))


def test_a_product_of_known_sizes_vanishes() -> None:
    graph = lowered("ReduceProd", [], 13, constants={0: np.array([2, 3, 4])}, keepdims=0)
    assert graph.constants and all(n.op == "reshape" for n in graph.nodes)
