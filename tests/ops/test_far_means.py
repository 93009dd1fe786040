"""Normalizations and variances of numbers that lie far from 0 and close to each other, against float64.

A mean in f32 about 10⁶ is rounded by up to 0.03. If a normalization only subtracts it, its results are wrong
by as much, as in ONNX Runtime and PyTorch. Jangin corrects the rounding: results are off by some roundings of
numbers of up to 5, 2e-6 in all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.compiler.pipeline import build_plan
from jangin.ir.dtype import F32
from jangin.ir.expr import const
from jangin.ir.graph import Array
from jangin.ops.builder import Builder
from jangin.ops.normalize import moments, normalized_batch
from jangin.options import Options
from jangin.runtime.executable import Executable
from jangin.targets import host

MEANS = (0.0, 1.0, 10.0, 1e3, -1e4, 1e5, 1e6)
NEAR = 2e-6


def normal(x: Array, axes: Sequence[int], epsilon: float = 1e-5) -> Array:
    centred = x - x.mean(tuple(axes), keepdims=True)
    return centred / np.sqrt((centred**2).mean(tuple(axes), keepdims=True) + epsilon)


def grouped(x: Array) -> Array:
    return normal(x.reshape(x.shape[0], 2, -1), [2]).reshape(x.shape)


MVN = "MeanVarianceNormalization"
Case = tuple[str, int, tuple[int, ...], dict[str, Any], Callable[[Array], Array]]
CASES: dict[str, Case] = {
    **{
        f"layer of {n}": ("LayerNormalization", 17, (9, n), {}, lambda x: normal(x, [1]))
        for n in (1, 2, 7, 16, 33, 64, 384, 4096)
    },
    "layer over two axes": ("LayerNormalization", 17, (3, 4, 21), {"axis": 1}, lambda x: normal(x, [1, 2])),
    "instance": ("InstanceNormalization", 18, (2, 6, 13, 15), {}, lambda x: normal(x, [2, 3])),
    "group": ("GroupNormalization", 21, (2, 6, 13, 15), {"num_groups": 2}, grouped),
    "mean and variance": (MVN, 13, (2, 6, 13, 15), {"axes": [0, 2, 3]}, lambda x: normal(x, [0, 2, 3], 0)),
    "an inner axis": (MVN, 13, (5, 40, 17), {"axes": [1]}, lambda x: normal(x, [1], 0)),
}


def model(case: Case) -> onnx.ModelProto:
    op, opset, shape, attributes, _ = case
    given, constants = ["x"], list[onnx.TensorProto]()
    if op != MVN:
        count = shape[attributes.get("axis", -1) :] if op.startswith("Layer") else shape[1:2]
        given += ["s", "b"]
        constants = [
            numpy_helper.from_array(np.full(count, v, np.float32), n) for n, v in (("s", 1), ("b", 0))
        ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy"]
    graph = helper.make_graph(
        [helper.make_node(op, given, ["y"], **attributes)], "g", ends[:1], ends[1:], constants
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.parametrize("name", CASES)
def test_normalizations(name: str) -> None:
    case = CASES[name]
    exe = jangin.compile(model(case), cache=False, isolated=False)
    for mean in MEANS:
        x = far(case[2], mean)
        np.testing.assert_allclose(exe(x), case[-1](x.astype(np.float64)), 0, NEAR, err_msg=f"mean {mean}")


def far(shape: Sequence[int], mean: float) -> Array:
    """Return numbers about a mean, as f32 holds them. Some rows are about 0."""
    x = np.random.default_rng(7).standard_normal(shape) + mean
    x[1:2] -= mean
    return x.astype(np.float32)


def test_rows_of_one_number() -> None:
    """Rows of one number give 0, at any mean."""
    exe = jangin.compile(model(CASES["layer of 384"]), cache=False, isolated=False)
    x = np.repeat(np.array([0, 1, 1 / 3, -1e3, 12345.678, 1e6 + 1 / 3, 3e7, 1e-3, 7], "f4"), 384).reshape(
        9, 384
    )
    np.testing.assert_allclose(exe(x), np.zeros_like(x), 0, 1e-3)


@pytest.mark.parametrize("make", ["moments", "batch"])
def test_statistics(make: str) -> None:
    """The mean and variance, by which operators of PyTorch, NNEF, Caffe and ONNX are made, are right."""
    b = Builder("statistics", {})
    x = b.input("x", F32, tuple(map(const, (6, 5, 11, 13))))
    if make == "moments":
        outputs = [*moments(b, x, [2, 3])]
    else:
        outputs = [*normalized_batch(b, x, *(b.const(np.full(5, v, np.float32)) for v in (1, 0)), 1e-5)]
    exe = Executable(build_plan(b.graph(outputs, ["y", "mean", "variance"]), Options(host())), 1)
    axes = (2, 3) if make == "moments" else (0, 2, 3)
    for mean in MEANS:
        given = (np.random.default_rng(7).standard_normal((6, 5, 11, 13)) + mean).astype(np.float32)
        y, centre, variance = exe(given)
        wide = given.astype(np.float64)
        exact = wide.mean(axes, keepdims=True)
        np.testing.assert_allclose(y, wide - exact if make == "moments" else normal(wide, axes), 0, NEAR)
        half = np.spacing(np.abs(exact).astype(np.float32)) * 0.5001 + 1e-7
        assert (np.abs(centre.reshape(exact.shape) - exact) <= half).all()
        np.testing.assert_allclose(variance.reshape(exact.shape), wide.var(axes, keepdims=True), 2e-6)
