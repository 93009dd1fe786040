"""The neutral operators without a format: built with `Builder`, run by the interpreter, and compared with
NumPy in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from jangin.ir.dtype import from_numpy
from jangin.ir.expr import const
from jangin.ops.activation import ACTIVATIONS
from jangin.ops.builder import Builder
from jangin.ops.conv import conv, conv_transpose
from jangin.ops.interpret import run_graph
from jangin.ops.linear import einsum
from jangin.ops.pool import average_pool
from jangin.ops.quantized import integer_matmul, requantize
from jangin.ops.values import Tensor
from jangin.ops.window import Window

Array = np.ndarray


def computed(make: Callable[..., Tensor], *arrays: Array) -> Array:
    """Return the result of `make(b, *tensors)` for inputs that aren't known at build time."""
    b = Builder("test", {})
    inputs = [
        b.input(f"in{i}", from_numpy(a.dtype), tuple(map(const, a.shape))) for i, a in enumerate(arrays)
    ]
    graph = b.graph([make(b, *inputs)], ["y"])
    return run_graph(graph, {f"in{i}": a for i, a in enumerate(arrays)})["y"]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


erf = np.vectorize(math.erf)

EXPECTED: dict[str, Callable[[Array], Array]] = {
    "affine": lambda x: x,
    "celu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    "clip": lambda x: np.clip(x, -1, 1),
    "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    "gelu": lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "hard_sigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "relu": lambda x: np.where(x > 0, x, 0),
    "scaled_softplus": lambda x: np.log1p(np.exp(x)),
    "scaled_tanh": np.tanh,
    "selu": lambda x: 1.0507010 * np.where(x > 0, x, 1.6732632 * (np.exp(x) - 1)),
    "shrink": lambda x: np.where(np.abs(x) > 0.5, x, 0),
    "sigmoid": sigmoid,
    "softplus": lambda x: np.log1p(np.exp(x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "swish": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
    "thresholded_relu": lambda x: np.where(x > 1, x, 0),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str) -> None:
    """The tolerance is for SELU, whose constants are given to eight digits."""
    x = np.linspace(-6, 6, 101)
    found = computed(lambda b, t: b.map(ACTIVATIONS[name], t), x)
    np.testing.assert_allclose(found, EXPECTED[name](x), rtol=1e-7, atol=1e-12)


def test_einsum() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 3, 4)), np.random.default_rng(1).normal(size=(4, 2))
    found = computed(partial(einsum, equation="bij,jb->ib"), x, y)
    np.testing.assert_allclose(found, np.einsum("bij,jb->ib", x, y), rtol=1e-12)


def test_conv_and_its_transpose_are_adjoint() -> None:
    """<conv(x), y> = <x, conv_transpose(y)>, with asymmetric pads, groups, strides and dilations."""
    rng = np.random.default_rng(2)
    x, w = rng.normal(size=(2, 4, 9, 8)), rng.normal(size=(6, 2, 3, 2))
    for dilations in ((1, 1), (2, 3)):
        steps = {"strides": (2, 1), "dilations": dilations, "pads": (1, 0, 1, 1), "groups": 2}
        y = computed(partial(conv, **steps), x, w)
        other = rng.normal(size=y.shape)
        back = computed(partial(conv_transpose, **steps), other, w)
        assert np.vdot(y, other) == pytest.approx(np.vdot(x, back), rel=1e-10)


def test_average_pool_with_same_padding() -> None:
    x = np.random.default_rng(3).normal(size=(1, 2, 5, 4))

    def pool(b: Builder, t: Tensor) -> Tensor:
        return average_pool(b, t, Window.same(b, t, (3, 3), strides=(2, 2)))

    around = np.pad(x, [(0, 0), (0, 0), (1, 1), (0, 1)], constant_values=np.nan)
    want = [[np.nanmean(around[:, :, i : i + 3, j : j + 3], (2, 3)) for j in (0, 2)] for i in (0, 2, 4)]
    np.testing.assert_allclose(computed(pool, x), np.transpose(want, (2, 3, 0, 1)), rtol=1e-12)


@pytest.mark.parametrize("shape", [(4, 9), (2, 3, 9), (9,)])
def test_zero_points_that_a_run_gives(shape: tuple[int, ...]) -> None:
    """A run gives the zero points. A single zero point of x is multiplied by the sums of the weights, from
    which the weights' zero point is subtracted."""
    rng = np.random.default_rng(len(shape))
    x, w = rng.integers(0, 256, shape).astype(np.uint8), rng.integers(-128, 128, (9, 5)).astype(np.int8)
    for zero in (0, 131, 255):
        found = computed(
            lambda b, t, z: integer_matmul(b, t, b.const(w), z, b.const(np.int8(3))), x, np.uint8(zero)
        )
        np.testing.assert_array_equal(found, (x.astype(np.int64) - zero) @ (w.astype(np.int64) - 3))


def test_quantized_product() -> None:
    """A product of u8 with a scale for each column is rounded once, so it is within half a step of the exact
    one."""
    rng = np.random.default_rng(4)
    x, w = rng.integers(0, 255, (5, 7)).astype(np.uint8), rng.integers(-99, 99, (7, 3)).astype(np.int8)
    scales, zero = np.array([0.01, 0.002, 0.03], np.float32), np.array(128, np.uint8)

    def product(b: Builder, t: Tensor) -> Tensor:
        sums = integer_matmul(b, t, b.const(w), b.const(zero))
        return requantize(b, sums, b.const(scales), b.const(zero))

    exact = (x.astype(np.float64) - 128) @ w * scales.astype(np.float64) + 128
    found = computed(product, x)
    assert found.dtype == np.uint8
    assert np.abs(found - np.clip(exact, 0, 255)).max() <= 0.5001
