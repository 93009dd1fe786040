"""Numbers that are hard to order: NaN of both signs, both zeros, both infinities, and ties."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from jangin.ir.graph import Array

_N, _I = np.nan, np.inf
LINE = np.array([1, _N, 3, 3, -_I, -_N, 2, _I, 0.0, -0.0, -1, 3, -_I, _I, _N, -3], np.float32)
ROWS = np.stack([
    LINE, np.roll(LINE, 3), np.roll(LINE, 7)[::-1], np.where(np.isnan(LINE), -5, LINE), np.zeros(16),
    np.full(16, _N), np.full(16, -_I), np.tile([0.0, -0.0], 8),
]).astype(np.float32)  # fmt: skip
LEFT, RIGHT = np.repeat(LINE, 16).reshape(16, 16), np.tile(LINE, 16).reshape(16, 16)


def long_rows(dtype: type) -> Array:
    """Make rows in which few elements can be among the best, with no, some and many NaN."""
    rng = np.random.default_rng(11)
    x = rng.integers(-300, 300, (5, 2000)).astype(dtype)
    for row, count in ((1, 2), (2, 40), (3, 1998)):
        x[row, rng.choice(2000, count, replace=False)] = np.nan
    x[4, ::7] = -np.inf
    return x


def all_told(operators: Iterable[str], walked: Iterable[str], apart: Iterable[str]) -> None:
    """Check that each of a dialect's operators is either among the tested ones or among those that compare
    nothing."""
    told = [*walked, *apart]
    assert sorted(set(told)) == sorted(told), "an operator is told twice"
    assert set(operators) == set(told), sorted(set(operators) ^ set(told))


def pooled(x: Array, size: int, stride: int, pads: int = 0) -> Array:
    """Return the maximum of each window of an image's last two axes. It is NaN if the window has one."""
    wide = ((0, 0),) * (x.ndim - 2) + ((pads, pads),) * 2
    padded = np.pad(x, wide, constant_values=-np.inf)
    return np.lib.stride_tricks.sliding_window_view(padded, (size, size), (-2, -1))[
        ..., ::stride, ::stride, :, :
    ].max((-2, -1))


def softmax(x: Array, axis: int) -> Array:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)
