"""Lower LOGISTIC, TANH, SOFTMAX and other functions of 16 bits, with the same results as TensorFlow Lite's
reference kernels.

The kernels interpolate linearly in a table. This was found by comparing results. Tests compare all inputs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from jangin.frontends.tflite import fixed
from jangin.frontends.tflite.operators.common import Call, constants, leading_zeros, rescaled
from jangin.ir.dtype import I16, I64
from jangin.ir.expr import Expr, binary, cast, const, maximum, minimum, select
from jangin.ir.graph import Array, CompileError
from jangin.ops.values import Tensor

STEPS = 24
"""The number of entries in the sigmoid's table for each unit of its argument, as in TFLite's kernel."""


def sigmoid_table() -> Array:
    """Return the sigmoid for arguments from 0 on, in 65536ths. Each entry is moved by half of the error that
    linear interpolation has in the middle after it."""

    def at(i: float) -> float:
        return 65536 / (1 + math.exp(-i / STEPS))

    exact = [at(i) + (at(i + 0.5) - (at(i) + at(i + 1)) / 2) / 2 for i in range(255)]
    return np.array([*map(fixed.rounded, exact), 0xFFFF], np.int64)


def _argument(call: Call, powers: tuple[int, ...]) -> Callable[[Expr], Expr]:
    """Return a function that multiplies an input by 3 * 4096 and by its scale.

    The result is exact if the scale is a power of two in `powers`. Otherwise it is rounded by a 15-bit
    multiplier."""
    q = call.given[0]
    if q.zero or call.out.zero or call.out.scale != 2.0**-15:
        raise CompileError(
            "16-bit operands and results must have zero points of 0, and the result's scale must be 2 ** -15"
        )
    part, exponent = math.frexp(q.scale)
    if part == 0.5 and exponent + 11 in powers:
        factor, shift = 3 << (exponent + 11), 0
    else:
        real, shift = q.scale * 4096 * 3, 0
        while real <= 32767 / 2 and shift <= 30:
            real, shift = real * 2, shift + 1
        factor = int(real)
    half = 1 << (shift - 1) if shift else 0
    return lambda v: binary("shr", cast(I64, v) * factor + half, const(shift, I64))


def logistic(call: Call) -> Tensor:
    def result(at: Expr, value: Expr) -> Expr:
        return binary("shr", select(at >= 0, value, (1 << 25) - value - 1) + 512, const(10, I64))

    return _interpolated(call, (0,), 9, 0x7FFF << 10, result)


def tanh(call: Call) -> Tensor:
    def result(at: Expr, value: Expr) -> Expr:
        middle = (1 << 23) - 128
        return binary("shr", select(at >= 0, value - middle, middle + 255 - value), const(8, I64))

    return _interpolated(call, (0, 1), 8, 0xFFFF << 8, result)


def _interpolated(
    call: Call, powers: tuple[int, ...], bits: int, most: int, result: Callable[[Expr, Expr], Expr]
) -> Tensor:
    """Return `result` of the argument and of the table's interpolated value for the argument's absolute
    value.

    `bits` is the number of fractional bits between two entries. The value after the last entry is `most`."""
    b, table = call.b, sigmoid_table()
    at = b.map(_argument(call, powers), call.x())
    absolute = b.map(lambda v: select(v < 0, -v, v), at)
    entry = b.map(lambda v: minimum(binary("shr", v, const(bits, I64)), const(254, I64)), absolute)
    first = b.gather(b.const(table[:-1]), entry, 0)
    rise = b.gather(b.const(np.diff(table)), entry, 0)

    def value(v: Expr, size: Expr, start: Expr, slope: Expr) -> Expr:
        inside = start * (1 << bits) + slope * binary("and", size, const((1 << bits) - 1, I64))
        return cast(I16, result(v, select(size >= 255 << bits, const(most, I64), inside)))

    return b.map(value, at, absolute, first, rise)


def table_of(fn: Callable[[float], float], low: float, high: float) -> Array:
    """Return a function from `low` to `high` at 513 points, in 32768ths. Each entry but the last is moved as
    in `sigmoid_table`, by integers."""
    step = (high - low) / 512
    exact = [fn(low + step * i / 2) * 32768 for i in range(1025)]
    entries = []
    for i in range(512):
        before, middle, after = exact[2 * i : 2 * i + 3]
        start = fixed.rounded(before)
        missed = fixed.rounded((after + start) / 2) - fixed.rounded(middle)
        entries.append(start - fixed.rounded(missed / 2))
    return np.clip(np.array([*entries, fixed.rounded(exact[-1])], np.int64), -(1 << 15), (1 << 15) - 1)


def tabulated(call: Call, body: Callable[[Expr], Expr]) -> Tensor:
    """Return a function of a 16-bit input by a table of 513 points over the input's range. The table is
    computed in f32, as LiteRT's `LUTPopulateInt16` does. Each entry is moved as in `table_of`."""
    b, q, out = call.b, call.given[0], call.out
    low, high = (np.float32(end - q.zero) * np.float32(q.scale) for end in q.limits)
    bottom, top = (np.float32(end - out.zero) * np.float32(out.scale) for end in out.limits)
    step, unit = (high - low) / np.float32(512), np.float32(1 << 16) / (top - bottom)
    starts = low + np.arange(513, dtype=np.float32) * step
    points = np.concatenate([starts, starts[:-1] + step / np.float32(2), [high]]).astype(np.float32)
    values = b.constant_value(b.map(body, b.const(points)))
    assert values is not None
    with np.errstate(over="ignore", invalid="ignore"):  # values beyond f32 are beyond 16 bits too
        scaled = values * unit
        ends, middles, last = scaled[:513], scaled[513:-1], scaled[-1]
        whole = _away(ends[:-1])
        missed = _away((ends[1:] + whole) / np.float32(2)) - _away(middles)
        table = np.append(whole - _away(missed / np.float32(2)), _away(last))
    limits = np.iinfo(np.int16)
    numbers = _looked_up(call, np.clip(table, limits.min, limits.max).astype(np.int64), call.x())
    return b.cast(numbers, I16)


def _away(v: Array) -> Array:
    """Return the nearest integers. Halves are rounded away from 0."""
    integers: Array = np.copysign(np.floor(np.abs(v) + np.float32(0.5)), v)
    return integers


def _looked_up(call: Call, table: Array, x: Tensor) -> Tensor:
    """Return values of a table of 513 entries, interpolated linearly at 16-bit numbers."""
    b = call.b
    x = b.cast(x, I64)
    entry = b.map(lambda v: binary("shr", v, const(7, I64)) + 256, x)
    first, rise = (b.gather(b.const(a), entry, 0) for a in (table[:-1], np.diff(table)))

    def value(v: Expr, start: Expr, slope: Expr) -> Expr:
        part = binary("and", v, const(127, I64))
        return start + binary("shr", slope * part + 64, const(7, I64))

    return b.map(value, x, first, rise)


def softmax(call: Call, beta: float) -> Tensor:
    """Return softmax of 16-bit integers. The exponentials of the differences from the maximum are multiplied
    by the reciprocal of their sum. Differences are in 65535ths of the range from -10 to 0."""
    b, x = call.b, call.x()
    if call.out.zero or call.out.scale != 2.0**-15:
        raise CompileError("the scale of a 16-bit softmax's result must be 2 ** -15")
    last = x.rank - 1
    factor = constants(fixed.Multiplier.of(call.given[0].scale * beta / (10 / 65535)))

    def place(v: Expr, peak: Expr) -> Expr:
        return _short(rescaled(cast(I64, v) - cast(I64, peak), *factor) + 32767)

    def reciprocal_place(total: Expr) -> Expr:
        shifted = binary("shl", total, leading_zeros(total) - 1) + (1 << 13)
        return _short(binary("shr", shifted, const(14, I64)) - (1 << 15) - (1 << 16))

    powers = _looked_up(call, table_of(math.exp, -10, 0), b.map(place, x, b.reduce("max", x, [last], True)))
    total = b.reduce("sum", powers, [last], True)
    inverse = _looked_up(call, table_of(lambda v: 1 / (1 + v), 0, 1), b.map(reciprocal_place, total))

    def result(e: Expr, factor: Expr, sum_: Expr) -> Expr:
        bits = 31 - leading_zeros(sum_)
        v = binary("shr", e * factor + binary("shl", const(1, I64), bits - 1), bits)
        return cast(I16, minimum(maximum(v, const(0, I64)), const(32767, I64)))

    return b.map(result, powers, inverse, total)


def _short(v: Expr) -> Expr:
    return minimum(maximum(v, const(-(1 << 15), I64)), const((1 << 15) - 1, I64))
