"""The neutral operators without any format: built with `Builder`, run by the interpreter, held to NumPy in
float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from jangin.ir.dtype import F64
from jangin.ir.expr import const
from jangin.ops.activation import ACTIVATIONS
from jangin.ops.builder import Builder, Tensor
from jangin.ops.interpret import run_graph
from jangin.ops.linear import einsum

Array = np.ndarray


def computed(make: Callable[..., Tensor], *arrays: Array) -> Array:
    """What `make(b, *tensors)` gives for inputs that are not known while building."""
    b = Builder("test", {})
    inputs = [b.input(f"in{i}", F64, tuple(map(const, a.shape))) for i, a in enumerate(arrays)]
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
    """Bound: SELU's constants are given to eight digits."""
    x = np.linspace(-6, 6, 101)
    found = computed(lambda b, t: b.map(ACTIVATIONS[name], t), x)
    np.testing.assert_allclose(found, EXPECTED[name](x), rtol=1e-7, atol=1e-12)


def test_einsum() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 3, 4)), np.random.default_rng(1).normal(size=(4, 2))
    found = computed(partial(einsum, equation="bij,jb->ib"), x, y)
    np.testing.assert_allclose(found, np.einsum("bij,jb->ib", x, y), rtol=1e-12)
