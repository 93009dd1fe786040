"""Lower NNEF's elementwise operations: arithmetic, comparison, activation, quantization.

`round` rounds a half to the even neighbour. The standard doesn't define it, and the converters' runtimes
differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jangin.frontends.nnef.operators.common import DTYPES, Operand, aligned, mapped, tensor
from jangin.frontends.registry import Table, lowers
from jangin.ir.dtype import BOOL
from jangin.ir.expr import Expr, ExprLike, binary, call, const, eq, land, lor, maximum, minimum, ne, select
from jangin.ir.graph import CompileError
from jangin.ops import activation, elementwise
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

CALLS = (
    "exp", "log", "log2", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh",
    "acosh", "atanh", "abs", "sign", "floor", "ceil", "round", "sqrt", "sigmoid", "not", "erf",
)  # fmt: skip


def _unary(fn: Callable[..., ExprLike]) -> Callable[..., Tensor]:
    def lower(b: Builder, x: Operand, **given: float) -> Tensor:
        return mapped(b, lambda v: fn(v, *given.values()), x)

    return lower


def _binary(fn: Callable[..., ExprLike]) -> Callable[..., Tensor]:
    def lower(b: Builder, x: Operand, y: Operand) -> Tensor:
        return mapped(b, fn, x, y)

    return lower


def _named(name: str) -> Callable[[Expr], Expr]:
    return lambda v: call(name, v)


def gelu(x: Expr) -> Expr:
    """Return x * sigmoid(1.702 x), which is the standard's definition of GELU."""
    return x * call("sigmoid", x * 1.702)


UNARY = Table(
    {
        **{name: _unary(_named(name)) for name in CALLS},
        "neg": _unary(lambda v: call("neg", v)),
        "rcp": _unary(lambda v: 1 / v),
        "sqr": _unary(lambda v: v * v),
        "rsqr": _unary(lambda v: 1 / (v * v)),
        "rsqrt": _unary(lambda v: 1 / call("sqrt", v)),
        "relu": _unary(activation.relu),
        "silu": _unary(activation.swish),
        "gelu": _unary(gelu),
        "softplus": _unary(activation.softplus),
        "elu": _unary(activation.elu),
        "selu": _unary(activation.selu),
        "leaky_relu": _unary(activation.leaky_relu),
        "hard_sigmoid": _unary(activation.hard_sigmoid),
        "softabs": _unary(lambda v, epsilon: call("sqrt", v * v + epsilon)),
    }
)

BINARY = Table({
    "add": _binary(lambda x, y: x + y), "sub": _binary(lambda x, y: x - y),
    "mul": _binary(lambda x, y: x * y), "div": _binary(lambda x, y: x / y),
    "min": _binary(minimum), "max": _binary(maximum), "and": _binary(land), "or": _binary(lor),
    "lt": _binary(lambda x, y: x < y), "gt": _binary(lambda x, y: x > y),
    "le": _binary(lambda x, y: x <= y), "ge": _binary(lambda x, y: x >= y),
    "eq": _binary(eq), "ne": _binary(ne),
})  # fmt: skip


@lowers("pow")
def pow_(b: Builder, x: Operand, y: Operand) -> Tensor:
    return elementwise.pow_(b, *aligned(b, x, y))


@lowers("prelu")
def prelu(b: Builder, x: Operand, alpha: Operand) -> Tensor:
    return mapped(b, activation.leaky_relu, x, alpha)


@lowers("copy")
def copy(b: Builder, x: Operand) -> Tensor:
    return tensor(b, x)


@lowers("copy_n")
def copy_n(b: Builder, x: Operand, times: int) -> list[Tensor]:
    return [tensor(b, x)] * times


@lowers("add_n")
def add_n(b: Builder, x: list[Operand]) -> Tensor:
    if not x:
        raise CompileError("there is nothing to add")
    total = tensor(b, x[0])
    for other in x[1:]:
        total = mapped(b, lambda v, w: v + w, total, other)
    return total


@lowers("select")
def choose(b: Builder, condition: Operand, true_value: Operand, false_value: Operand) -> Tensor:
    return mapped(b, select, condition, true_value, false_value)


@lowers("clamp")
def clamp(b: Builder, x: Operand, a: Operand, **upper: Operand) -> Tensor:
    """Return max(min(x, b), a). The bound `a` wins if the bounds cross."""
    (b_,) = upper.values()  # the parameter that is named like the builder
    if not isinstance(a, Tensor) and not isinstance(b_, Tensor) and a <= b_:
        return elementwise.clamp(b, tensor(b, x), tensor(b, a), tensor(b, b_))
    return mapped(b, lambda v, low, high: maximum(minimum(v, high), low), x, a, b_)


@lowers("cast")
def cast(b: Builder, input: Operand, type: str) -> Tensor:
    x, dtype = tensor(b, input), DTYPES[type]
    if dtype is BOOL and x.dtype is not BOOL:
        return b.map(lambda v: ne(v, const(0, v.dtype)), x)
    return b.cast(x, dtype)


@lowers("update")
def update(b: Builder, variable: Operand, value: Operand) -> Tensor:
    """Return the new value of a variable. The importer makes it the variable's value in the next run."""
    held, new = tensor(b, variable), tensor(b, value)
    if (held.dtype, held.shape) != (new.dtype, new.shape):
        raise CompileError(f"variable {held} can't be updated with {new}")
    return new


# -- quantization --------------------------------------------------------------------------------


def _linear(b: Builder, x: Operand, low: Operand, high: Operand, levels: float) -> Tensor:
    """Round x to the nearest of levels + 1 evenly spaced values from `low` to `high`."""

    def body(v: Expr, bottom: Expr, top: Expr) -> Expr:
        kept = maximum(minimum(v, top), bottom)
        q = call("round", (kept - bottom) / (top - bottom) * levels)
        return q / levels * (top - bottom) + bottom

    return mapped(b, body, x, low, high)


@lowers("min_max_linear_quantize")
def min_max_linear_quantize(
    b: Builder, x: Operand, min: Operand, max: Operand, bits: int, signed: bool, symmetric: bool
) -> Tensor:
    return _linear(b, x, min, max, float(_levels(bits) - int(signed and symmetric)))


@lowers("linear_quantize")
def linear_quantize(b: Builder, x: Operand, min: Operand, max: Operand, bits: int) -> Tensor:
    return _linear(b, x, min, max, float(_levels(bits)))


@lowers("zero_point_linear_quantize")
def zero_point_linear_quantize(
    b: Builder, x: Operand, zero_point: Operand, scale: Operand, bits: int, signed: bool, symmetric: bool
) -> Tensor:
    high = float(_levels(bits - 1 if signed else bits))
    low = 0.0 if not signed else -high if symmetric else -high - 1.0

    def body(v: Expr, z: Expr, s: Expr) -> Expr:
        q = call("round", v / s) + z
        return (maximum(minimum(q, high), low) - z) * s

    return mapped(b, body, x, b.cast(tensor(b, zero_point), DTYPES["scalar"]), scale)


@lowers("logarithmic_quantize")
def logarithmic_quantize(b: Builder, x: Operand, max: Operand, bits: int) -> Tensor:
    levels = float(_levels(bits))

    def body(v: Expr, limit: Expr) -> Expr:
        top = call("ceil", call("log2", limit))
        q = call("round", maximum(minimum(call("log2", call("abs", v)), top), top - levels))
        return call("sign", v) * binary("pow", const(2.0, v.dtype), q)

    return mapped(b, body, x, max)


def _levels(bits: Any) -> int:
    if not 0 <= bits <= 64:
        raise CompileError(f"quantizing to {bits} bits is not defined: there may be 0 to 64")
    return int(2**bits - 1)
