"""Attention with symbolic lengths and shared heads, scans and determinants."""

from __future__ import annotations

import numpy as np
import pytest
from against import check
from one_node import Array, f32, lowered, model, run
from onnx.reference import ReferenceEvaluator


def attend(q: Array, k: Array, v: Array, hidden: Array | bool = False) -> Array:
    repeat = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, repeat, 1).astype(np.float64), np.repeat(v, repeat, 1)
    scores = np.where(hidden, -np.inf, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("past", [0, 3])
def test_causal_attention_of_shared_heads_and_symbolic_lengths(past: int) -> None:
    q, k, v = f32(2, 6, 4, 8), f32(2, 3, 4, 8, seed=1), f32(2, 3, 4, 5, seed=2)
    inputs: list[Array | None] = [q, k, v]
    dims = {i: ["batch", a.shape[1], "seq", a.shape[3]] for i, a in enumerate((q, k, v))}
    if past:
        before = [f32(2, 3, past, 8, seed=3), f32(2, 3, past, 5, seed=4)]
        inputs += [None, *before]
        k, v = np.concatenate([before[0], k], 2), np.concatenate([before[1], v], 2)
        dims |= {4: ["batch", 3, "past", 8], 5: ["batch", 3, "past", 5]}
    hidden = np.arange(4 + past)[None, :] > np.arange(4)[:, None] + past
    y, keys, values, _ = run("Attention", inputs, 23, outputs=4, is_causal=1, dims=dims)
    np.testing.assert_allclose(y, attend(q, k, v, hidden), 1e-5, 1e-6)
    np.testing.assert_array_equal(keys, k)
    np.testing.assert_array_equal(values, v)


def test_a_query_that_sees_nothing_gives_zero() -> None:
    q = f32(1, 1, 2, 4)
    mask = np.array([[False, False], [True, False]])
    (y,) = run("Attention", [q, q, q, mask], 23)
    np.testing.assert_allclose(y[0, 0], [np.zeros(4), q[0, 0, 0]], 1e-6)


@pytest.mark.parametrize("keys", [1, 5])
def test_heads_without_numbers_attend_alike(keys: int) -> None:
    """All scores are 0, so the result is the mean of the values."""
    q, k, v = f32(1, 2, 3, 0), f32(1, 2, keys, 0), f32(1, 2, keys, 4, seed=2)
    y, *_ = run("Attention", [q, k, v], 23)
    np.testing.assert_allclose(y, np.broadcast_to(v.mean(2, keepdims=True), y.shape), 1e-6)


@pytest.mark.parametrize("mask", [-np.inf, np.inf, np.nan, -3.4028235e38, -2e38])
@pytest.mark.parametrize("inside", [0, np.nan, np.inf])
def test_masks_and_queries_without_numbers(mask: float, inside: float) -> None:
    """Mask rows that hide everything or are infinite or NaN, and queries that are, give what ONNX defines.
    (ONNX Runtime replaces -inf by the lowest finite number.)"""
    q, k, v = f32(1, 2, 3, 4), f32(1, 2, 5, 4, seed=1), f32(1, 2, 5, 4, seed=2)
    q[0, 0, 2, 0] += inside
    added = np.zeros((3, 5), np.float32)
    added[0, 2], added[1] = mask, mask
    inputs = [q, k, v, added]
    with np.errstate(all="ignore"):
        feeds = {f"in{n}": a for n, a in enumerate(inputs)}
        want = ReferenceEvaluator(model("Attention", inputs, 23)).run(None, feeds)
        check("Attention", inputs, 23, dims={}, want=want)


def test_heads_share_one_product() -> None:
    """Attention with shared heads is two products. No key or value is repeated."""
    q, k = f32(1, 8, 3, 4), f32(1, 2, 5, 4)
    ops = [n.op for n in lowered("Attention", [q, k, k], 23).nodes]
    assert ops.count("matmul") == 2 and "expand" not in ops


@pytest.mark.parametrize("interleaved", [0, 1])
def test_part_of_a_head_is_rotated(interleaved: int) -> None:
    x, angle = f32(2, 3, 4, 6), f32(10, 2, seed=1)
    position = np.array([[0, 3, 9, 1], [2, 2, 4, 5]])
    cos, sin = np.cos(angle), np.sin(angle)
    (out,) = run(
        "RotaryEmbedding", [x, cos, sin, position], 23, interleaved=interleaved, rotary_embedding_dim=4
    )
    c, s = cos[position][:, None], sin[position][:, None]
    first, second = (slice(0, 4, 2), slice(1, 4, 2)) if interleaved else (slice(0, 2), slice(2, 4))
    want = x.copy()
    want[..., first] = x[..., first] * c - x[..., second] * s
    want[..., second] = x[..., first] * s + x[..., second] * c
    np.testing.assert_allclose(out, want, 1e-6, 1e-6)


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_running_sums_of_every_axis(reverse: int, exclusive: int) -> None:
    x = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
    for axis in range(-1, 3):
        ordered = np.flip(x, axis) if reverse else x
        want = np.cumsum(ordered, axis) - (ordered if exclusive else 0)
        want = np.flip(want, axis) if reverse else want
        constants = {1: np.array(axis)}
        (out,) = run("CumSum", [x], 14, constants=constants, reverse=reverse, exclusive=exclusive)
        np.testing.assert_array_equal(out, want)


def test_determinants_need_pivots() -> None:
    x = f32(4, 5, 5)
    x[0, 0, 0] = 0
    x[1, 3] = x[1, 2]
    (out,) = run("Det", [x], 22)
    np.testing.assert_allclose(out, np.linalg.det(x.astype(np.float64)), 1e-4, 1e-5)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_a_loss_in_16_bits_that_ignores_a_class(reduction: str) -> None:
    x, labels = np.log(np.abs(f32(4, 3)) + 0.1).astype(np.float16), np.array([0, 2, 1, 2], np.int32)
    (out,) = run("NegativeLogLikelihoodLoss", [x, labels], 13, reduction=reduction, ignore_index=2)
    each = np.where(labels == 2, 0, -x.astype(np.float64)[np.arange(4), labels])
    want = {"none": each, "sum": each.sum(), "mean": each.sum() / 2}[reduction]
    np.testing.assert_allclose(out, want, 2e-3)
