"""Activations: scalar functions of an expression x, in x's dtype, with their parameters' usual values.

The table `ACTIVATIONS` lists all activations by name. A front end maps its format's names to these names, and
passes its own defaults if they differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from inspect import signature

from jangin.ir.expr import Expr, ExprLike, call, const, maximum, minimum, select

Activation = Callable[..., Expr]
"""`fn(x, *parameters)`: the parameters are numbers in order, each with a default."""


def affine(x: Expr, alpha: float = 1.0, beta: float = 0.0) -> Expr:
    return x * alpha + beta


def celu(x: Expr, alpha: float = 1.0) -> Expr:
    """Return max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0) (Barron 2017)."""
    return maximum(x, 0) + minimum(call("expm1", x / alpha) * alpha, 0)


def clip(x: Expr, low: float = -1.0, high: float = 1.0) -> Expr:
    """Return min(max(x, low), high): hardtanh, and with 0 and 6 ReLU6."""
    return minimum(maximum(x, low), high)


def elu(x: Expr, alpha: float = 1.0) -> Expr:
    """Return x, or alpha * (exp(x) - 1) if x is negative (Clevert et al. 2016)."""
    return select(x > 0, x, call("expm1", x) * alpha)


def gelu(x: Expr) -> Expr:
    """Return x times the normal distribution function (Hendrycks & Gimpel 2016)."""
    return x * 0.5 * (call("erf", x * math.sqrt(0.5)) + 1)


def gelu_tanh(x: Expr) -> Expr:
    """Return `gelu` with the paper's approximation of the normal distribution function by tanh."""
    return x * 0.5 * (call("tanh", (x * x * 0.044715 + 1) * x * math.sqrt(2 / math.pi)) + 1)


def hard_sigmoid(x: Expr, alpha: float = 0.2, beta: float = 0.5) -> Expr:
    return maximum(minimum(x * alpha + beta, 1), 0)


def hard_swish(x: Expr) -> Expr:
    """Return x * hard_sigmoid(x, 1/6, 1/2) (Howard et al. 2019)."""
    return x * hard_sigmoid(x, 1 / 6, 0.5)


def leaky_relu(x: Expr, alpha: ExprLike = 0.01) -> Expr:
    """Return x, or x * alpha if x isn't positive. An expression as alpha makes PReLU (He et al. 2015)."""
    return select(x > 0, x, x * alpha)


def mish(x: Expr) -> Expr:
    """Return x * tanh(softplus(x)) (Misra 2019)."""
    return x * call("tanh", softplus(x))


def relu(x: Expr) -> Expr:
    return maximum(x, 0)


def scaled_softplus(x: Expr, alpha: float = 1.0, beta: float = 1.0) -> Expr:
    """Return alpha * softplus(beta * x)."""
    return softplus(x * beta) * alpha


def scaled_tanh(x: Expr, alpha: float = 1.0, beta: float = 1.0) -> Expr:
    """Return alpha * tanh(beta * x)."""
    return call("tanh", x * beta) * alpha


def selu(x: Expr, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Expr:
    """Return gamma * elu(x, alpha). The default parameters are the paper's, rounded to f32 (Klambauer et al.
    2017)."""
    return elu(x, alpha) * gamma


def shrink(x: Expr, threshold: float = 0.5, bias: float = 0.0) -> Expr:
    """Return hard shrinkage: 0 if |x| is at most the threshold, else x moved by `bias` towards 0. A bias
    equal to the threshold gives soft shrinkage."""
    return select(x > threshold, x - bias, select(x < -threshold, x + bias, const(0, x.dtype)))


def sigmoid(x: Expr) -> Expr:
    """Return 1 / (1 + exp(-x))."""
    return call("sigmoid", x)


def softplus(x: Expr) -> Expr:
    """Return log(1 + exp(x)), without overflow."""
    return maximum(x, 0) + call("log1p", call("exp", -call("abs", x)))


def softsign(x: Expr) -> Expr:
    return x / (call("abs", x) + 1)


def swish(x: Expr, alpha: float = 1.0) -> Expr:
    """Return x * sigmoid(alpha * x) (Ramachandran et al. 2017). With alpha 1 this is SiLU."""
    return x * sigmoid(x * alpha)


def tanh(x: Expr) -> Expr:
    return call("tanh", x)


def thresholded_relu(x: Expr, alpha: float = 1.0) -> Expr:
    return select(x > alpha, x, const(0, x.dtype))


ACTIVATIONS: Mapping[str, Activation] = {
    "affine": affine,
    "celu": celu,
    "clip": clip,
    "elu": elu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "hard_sigmoid": hard_sigmoid,
    "hard_swish": hard_swish,
    "leaky_relu": leaky_relu,
    "mish": mish,
    "relu": relu,
    "scaled_softplus": scaled_softplus,
    "scaled_tanh": scaled_tanh,
    "selu": selu,
    "shrink": shrink,
    "sigmoid": sigmoid,
    "softplus": softplus,
    "softsign": softsign,
    "swish": swish,
    "tanh": tanh,
    "thresholded_relu": thresholded_relu,
}


CORNERS: Mapping[str, str] = dict.fromkeys(("celu", "softplus", "scaled_softplus"), "shared")
"""For some activations, the gradient's convention at the points where their pieces meet (see `ir.core.Map`).
Their slope there isn't that of a piece."""


def parameters(name: str) -> list[float]:
    """Return the default values of an activation's parameters, in order."""
    return [p.default for p in list(signature(ACTIVATIONS[name]).parameters.values())[1:]]
