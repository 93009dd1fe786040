"""Lower division, logarithms and L2 normalization of quantized numbers in fixed-point arithmetic.

LiteRT's reference kernels compute them by Newton's method (see `fixed`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jangin.frontends.registry import lowers
from jangin.frontends.tflite import fixed
from jangin.frontends.tflite.operators.common import (
    Call,
    activated,
    constants,
    leading_zeros,
    limits,
    number,
    rescaled,
    stored,
)
from jangin.ir.dtype import I8, I64, U8
from jangin.ir.expr import Expr, ExprLike, binary, cast, const, maximum, minimum, select
from jangin.ir.expr import call as intrinsic
from jangin.ir.graph import CompileError
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor


def doubled_high(x: Expr, y: ExprLike) -> Expr:
    """Return the expression for `fixed.doubled_high`, in i64."""
    return binary("shr", x * y + (1 << 30), const(31, I64))


def inside(x: Expr) -> Expr:
    """Return x clamped to the range of an int32."""
    return minimum(maximum(x, const(fixed.LOW, I64)), const(fixed.HIGH, I64))


def divided(x: Expr, exponent: Expr) -> Expr:
    """Return the expression for `fixed.divided`, in i64."""
    half = select(exponent > 0, binary("shl", const(1, I64), maximum(exponent - 1, 0)), const(0, I64))
    below = select(exponent > 0, cast(I64, x < 0), const(0, I64))
    return binary("shr", x + half - below, exponent)


def looked_up(b: Builder, table: Sequence[int], places: Tensor) -> Tensor:
    """Return entries of a table of int32 numbers, as i64."""
    return b.cast(b.gather(b.const(np.array(table, np.int32)), places, 0), I64)


def reciprocal(a: Expr) -> Expr:
    """Return the expression for `fixed.reciprocal`, in i64."""
    half = binary("shr", a + fixed.ONE + 1, const(1, I64))
    y = doubled_high(half, const(fixed.SLOPE, I64)) + fixed.START
    for _ in range(3):
        y = y + inside(binary("shl", doubled_high(y, (1 << 29) - doubled_high(half, y)), const(2, I64)))
    return inside(binary("shl", y, const(1, I64)))


@lowers("DIV")
def div(call: Call) -> Tensor:
    """Return x / y.

    For integers, the numerator is shifted to use all its bits, and multiplied by the denominator's
    reciprocal."""
    if not call.is_integer:
        return activated(call, call.b.map(_quotient, number(call), call.x(1)))
    b, (x, y), out = call.b, call.given[:2], call.out
    (low, top), (least, most), dtype = y.limits, limits(call), out.dtype
    assert dtype is not None
    largest = max(top - y.zero, y.zero - low)
    bits = [n.bit_length() for n in range(largest + 1)]
    inverses = [0, *(fixed.reciprocal((n << (32 - k)) - (1 << 31)) for n, k in enumerate(bits) if n)]
    size = b.map(lambda v: intrinsic("abs", cast(I64, v) - y.zero), call.x(1))
    inverse, over = (looked_up(b, t, size) for t in (inverses, bits))
    f32 = np.float32
    whole = fixed.Multiplier.of(float(f32(x.scale) / (f32(y.scale) * f32(out.scale))))

    def result(v: Expr, w: Expr, inverse: Expr, over: Expr) -> Expr:
        v = cast(I64, v) - x.zero
        v = select(cast(I64, w) < y.zero, 0 - v, v)
        room = leading_zeros(select(v < 0, -2 * v - 1, maximum(2 * v, 1)))
        ratio = doubled_high(doubled_high(binary("shl", v, room), inverse), whole.value)
        right = minimum(maximum(over - 1 + room - whole.shift, 0), 31)
        return stored(divided(ratio, right), out.zero, least, most, dtype)

    return b.map(result, call.x(), call.x(1), inverse, over)


def _quotient(v: Expr, w: Expr) -> Expr:
    return v / w


HALF_ROOT = 1518500250
"""The fixed-point number sqrt(1/2), with no integer bits: the nearest integer to sqrt(1/2) * 2 ** 31."""


def quantized_lengths(call: Call) -> Tensor:
    """Return each row divided by its length, in 128ths. The length is computed as in LiteRT's
    `GetInvSqrtQuantizedMultiplierExp`."""
    b, x, q, dtype = call.b, call.x(), call.given[0], call.out.dtype
    if q.dtype not in (I8, U8) or dtype is not q.dtype:
        call.only_floats()
    assert dtype is not None
    centred = b.map(lambda v: cast(I64, v) - q.zero, x)
    total = b.reduce("sum", b.map(lambda v: v * v, centred), [x.rank - 1], True)
    (low, top), zero = call.out.limits, 128 if dtype is U8 else 0

    def normalized(v: Expr, square: Expr) -> Expr:
        factor, right = _inverse_root(square)
        if dtype is U8:
            part = divided(doubled_high(v * 128, factor), right)
        else:
            left = maximum(7 - right, 0)
            part = divided(doubled_high(binary("shl", v, left), factor), maximum(right - 7, 0))
        return stored(part, zero, low, top, dtype)

    return b.map(normalized, centred, total)


def _inverse_root(v: Expr) -> tuple[Expr, Expr]:
    """Return 1 / sqrt(v) for an int32 as a fixed-point factor, and the distance of the right shift after
    multiplying by it."""
    large = v >= 1 << 29
    near = maximum(select(large, binary("shr", v, const(2, I64)), v), 2)
    pairs = binary("shr", leading_zeros(near) - 1, const(1, I64)) - 1
    right = 11 - pairs + cast(I64, large)
    value = binary("shr", binary("shl", near, pairs * 2), const(1, I64))
    half = divided(value, const(1, I64))
    x: Expr = const(1 << 28, I64)
    for _ in range(5):
        cube = inside(binary("shl", doubled_high(doubled_high(x, x), x), const(6, I64)))
        change = doubled_high(const((1 << 28) + (1 << 27), I64), x) - doubled_high(half, cube)
        x = inside(binary("shl", change, const(3, I64)))
    x = doubled_high(x, HALF_ROOT)
    x = binary("shl", x, maximum(0 - right, 0))
    alone = v <= 1
    return select(alone, const(fixed.HIGH, I64), x), select(alone, const(0, I64), maximum(right, 0))


def quantized_log_softmax(call: Call) -> Tensor:
    """Return log-softmax over the last axis, in 16ths. It is the difference from the row's maximum, minus the
    logarithm of the sum of exponentials.

    The differences have 5 integer bits."""
    b, x, q, dtype = call.b, call.x(), call.given[0], call.out.dtype
    if q.dtype not in (I8, U8) or dtype is not q.dtype:
        call.only_floats()
    assert dtype is not None
    low, top = call.out.limits
    if (call.out.scale, call.out.zero) != (1 / 16, top):
        raise CompileError(f"its result must have the scale 1 / 16 and the zero point {top}")
    part, shift = math.frexp(min(q.scale * (1 << 26), float(fixed.HIGH)))
    factor = fixed.Multiplier(fixed.rounded(part * (1 << 31)), shift)
    least = -fixed.radius(5, shift)
    apart = [factor.times(-d) if -d >= least - 1 else 0 for d in range(256)]
    terms = [fixed.divided(fixed.exp(a, 5), 12) if -d >= least else 0 for d, a in enumerate(apart)]
    back = fixed.Multiplier.of((1 << (31 - shift)) / factor.value)
    peak = b.reduce("max", x, [x.rank - 1], True)
    away = b.map(lambda m, v: cast(I64, m) - cast(I64, v), peak, x)
    scaled, powers = (looked_up(b, t, away) for t in (apart, terms))
    logs = b.map(_log, b.reduce("sum", powers, [x.rank - 1], True))

    def result(d: Expr, part: Expr, log: Expr) -> Expr:
        bound = maximum(rescaled(log + fixed.LOW, *constants(back)), const(least - 1, I64))
        value = stored(divided(part - log, const(22, I64)), top, low, top, dtype)
        return select(0 - d > bound, value, const(low, dtype))

    return b.map(result, away, scaled, logs)


def _log(z: Expr) -> Expr:
    """Return log(z) with 5 integer bits. z has 12 integer bits and is at least 1. It is computed as in
    LiteRT's `log_x_for_x_greater_than_or_equal_to_1`."""
    root = 1805811301
    quarter = const(1 << 23, I64)
    room = leading_zeros(z)
    first = inside(2 * doubled_high(binary("shl", z, room - 1), HALF_ROOT))
    other = leading_zeros(doubled_high(z, HALF_ROOT)) - 1
    r = minimum(first, inside(binary("shl", z, other)))
    power = maximum((12 - room) * (1 << 25) + quarter, (12 - other) * (1 << 25) - quarter)
    p, q = binary("shr", r + root + 1, const(1, I64)), 2 * (r - root)
    square = doubled_high(q, q)
    over = doubled_high(q, r) + doubled_high(doubled_high(q, square), 117049297)
    under = doubled_high(p, 1057819769 + q + doubled_high(square, 127690142)) + doubled_high(q, 638450708)
    part = doubled_high(divided(over, const(6, I64)), reciprocal(under))
    return inside(2 * (doubled_high(power, 1488522236) + part))
