"""Lower elementwise operators with broadcasting: arithmetic, comparisons, logic, bits and type conversion."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from jangin.frontends.onnx.operators.families import align, binary, family, same_types, unary, variadic
from jangin.frontends.onnx.registry import Lowering, one_of, op
from jangin.ir.dtype import BOOL
from jangin.ir.expr import Expr, call, const, eq, land, lor, maximum, minimum
from jangin.ir.expr import binary as operation
from jangin.ir.graph import CompileError
from jangin.ops.activation import leaky_relu
from jangin.ops.axes import per_channel
from jangin.ops.builder import Builder
from jangin.ops.elementwise import clamp, div, pow_, shift, where, widened
from jangin.ops.values import Tensor

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


def _exact(body: Callable[..., Expr]) -> Callable[..., Expr]:
    """Return `body` with a check of its operands. It raises CompileError for floats."""

    def checked(*xs: Expr, **attrs: Any) -> Expr:
        if any(x.dtype.is_float for x in xs):
            raise CompileError("its operands are floats, but must be integers; insert a Cast")
        return body(*xs, **attrs)

    return checked


def _logical(body: Callable[..., Expr]) -> Callable[..., Expr]:
    """Return `body` with a check of its operands. It raises CompileError for other types than booleans."""

    def checked(*xs: Expr) -> Expr:
        if any(x.dtype != BOOL for x in xs):
            raise CompileError("its operands must be of type bool; insert a Cast")
        return body(*xs)

    return checked


UNARY = unary(
    {
        **{name: partial(call, name.lower()) for name in _INTRINSICS.split()},
        "BitwiseNot": _exact(lambda x: call("not", x)),
        "IsInf": _is_inf,
        "Reciprocal": lambda x: 1 / x,
        "Scale": lambda x, scale=1.0: x * scale,
    }
)


def _shift(x: Expr, y: Expr, direction: str) -> Expr:
    one_of("direction", direction.upper(), ("LEFT", "RIGHT"))
    return shift(x, y, right=direction.upper() == "RIGHT")


BINARY = binary(
    {
        "Add": lambda x, y: x + y,
        "Sub": lambda x, y: x - y,
        "Mul": lambda x, y: x * y,
        "Mod": lambda x, y, fmod=0: operation("rem" if fmod else "mod", x, y),
        "And": _logical(land),
        "Or": _logical(lor),
        "Xor": _logical(partial(operation, "xor")),
        "BitwiseAnd": _exact(partial(operation, "and")),
        "BitwiseOr": _exact(partial(operation, "or")),
        "BitwiseXor": _exact(partial(operation, "xor")),
        "BitShift": _exact(_shift),
        "Equal": eq,
        "Greater": lambda x, y: x > y,
        "GreaterOrEqual": lambda x, y: x >= y,
        "Less": lambda x, y: x < y,
        "LessOrEqual": lambda x, y: x <= y,
    }
)

VARIADIC = variadic(
    {
        "Max": (maximum, lambda value, count: value),
        "Min": (minimum, lambda value, count: value),
        "Sum": (lambda x, y: x + y, lambda value, count: value),
        "Mean": (lambda x, y: x + y, lambda value, count: value / count),
    }
)


def _broadcast_to_left(fn: Callable[[Builder, Tensor, Tensor], Tensor], one_type: bool) -> Lowering:
    """Return a lowering of an operator of two inputs with the attributes `axis` and `broadcast`, as before
    opset 7. `one_type` tells if the inputs must have the same type."""

    def lower(b: Builder, x: Tensor, y: Tensor, axis: int | None = None, broadcast: int = 0) -> Tensor:
        if one_type:
            same_types((x, y))
        return fn(b, x, align(b, x, y, axis, broadcast))

    return lower


ARITHMETIC = family({"Div": _broadcast_to_left(div, True), "Pow": _broadcast_to_left(pow_, False)})


@op("PRelu", since=7)
def prelu(b: Builder, x: Tensor, slope: Tensor) -> Tensor:
    """Return x, multiplied by `slope` where it is negative. `slope` is broadcast to x."""
    same_types((x, slope))
    return b.map(widened(leaky_relu), x, slope)


@op("PRelu")
def prelu_channels(b: Builder, x: Tensor, slope: Tensor) -> Tensor:
    """Return PRelu as before opset 7. There is one slope, or one for each channel (axis 1)."""
    return prelu(b, x, per_channel(b, slope, x.rank))


@op("Identity")
def identity(b: Builder, x: Any) -> Any:
    return x


@op("Where")
def where_(b: Builder, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    same_types((x, y))
    return where(b, condition, x, y)


@op("Clip", since=11)
def clip(b: Builder, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    same_types([t for t in (x, low, high) if t is not None])
    return clamp(b, x, low, high)


@op("Clip")
def clip_1(b: Builder, x: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    """Return x clipped to bounds that are attributes. Bounds at float32's extremes, the defaults of opset 6,
    have no effect."""
    limit = float(np.finfo(np.float32).max)

    def body(v: Expr) -> Expr:
        v = v if min is None or min <= -limit else maximum(v, min)
        return v if max is None or max >= limit else minimum(v, max)

    return b.map(widened(body), x, corner="inside")


@op("ImageScaler")
def image_scaler(b: Builder, x: Tensor, scale: float = 1.0, bias: tuple[float, ...] = ()) -> Tensor:
    """Return x [N, C, H, W] multiplied by `scale`, plus a bias for each channel."""
    offset = b.const(np.array(bias, x.dtype.numpy).reshape(-1, 1, 1))
    return b.map(widened(lambda v, o: v * scale + o), x, offset)
