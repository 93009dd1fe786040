"""Neutral operators of several core nodes without a format: built with `Builder`, run by the interpreter, and
compared with NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from test_neutral import Array, computed, sigmoid

from jangin.ir.dtype import I64
from jangin.ir.expr import const
from jangin.ops.attention import Kept, Window, attend_one, attention
from jangin.ops.builder import Builder
from jangin.ops.normalize import group_norm
from jangin.ops.recurrent import Layer, lstm
from jangin.ops.scatter import unpool
from jangin.ops.signal import dft
from jangin.ops.values import Tensor


def random(*shape: int) -> Array:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape)


def test_attention_with_shared_keys_in_a_window() -> None:
    """Four heads share two groups of keys. Three queries, behind two earlier keys, see at most three
    positions back."""
    q, k, v = random(2, 4, 3, 8), random(2, 2, 5, 8), random(2, 2, 5, 6)

    def make(b: Builder, *t: Tensor) -> Tensor:
        return attention(b, *t, window=Window(causal=True, left=3), past=2, scale=0.3).y

    scores = 0.3 * q @ np.repeat(k, 2, 1).swapaxes(2, 3)
    i, j = np.arange(3)[:, None] + 2, np.arange(5)
    powers = np.where((j <= i) & (i - j <= 3), np.exp(scores), 0)
    expected = powers / powers.sum(-1, keepdims=True) @ np.repeat(v, 2, 1)
    np.testing.assert_allclose(computed(make, q, k, v), expected, rtol=1e-12)


@pytest.mark.parametrize("past", [0, 5])
def test_one_query_sees_the_past_where_it_lies(past: int) -> None:
    """One query over a cache gives the same as attention to the joined keys and values."""
    q, k, v, own_k, own_v = (random(2, h, n, 8) for h, n in ((4, 1), (2, past), (2, past), (2, 1), (2, 1)))

    def make(b: Builder, q: Tensor, k: Tensor, v: Tensor, *own: Tensor) -> Tensor:
        kept, mixed = (Kept(b.transpose(t, (0, 2, 1, 3))) for t in (k, v))
        return attend_one(b, q, (kept, mixed), (own[0], own[1]))

    found = computed(make, q, k, v, own_k, own_v)
    keys, values = np.concatenate([k, own_k], 2), np.concatenate([v, own_v], 2)
    expected = computed(lambda b, *t: attention(b, *t).y, q, keys, values)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_group_norm() -> None:
    x, scale, shift = random(2, 6, 3, 4), random(6), random(6) + 1
    grouped = x.reshape(2, 3, -1)
    centred = grouped - grouped.mean(-1, keepdims=True)
    norm = (centred / np.sqrt(grouped.var(-1, keepdims=True) + 1e-3)).reshape(x.shape)
    expected = norm * scale[:, None, None] + shift[:, None, None]
    found = computed(lambda b, *t: group_norm(b, *t, groups=3, epsilon=1e-3), x, scale, shift)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_unpool_takes_a_pooling_back() -> None:
    x, places = np.array([[5.0, 7.0]]), np.array([[1.0, 5.0]])
    found = computed(lambda b, t, at: unpool(b, t, b.cast(at, I64), (const(1), const(6))), x, places)
    np.testing.assert_array_equal(found, [[0, 5, 0, 0, 0, 7]])


def test_lstm_with_gates_in_another_order() -> None:
    """PyTorch's order of gates: input, forget, candidate, output. The LSTM runs three steps backwards from a
    given state."""
    gates = ("input", "forget", "candidate", "output")
    x, w, r = random(3, 2, 4), random(1, 20, 4), random(1, 20, 5)
    bias, h, c = random(1, 2, 4, 5), random(1, 2, 5), random(1, 2, 5) + 1

    def make(b: Builder, *t: Tensor) -> Tensor:
        y, *_ = lstm(b, Layer(*t[:4], backward=(True,)), h=t[4], c=t[5], gates=gates)
        return y

    hidden, cell, expected = h[0], c[0], np.zeros((1, 3, 2, 5))
    for step in (2, 1, 0):
        sums = x[step] @ w[0].T + hidden @ r[0].T + bias[0].sum(0).reshape(-1)
        enter, keep, new, leave = np.split(sums, 4, 1)
        cell = sigmoid(keep) * cell + sigmoid(enter) * np.tanh(new)
        hidden = expected[0, step] = sigmoid(leave) * np.tanh(cell)
    np.testing.assert_allclose(computed(make, x, w, r, bias, h, c), expected, rtol=1e-12)


def test_one_sided_transform_and_back() -> None:
    """Seven samples are cut to six, along the middle axis. The first axis is a batch."""
    x = random(3, 7, 1)
    bins = np.fft.rfft(x[:, :6, 0], axis=1)
    found = computed(lambda b, t: dft(b, t, axis=1, length=6, onesided=True), x)
    np.testing.assert_allclose(found, np.stack([bins.real, bins.imag], -1), rtol=1e-12, atol=1e-12)
    back = computed(lambda b, t: dft(b, t, axis=1, length=6, inverse=True, onesided=True), found)
    np.testing.assert_allclose(back, x[:, :6], rtol=1e-12, atol=1e-12)
