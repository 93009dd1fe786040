"""Lower reductions, softmax and normalizations. Results of integers are equal to those of TensorFlow Lite's
reference kernels."""

from __future__ import annotations

import math

import numpy as np

from jangin.frontends.registry import Lowering, Table, lowers
from jangin.frontends.tflite import fixed
from jangin.frontends.tflite.operators import wide
from jangin.frontends.tflite.operators.common import (
    Call,
    constants,
    floats,
    leading_zeros,
    limits,
    rescaled,
    stored,
)
from jangin.frontends.tflite.operators.newton import (
    doubled_high,
    looked_up,
    quantized_lengths,
    quantized_log_softmax,
    reciprocal,
)
from jangin.ir.dtype import I8, I16, I32, I64, U8
from jangin.ir.expr import Expr, binary, call, cast, const, maximum, minimum, select
from jangin.ir.graph import CompileError, static_shape
from jangin.ops.normalize import local_response_norm
from jangin.ops.reduce import arg_extreme, reduce_over
from jangin.ops.scan import cumulate
from jangin.ops.values import Tensor


def _axes(c: Call) -> tuple[int, ...]:
    rank = c.x().rank
    return tuple(sorted({a % max(rank, 1) for a in c.integers(1)})) if rank else ()


def _reduction(kind: str) -> Lowering:
    def lower(c: Call) -> Tensor:
        keeps, axes = bool(c.options.get("keep_dims")), _axes(c)
        if not c.is_integer or kind in ("max", "min"):
            return reduce_over(c.b, kind, c.x(), axes, keeps)
        if kind == "prod":
            raise CompileError("a product of quantized numbers is not supported")
        return _integer_mean(c, axes, keeps, mean=kind == "mean")

    return lower


def _integer_mean(c: Call, axes: tuple[int, ...], keeps: bool, mean: bool) -> Tensor:
    """Return the sum or the `mean` of integers over axes, as LiteRT's `QuantizedMeanOrSum` does. The
    multiplier of a mean includes the number of elements."""
    sizes = static_shape(tuple(c.x().shape[a] for a in axes))
    if sizes is None:
        raise CompileError(f"the mean of quantized {c.x()}: fix its sizes with shapes=")
    count = math.prod(sizes)
    m = fixed.Multiplier.of(float(np.float32(c.given[0].scale) / np.float32(c.out.scale)))
    if mean:
        shift = min(count.bit_length() - 1, 32, 31 + m.shift)
        m = fixed.Multiplier((m.value << shift) // count, m.shift - shift)
    zero = c.given[0].zero
    total = c.b.reduce("sum", c.b.map(lambda v: cast(I32, v) - zero, c.x()), axes, keeps)
    low, high = limits(c, 0)
    dtype = c.out.dtype
    assert dtype is not None
    numbers = constants(m)
    return c.b.map(lambda v: stored(rescaled(v, *numbers), c.out.zero, low, high, dtype), total)


REDUCTIONS = Table({
    "SUM": _reduction("sum"), "MEAN": _reduction("mean"), "REDUCE_MAX": _reduction("max"),
    "REDUCE_MIN": _reduction("min"), "REDUCE_PROD": _reduction("prod"), "REDUCE_ANY": _reduction("max"),
    "REDUCE_ALL": _reduction("min"),
})  # fmt: skip


def _arg(combiner: str) -> Lowering:
    def lower(c: Call) -> Tensor:
        at = arg_extreme(c.b, c.x(), c.integers(1)[0] % c.x().rank, combiner)
        return c.b.cast(at, c.out.dtype or I64)

    return lower


ARGS = Table({"ARG_MAX": _arg("max"), "ARG_MIN": _arg("min")})


@lowers("SOFTMAX")
def softmax(c: Call) -> Tensor:
    beta = c.options["beta"]
    if c.is_integer:
        return wide.softmax(c, beta) if c.given[0].dtype is I16 else _integer_softmax(c, beta)
    x = floats(c) if beta == 1 else c.b.map(lambda v: v * beta, floats(c))
    return c.b.softmax(x, x.rank - 1)


ACCUMULATED = 12
"""The number of integer bits of the sum of exponentials, as in TFLite's kernel. Each term is at most 1, so up
to 4,096 fit."""


def _integer_softmax(c: Call, beta: float) -> Tensor:
    """Return softmax of 8-bit integers as LiteRT's `reference_ops::Softmax` does, in fixed-point arithmetic.
    Exponentials are looked up in a table, and the sum's reciprocal is computed by Newton's method."""
    b, x, dtype, (low, high) = c.b, c.x(), c.out.dtype, c.out.limits
    if c.given[0].dtype is not dtype or dtype not in (I8, U8):
        raise CompileError(f"a softmax of {c.given[0].dtype} to {dtype} is not supported")
    part, shift = math.frexp(min(beta * c.given[0].scale * (1 << 26), float(fixed.HIGH)))
    factor = fixed.Multiplier(fixed.rounded(part * (1 << 31)), shift)
    least = -fixed.radius(5, shift)
    scaled = [fixed.exp(factor.times(-d), 5) if -d >= least else 0 for d in range(256)]
    last = x.rank - 1
    peak = b.reduce("max", x, [last], True)
    apart = b.map(lambda m, v: cast(I64, m) - cast(I64, v), peak, x)
    exponentials = looked_up(b, scaled, apart)
    terms = b.map(
        lambda e: binary("shr", e + (1 << (ACCUMULATED - 1)), const(ACCUMULATED, I64)), exponentials
    )
    total = b.reduce("sum", terms, [last], True)

    def inverse(v: Expr) -> Expr:
        return reciprocal(binary("shl", v, leading_zeros(v)) - (1 << 31))

    scale = b.map(inverse, total)
    over = b.map(lambda v: ACCUMULATED - leading_zeros(v) + (31 - 8), total)

    def result(e: Expr, s: Expr, bits: Expr, d: Expr) -> Expr:
        v = doubled_high(s, e)
        half = binary("shl", const(1, I64), bits - 1)
        q = binary("shr", v + half - select(v < 0, const(1, I64), const(0, I64)), bits) + low
        inside = minimum(maximum(q, const(low, I64)), const(high, I64))
        return cast(dtype, select(d <= -least, inside, const(low, I64)))

    return b.map(result, exponentials, scale, over, apart)


@lowers("LOG_SOFTMAX")
def log_softmax(c: Call) -> Tensor:
    if c.is_integer:
        return quantized_log_softmax(c)
    return c.b.softmax(floats(c), c.x().rank - 1, True)


@lowers("L2_NORMALIZATION")
def l2_normalization(c: Call) -> Tensor:
    """Return x divided by its L2 norm over the last axis."""
    if c.options.get("fused_activation_function", 0):
        raise CompileError("a fused activation is not supported")
    if c.is_integer:
        return quantized_lengths(c)
    squares = c.b.reduce("sum", c.b.map(lambda v: v * v, c.x()), [c.x().rank - 1], True)
    return c.b.map(lambda v, s: v / maximum(call("sqrt", s), 1e-6), c.x(), squares)


@lowers("LOCAL_RESPONSE_NORMALIZATION")
def lrn(c: Call) -> Tensor:
    """Return x / (bias + alpha * the sum of squares of the channels at a distance of at most `radius`) **
    beta."""
    o = c.options
    size = 2 * o["radius"] + 1
    x = c.b.transpose(c.x(), [0, 3, 1, 2])
    y = local_response_norm(c.b, x, size=size, alpha=o["alpha"] * size, beta=o["beta"], bias=o["bias"])
    return c.b.transpose(y, [0, 2, 3, 1])


@lowers("CUMSUM")
def cumsum(c: Call) -> Tensor:
    o = c.options
    return cumulate(
        c.b, c.x(), "sum", axis=c.integers(1)[0], exclusive=bool(o["exclusive"]), reverse=bool(o["reverse"])
    )
