"""Lower elementwise operations."""

from __future__ import annotations

from collections.abc import Callable

from jangin.frontends.coreml.mil.operators.common import Call
from jangin.frontends.registry import Lowering, Table, lowers
from jangin.ir.dtype import F64
from jangin.ir.expr import Expr, call, cast, const, eq, land, lor, maximum, minimum, ne, select
from jangin.ir.graph import CompileError
from jangin.ops import activation
from jangin.ops.axes import per_channel
from jangin.ops.elementwise import converted, div, pow_, where, widened
from jangin.ops.values import Tensor


def _unary(body: Callable[[Expr], Expr]) -> Lowering:
    return lambda c: c.b.map(widened(body), c.x())


def _named(name: str) -> Callable[[Expr], Expr]:
    return lambda v: call(name, v)


_PLAIN = "abs acos acosh asin asinh atan atanh ceil cos cosh erf exp exp2 floor sin sinh sqrt tan tanh"
UNARY = Table({
    **{name: _unary(_named(name)) for name in _PLAIN.split()},
    "identity": lambda c: c.x(), "logical_not": _unary(lambda v: call("not", v)),
    "relu": _unary(activation.relu),
    "relu6": _unary(lambda v: activation.clip(v, 0.0, 6.0)), "round": _unary(_named("round")),
    "sigmoid": _unary(activation.sigmoid), "sign": _unary(_named("sign")), "silu": _unary(activation.swish),
    "softplus": _unary(activation.softplus), "softsign": _unary(activation.softsign),
    "square": _unary(lambda v: v * v),
})  # fmt: skip


def _scaled(body: Callable[..., Expr], **defaults: float) -> Lowering:
    """Return a lowering of a function of an element and of numbers. `defaults` has the numbers' defaults by
    MIL's names."""

    def lower(c: Call) -> Tensor:
        numbers = [c.number(name, default) for name, default in defaults.items()]
        return c.b.map(widened(lambda v: body(v, *numbers)), c.x())

    return lower


def _thresholded(v: Expr, alpha: float) -> Expr:
    """Return v, or 0 below alpha. ONNX's operator gives 0 at alpha too."""
    return select(v < alpha, const(0, v.dtype), v)


SCALED = Table({
    "clamped_relu": _scaled(lambda v, a, top: minimum(activation.leaky_relu(v, a), top), alpha=0.0, beta=1.0),
    "clip": _scaled(activation.clip, alpha=0.0, beta=1.0),
    "elu": _scaled(activation.elu, alpha=1.0),
    "inverse": _scaled(lambda v, e: 1.0 / (v + e), epsilon=1e-4),
    "leaky_relu": _scaled(activation.leaky_relu, alpha=0.01),
    "linear_activation": _scaled(activation.affine, alpha=1.0, beta=0.0),
    "log": _scaled(lambda v, e: call("log", v + e), epsilon=1e-45),
    "rsqrt": _scaled(lambda v, e: 1.0 / call("sqrt", v + e), epsilon=1e-12),
    "scaled_tanh": _scaled(activation.scaled_tanh, alpha=1.0, beta=1.0),
    "sigmoid_hard": _scaled(activation.hard_sigmoid, alpha=0.2, beta=0.5),
    "threshold": _scaled(lambda v, a: maximum(v, a), alpha=0.0),
    "thresholded_relu": _scaled(_thresholded, alpha=1.0),
})  # fmt: skip
"""MIL's log has an epsilon with the default 1e-45, which is 0 in f32."""


@lowers("gelu")
def gelu(c: Call) -> Tensor:
    mode = c.text("mode", "EXACT")
    known = {
        "EXACT": activation.gelu, "TANH_APPROXIMATION": activation.gelu_tanh,
        "SIGMOID_APPROXIMATION": lambda v: v * activation.sigmoid(v * 1.702),
    }  # fmt: skip
    if mode not in known:
        raise CompileError(f"the mode {mode} is none of {', '.join(known)}")
    return c.b.map(widened(known[mode]), c.x())


@lowers("prelu")
def prelu(c: Call) -> Tensor:
    x = c.x()
    return c.b.map(activation.leaky_relu, x, per_channel(c.b, c.x("alpha"), x.rank))


@lowers("softplus_parametric")
def softplus_parametric(c: Call) -> Tensor:
    x = c.x()
    spread = (per_channel(c.b, c.x(name), x.rank) for name in ("alpha", "beta"))
    return c.b.map(lambda v, a, k: a * activation.softplus(v * k), x, *spread)


@lowers("cast")
def cast_(c: Call) -> Tensor:
    return converted(c.b, c.x(), c.dtype("dtype", "fp32"))


def _binary(body: Callable[[Expr, Expr], Expr]) -> Lowering:
    return lambda c: c.b.map(body, c.x(), c.x("y"))


def _floored(c: Call) -> Tensor:
    x, y = c.x(), c.x("y")
    if x.dtype.is_float:
        return c.b.map(widened(lambda v, w: call("floor", v / w)), x, y)
    return c.b.map(lambda v, w: _quotient(v, w), x, y)


def _quotient(v: Expr, w: Expr) -> Expr:
    """Return the quotient of integers, rounded down. It is computed in f64, which holds all of MIL's integers
    exactly."""
    return cast(v.dtype, call("floor", cast(F64, v) / cast(F64, w)))


def _mod(c: Call) -> Tensor:
    x, y = c.x(), c.x("y")
    if x.dtype.is_float:
        return c.b.map(widened(lambda v, w: v - w * call("floor", v / w)), x, y)
    return c.b.map(lambda v, w: v - w * _quotient(v, w), x, y)


BINARY = Table({
    "add": _binary(lambda v, w: v + w), "sub": _binary(lambda v, w: v - w), "mul": _binary(lambda v,
    w: v * w),
    "maximum": _binary(maximum), "minimum": _binary(minimum), "equal": _binary(eq), "not_equal": _binary(ne),
    "greater": _binary(lambda v, w: v > w), "greater_equal": _binary(lambda v, w: v >= w),
    "less": _binary(lambda v, w: v < w), "less_equal": _binary(lambda v, w: v <= w),
    "logical_and": _binary(land), "logical_or": _binary(lor), "logical_xor": _binary(ne),
    "real_div": lambda c: div(c.b, c.x(), c.x("y")), "pow": lambda c: pow_(c.b, c.x(), c.x("y")),
    "floor_div": _floored, "mod": _mod,
})  # fmt: skip


@lowers("select")
def select_(c: Call) -> Tensor:
    return where(c.b, c.x("cond"), c.x("a"), c.x("b"))
