"""Convert floats to integers by scales and zero points: single ones, one for each index of an axis, or one
for each block along it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jangin.ir.dtype import I8, I32, U8, DType
from jangin.ir.graph import Array, CompileError
from jangin.ir.records import dataclass

LEAST = float(np.finfo(np.float32).tiny)
"""The smallest scale, the smallest normal float32. Quotients by smaller scales lose digits."""
PAIR = 127
"""The largest sum of two weights in a pair before rounding. After rounding the sum is at most 128, and 128
times a byte fits an int16."""


@dataclass(frozen=True)
class Scheme:
    """A quantization: x = (q - zero) * scale for the integers q of `dtype`.

    `scale` (f32) and `zero` have the shape [], or [n] for the n entries of `axis`. With `block`, they have
    the tensor's shape, with `axis` divided into blocks."""

    dtype: DType
    scale: Array
    zero: Array
    axis: int | None = None
    block: int = 0

    def checked(self, shape: Sequence[int | None], what: str) -> Scheme:
        """Return this scheme if it fits a tensor of the shape (None is an open size).

        Raises CompileError that names `what` if a scale or zero point is wrong, or if they don't fit."""

        def need(holds: bool, message: str) -> None:
            if not holds:
                raise CompileError(f"{what}: {message}")

        scale, zero, (low, high) = np.asarray(self.scale), np.asarray(self.zero), self.dtype.limits
        wrong = ~np.isfinite(scale) | (scale <= 0)
        if wrong.any():
            at = np.unravel_index(int(wrong.argmax()), scale.shape)
            where = f" at {list(map(int, at))}" if scale.ndim else ""
            need(False, f"a scale of {scale[at]}{where}: scales are finite and above 0")
        outside = (zero < low) | (zero > high)
        need(not outside.any(), f"a zero point out of {self.dtype}'s range, which is {low} to {high}")
        need(zero.shape == scale.shape, f"{zero.shape} zero points for {scale.shape} scales")
        if self.axis is None:
            need(scale.ndim == 0 and not self.block, f"{scale.size} scales without an axis to go along")
            return self
        need(0 <= self.axis < len(shape), f"axis {self.axis} doesn't exist: there are {len(shape)}")
        size = shape[self.axis]
        need(size is not None, f"axis {self.axis} has no fixed size")
        assert size is not None
        if not self.block:
            need(scale.shape == (size,), f"{scale.size} scales for the {size} entries of axis {self.axis}")
            return self
        need(self.block > 0, f"blocks of {self.block}")
        need(size % self.block == 0, f"blocks of {self.block} don't divide axis {self.axis} of {size}")
        wanted = tuple(d // self.block if i == self.axis else d for i, d in enumerate(shape) if d is not None)
        need(scale.shape == wanted, f"scales of shape {scale.shape}; blocks of {self.block} need {wanted}")
        return self

    def spread(self, t: Array, rank: int) -> Array:
        """Return a scale or zero point in a shape that broadcasts with a tensor of `rank` axes."""
        if self.axis is None:
            return t
        if self.block:
            return np.repeat(t, self.block, self.axis)
        return t.reshape([-1 if i == self.axis else 1 for i in range(rank)])

    def quantized(self, x: Array) -> Array:
        """Return floats quantized to integers. They are rounded half to even, and clamped to the type's
        range."""
        q = np.rint(x / self.spread(self.scale, x.ndim)) + self.spread(self.zero, x.ndim)
        return np.asarray(np.clip(q, *self.dtype.limits), self.dtype.numpy)

    def dequantized(self, q: Array) -> Array:
        """Return integers dequantized to f32."""
        whole = q.astype(np.float32) - self.spread(self.zero, q.ndim).astype(np.float32)
        return whole * self.spread(self.scale, q.ndim)

    def rounded(self, x: Array) -> Array:
        """Return floats after fake quantization: quantized, then dequantized."""
        return self.dequantized(self.quantized(x))


def of_range(low: float, high: float, dtype: DType = U8) -> Scheme:
    """Return the scheme for values from `low` to `high`. The range is widened to include zero, which is
    represented exactly."""
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    first, last = dtype.limits
    scale = np.float32(max((high - low) / (last - first), LEAST)) if high > low else np.float32(1)
    zero = np.clip(np.rint(first - low / scale), first, last)
    return Scheme(dtype, np.asarray(scale), np.asarray(zero, dtype.numpy))


def of_weights(
    w: Array, dtype: DType = I8, axis: int | None = None, block: int = 0, least: Array | None = None,
    most: int | None = None,
) -> Scheme:  # fmt: skip
    """Return a symmetric scheme for weights, with a scale for the tensor, for each index of `axis`, or for
    each block along it. The largest absolute weight of each scale becomes `most`, by default the type's
    largest.

    `least` are the least scales of the channels, for example so that a bias fits in 32 bits."""
    size = np.abs(w.astype(np.float64))
    if axis is None:
        largest = np.asarray(size.max(initial=0))
    elif block:
        if size.shape[axis] % block:
            raise CompileError(f"blocks of {block} don't divide axis {axis} of {size.shape[axis]}")
        cut = [*size.shape[:axis], size.shape[axis] // block, block, *size.shape[axis + 1 :]]
        largest = size.reshape(cut).max(axis + 1, initial=0)
    else:
        largest = size.max(tuple(i for i in range(w.ndim) if i != axis), initial=0)
    scale = largest / (dtype.limits[1] if most is None else most)
    if least is not None:
        scale = np.maximum(scale, least)
    scale = np.where(scale > 0, np.maximum(scale, LEAST), 1.0).astype(np.float32)
    return Scheme(dtype, scale, np.zeros(scale.shape, dtype.numpy), axis, block)


def of_pairs(w: Array, axis: int, terms: int) -> Array:
    """Return the least scale of each channel along `axis` for which pairs of weights stay small. Pairs are
    neighbours along `terms`. The absolute sum of a pair's positive or of its negative weights is at most
    128."""
    rows = np.moveaxis(w.astype(np.float64), (axis, terms), (0, -1))
    rows = np.pad(rows, [*[(0, 0)] * (w.ndim - 1), (0, w.shape[terms] % 2)])
    pairs = rows.reshape(len(rows), -1, 2)
    sums = (np.maximum(sign * pairs, 0).sum(-1).max(-1, initial=0) for sign in (1, -1))
    return np.asarray(np.maximum(*sums) / PAIR)


def bias_scheme(x: Scheme, w: Scheme) -> Scheme:
    """Return the scheme of a bias that is added to sums of products. It has 32-bit integers, and the product
    of both scales as its scale."""
    scale = (x.scale * w.scale).astype(np.float32)
    axis = None if w.axis is None else 0
    return Scheme(I32, scale, np.zeros(scale.shape, np.int32), axis)
