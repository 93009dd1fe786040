"""Activations, and softmax with its kin."""

from __future__ import annotations

import math
from collections.abc import Callable

from jangin.frontends.onnx.operators.families import unary
from jangin.frontends.onnx.registry import op
from jangin.ir.expr import Buffer, Expr, Load, call, cast, const, eq, maximum, minimum, select
from jangin.ir.te import compute
from jangin.ops.axes import axis_of, product
from jangin.ops.builder import Builder, Tensor
from jangin.ops.elementwise import Body, widened
from jangin.ops.reduce import first_extreme


def sigmoid(x: Expr) -> Expr:
    return call("sigmoid", x)


def softplus(x: Expr) -> Expr:
    """log(1 + exp(x)), without overflow."""
    return maximum(x, 0) + call("log1p", call("exp", -call("abs", x)))


def hard_sigmoid(x: Expr, alpha: float = 0.2, beta: float = 0.5) -> Expr:
    return maximum(minimum(x * alpha + beta, 1), 0)


def gelu(x: Expr, approximate: str = "none") -> Expr:
    """x times the normal distribution function, exactly or through tanh (Hendrycks & Gimpel 2016)."""
    if approximate == "tanh":
        return x * 0.5 * (call("tanh", (x * x * 0.044715 + 1) * x * math.sqrt(2 / math.pi)) + 1)
    return x * 0.5 * (call("erf", x * math.sqrt(0.5)) + 1)


def swish(x: Expr, alpha: float = 1.0) -> Expr:
    return x * sigmoid(x * alpha)


def _elu(x: Expr, alpha: float = 1.0) -> Expr:
    return select(x > 0, x, call("expm1", x) * alpha)


def _selu(alpha: float, gamma: float) -> Body:
    return lambda x, alpha=alpha, gamma=gamma: _elu(x, alpha) * gamma


def _celu(x: Expr, alpha: float = 1.0) -> Expr:
    return maximum(x, 0) + minimum(call("expm1", x / alpha) * alpha, 0)


def _shrink(x: Expr, lambd: float = 0.5, bias: float = 0.0) -> Expr:
    return select(x > lambd, x - bias, select(x < -lambd, x + bias, const(0, x.dtype)))


ACTIVATIONS = unary(
    {
        "Celu": _celu,
        "Elu": _elu,
        "Gelu": gelu,
        "HardSigmoid": hard_sigmoid,
        "HardSwish": lambda x: x * hard_sigmoid(x, 1 / 6, 0.5),
        "LeakyRelu": lambda x, alpha=0.01: select(x < 0, x * alpha, x),
        "Mish": lambda x: x * call("tanh", softplus(x)),
        "ParametricSoftplus": lambda x, alpha=1.0, beta=1.0: softplus(x * beta) * alpha,
        "Relu": lambda x: maximum(x, 0),
        "ScaledTanh": lambda x, alpha=1.0, beta=1.0: call("tanh", x * beta) * alpha,
        "Selu": _selu(1.6732, 1.0507),
        "Shrink": _shrink,
        "Softplus": softplus,
        "Softsign": lambda x: x / (call("abs", x) + 1),
        "Swish": swish,
        "ThresholdedRelu": lambda x, alpha=1.0: select(x > alpha, x, const(0, x.dtype)),
    }
)
SELU_6 = unary({"Selu": _selu(1.67326319217681884765625, 1.05070102214813232421875)}, since=6)
MICROSOFT = unary({"Gelu": gelu, "QuickGelu": lambda x, alpha=1.702: swish(x, alpha)}, domain="com.microsoft")


@op("BiasGelu", domain="com.microsoft")
def bias_gelu(b: Builder, x: Tensor, bias: Tensor) -> Tensor:
    return b.map(widened(lambda v, w: gelu(v + w)), x, bias)


@op("FastGelu", domain="com.microsoft")
def fast_gelu(b: Builder, x: Tensor, bias: Tensor | None = None) -> Tensor:
    if bias is None:
        return b.map(widened(lambda v: gelu(v, "tanh")), x)
    return b.map(widened(lambda v, w: gelu(v + w, "tanh")), x, bias)


# --- softmax ---------------------------------------------------------------------------------

Rowwise = Callable[[Tensor, int], Tensor]


def _flattened(b: Builder, x: Tensor, axis: int, fn: Rowwise) -> Tensor:
    """`fn` over the axes from `axis` on as one: what opsets before 13 mean."""
    axis = axis if axis == x.rank else axis_of(axis, x.rank)
    if axis == x.rank - 1:
        return fn(x, axis)
    flat = (product(x.shape[:axis]), product(x.shape[axis:]))
    return b.reshape(fn(b.reshape(x, flat), 1), x.shape)


@op("Softmax", since=13)
def softmax(b: Builder, x: Tensor, axis: int = -1) -> Tensor:
    return b.softmax(x, axis_of(axis, x.rank))


@op("LogSoftmax", since=13)
def log_softmax(b: Builder, x: Tensor, axis: int = -1) -> Tensor:
    return b.softmax(x, axis_of(axis, x.rank), log=True)


@op("Softmax")
def softmax_1(b: Builder, x: Tensor, axis: int = 1) -> Tensor:
    return _flattened(b, x, axis, b.softmax)


@op("LogSoftmax")
def log_softmax_1(b: Builder, x: Tensor, axis: int = 1) -> Tensor:
    return _flattened(b, x, axis, lambda t, a: b.softmax(t, a, log=True))


@op("Hardmax", since=13)
def hardmax(b: Builder, x: Tensor, axis: int = -1) -> Tensor:
    """1 at the first of the largest elements along `axis`, else 0."""
    axis = axis_of(axis, x.rank)
    source = Buffer("x0", x.dtype, x.shape)
    first, stages = first_extreme(source, axis, "max")
    out = Buffer("out", x.dtype, x.shape)

    def at(*index: Expr) -> Expr:
        chosen = eq(index[axis], Load(first, (*index[:axis], *index[axis + 1 :])))
        return cast(x.dtype, select(chosen, 1, 0))

    return b.stages([*stages, compute(out, at)], [x])


@op("Hardmax")
def hardmax_1(b: Builder, x: Tensor, axis: int = 1) -> Tensor:
    return _flattened(b, x, axis, lambda t, a: hardmax(b, t, a))
