"""Poolings: padding, ceil mode, indices, types, and unknown sizes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from against import check
from one_node import f32, run

from jangin.ir.graph import CompileError

X = f32(2, 3, 7, 6)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "ceil"), list(product([2, 3], [1, 2, 3], [0, 1], [0, 1]))
)
def test_pools(kernel: int, stride: int, pad: int, ceil: int) -> None:
    window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad, 0, pad, pad]}
    check("MaxPool", [X], 12, outputs=2, ceil_mode=ceil, **window)
    check("MaxPool", [X], 12, dilations=[1, 2], ceil_mode=ceil, **window)
    for count in (0, 1):
        check("AveragePool", [X], 19, ceil_mode=ceil, count_include_pad=count, **window)
    check("LpPool", [X], 18, p=3, **window)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("stride", "kernel"), [(1, 3), (2, 3), (2, 2)])
def test_automatic_padding(auto_pad: str, stride: int, kernel: int) -> None:
    window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "auto_pad": auto_pad}
    check("MaxPool", [X], 11, **window)
    check("AveragePool", [X], 11, **window)


def test_column_major_places() -> None:
    check("MaxPool", [X], 12, kernel_shape=[3, 2], storage_order=1, outputs=2)
    check("MaxPool", [f32(1, 2, 4, 3, 5)], 12, kernel_shape=[2, 1, 3], outputs=2)


def test_types() -> None:
    check("MaxPool", [(X * 50).astype(np.int8)], 12, kernel_shape=[3, 2], pads=[1, 0, 1, 1])
    x = (X * 100).astype(np.float16)
    (got,) = run("GlobalAveragePool", [x], 11)
    np.testing.assert_allclose(got, x.astype(np.float64).mean((2, 3), keepdims=True), 1e-3)


def test_old_opsets() -> None:
    check("AveragePool", [X], 10, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    check("LpPool", [X], 2, kernel_shape=[2, 3], p=1)


@pytest.mark.parametrize("name", ["GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"])
def test_global_pools(name: str) -> None:
    check(name, [X], 11)
    check(name, [f32(2, 3, 5)], 11)


def test_a_window_that_does_not_fit() -> None:
    with pytest.raises(CompileError, match="larger than"):
        run("MaxPool", [X], 12, kernel_shape=[9, 9])
    with pytest.raises(CompileError, match="each spatial axis"):
        run("MaxPool", [X], 12, kernel_shape=[3])
