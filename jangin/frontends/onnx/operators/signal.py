"""ONNX signal operators: discrete Fourier transforms as products with constant matrices."""

from __future__ import annotations

import numpy as np

from jangin.frontends.onnx.registry import op
from jangin.frontends.onnx.types import element_type
from jangin.ir.graph import Array, CompileError, static_shape
from jangin.ops.axes import axis_of, integers
from jangin.ops.builder import Builder, Tensor
from jangin.ops.conv import conv
from jangin.ops.linear import matmul


def dft_matrix(n: int, parts: int, inverse: bool, onesided: bool) -> Array:
    """[n, parts, bins, 2] in f64: what entry (re, im of `parts`) of n adds to (re, im) of each bin.
    With `onesided` only the first n // 2 + 1 bins."""
    bins = n // 2 + 1 if onesided else n
    angle = 2 * np.pi * (np.outer(np.arange(n), np.arange(bins)) % n) / n
    cos, sin = np.cos(angle), np.sin(angle) * (-1 if inverse else 1)
    table = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], 1)
    return table[:, :parts] / (n if inverse else 1)


def inverse_real_matrix(n: int) -> Array:
    """[n // 2 + 1, 2, n, 1] in f64: one-sided bins to the real signal of length n. Every bin but the
    first (and the last, of an even n) also stands for its mirror image."""
    bins = n // 2 + 1
    angle = 2 * np.pi * (np.outer(np.arange(bins), np.arange(n)) % n) / n
    count = np.full((bins, 1), 2.0)
    count[0] = 1
    if n % 2 == 0:
        count[-1] = 1
    return np.stack([count * np.cos(angle), -count * np.sin(angle)], 1)[..., None] / n


def _fitted(b: Builder, x: Tensor, axis: int, size: int) -> Tensor:
    """`x` cut or filled with zeros to `size` entries along an axis."""
    have = static_shape((x.shape[axis],))
    if have is None:
        raise CompileError(f"DFT of {x}: the size of axis {axis} must be known; fix it with shapes=")
    ends = [size - have[0] if i == axis else 0 for i in range(x.rank)]
    return b.pad(x, [0] * x.rank + ends)


def transform(
    b: Builder, x: Tensor, length: Tensor | None, axis: int, inverse: bool, onesided: bool
) -> Tensor:
    axis = axis_of(axis, x.rank)
    parts = static_shape(x.shape[-1:])
    if axis == x.rank - 1 or parts not in ((1,), (2,)):
        raise CompileError(f"DFT of {x} along axis {axis}: the last axis must hold 1 or 2 parts")
    real_result = inverse and onesided
    if length is not None:
        n = integers(b, length, "DFT's length")[0]
    else:
        size = static_shape((x.shape[axis],))
        if size is None:
            raise CompileError(f"DFT of {x}: the size of axis {axis} must be known; fix it with shapes=")
        n = 2 * (size[0] - 1) if real_result else size[0]
    if n < 1:
        raise CompileError(f"DFT of {x} with length {n}")
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


@op("DFT", since=17)
def dft_17(
    b: Builder, x: Tensor, length: Tensor | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Tensor:
    return transform(b, x, length, axis, bool(inverse), bool(onesided))


@op("DFT", since=20)
def dft(
    b: Builder,
    x: Tensor,
    length: Tensor | None = None,
    axis: Tensor | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Tensor:
    at = -2 if axis is None else integers(b, axis, "DFT's axis")[0]
    return transform(b, x, length, at, bool(inverse), bool(onesided))


@op("STFT", since=17)
def stft(
    b: Builder,
    signal: Tensor,
    frame_step: Tensor,
    window: Tensor | None = None,
    frame_length: Tensor | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    """A convolution: one filter for each bin's real and imaginary part, the stride the step."""
    (step,) = integers(b, frame_step, "STFT's frame_step")
    if frame_length is not None:
        n: int | None = integers(b, frame_length, "STFT's frame_length")[0]
    else:
        size = static_shape(signal.shape[1:2] if window is None else window.shape)
        n = size[0] if size else None
    parts = static_shape(signal.shape[2:])
    if n is None or parts not in ((1,), (2,)):
        raise CompileError(f"STFT of {signal}: the frame length, and 1 or 2 parts at the end, must be known")
    table = dft_matrix(n, parts[0], False, bool(onesided))
    bins = table.shape[2]
    filters = table.transpose(2, 3, 1, 0).reshape(bins * 2, parts[0], n)
    weights = b.const(filters.astype(signal.dtype.numpy))
    if window is not None:
        weights = b.map(lambda v, w: v * w, weights, window)
    y = conv(b, b.transpose(signal, [0, 2, 1]), weights, strides=[step])
    y = b.transpose(y, [0, 2, 1])
    return b.reshape(y, [*y.shape[:2], bins, 2])


@op("MelWeightMatrix", since=17)
def mel_weight_matrix(
    b: Builder, bins: Tensor, dft_length: Tensor, sample_rate: Tensor, lower: Tensor, upper: Tensor,
    *, output_datatype: int = 1,
) -> Tensor:  # fmt: skip
    """[dft_length // 2 + 1, bins]: triangles evenly spaced on the mel scale 2595 log10(1 + f / 700)."""
    count, length, rate = (
        integers(b, t, f"MelWeightMatrix's {what}")[0]
        for t, what in ((bins, "num_mel_bins"), (dft_length, "dft_length"), (sample_rate, "sample_rate"))
    )
    low, high = (
        2595 * np.log10(1 + float(b.require_constant(t, "MelWeightMatrix's edges").reshape(())) / 700)
        for t in (lower, upper)
    )
    mels = low + np.arange(count + 2) * ((high - low) / (count + 2))
    edges = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate).astype(int)
    left, peak, right = edges[:-2], edges[1:-1], edges[2:]
    j = np.arange(length // 2 + 1)[:, None]
    rising = np.where(peak == left, j == peak, (j - left) / np.maximum(peak - left, 1))
    falling = (right - j) / np.maximum(right - peak, 1)
    table = np.where((j >= left) & (j <= peak), rising, 0.0)
    table = np.where((j >= peak) & (j < right) & (right > peak), falling, table)
    return b.const(table.astype(element_type(output_datatype).numpy))
