"""Lower elementwise operators. Results of integers are equal to those of TensorFlow Lite's reference
kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from jangin.frontends.registry import Lowering, Table, lowers
from jangin.frontends.tflite import fixed, sums
from jangin.frontends.tflite.operators import wide
from jangin.frontends.tflite.operators.common import (
    RELU_0_TO_1,
    Call,
    Factors,
    activated,
    constants,
    is_rounded_up,
    limits,
    lookup,
    operands,
    real,
    requantized,
    rescaled,
    stored,
)
from jangin.ir.dtype import BOOL, F32, F64, I8, I16, I32, I64, U8, DType
from jangin.ir.expr import Expr, binary, cast, const, eq, land, lor, maximum, minimum, ne, select
from jangin.ir.expr import call as intrinsic
from jangin.ir.graph import CompileError
from jangin.ops import activation
from jangin.ops.elementwise import pow_, where
from jangin.ops.levels import rounded
from jangin.ops.values import Tensor


def _function(body: Callable[..., Expr], table: bool = False, **named: str) -> Lowering:
    """Return a lowering that applies `body` to floats. With `table`, quantized integers are also supported,
    by a lookup table as in the reference kernel.

    `named` has the operator's options for parameters of `body`, by the parameter."""

    def lower(call: Call) -> Tensor:
        given = {k: call.options[v] for k, v in named.items()}
        if table and call.is_integer:
            return _by_table(call, lambda v: body(v, **given))
        call.only_floats()
        return call.b.map(lambda v: body(v, **given), _floats(call))

    return lower


def _floats(call: Call) -> Tensor:
    """Return the input of a function that is defined only for floats. Raises CompileError for other types."""
    if not call.x().dtype.is_float:
        raise CompileError(f"of {call.x().dtype} it is not defined")
    return call.x()


def _by_table(call: Call, body: Callable[[Expr], Expr]) -> Tensor:
    if call.given[0].dtype not in (I8, U8, I16):
        call.only_floats()
    return wide.tabulated(call, body) if call.given[0].dtype is I16 else _tabulated(call, body)


def _steps(v: Expr, scale: float) -> Expr:
    """Return a real number as the nearest integer multiple of a scale. The result is the multiple's integer,
    as a float."""
    return rounded(v * float(np.float32(1) / np.float32(scale)))


def _tabulated(call: Call, body: Callable[[Expr], Expr]) -> Tensor:
    """Return a function of an 8-bit input by a table of its results for all dequantized inputs, as LiteRT's
    `LUTPopulateInt8` does."""
    b, q, out = call.b, call.given[0], call.out
    (low, high), (bottom, top), dtype = q.limits, out.limits, out.dtype
    assert dtype is not None
    inputs = (np.arange(low, high + 1, dtype=np.float32) - q.zero) * np.float32(q.scale)

    def quantized(v: Expr) -> Expr:
        whole = _steps(body(v), out.scale) + float(out.zero)
        inside = minimum(maximum(whole, float(bottom)), float(top))
        return cast(dtype, inside)

    table = b.map(quantized, b.const(inputs))
    return b.gather(table, b.map(lambda v: cast(I64, v) - low, call.x()), 0)


def _gelu(v: Expr, tanh: bool) -> Expr:
    """Return GELU. The error function is computed in f64 and rounded to f32, unless the approximation by
    `tanh` is asked for."""
    if tanh:
        return activation.gelu_tanh(v)
    if v.dtype is not F32:
        return activation.gelu(v)
    exact = 1 + intrinsic("erf", cast(F64, v * float(np.float32(np.sqrt(0.5)))))
    return 0.5 * v * cast(F32, exact)


_FLOAT = {"CEIL": "ceil", "COS": "cos", "EXP": "exp", "FLOOR": "floor",
          "ROUND": "round", "SIN": "sin"}  # fmt: skip
FUNCTIONS = Table({
    **{name: _function(partial(intrinsic, fn), name == "EXP") for name, fn in _FLOAT.items()},
    "SQUARE": _function(lambda v: v * v),
    "ELU": _function(activation.elu, True),
    "GELU": _function(_gelu, True, tanh="approximate"),
})  # fmt: skip


@lowers("SIGN")
def sign(call: Call) -> Tensor:
    """Return the sign of x. Integers are used without their scale."""
    return call.b.map(partial(intrinsic, "sign"), _number(call))


@lowers("LOG")
def log(call: Call) -> Tensor:
    """Return log(x). A quantized result isn't below the lowest real value of its quantization, which is also
    the result if x isn't positive."""
    if call.is_integer:
        low = _least(call, 0)
        return _by_table(call, lambda v: select(v > 0, maximum(intrinsic("log", v), low), low))
    call.only_floats()
    return call.b.map(partial(intrinsic, "log"), _floats(call))


@lowers("RSQRT")
def rsqrt(call: Call) -> Tensor:
    """Return 1 / sqrt(x). A quantized result isn't above the highest real value of its quantization, which is
    also the result if x isn't positive."""
    if call.is_integer:
        high = _least(call, 1)
        return _by_table(call, lambda v: select(v > 0, minimum(1 / intrinsic("sqrt", v), high), high))
    call.only_floats()
    return call.b.map(lambda v: 1 / intrinsic("sqrt", v), _floats(call))


def _least(call: Call, end: int) -> Expr:
    """Return the real value of the result's lowest integer (`end` 0) or of its highest integer (`end` 1)."""
    return const(float(np.float32(call.out.limits[end] - call.out.zero) * np.float32(call.out.scale)), F32)


@lowers("SQRT")
def sqrt(call: Call) -> Tensor:
    """Return sqrt(x). A quantized result is truncated instead of rounded."""
    if call.given[0].dtype in (I8, I16) and call.is_integer:
        b, q, out = call.b, call.given[0], call.out
        step = float(np.float32(out.scale))

        def whole(v: Expr) -> Expr:
            real = (cast(F32, v) - float(q.zero)) * float(np.float32(q.scale))
            found = intrinsic("floor", intrinsic("sqrt", maximum(real, 0.0)) / step) + float(out.zero)
            bottom, top = out.limits
            return cast(q.dtype or I8, minimum(maximum(found, float(bottom)), float(top)))

        return b.map(whole, call.x())
    call.only_floats()
    return call.b.map(partial(intrinsic, "sqrt"), _floats(call))


def _bounded(kind: int) -> Lowering:
    """Return a lowering of an activation that only clamps its input. Quantized integers are rescaled and
    clamped."""

    def lower(call: Call) -> Tensor:
        fused = Call(call.b, call.inputs, call.given, call.gives, {"fused_activation_function": kind})
        if not call.is_integer:
            return activated(fused, call.x())
        zero = call.given[0].zero
        centred = call.b.map(lambda v: cast(I32, v) - zero, call.x())
        return requantized(fused, centred, Factors.of(call.b, [_ratio(call)]))

    return lower


def _ratio(call: Call) -> float:
    """Return the input's scale divided by the result's scale, computed in f32."""
    return float(np.float32(call.given[0].scale) / np.float32(call.out.scale))


BOUNDED = Table({
    "RELU": _bounded(1), "RELU_N1_TO_1": _bounded(2), "RELU6": _bounded(3),
    "RELU_0_TO_1": _bounded(RELU_0_TO_1),
})  # fmt: skip


@lowers("LOGISTIC")
def logistic(call: Call) -> Tensor:
    if not call.is_integer:
        return call.b.map(activation.sigmoid, _floats(call))
    return wide.logistic(call) if call.given[0].dtype is I16 else _saturating(call, fixed.logistic, 8)


@lowers("TANH")
def tanh(call: Call) -> Tensor:
    if not call.is_integer:
        return call.b.map(lambda v: intrinsic("tanh", v), _floats(call))
    return wide.tanh(call) if call.given[0].dtype is I16 else _saturating(call, fixed.tanh, 7)


def _saturating(call: Call, fn: Callable[[int, int], int], digits: int) -> Tensor:
    """Return a function of an 8-bit input by fixed-point arithmetic. The argument of `fn` has 4 integer bits,
    and its result is rounded to `digits` fractional bits."""
    q, low, high = call.given[0], *call.out.limits
    part, shift = math.frexp(q.scale * (1 << 27))
    factor, reach = fixed.Multiplier(fixed.rounded(part * (1 << 31)), shift), fixed.radius(4, shift)

    def at(v: int) -> int:
        v -= q.zero
        if abs(v) >= reach:
            return low if v < 0 else high
        return max(low, min(high, fixed.divided(fn(factor.times(v), 4), 31 - digits) + call.out.zero))

    return lookup(call, at)


@lowers("ABS")
def absolute(call: Call) -> Tensor:
    if not call.is_integer:
        return call.b.map(partial(intrinsic, "abs"), call.x())
    zero = call.given[0].zero
    sizes = call.b.map(lambda v: intrinsic("abs", cast(I32, v) - zero), call.x())
    return requantized(call, sizes, Factors.of(call.b, [_ratio(call)]))


@lowers("HARD_SWISH")
def hard_swish(call: Call) -> Tensor:
    if not call.is_integer:
        return call.b.map(activation.hard_swish, _floats(call))
    x, y, (low, high) = call.given[0], call.out, call.out.limits
    fine = np.float32(1 / 128) * np.float32(x.scale)
    whole, gate = (fixed.Multiplier.of(float(fine / np.float32(s))) for s in (y.scale, np.float32(3 / 32768)))

    def at(v: int) -> int:
        product = fixed.hard_swish((v - x.zero) << 7, whole, gate)
        return max(low, min(high, fixed.divided(product, -whole.shift) + y.zero))

    return lookup(call, at)


@lowers("LEAKY_RELU")
def leaky_relu(call: Call) -> Tensor:
    alpha = call.options["alpha"]
    if not call.is_integer:
        return call.b.map(lambda v: activation.leaky_relu(v, alpha), _floats(call))
    x, y = call.given[0], call.out
    ratio = np.float32(x.scale) / np.float32(y.scale)
    same, low_slope = (
        fixed.Multiplier.of(float(f))
        for f in (ratio, np.float32(x.scale) * np.float32(alpha) / np.float32(y.scale))
    )
    low, high = y.limits
    if x.dtype is I16:
        ends = same, low_slope

        def scaled(v: Expr) -> Expr:
            v = cast(I64, v) - x.zero
            up, down = (rescaled(v, *constants(m)) for m in ends)
            return stored(select(v >= 0, up, down), y.zero, low, high, I16)

        return call.b.map(scaled, call.x())

    def at(v: int) -> int:
        v -= x.zero
        return max(low, min(high, y.zero + (same if v >= 0 else low_slope).times(v)))

    return lookup(call, at)


@lowers("PRELU")
def prelu(call: Call) -> Tensor:
    if not call.is_integer:
        return call.b.map(activation.leaky_relu, call.x(), call.x(1))
    (x, slope), y = call.given[:2], call.out
    (low, high), dtype = y.limits, y.dtype
    assert dtype is not None
    same, sloped = (
        constants(fixed.Multiplier.of(float(f / np.float32(y.scale))))
        for f in (np.float32(x.scale), np.float32(x.scale) * np.float32(slope.scale))
    )

    def body(v: Expr, s: Expr) -> Expr:
        v, s = cast(I64, v) - x.zero, cast(I64, s) - slope.zero
        scaled = select(v >= 0, rescaled(v, *same), rescaled(v * s, *sloped))
        return stored(scaled, y.zero, low, high, dtype)

    return call.b.map(body, call.x(), call.x(1))


# -- two operands --------------------------------------------------------------------------------


def _sum(sign: int) -> Lowering:
    """Return a lowering of x + y (`sign` 1) or x - y (`sign` -1). Integers are first rescaled to twice the
    larger of the two scales."""

    def lower(call: Call) -> Tensor:
        b = call.b
        if not call.is_integer:
            return activated(call, b.map(lambda v, w: v + w if sign > 0 else v - w, _number(call), call.x(1)))
        bytes_ = call.given[0].dtype in (I8, U8)
        if call.options.get("pot_scale_int16") and not bytes_ and _are_powers(call):
            raise CompileError("its option pot_scale_int16 is not supported where powers of two differ")
        left, wide, given = (20, I32, operands) if bytes_ else (15, I64, constants)
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
            return rescaled(whole * (1 << left), *given(m))

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
    found = sums.in_floats(wanted, rates[0], sign * rates[1], more, (values[0], values[1]), ends)
    if found is None:
        return None
    a, b, c = (const(n, F32) for n in (found.first, found.second, found.more))

    def total(v: Expr, w: Expr) -> Expr:
        real = cast(F32, v) * a + (cast(F32, w) * b + c)
        low, high = (const(float(end), F32) for end in ends)
        return cast(dtype, minimum(maximum(intrinsic("round", real), low), high))

    return total


@lowers("SQUARED_DIFFERENCE")
def squared_difference(call: Call) -> Tensor:
    """Return (x - y) ** 2. Integers are first rescaled to twice the larger scale, with 7 fractional bits."""
    if not call.is_integer:
        return call.b.map(lambda v, w: (v - w) * (v - w), _number(call), call.x(1))
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
        return activated(call, call.b.map(body, _number(call), call.x(1)))

    return lower


def _plain(body: Callable[[Expr, Expr], Expr], floats: bool = True) -> Lowering:
    """Return a lowering that applies `body` to integers without their scales, whether they are quantized or
    not. `floats` tells if floats are supported too."""

    def lower(call: Call) -> Tensor:
        if call.x().dtype.is_float and not floats:
            raise CompileError(f"of {call.x().dtype} it is not defined")
        return call.b.map(body, call.x(), call.x(1))

    return lower


def _logical(body: Callable[[Expr, Expr], Expr]) -> Lowering:
    def lower(call: Call) -> Tensor:
        return call.b.map(body, _truth(call, 0), _truth(call, 1))

    return lower


def _truth(call: Call, i: int) -> Tensor:
    if call.x(i).dtype is not BOOL:
        raise CompileError(f"its operands must be truths, not {call.x(i).dtype}")
    return call.x(i)


@lowers("LOGICAL_NOT")
def logical_not(call: Call) -> Tensor:
    return call.b.map(partial(intrinsic, "not"), _truth(call, 0))


@lowers("NEG")
def negated(call: Call) -> Tensor:
    """Return -x. Integers are used without their scale."""
    return call.b.map(partial(intrinsic, "neg"), _number(call))


def _number(call: Call) -> Tensor:
    if call.x().dtype is BOOL:
        raise CompileError("of truths it is not defined")
    return call.x()


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


# -- types ---------------------------------------------------------------------------------------


@lowers("CAST")
def cast_(call: Call) -> Tensor:
    dtype = call.out.dtype
    assert dtype is not None
    if dtype is BOOL:
        return call.b.map(lambda v: ne(v, const(0, v.dtype)), call.x())
    if call.x().dtype.is_float and dtype.is_int:
        return call.b.map(lambda v: _saturated(v, dtype), call.x())
    return call.b.cast(call.x(), dtype)


def _saturated(v: Expr, dtype: DType) -> Expr:
    """Return a float as an integer, truncated towards 0 and clamped to the type's limits. NaN becomes the
    largest integer."""
    low, high = dtype.limits
    beyond, least = const(float(high + 1), F64), const(float(low), F64)
    real = cast(F64, v)
    below, above = real < least, intrinsic("not", real < beyond)
    inside = select(lor(below, above), const(0.0, F64), real)
    found = select(above, const(high, dtype), cast(dtype, inside))
    return select(below, const(low, dtype), found)


@lowers("QUANTIZE")
def quantize(call: Call) -> Tensor:
    """Return floats quantized: x / scale, with halves rounded away from zero, plus the zero point. Quantized
    integers are rescaled."""
    out, b = call.out, call.b
    dtype = out.dtype
    assert dtype is not None
    low, high = out.limits
    if call.given[0].dtype is I32 and call.given[0].scales is None:
        raise CompileError("integers without a scale can't be quantized again")
    if call.x().dtype.is_float:
        scale = const(out.scale, F32)

        def body(v: Expr) -> Expr:
            whole = rounded(cast(F32, v) / scale)
            inside = minimum(maximum(whole + float(out.zero), float(low)), float(high))
            return cast(dtype, inside)

        return b.map(body, call.x())
    zero = call.given[0].zero
    centred = b.map(lambda v: cast(I32, v) - zero, call.x())
    return requantized(call, centred, Factors.of(b, [call.given[0].scale / out.scale]), 0)


@lowers("DEQUANTIZE")
def dequantize(call: Call) -> Tensor:
    return real(call)


@lowers("FAKE_QUANT")
def fake_quant(call: Call) -> Tensor:
    """Return x rounded to the values that integers of `num_bits` bits can represent between `min` and
    `max`."""
    o = call.options
    steps = (1 << o["num_bits"]) - 1 - int(o.get("narrow_range", False))
    scale = (o["max"] - o["min"]) / steps
    origin = round(-o["min"] / scale)
    low, high = float((0 - origin) * scale), float((steps - origin) * scale)

    def body(v: Expr) -> Expr:
        inside = minimum(maximum(v, const(low, F32)), const(high, F32))
        return intrinsic("floor", (inside - low) * float(1 / scale) + 0.5) * float(scale) + low

    return call.b.map(body, call.x())
