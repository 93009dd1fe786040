"""Arithmetic, comparisons, logic, bits, type conversion: elementwise operators with broadcasting."""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import numpy as np

from jangin.frontends.onnx.operators.families import align, binary, same_types, unary, variadic
from jangin.frontends.onnx.registry import op
from jangin.ir.dtype import BOOL, F64
from jangin.ir.expr import (
    Const,
    Expr,
    call,
    cast,
    const,
    eq,
    land,
    lor,
    maximum,
    minimum,
    select,
)
from jangin.ir.expr import binary as operation
from jangin.ir.simplify import prove
from jangin.ops.activation import leaky_relu
from jangin.ops.axes import divide
from jangin.ops.builder import Builder, Tensor
from jangin.ops.elementwise import power, widened
from jangin.ops.operands import wide

_INTRINSICS = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor IsNaN Log Neg Not Round Sign "
    "Sin Sinh Sqrt Tan"
)


def _is_inf(x: Expr, detect_negative: int = 1, detect_positive: int = 1) -> Expr:
    if detect_negative and detect_positive:
        return call("isinf", x)
    if not detect_negative and not detect_positive:
        return const(False, BOOL)
    return land(call("isinf", x), x > 0 if detect_positive else x < 0)


UNARY = unary(
    {
        **{name: partial(call, name.lower()) for name in _INTRINSICS.split()},
        "BitwiseNot": lambda x: call("not", x),
        "IsInf": _is_inf,
        "Reciprocal": lambda x: 1 / x,
        "Scale": lambda x, scale=1.0: x * scale,
    }
)


def _shift(x: Expr, y: Expr, direction: str) -> Expr:
    """A shift by a negative number, or by the type's width or more, leaves nothing but the sign."""
    bits, right = x.dtype.bits, direction.upper() == "RIGHT"
    moved = operation("shr" if right else "shl", x, minimum(maximum(y, 0), bits - 1))
    beyond = operation("shr", x, bits - 1) if right and x.dtype.kind == "i" else const(0, x.dtype)
    return select(land(y >= 0, y < bits), moved, beyond)


BINARY = binary(
    {
        "Add": lambda x, y: x + y,
        "Sub": lambda x, y: x - y,
        "Mul": lambda x, y: x * y,
        "Mod": lambda x, y, fmod=0: operation("rem" if fmod else "mod", x, y),
        "And": land,
        "Or": lor,
        "Xor": partial(operation, "xor"),
        "BitwiseAnd": partial(operation, "and"),
        "BitwiseOr": partial(operation, "or"),
        "BitwiseXor": partial(operation, "xor"),
        "BitShift": _shift,
        "Equal": eq,
        "Greater": lambda x, y: x > y,
        "GreaterOrEqual": lambda x, y: x >= y,
        "Less": lambda x, y: x < y,
        "LessOrEqual": lambda x, y: x <= y,
    }
)

VARIADIC = variadic(
    {
        "Max": lambda *xs: reduce(maximum, xs),
        "Min": lambda *xs: reduce(minimum, xs),
        "Sum": lambda *xs: reduce(lambda x, y: x + y, xs),
        "Mean": lambda *xs: reduce(lambda x, y: x + y, xs) / len(xs),
    }
)


@op("Div")
def div(b: Builder, x: Tensor, y: Tensor, axis: int | None = None, broadcast: int = 0) -> Tensor:
    """Quotient; integers truncate towards zero. Sizes, never negative, divide to a floor, which
    index arithmetic can simplify."""
    same_types((x, y))
    y = align(b, x, y, axis, broadcast)
    if x.data is not None and y.data is not None:
        tops, bottoms = np.broadcast_arrays(x.data, y.data)
        if all(prove(land(v >= 0, w > 0), b.symbols) for v, w in zip(tops.flat, bottoms.flat, strict=True)):
            quotients = np.empty(tops.shape, object)
            for n, (v, w) in enumerate(zip(tops.flat, bottoms.flat, strict=True)):
                quotients.flat[n] = divide(v, w, b.symbols)
            return b.sizes(quotients, x.dtype)
    return b.map(widened(lambda v, w: v / w), x, y)


@op("Pow")
def pow_(b: Builder, x: Tensor, y: Tensor, axis: int | None = None, broadcast: int = 0) -> Tensor:
    """x ** y in x's type, whatever y's is; an integer base with a float exponent goes through f64."""
    y = align(b, x, y, axis, broadcast)
    known = b.constant_value(y)
    if known is not None and known.size == 1 and x.dtype.is_float and y.rank <= x.rank:
        exponent = float(known.reshape(-1)[0])
        return b.map(widened(lambda v: power(v, exponent)), x)

    def body(v: Expr, w: Expr) -> Expr:
        between = F64 if v.dtype.is_int and w.dtype.is_float else wide(v).dtype
        return cast(v.dtype, operation("pow", cast(between, v), cast(between, w)))

    return b.map(body, x, y)


@op("PRelu", since=7)
def prelu(b: Builder, x: Tensor, slope: Tensor) -> Tensor:
    """x, or x * slope where x is negative; `slope` broadcasts to x."""
    same_types((x, slope))
    return b.map(widened(leaky_relu), x, slope)


@op("PRelu")
def prelu_channels(b: Builder, x: Tensor, slope: Tensor) -> Tensor:
    """Before opset 7: one slope, or one a channel (axis 1)."""
    channels = slope.rank == 1 and x.rank > 1
    return prelu(b, x, b.reshape(slope, (*slope.shape, *[1] * (x.rank - 2))) if channels else slope)


@op("Identity")
def identity(b: Builder, x: Any) -> Any:
    return x


@op("Where")
def where(b: Builder, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    same_types((x, y))
    chosen = b.constant_value(condition)
    if chosen is not None and x.data is not None and y.data is not None:
        return b.sizes(np.where(chosen, x.data, y.data), x.dtype)
    return b.map(select, condition, x, y)


def _bound(b: Builder, t: Tensor | None, x: Tensor) -> Const | Tensor | None:
    """A bound of Clip as a constant where it is one, else as a scalar tensor."""
    if t is None:
        return None
    same_types((x, t))
    value = b.constant_value(t)
    return b.reshape(t, ()) if value is None else const(value.reshape(-1)[0].item(), x.dtype)


@op("Clip", since=11)
def clip(b: Builder, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """min(max(x, low), high): `high` wins where the bounds cross."""
    bounds = [_bound(b, t, x) for t in (low, high)]
    given = [t for t in bounds if isinstance(t, Tensor)]

    def body(v: Expr, *loaded: Expr) -> Expr:
        rest = iter(loaded)
        for bound, limit in zip(bounds, (maximum, minimum), strict=True):
            if bound is not None:
                v = limit(v, next(rest) if isinstance(bound, Tensor) else cast(v.dtype, bound))
        return v

    return b.map(widened(body), x, *given)


@op("Clip")
def clip_1(b: Builder, x: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    """Bounds as attributes; opset 6's defaults, float32's extremes, bound nothing."""
    limit = float(np.finfo(np.float32).max)

    def body(v: Expr) -> Expr:
        v = v if min is None or min <= -limit else maximum(v, min)
        return v if max is None or max >= limit else minimum(v, max)

    return b.map(widened(body), x)


@op("ImageScaler")
def image_scaler(b: Builder, x: Tensor, scale: float = 1.0, bias: tuple[float, ...] = ()) -> Tensor:
    """x [N, C, H, W] times `scale`, plus a bias for each channel."""
    offset = b.const(np.array(bias, x.dtype.numpy).reshape(-1, 1, 1))
    return b.map(widened(lambda v, o: v * scale + o), x, offset)
