"""Normalizations against NumPy: old versions, types, extra outputs, and quantization by blocks."""

from __future__ import annotations

import numpy as np
import pytest
from one_node import Array, f32, lowered, model, run
from onnx.reference import ReferenceEvaluator

from jangin.passes.algebra.simplify import simplify


def normal(x: Array, axes: tuple[int, ...], epsilon: float = 1e-5) -> Array:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axes, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axes, keepdims=True) + epsilon)


STATISTICS = [f32(3, seed=s) for s in (1, 2, 3)] + [np.abs(f32(3, seed=4)) + 0.5]


@pytest.mark.parametrize("opset, attrs", [(6, {"is_test": 1}), (7, {}), (9, {}), (13, {}), (15, {})])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_batch_normalization_by_stored_statistics(opset: int, attrs: dict[str, int], dtype: type) -> None:
    x = f32(2, 3, 4, 5).astype(dtype)
    scale, bias, mean, var = (s.astype(dtype) for s in STATISTICS)
    constants = dict(enumerate((scale, bias, mean, var), start=1))
    (out,) = run("BatchNormalization", [x], opset, constants=constants, **attrs)
    a, b, m, v = (s.astype(np.float64)[:, None, None] for s in (scale, bias, mean, var))
    assert out.dtype == dtype
    np.testing.assert_allclose(
        out, (x - m) / np.sqrt(v + 1e-5) * a + b, 1e-5 if dtype is np.float32 else 2e-2, 1e-2
    )


def test_constant_statistics_leave_one_map() -> None:
    constants = dict(enumerate(STATISTICS, start=1))
    graph = lowered("BatchNormalization", [f32(2, 3, 4)], 15, constants=constants)
    assert [n.op for n in simplify(graph).nodes] == ["map"]


def test_constant_statistics_are_rounded_once() -> None:
    constants = dict(enumerate(STATISTICS, start=1))
    graph = simplify(lowered("BatchNormalization", [f32(2, 3, 4)], 15, constants=constants))
    scale, bias, mean, var = (s.astype(np.float64) for s in STATISTICS)
    slope = scale / np.sqrt(var + np.float32(1e-5).astype(np.float64))
    found = [graph.constants[n].reshape(-1) for n in graph.nodes[-1].inputs if n in graph.constants]
    for got, want in zip(found, (slope, bias - mean * slope), strict=True):
        assert np.all(np.abs(got - want) <= 0.500001 * np.spacing(np.abs(got)))


def test_batch_normalization_by_element() -> None:
    x, stats = f32(2, 3, 2), [np.abs(f32(3, 2, seed=s)) for s in range(4)]
    (out,) = run("BatchNormalization", [x, *stats], 7, spatial=0)
    scale, bias, mean, var = stats
    np.testing.assert_allclose(out, (x - mean) / np.sqrt(var + 1e-5) * scale + bias, 1e-4, 1e-5)


@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_normalization_gives_mean_and_inverse_deviation(axis: int) -> None:
    x = f32(2, 3, 4).astype(np.float16)
    shape = x.shape[axis % 3 :]
    scale, bias = f32(*shape, seed=1).astype(np.float16), f32(*shape, seed=2).astype(np.float16)
    y, mean, inverse = run("LayerNormalization", [x, scale, bias], 17, outputs=3, axis=axis)
    axes = tuple(range(axis % 3, 3))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(y, normal(x, axes) * scale + bias, 1e-2, 1e-2)
    np.testing.assert_allclose(mean, wide.mean(axes, keepdims=True), 1e-4, 1e-5)
    np.testing.assert_allclose(inverse, 1 / np.sqrt(wide.var(axes, keepdims=True) + 1e-5), 1e-4)
    assert mean.dtype == inverse.dtype == np.float32 and y.dtype == np.float16


@pytest.mark.parametrize("opset", [18, 21])
def test_groups_are_scaled_by_group_or_by_channel(opset: int) -> None:
    x = f32(2, 4, 3)
    n = 2 if opset == 18 else 4
    scale, bias = f32(n, seed=1), f32(n, seed=2)
    (out,) = run("GroupNormalization", [x, scale, bias], opset, num_groups=2)
    a, b = (np.repeat(s, 4 // n)[:, None] for s in (scale, bias))
    want = normal(x.reshape(2, 2, 6), (2,)).reshape(x.shape) * a + b
    np.testing.assert_allclose(out, want, 1e-4, 1e-5)


def test_skip_layer_normalization_gives_the_sum() -> None:
    x, skip, gamma, beta, bias = f32(2, 3, 8), f32(2, 3, 8, seed=1), *(f32(8, seed=s) for s in (2, 3, 4))
    outs = run(
        "SkipLayerNormalization",
        [x, skip, gamma, beta, bias],
        17,
        outputs=4,
        domain="com.microsoft",
        epsilon=1e-5,
    )
    np.testing.assert_allclose(outs[3], x + skip + bias, 1e-6)
    np.testing.assert_allclose(outs[0], normal(x + skip + bias, (2,)) * gamma + beta, 1e-4, 1e-5)


def test_a_norm_of_zero_gives_zero() -> None:
    (out,) = run("LpNormalization", [np.array([[0, 0], [3, 4]], np.float32)], 22)
    np.testing.assert_allclose(out, [[0, 0], [0.6, 0.8]], 1e-6)


def test_lrn_at_the_ends() -> None:
    x = f32(1, 5, 2, 2)
    (out,) = run("LRN", [x], 13, size=4, alpha=0.3, beta=0.6, bias=2.0)
    sums = np.stack([(x[:, max(0, c - 1) : c + 3] ** 2).sum(1) for c in range(5)], 1)
    np.testing.assert_allclose(out, x / (2 + 0.3 / 4 * sums) ** 0.6, 1e-5)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_quantizing_by_axis_saturates_and_goes_back(dtype: type) -> None:
    x = f32(3, 4) * 1000
    scale, zero = np.array([0.5, 2, 16, 100], np.float32), np.array([1, 2, 3, 4], dtype)
    ends = np.iinfo(dtype)
    want = np.clip(np.rint(x / scale) + zero, ends.min, ends.max)
    (q,) = run("QuantizeLinear", [x, scale, zero], 21, axis=-1)
    np.testing.assert_array_equal(q, want.astype(dtype))
    (back,) = run("DequantizeLinear", [q, scale, zero], 21, axis=1)
    np.testing.assert_allclose(back, (want - zero) * scale, 1e-6)


def test_quantizing_by_blocks_with_a_short_last_one() -> None:
    x = f32(2, 5) * 10
    scale = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], np.float32)
    (q,) = run("QuantizeLinear", [x, scale, np.zeros((2, 3), np.int8)], 21, axis=1, block_size=2)
    spread = np.repeat(scale, 2, 1)[:, :5]
    np.testing.assert_array_equal(q, np.clip(np.rint(x / spread), -128, 127).astype(np.int8))


def test_dynamic_quantization_of_zeros() -> None:
    y, scale, zero = run("DynamicQuantizeLinear", [np.zeros(4, np.float32)], 11, outputs=3)
    assert not y.any() and scale == 1 and zero == 0


@pytest.mark.parametrize("values", [
    [-np.inf, 1, 2, 3], [np.inf, -np.inf, np.inf, 0], [-np.inf] * 4, [np.inf, 1, 2, 3], [3e38, -3e38, 1, 2],
    [1e-45, 0, 0, 0], [1e-40, -1e-40, 0, 1e-41],
])  # fmt: skip
def test_dynamic_quantization_of_a_range_beyond_numbers(values: list[float]) -> None:
    """The result is that of ONNX Runtime and of ONNX's reference, even if the range overflows or its 255th
    part is 0."""
    x = np.array(values, np.float32)
    with np.errstate(all="ignore"):
        want = ReferenceEvaluator(model("DynamicQuantizeLinear", [x], 11, outputs=3)).run(None, {"in0": x})
    for got, right in zip(run("DynamicQuantizeLinear", [x], 11, outputs=3), want, strict=True):
        np.testing.assert_array_equal(got, right)


def test_dynamic_quantization_of_nan_says_so_in_its_scale() -> None:
    y, scale, zero = run("DynamicQuantizeLinear", [np.array([1, np.nan], np.float32)], 11, outputs=3)
    assert not y.any() and np.isnan(scale) and zero == 255
