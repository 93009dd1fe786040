"""Lower elementwise operators of one operand. Results of integers are equal to those of TensorFlow Lite's
reference kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from jangin.frontends.registry import Lowering, Table, lowers
from jangin.frontends.tflite import fixed
from jangin.frontends.tflite.operators import wide
from jangin.frontends.tflite.operators.common import (
    RELU_0_TO_1,
    Call,
    Factors,
    activated,
    constants,
    floats,
    lookup,
    number,
    requantized,
    rescaled,
    stored,
)
from jangin.ir.dtype import F32, F64, I8, I16, I32, I64, U8
from jangin.ir.expr import Expr, cast, const, maximum, minimum, select
from jangin.ir.expr import call as intrinsic
from jangin.ops import activation
from jangin.ops.levels import rounded
from jangin.ops.values import Tensor


def _function(body: Callable[..., Expr], table: bool = False, **named: str) -> Lowering:
    """Return a lowering that applies `body` to floats. With `table`, quantized integers are also supported,
    by a lookup table as in the reference kernel.

    `named` has the operator's options for parameters of `body`, by the parameter."""

    def lower(call: Call) -> Tensor:
        kwargs = {k: call.options[v] for k, v in named.items()}
        if table and call.is_integer:
            return _by_table(call, lambda v: body(v, **kwargs))
        call.only_floats()
        return call.b.map(lambda v: body(v, **kwargs), floats(call))

    return lower


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
    return call.b.map(partial(intrinsic, "sign"), number(call))


@lowers("LOG")
def log(call: Call) -> Tensor:
    """Return log(x). A quantized result isn't below the lowest real value of its quantization, which is also
    the result if x isn't positive."""
    if call.is_integer:
        low = _least(call, 0)
        return _by_table(call, lambda v: select(v > 0, maximum(intrinsic("log", v), low), low))
    call.only_floats()
    return call.b.map(partial(intrinsic, "log"), floats(call))


@lowers("RSQRT")
def rsqrt(call: Call) -> Tensor:
    """Return 1 / sqrt(x). A quantized result isn't above the highest real value of its quantization, which is
    also the result if x isn't positive."""
    if call.is_integer:
        high = _least(call, 1)
        return _by_table(call, lambda v: select(v > 0, minimum(1 / intrinsic("sqrt", v), high), high))
    call.only_floats()
    return call.b.map(lambda v: 1 / intrinsic("sqrt", v), floats(call))


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
            root = intrinsic("floor", intrinsic("sqrt", maximum(real, 0.0)) / step) + float(out.zero)
            bottom, top = out.limits
            return cast(q.dtype or I8, minimum(maximum(root, float(bottom)), float(top)))

        return b.map(whole, call.x())
    call.only_floats()
    return call.b.map(partial(intrinsic, "sqrt"), floats(call))


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
        return call.b.map(activation.sigmoid, floats(call))
    return wide.logistic(call) if call.given[0].dtype is I16 else _saturating(call, fixed.logistic, 8)


@lowers("TANH")
def tanh(call: Call) -> Tensor:
    if not call.is_integer:
        return call.b.map(lambda v: intrinsic("tanh", v), floats(call))
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
        return call.b.map(activation.hard_swish, floats(call))
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
        return call.b.map(lambda v: activation.leaky_relu(v, alpha), floats(call))
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


@lowers("NEG")
def negated(call: Call) -> Tensor:
    """Return -x. Integers are used without their scale."""
    return call.b.map(partial(intrinsic, "neg"), number(call))
