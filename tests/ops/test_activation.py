"""Activations far from 0 and in 16 bits, and softmax and hardmax of old opsets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from one_node import Array, f32, run

EDGES = np.array([-np.inf, -1e4, -100, -20, -1e-4, -0.0, 0, 1e-4, 20, 100, 1e4], np.float32)


@pytest.mark.parametrize("name, at_edges", [
    ("Softplus", [0, 0, 0, math.exp(-20), 0.69309718, math.log(2), math.log(2), 0.69319718, 20, 100, 1e4]),
    ("Sigmoid", [0, 0, 0, 2.0611537e-09, 0.499975, 0.5, 0.5, 0.500025, 1, 1, 1]),
    ("Elu", [-1, -1, -1, -1, -9.9995e-05, 0, 0, 1e-4, 20, 100, 1e4]),
])  # fmt: skip
def test_edges_neither_overflow_nor_lose_digits(name: str, at_edges: list[float]) -> None:
    (out,) = run(name, [EDGES], 13)
    np.testing.assert_allclose(out, np.array(at_edges, np.float32), 1e-6, 1e-42)


def erf(x: Array) -> Array:
    return np.vectorize(math.erf)(x)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str) -> None:
    x = f32(40) * 3
    wide = x.astype(np.float64)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    want = 0.5 * wide * (1 + (erf(wide / math.sqrt(2)) if approximate == "none" else np.tanh(inner)))
    np.testing.assert_allclose(run("Gelu", [x], 20, approximate=approximate)[0], want, 1e-5, 1e-6)


@pytest.mark.parametrize("name", ["Gelu", "FastGelu", "BiasGelu", "QuickGelu"])
def test_gelus_of_onnx_runtime(name: str) -> None:
    x, bias = f32(4, 8), f32(8, seed=1)
    biased = name in ("FastGelu", "BiasGelu")
    v = (x + bias if biased else x).astype(np.float64)
    want = v / (1 + np.exp(-1.702 * v)) if name == "QuickGelu" else 0.5 * v * (1 + erf(v / math.sqrt(2)))
    (out,) = run(name, [x, bias] if biased else [x], 17, domain="com.microsoft")
    np.testing.assert_allclose(out, want, 1e-3, 1e-3)


def test_selu_of_opset_1_has_its_own_defaults() -> None:
    x = np.array([1.0], np.float32)
    assert run("Selu", [x], 1)[0] == np.float32(1.0507)
    assert run("Selu", [x], 6)[0] == np.float32(1.05070102214813232421875)


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_before_opset_13_axes_are_flattened(name: str, axis: int) -> None:
    x = f32(2, 3, 4)
    rows = int(np.prod(x.shape[: axis % 3]))
    flat = x.reshape(rows, -1).astype(np.float64)
    want = np.exp(flat) / np.exp(flat).sum(1, keepdims=True)
    if name == "LogSoftmax":
        want = np.log(want)
    if name == "Hardmax":
        want = np.eye(flat.shape[1])[flat.argmax(1)]
    (out,) = run(name, [x], 11, axis=axis)
    np.testing.assert_allclose(out, want.reshape(x.shape), 1e-5)


def test_hardmax_takes_the_first_of_equals() -> None:
    (out,) = run("Hardmax", [np.array([[1, 5, 5], [0, 0, 0]], np.int32).astype(np.float32)], 13)
    np.testing.assert_array_equal(out, [[0, 1, 0], [1, 0, 0]])


def test_hardmax_takes_the_first_nan() -> None:
    x = np.array([[1, np.nan, np.nan, 3], [np.nan] * 4, [-np.inf] * 4], np.float32)
    (out,) = run("Hardmax", [x], 13)
    np.testing.assert_array_equal(out, np.eye(4)[[1, 0, 0]])


def test_16_bit_softmax_of_a_symbolic_batch() -> None:
    x = f32(3, 5).astype(np.float16)
    (out,) = run("Softmax", [x], 11, dims={0: ["batch", 5]})
    wide = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(out, wide / wide.sum(1, keepdims=True), 1e-3)
