"""Lower ATen's elementwise operators."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from jangin.frontends.registry import Lowering, Table, lowers
from jangin.frontends.torch.operators.common import (
    Number,
    Operand,
    Result,
    applied,
    scalar,
)
from jangin.ir.dtype import BOOL, F32, F64
from jangin.ir.expr import Expr, call, cast, const, eq, land, lor, maximum, minimum, ne, select
from jangin.ir.expr import binary as operation
from jangin.ir.graph import CompileError
from jangin.ops import activation, special
from jangin.ops.builder import Builder
from jangin.ops.elementwise import Body, bitcast, pow_, shift
from jangin.ops.elementwise import where as choose
from jangin.ops.operands import wide
from jangin.ops.values import Tensor


def _unary(body: Body) -> Lowering:
    """Return a lowering of a function of one element, computed in the result's type. Integers are converted
    first if the result is a float."""

    def lower(b: Builder, out: Result, self: Tensor, **given: Any) -> Tensor:
        return applied(b, out.dtype, partial(body, **given), self)

    return lower


def _predicate(body: Body) -> Lowering:
    """Return a lowering of a test of floats, whose result is a boolean. Integers are converted to f32
    first."""

    def lower(b: Builder, out: Result, self: Tensor) -> Tensor:
        return applied(b, self.dtype if self.dtype.is_float else F32, body, self)

    return lower


def _round(x: Expr, decimals: int = 0) -> Expr:
    """Return x rounded to `decimals` decimals. Halves are rounded to the even neighbour. Integers are
    unchanged."""
    if x.dtype.is_int:
        return x
    scale = 10.0 ** abs(decimals)
    if not decimals:
        return call("round", x)
    return call("round", x * scale) / scale if decimals > 0 else call("round", x / scale) * scale


def _exact(fn: str) -> Body:
    """Return the rounding function `fn`, such as "floor". It leaves integers unchanged."""
    return lambda x: x if x.dtype.is_int else call(fn, x)


def _sign(x: Expr) -> Expr:
    if x.dtype is BOOL:
        return x
    signs = cast(x.dtype, x > 0) - cast(x.dtype, x < 0)
    return select(call("isnan", x), const(0, x.dtype), signs) if x.dtype.is_float else signs


def _elu(x: Expr, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Expr:
    return select(x > 0, x * scale, call("expm1", x * input_scale) * (alpha * scale))


def _gelu(x: Expr, approximate: str = "none") -> Expr:
    return activation.gelu_tanh(x) if approximate == "tanh" else activation.gelu(x)


def _softplus(x: Expr, beta: float = 1.0, threshold: float = 20.0) -> Expr:
    return select(x * beta > threshold, x, call("log1p", call("exp", x * beta)) / beta)


def _sinc(x: Expr) -> Expr:
    angle = x * math.pi
    return select(eq(x, const(0, x.dtype)), const(1, x.dtype), call("sin", angle) / angle)


_FLOAT = "acos acosh asin asinh atan atanh cos cosh erf exp exp2 expm1 log log2 log1p sin sinh sqrt tan tanh"
_SPECIAL = "erfc erfinv lgamma digamma"
UNARY = Table({
    **{name: _unary(partial(call, name)) for name in _FLOAT.split()},
    "abs": _unary(lambda x: x if x.dtype is BOOL or x.dtype.kind == "u" else call("abs", x)),
    "arccos": _unary(partial(call, "acos")),
    "ceil": _unary(_exact("ceil")),
    "floor": _unary(_exact("floor")),
    "trunc": _unary(_exact("trunc")),
    "round": _unary(_round),
    "log10": _unary(lambda x: call("log", x) * (1 / math.log(10))),
    "neg": _unary(lambda x: call("neg", x)),
    "reciprocal": _unary(lambda x: 1 / x),
    "rsqrt": _unary(lambda x: 1 / call("sqrt", x)),
    "sign": _unary(_sign),
    "sgn": _unary(_sign),
    "relu": _unary(activation.relu),
    "sigmoid": _unary(activation.sigmoid),
    "silu": _unary(activation.swish),
    "mish": _unary(activation.mish),
    "hardswish": _unary(activation.hard_swish),
    "hardsigmoid": _unary(lambda x: activation.hard_sigmoid(x, 1 / 6, 0.5)),
    "softplus": _unary(_softplus),
    "elu": _unary(_elu),
    "gelu": _unary(_gelu),
    "hardtanh": _unary(lambda x, min_val=-1.0, max_val=1.0: activation.clip(x, min_val, max_val)),
    "leaky_relu": _unary(lambda x, negative_slope=0.01: activation.leaky_relu(x, negative_slope)),
    "bitwise_not": _unary(lambda x: call("not", x)),
    "angle": _unary(lambda x: select(call("isnan", x), x, select(x < 0, math.pi, const(0, x.dtype)))),
    **{name: _unary(special.in_f64(getattr(special, name))) for name in _SPECIAL.split()},
    "special_erfcx": _unary(special.in_f64(special.erfcx)),
    "special_log_ndtr": _unary(special.in_f64(special.log_ndtr)),
    "special_ndtri": _unary(special.in_f64(special.ndtri)),
    "sinc": _unary(_sinc),
    "isnan": _predicate(partial(call, "isnan")),
    "isinf": _predicate(partial(call, "isinf")),
})  # fmt: skip


@lowers("logical_not")
def logical_not(b: Builder, out: Result, self: Tensor) -> Tensor:
    return applied(b, self.dtype, lambda x: eq(x, const(0, x.dtype)), self)


def _remainder(x: Expr, y: Expr) -> Expr:
    """Return the remainder with the divisor's sign, as in Python."""
    return operation("mod", x, y)


def _floor_divide(x: Expr, y: Expr) -> Expr:
    """Return the exact quotient, rounded down. The floor of x / y might be too large, because x / y itself is
    rounded. A division by 0 gives x / y."""
    if x.dtype.is_int:
        return operation("floordiv", x, y)
    rest = operation("rem", x, y)
    quotient = (x - rest) / y
    below = land(ne(rest, const(0, x.dtype)), ne(operation("lt", y, 0.0), operation("lt", rest, 0.0)))
    quotient = select(below, quotient - 1.0, quotient)
    whole = call("round", quotient)
    return select(eq(y, const(0, x.dtype)), x / y, whole)


def _binary(body: Body) -> Lowering:
    """Return a lowering of a function of two elements, computed in the type to which both operands are
    promoted."""

    def lower(b: Builder, out: Result, self: Operand, other: Operand) -> Tensor:
        return applied(b, out.operands, body, self, other)

    return lower


def _boolean(body: Body) -> Lowering:
    """Return a lowering of a logical function of two operands. An operand is true if it isn't 0."""

    def lower(b: Builder, out: Result, self: Operand, other: Operand) -> Tensor:
        return applied(b, BOOL, body, *(_truth(b, x) for x in (self, other)))

    return lower


def _truth(b: Builder, x: Operand) -> Operand:
    return b.map(lambda v: ne(v, const(0, v.dtype)), x) if isinstance(x, Tensor) else x


def _xor(x: Expr, y: Expr) -> Expr:
    return ne(x, y) if x.dtype is BOOL else operation("xor", x, y)


def _both(x: Expr, y: Expr) -> Expr:
    return land(x, y) if x.dtype is BOOL else operation("and", x, y)


def _either(x: Expr, y: Expr) -> Expr:
    return lor(x, y) if x.dtype is BOOL else operation("or", x, y)


def _product(x: Expr, y: Expr) -> Expr:
    return land(x, y) if x.dtype is BOOL else x * y


BINARY = Table({
    "mul": _binary(_product),
    "eq": _binary(eq),
    "ne": _binary(ne),
    "lt": _binary(lambda x, y: x < y),
    "le": _binary(lambda x, y: x <= y),
    "gt": _binary(lambda x, y: x > y),
    "ge": _binary(lambda x, y: x >= y),
    "maximum": _binary(lambda x, y: lor(x, y) if x.dtype is BOOL else maximum(x, y)),
    "minimum": _binary(lambda x, y: land(x, y) if x.dtype is BOOL else minimum(x, y)),
    "fmod": _binary(lambda x, y: operation("rem", x, y)),
    "remainder": _binary(_remainder),
    "bitwise_and": _binary(_both),
    "bitwise_or": _binary(_either),
    "bitwise_xor": _binary(_xor),
    "bitwise_left_shift": _binary(partial(shift, right=False)),
    "bitwise_right_shift": _binary(partial(shift, right=True)),
    "__lshift__": _binary(partial(shift, right=False)),
    "__rshift__": _binary(partial(shift, right=True)),
    "logical_and": _boolean(land),
    "logical_or": _boolean(lor),
    "logical_xor": _boolean(ne),
})  # fmt: skip


@lowers("polygamma")
def polygamma(b: Builder, out: Result, n: int, self: Tensor) -> Tensor:
    """Return the derivative of order `n` of the digamma function. Raises CompileError for orders above 1."""
    if n > 1:
        raise CompileError(f"polygamma of order {n} isn't supported: orders 0 and 1 are")
    body = special.trigamma if n else special.digamma
    return applied(b, out.dtype, special.in_f64(body), self)


@lowers("ldexp")
def ldexp(b: Builder, out: Result, self: Tensor, other: Tensor) -> Tensor:
    return applied(b, out.dtype, lambda x, y: x * call("exp2", y), self, other)


@lowers("hypot")
def hypot(b: Builder, out: Result, self: Tensor, other: Tensor) -> Tensor:
    """Return the root of the sum of two squares. The larger operand is a factor, so that no square
    overflows."""

    def body(x: Expr, y: Expr) -> Expr:
        x, y = call("abs", x), call("abs", y)
        most, least = maximum(x, y), minimum(x, y)
        ratio = select(land(most > 0, most < math.inf), least / most, const(0, x.dtype))
        return most * call("sqrt", ratio * ratio + 1.0)

    return applied(b, out.dtype, body, self, other)


@lowers("atan2", "arctan2")
def atan2(b: Builder, out: Result, self: Operand, other: Operand) -> Tensor:
    """Return atan2(self, other) in the result's type, which is a float even if the operands are integers."""
    return applied(b, out.dtype, lambda x, y: call("atan2", x, y), self, other)


@lowers("add")
def add(b: Builder, out: Result, self: Operand, other: Operand, alpha: Number = 1) -> Tensor:
    """Return self + alpha * other. Truth values are combined by "or"."""
    if out.dtype is BOOL:
        return applied(b, BOOL, lor if alpha else lambda x, y: x, self, other)
    return applied(b, out.dtype, lambda x, y: x + _times(y, alpha), self, other)


@lowers("sub")
def sub(b: Builder, out: Result, self: Operand, other: Operand, alpha: Number = 1) -> Tensor:
    return applied(b, out.dtype, lambda x, y: x - _times(y, alpha), self, other)


@lowers("rsub")
def rsub(b: Builder, out: Result, self: Operand, other: Operand, alpha: Number = 1) -> Tensor:
    return sub(b, out, other, self, alpha)


def _times(x: Expr, factor: Number) -> Expr:
    if isinstance(factor, Expr):
        return x * cast(x.dtype, factor)
    return x if factor == 1 else x * const(factor, x.dtype)


@lowers("div", "true_divide")
def div(b: Builder, out: Result, self: Operand, other: Operand, rounding_mode: str = "") -> Tensor:
    """Return the quotient. It is a float unless `rounding_mode` is "floor" or "trunc"."""
    if rounding_mode == "floor":
        return applied(b, out.dtype, _floor_divide, self, other, corner="constant")
    if rounding_mode == "trunc" and out.dtype.is_float:
        return applied(b, out.dtype, lambda x, y: call("trunc", x / y), self, other)
    return applied(b, out.dtype, lambda x, y: x / y, self, other)


@lowers("floor_divide")
def floor_divide(b: Builder, out: Result, self: Operand, other: Operand) -> Tensor:
    return div(b, out, self, other, "floor")


@lowers("pow")
def pow(b: Builder, out: Result, self: Operand, exponent: Operand) -> Tensor:
    """Return the power. An integer's power with a negative exponent is 0, except for the bases 1 and -1."""
    x, y = scalar(b, self, out.dtype), scalar(b, exponent, out.dtype)
    if out.dtype.kind != "i":
        return pow_(b, x, y)

    def body(v: Expr, n: Expr) -> Expr:
        odd = operation("and", n, const(1, n.dtype))
        return operation("pow", v, select(lor(eq(v, 1), eq(v, -1)), odd, n))

    return b.map(body, x, y)


@lowers("where")
def where(b: Builder, out: Result, condition: Tensor, self: Operand, other: Operand) -> Tensor:
    return choose(b, b.cast(condition, BOOL), scalar(b, self, out.dtype), scalar(b, other, out.dtype))


@lowers("clamp", "clamp_min", "clamp_max")
def clamp(
    b: Builder, out: Result, self: Tensor, min: Operand | None = None, max: Operand | None = None
) -> Tensor:
    """Return min(max(self, min), max), or NaN if an operand is NaN."""
    y = b.cast(self, out.dtype)
    if min is not None:
        y = applied(b, out.dtype, maximum, y, min, corner="inside")
    return y if max is None else applied(b, out.dtype, minimum, y, max, corner="inside")


@lowers("_to_copy", "to")
def to_copy(b: Builder, out: Result, self: Tensor, **given: Any) -> Tensor:
    """Convert to the result's type. Floats are truncated to integers. As booleans, all numbers but 0 are
    true."""
    return converted(b, self, out)


@lowers("prims.convert_element_type")
def convert_element_type(b: Builder, out: Result, a: Tensor, **given: Any) -> Tensor:
    return converted(b, a, out)


def converted(b: Builder, x: Tensor, out: Result) -> Tensor:
    """Convert to the result's type. As booleans, all numbers but 0 are true."""
    if out.dtype is BOOL and x.dtype is not BOOL:
        return b.map(lambda v: ne(v, const(0, v.dtype)), x)
    return b.cast(x, out.dtype)


@lowers("view.dtype")
def view_dtype(b: Builder, out: Result, self: Tensor, dtype: Any) -> Tensor:
    return bitcast(b, self, out.dtype)


@lowers("copysign")
def copysign(b: Builder, out: Result, self: Operand, other: Operand) -> Tensor:
    def body(x: Expr, y: Expr) -> Expr:
        word = {F32: "bitcast_i32", F64: "bitcast_i64"}[wide(x).dtype]
        size = call("abs", x)
        return select(call(word, y) < 0, call("neg", size), size)

    return applied(b, out.dtype, body, self, other)
