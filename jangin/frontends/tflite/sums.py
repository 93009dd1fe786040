"""Sums of two numbers of 8 bits in f32, where that gives each of the 65,536 pairs what TensorFlow Lite's
fixed-point arithmetic gives: two multiply-adds and a rounding, instead of three rescalings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from jangin.frontends.tflite.fixed import Multiplier
from jangin.ir.graph import Array
from jangin.ir.records import dataclass

NEAR = 2.0**-9
"""Sums that are so near to a half decide; f32 has all up to 256 with an error of 2 ** -17."""
STEPS = 2
"""Numbers of f32 before and behind a factor that are tried."""
MOVES = (0.0, *(sign * 2.0**-n for n in (17, 16, 15, 14, 13) for sign in (1, -1)))
"""What is added to all sums, in turn."""


@dataclass(frozen=True)
class Sum:
    """v * first + (w * second + more), rounded half to even, clamped from low to high, is the result."""

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
    """The sum near to that of such real numbers which gives all that are `wanted`, by the pair of `values`,
    products rounded before they are added or not; None where none is found."""
    v, w = (np.broadcast_to(a, wanted.shape) for a in (values[0][:, None], values[1]))
    sums = v * first + w * second + more
    decide = (np.abs(sums - np.floor(sums) - 0.5) < NEAR) & (sums > ends[0] - 1) & (sums < ends[1] + 1)
    few, v_few, w_few = wanted[decide], v[decide], w[decide]
    for a, b, move in product(_around(first), _around(second), MOVES):
        found = Sum(float(a), float(b), float(np.float32(more + move)))
        if _gives(found, few, v_few, w_few, ends) and _gives(found, wanted, v, w, ends):
            return found
    return None


def _around(x: float) -> Iterator[np.float32]:
    bits = np.float32(x).view(np.int32)
    for n in sorted(range(-STEPS, STEPS + 1), key=abs):
        yield (bits + np.int32(n)).view(np.float32)


def _gives(s: Sum, wanted: Array, v: Array, w: Array, ends: tuple[int, int]) -> bool:
    """f64 has the products and, before it is rounded, each sum with one of them."""
    for rounds in ("f8", "f4"):
        inner = ((w * s.second).astype(rounds).astype("f8") + s.more).astype("f4")
        total = ((v * s.first).astype(rounds).astype("f8") + inner).astype("f4")
        if not np.array_equal(np.clip(np.rint(total), *ends), wanted):
            return False
    return True


def times(m: Multiplier, x: Array) -> Array:
    """`Multiplier.times` of int32 in an array of int64, by a factor below 1 that isn't rounded once."""
    high = (x * m.value + (1 << 30)) >> 31
    half = (1 << -m.shift) >> 1
    below = (high < 0) if half else np.False_
    return (high + half - below.astype(np.int64)) >> -m.shift
