"""Compute sums of two 8-bit numbers in f32, with the results of TensorFlow Lite's fixed-point arithmetic.

Two multiply-adds and a rounding replace three rescalings. This is done only if all 65,536 pairs give the same
results."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from jangin.frontends.tflite.fixed import Multiplier
from jangin.ir.graph import Array
from jangin.ir.records import dataclass

NEAR = 2.0**-9
"""A sum may be rounded in another way only if it is nearer than this to a half. These sums are compared
first. The error of f32 is at most 2 ** -17 for sums up to 256."""
STEPS = 2
"""This many neighbours in f32 are tried on each side of a factor. The factor is a quotient of a few
roundings, so the right one is near."""
MOVES = (0.0, *(sign * 2.0**-n for n in (17, 16, 15, 14, 13) for sign in (1, -1)))
"""Offsets that are tried one after another. An offset is added to all sums."""


@dataclass(frozen=True)
class Sum:
    """The sum v * `first` + (w * `second` + `more`) of two operands v and w. The sum is rounded to the
    nearest integer, with ties to even, and then clamped."""

    first: float
    second: float
    more: float


def in_floats(
    wanted: Array,
    first: float,
    second: float,
    more: float,
    values: tuple[Array, Array],
    ends: tuple[int, int],
) -> Sum | None:
    """Return f32 factors near to the given real ones. With these factors, the sums equal `wanted` for all
    pairs of `values`. Return None if no such factors are found.

    The results are equal whether or not a processor rounds the products before it adds them."""
    v, w = (np.broadcast_to(a, wanted.shape) for a in (values[0][:, None], values[1]))
    sums = v * first + w * second + more
    decide = (np.abs(sums - np.floor(sums) - 0.5) < NEAR) & (sums > ends[0] - 1) & (sums < ends[1] + 1)
    few, v_few, w_few = wanted[decide], v[decide], w[decide]
    for a, b, move in product(_around(first), _around(second), MOVES):
        factors = Sum(float(a), float(b), float(np.float32(more + move)))
        if _gives(factors, few, v_few, w_few, ends) and _gives(factors, wanted, v, w, ends):
            return factors
    return None


def _around(x: float) -> Iterator[np.float32]:
    bits = np.float32(x).view(np.int32)
    for n in sorted(range(-STEPS, STEPS + 1), key=abs):
        yield (bits + np.int32(n)).view(np.float32)


def _gives(s: Sum, wanted: Array, v: Array, w: Array, ends: tuple[int, int]) -> bool:
    """Tell if a sum gives all wanted results, with products that are rounded to f32 as well as with exact
    products. An f64 holds a product of two f32 exactly, and also the sum of one product and an f32."""
    for rounds in ("f8", "f4"):
        inner = ((w * s.second).astype(rounds).astype("f8") + s.more).astype("f4")
        total = ((v * s.first).astype(rounds).astype("f8") + inner).astype("f4")
        if not np.array_equal(np.clip(np.rint(total), *ends), wanted):
            return False
    return True


def times(m: Multiplier, x: Array) -> Array:
    """Return `Multiplier.times` of int32 numbers, which are in an int64 array. The factor must be below 1 and
    not rounded `once`."""
    high = (x * m.value + (1 << 30)) >> 31
    half = (1 << -m.shift) >> 1
    below = (high < 0) if half else np.False_
    return (high + half - below.astype(np.int64)) >> -m.shift
