"""Lower elementwise operators of several operands: arithmetic, comparisons, choices. Results of integers are
equal to those of TensorFlow Lite's reference kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from jangin.frontends.registry import Lowering, Table, lowers
from jangin.frontends.tflite import fixed, sums
from jangin.frontends.tflite.operators.common import (
    Call,
    Factors,
    activated,
    constants,
    is_rounded_up,
    limits,
    number,
    operands,
    requantized,
    rescaled,
    undefined,
)
from jangin.ir.dtype import BOOL, F32, I8, I16, I32, I64, U8
from jangin.ir.expr import Expr, binary, cast, const, eq, land, lor, maximum, minimum, ne, select
from jangin.ir.expr import call as intrinsic
from jangin.ir.graph import CompileError
from jangin.ops.elementwise import pow_, where
from jangin.ops.values import Tensor


def _sum(sign: int) -> Lowering:
    """Return a lowering of x + y (`sign` 1) or x - y (`sign` -1). Integers are first rescaled to twice the
    larger of the two scales."""

    def lower(call: Call) -> Tensor:
        b = call.b
        if not call.is_integer:
            return activated(call, b.map(lambda v, w: v + w if sign > 0 else v - w, number(call), call.x(1)))
        bytes_ = call.given[0].dtype in (I8, U8)
        if call.options.get("pot_scale_int16") and not bytes_ and _are_powers(call):
            raise CompileError("its option pot_scale_int16 is not supported where powers of two differ")
        left, wide, numbers_of = (20, I32, operands) if bytes_ else (15, I64, constants)
        twice = 2 * max(call.given[0].scale, call.given[1].scale)
        parts = [fixed.Multiplier.of(q.scale / twice) for q in call.given[:2]]
        factor, up = twice / ((1 << left) * call.out.scale), bytes_ and is_rounded_up(call)

        if bytes_ and (short := _sum_in_floats(call, parts, fixed.Multiplier.of(factor), sign)) is not None:
            return b.map(short, call.x(), call.x(1))

        def term(v: Expr, i: int) -> Expr:
            """Rescale operand `i` by `parts[i]`. A power of two divides exactly, so that a shift does."""
            whole, m = cast(wide, v) - call.given[i].zero, parts[i]
            if m.value == 1 << 30 and (rest := left + m.shift - 1) >= 0:
                return whole * (1 << rest)
            return rescaled(whole * (1 << left), *numbers_of(m))

        def total(v: Expr, w: Expr) -> Expr:
            return term(v, 0) + term(w, 1) if sign > 0 else term(v, 0) - term(w, 1)

        factors = Factors.of(b, [factor], up=up, narrow=bytes_)
        return requantized(call, b.map(total, call.x(), call.x(1)), factors)

    return lower


def _are_powers(call: Call) -> bool:
    """Tell if the scales of a sum are powers of two that aren't all equal. LiteRT adds 16-bit numbers with
    such scales only by shifts."""
    scales = {q.scale for q in (*call.given[:2], call.out)}
    return len(scales) > 1 and all(math.frexp(scale)[0] == 0.5 for scale in scales)


def _sum_in_floats(
    call: Call, parts: Sequence[fixed.Multiplier], whole: fixed.Multiplier, sign: int
) -> Callable[[Expr, Expr], Expr] | None:
    """Return a function that adds 8-bit numbers by two multiply-adds in f32. Return None if it would give
    another result than fixed-point arithmetic for any pair of operands."""
    ends, dtype, left = limits(call), call.out.dtype, 20
    if dtype not in (I8, U8) or any(m.shift > 0 for m in (*parts, whole)):
        return None
    values = [np.arange(q.limits[0], q.limits[1] + 1, dtype=np.int64) for q in call.given[:2]]
    first, second = (
        sums.times(m, (v - q.zero) << left) for m, v, q in zip(parts, values, call.given[:2], strict=True)
    )
    wanted = np.clip(sums.times(whole, first[:, None] + sign * second) + call.out.zero, *ends)
    rates = [q.scale / call.out.scale for q in call.given[:2]]
    more = call.out.zero - rates[0] * call.given[0].zero - sign * rates[1] * call.given[1].zero
    factors = sums.in_floats(wanted, rates[0], sign * rates[1], more, (values[0], values[1]), ends)
    if factors is None:
        return None
    a, b, c = (const(n, F32) for n in (factors.first, factors.second, factors.more))

    def total(v: Expr, w: Expr) -> Expr:
        real = cast(F32, v) * a + (cast(F32, w) * b + c)
        low, high = (const(float(end), F32) for end in ends)
        return cast(dtype, minimum(maximum(intrinsic("round", real), low), high))

    return total


@lowers("SQUARED_DIFFERENCE")
def squared_difference(call: Call) -> Tensor:
    """Return (x - y) ** 2. Integers are first rescaled to twice the larger scale, with 7 fractional bits."""
    if not call.is_integer:
        return call.b.map(lambda v, w: (v - w) * (v - w), number(call), call.x(1))
    twice, left = 2 * max(q.scale for q in call.given[:2]), 7
    parts = [constants(fixed.Multiplier.of(q.scale / twice)) for q in call.given[:2]]
    whole = fixed.Multiplier.of(twice * twice / ((1 << 2 * left) * call.out.scale))

    def square(*operands: Expr) -> Expr:
        terms = (
            rescaled((cast(I64, v) - q.zero) * (1 << left), *part)
            for v, q, part in zip(operands, call.given, parts, strict=False)
        )
        difference = next(terms) - next(terms)
        return difference * difference

    return requantized(call, call.b.map(square, call.x(), call.x(1)), Factors((*constants(whole),)))


@lowers("MUL")
def mul(call: Call) -> Tensor:
    if not call.is_integer:
        return activated(call, call.b.map(_times, call.x(), call.x(1)))
    x, y = call.given[:2]
    factor = float(np.float32(x.scale) * np.float32(y.scale) / np.float32(call.out.scale))
    products = call.b.map(lambda v, w: (cast(I32, v) - x.zero) * (cast(I32, w) - y.zero), call.x(), call.x(1))
    return requantized(call, products, Factors.of(call.b, [factor]))


def _times(v: Expr, w: Expr) -> Expr:
    return v * w


def _binary(body: Callable[[Expr, Expr], Expr]) -> Lowering:
    def lower(call: Call) -> Tensor:
        call.only_floats()
        return activated(call, call.b.map(body, number(call), call.x(1)))

    return lower


def _plain(body: Callable[[Expr, Expr], Expr], floats: bool = True) -> Lowering:
    """Return a lowering that applies `body` to integers without their scales, whether they are quantized or
    not. `floats` tells if floats are supported too."""

    def lower(call: Call) -> Tensor:
        if call.x().dtype.is_float and not floats:
            raise undefined(call.x().dtype)
        return call.b.map(body, call.x(), call.x(1))

    return lower


def _logical(body: Callable[[Expr, Expr], Expr]) -> Lowering:
    def lower(call: Call) -> Tensor:
        return call.b.map(body, _truth(call, 0), _truth(call, 1))

    return lower


def _truth(call: Call, i: int) -> Tensor:
    if call.x(i).dtype is not BOOL:
        raise CompileError(f"its operands must be truth values, not {call.x(i).dtype}")
    return call.x(i)


@lowers("LOGICAL_NOT")
def logical_not(call: Call) -> Tensor:
    return call.b.map(partial(intrinsic, "not"), _truth(call, 0))


def _extreme(body: Callable[[Expr, Expr], Expr]) -> Lowering:
    """Return a lowering of a minimum or maximum. Quantized operands and results must have the same
    quantization. Converters ensure this."""

    def lower(call: Call) -> Tensor:
        kinds = {
            (q.dtype, *map(float, q.scales if q.scales is not None else ()), q.zero)
            for q in (*call.given[:2], call.out)
        }
        if call.is_integer and len(kinds) > 1:
            raise CompileError("its operands and result must be quantized alike")
        return call.b.map(body, call.x(), call.x(1))

    return lower


def _floor_div(v: Expr, w: Expr) -> Expr:
    return intrinsic("floor", v / w) if v.dtype.is_float else binary("floordiv", v, w)


def _shifted_left(v: Expr, by: Expr) -> Expr:
    """Return v shifted left. If the distance is negative, or isn't below the type's number of bits, the
    result is 0, as in StableHLO's shift_left."""
    inside = land(by >= 0, by < v.dtype.bits)
    return select(inside, binary("shl", v, select(inside, by, 0)), 0)


BINARY = Table({
    "ADD": _sum(1),
    "SUB": _sum(-1),
    "FLOOR_DIV": _plain(_floor_div),
    "FLOOR_MOD": _plain(lambda v, w: binary("mod", v, w)),
    "ATAN2": _binary(lambda v, w: intrinsic("atan2", v, w)),
    "MAXIMUM": _extreme(maximum),
    "MINIMUM": _extreme(minimum),
    "STABLEHLO_ADD": _binary(lambda v, w: v + w),
    "STABLEHLO_AND": _binary(lambda v, w: binary("and", v, w)),
    "STABLEHLO_SHIFT_LEFT": _binary(_shifted_left),
    "STABLEHLO_MULTIPLY": _binary(lambda v, w: v * w),
    "STABLEHLO_MAXIMUM": _extreme(maximum),
    "STABLEHLO_MINIMUM": _extreme(minimum),
    "LOGICAL_AND": _logical(land),
    "LOGICAL_OR": _logical(lor),
    "BITWISE_XOR": _plain(lambda v, w: ne(v, w) if v.dtype is BOOL else binary("xor", v, w), floats=False),
})  # fmt: skip


@lowers("POW")
def power(call: Call) -> Tensor:
    call.only_floats()
    return pow_(call.b, call.x(), call.x(1))


@lowers("ADD_N")
def add_n(call: Call) -> Tensor:
    call.only_floats()
    total = call.x()
    for i in range(1, len(call.inputs)):
        total = call.b.map(lambda v, w: v + w, total, call.x(i))
    return total


def _comparison(body: Callable[[Expr, Expr], Expr]) -> Lowering:
    """Return a lowering of a comparison. 8-bit operands with different quantizations are rescaled to the same
    scale first. 16-bit operands are compared as integers, as in LiteRT."""

    def lower(call: Call) -> Tensor:
        x, y = call.given[:2]
        if not x.integer or x.dtype is I16 or (x.scale, x.zero) == (y.scale, y.zero):
            return call.b.map(body, call.x(), call.x(1))
        left = 8
        parts = [fixed.Multiplier.of(q.scale) for q in (x, y)]

        def term(v: Expr, i: int) -> Expr:
            return rescaled((cast(I64, v) - call.given[i].zero) * (1 << left), *constants(parts[i]))

        return call.b.map(lambda v, w: body(term(v, 0), term(w, 1)), call.x(), call.x(1))

    return lower


COMPARISONS = Table({
    "EQUAL": _comparison(eq), "NOT_EQUAL": _comparison(ne), "LESS": _comparison(lambda v, w: v < w),
    "LESS_EQUAL": _comparison(lambda v, w: v <= w), "GREATER": _comparison(lambda v, w: v > w),
    "GREATER_EQUAL": _comparison(lambda v, w: v >= w),
})  # fmt: skip


@lowers("SELECT", "SELECT_V2")
def select_v2(call: Call) -> Tensor:
    """Return elements of input 1 where the condition is true, else of input 2. The condition of SELECT may be
    a vector that chooses whole rows."""
    condition, x = call.x(), call.x(1)
    if condition.rank == 1 and x.rank > 1 and condition.shape != x.shape[-1:]:
        condition = call.b.reshape(condition, [*condition.shape, *[1] * (x.rank - 1)])
    return where(call.b, condition, x, call.x(2))
