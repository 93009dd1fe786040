"""Discrete Fourier transforms, as products with constant matrices, and mel scales."""

from __future__ import annotations

import math

import numpy as np

from jangin.ir.graph import Array, CompileError, static_shape
from jangin.ops.axes import axis_of
from jangin.ops.builder import Builder
from jangin.ops.conv import conv
from jangin.ops.linear import matmul
from jangin.ops.values import Tensor

MOST_ENTRIES = 1 << 28
"""Most numbers in a transform's table. The table grows with the square of the length; this one takes 2 GiB in
f64."""


def _check_length(n: int) -> None:
    if not (n >= 1 and 2 * n * n <= MOST_ENTRIES):
        raise CompileError(
            f"a discrete Fourier transform of length {n}: it is a product with a table, and may be 1 to "
            f"{math.isqrt(MOST_ENTRIES // 2)} long"
        )


def dft_matrix(n: int, parts: int, inverse: bool, onesided: bool) -> Array:
    """Return [n, parts, bins, 2] in f64: the amount that entry (re, im of `parts`) of n adds to (re, im) of
    each bin. With `onesided` there are only the first n // 2 + 1 bins."""
    bins = n // 2 + 1 if onesided else n
    angle = 2 * np.pi * (np.outer(np.arange(n), np.arange(bins)) % n) / n
    cos, sin = np.cos(angle), np.sin(angle) * (-1 if inverse else 1)
    table = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], 1)
    return table[:, :parts] / (n if inverse else 1)


def inverse_real_matrix(n: int) -> Array:
    """Return [n // 2 + 1, 2, n, 1] in f64, which transforms one-sided bins to the real signal of length n.
    Every bin but the first (and the last, of an even n) also stands for its mirror image."""
    bins = n // 2 + 1
    angle = 2 * np.pi * (np.outer(np.arange(bins), np.arange(n)) % n) / n
    count = np.full((bins, 1), 2.0)
    count[0] = 1
    if n % 2 == 0:
        count[-1] = 1
    return np.stack([count * np.cos(angle), -count * np.sin(angle)], 1)[..., None] / n


def _unknown(x: Tensor, axis: int) -> CompileError:
    reason = f"the DFT of {x}: the size of axis {axis} must be known; fix it with shapes="
    return CompileError(reason, [x.shape[axis]])


def _fitted(b: Builder, x: Tensor, axis: int, size: int) -> Tensor:
    """Return `x` cut or padded with zeros to `size` entries along an axis."""
    have = static_shape((x.shape[axis],))
    if have is None:
        raise _unknown(x, axis)
    ends = [size - have[0] if i == axis else 0 for i in range(x.rank)]
    return b.pad(x, [0] * x.rank + ends)


def dft(
    b: Builder, x: Tensor, *, axis: int, length: int | None = None, inverse: bool = False,
    onesided: bool = False,
) -> Tensor:  # fmt: skip
    """Return the discrete Fourier transform along `axis`, as a product with a constant matrix: [..., 2].

    x [..., parts] has one real part or (re, im), and is cut or padded with zeros to `length`. `onesided`:
    only the first length // 2 + 1 bins, from which the inverse makes a real signal [..., 1] of `length`.
    """
    axis = axis_of(axis, x.rank)
    parts = static_shape(x.shape[-1:])
    if axis == x.rank - 1 or parts not in ((1,), (2,)):
        raise CompileError(f"the DFT of {x} along axis {axis}: the last axis must hold 1 or 2 parts")
    real_result = inverse and onesided
    if length is None:
        size = static_shape((x.shape[axis],))
        if size is None:
            raise _unknown(x, axis)
        length = 2 * (size[0] - 1) if real_result else size[0]
    n = length
    _check_length(n)
    if real_result:
        table = inverse_real_matrix(n)[:, : parts[0]]
    else:
        table = dft_matrix(n, parts[0], inverse, onesided)
    rows, comps, bins, out = table.shape
    x = _fitted(b, x, axis, rows)
    order = [i for i in range(x.rank - 1) if i != axis] + [axis, x.rank - 1]
    turned = b.transpose(x, order)
    outer = turned.shape[:-2]
    matrix = b.const(table.reshape(rows * comps, bins * out).astype(x.dtype.numpy))
    y = matmul(b, b.reshape(turned, [*outer, rows * comps]), matrix)
    y = b.reshape(y, [*outer, bins, out])
    return b.transpose(y, [order.index(i) for i in range(x.rank)])


def stft(
    b: Builder, signal: Tensor, window: Tensor | None, *, frame: int, step: int, onesided: bool = True
) -> Tensor:
    """Return the short-time Fourier transform of signal [N, samples, parts], with frames times `window`
    [frame]: [N, frames, bins, 2].

    It is a convolution with stride `step`, and one filter for each bin's real and imaginary part.
    """
    parts = static_shape(signal.shape[2:])
    if parts not in ((1,), (2,)):
        raise CompileError(f"the STFT of {signal}: 1 or 2 parts must stand at the end")
    _check_length(frame)
    if step < 1:
        raise CompileError(f"the STFT of {signal}: the step of frames is {step}, but must be 1 or more")
    table = dft_matrix(frame, parts[0], False, onesided)
    bins = table.shape[2]
    filters = table.transpose(2, 3, 1, 0).reshape(bins * 2, parts[0], frame)
    weights = b.const(filters.astype(signal.dtype.numpy))
    if window is not None:
        weights = b.map(lambda v, w: v * w, weights, window)
    y = conv(b, b.transpose(signal, [0, 2, 1]), weights, strides=(step,))
    y = b.transpose(y, [0, 2, 1])
    return b.reshape(y, [*y.shape[:2], bins, 2])


MOST_WEIGHTS = 1 << 24
"""Most weights of a mel filter bank, which is made while compiling. This is a thousand times the size of
speech models' filter banks."""


def mel_weights(bins: int, length: int, rate: int, lower: float, upper: float) -> Array:
    """Return a mel filter bank [length // 2 + 1, bins] in f64. It has the weight of each bin of a one-sided
    transform in each mel bin.

    The transform has `length` samples at `rate` hertz. The filters are triangles evenly spaced on the mel
    scale 2595 log10(1 + f / 700), from `lower` to `upper` hertz (O'Shaughnessy 1987). Raises CompileError
    beyond `MOST_WEIGHTS`.
    """
    if bins < 0 or length < 0 or (length // 2 + 1) * bins > MOST_WEIGHTS:
        raise CompileError(
            f"mel weights [{length // 2 + 1}, {bins}]: both sizes must be from 0 on, their product at most "
            f"{MOST_WEIGHTS}"
        )
    low, high = (2595 * np.log10(1 + f / 700) for f in (lower, upper))
    mels = low + np.arange(bins + 2) * ((high - low) / (bins + 2))
    edges = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate).astype(int)
    left, peak, right = edges[:-2], edges[1:-1], edges[2:]
    j = np.arange(length // 2 + 1)[:, None]
    rising = np.where(peak == left, j == peak, (j - left) / np.maximum(peak - left, 1))
    falling = (right - j) / np.maximum(right - peak, 1)
    table = np.where((j >= left) & (j <= peak), rising, 0.0)
    return np.where((j >= peak) & (j < right) & (right > peak), falling, table)
