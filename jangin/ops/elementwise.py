"""Operators on single elements: 16-bit floats computed in f32, powers, conversions, arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from jangin.ir.dtype import BOOL, F8E8M0, F32, F64, U8, DType
from jangin.ir.expr import Const, Expr, ExprLike, call, cast, const, land, lor, maximum, minimum, select
from jangin.ir.expr import binary as operation
from jangin.ir.graph import CompileError
from jangin.ir.simplify import prove
from jangin.ops.axes import divide
from jangin.ops.builder import Builder
from jangin.ops.operands import wide
from jangin.ops.values import Tensor

Body = Callable[..., Expr]
"""`fn(*elements)`: the expression of an element of the result, from the operands' elements."""


def widened(fn: Body) -> Body:
    """Return `fn` with 16-bit operands widened to f32, and a float result narrowed to the first operand's
    type."""

    def body(*xs: Expr) -> Expr:
        value = fn(*(wide(x) for x in xs))
        return cast(xs[0].dtype, value) if value.dtype.is_float and xs[0].dtype.is_float else value

    return body


def widen(b: Builder, x: Tensor) -> Tensor:
    """Return the tensor, cast to f32 if it is a smaller float."""
    return b.cast(x, x.dtype.wide) if x.dtype.is_float else x


_POWERS: Mapping[float, Callable[[Expr], ExprLike]] = {
    0.5: lambda x: call("sqrt", x),
    0.75: lambda x: call("sqrt", x) * call("sqrt", call("sqrt", x)),
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    -0.5: lambda x: 1 / call("sqrt", x),
    -1.0: lambda x: 1 / x,
}


def power(x: Expr, exponent: float) -> Expr:
    """Return x ** exponent for a float x, by multiplications and roots for the usual exponents."""
    quick = _POWERS.get(exponent)
    value = quick(x) if quick else operation("pow", x, exponent)
    assert isinstance(value, Expr)
    return value


# -- conversion ----------------------------------------------------------------------------------

ROUND_MODES = ("up", "down", "nearest")
"""How a float is rounded to f8e8m0, whose numbers are powers of two."""


def convert(x: Expr, dtype: DType, saturate: bool = True, round_mode: str = "up") -> Expr:
    """Return x in another type, as NumPy converts it, except for 8-bit floats.

    With `saturate`, values out of an 8-bit float's range become its largest or smallest number; otherwise
    they become infinity or NaN. `round_mode` concerns f8e8m0 alone.
    """
    if dtype is F8E8M0 and x.dtype is not F8E8M0:
        return _power_of_two(cast(F32, x), saturate, round_mode)
    if dtype.is_float and dtype.bits == 8 and saturate and x.dtype != dtype:
        from ml_dtypes import finfo  # it takes as long to import as a small model to lower

        info = finfo(dtype.numpy)
        x = wide(x) if x.dtype.is_float else cast(F64, x)
        return cast(dtype, minimum(maximum(x, float(info.min)), float(info.max)))
    return cast(dtype, x)


def _power_of_two(x: Expr, saturate: bool, round_mode: str) -> Expr:
    """Return |x|, of an f32 x, rounded to a power of two (Open Compute Project, Microscaling Formats 1.0)."""
    bits = call("bitcast_u32", call("abs", x))
    code, fraction = operation("shr", bits, 23), operation("and", bits, 0x7FFFFF)
    tie = 1 << 22
    nearest = select(code > 0, fraction >= tie, fraction > tie)
    above = {"up": fraction > 0, "nearest": nearest, "down": const(False, BOOL)}[round_mode]
    rounded = code + cast(code.dtype, above)
    if saturate:
        value = minimum(rounded, 254)
    else:
        value = select(lor(bits < tie, rounded > 254), const(255, code.dtype), rounded)
    return call("bitcast_f8e8m0", cast(U8, select(call("isnan", x), const(255, code.dtype), value)))


def converted(b: Builder, x: Tensor, dtype: DType, saturate: bool = True, round_mode: str = "up") -> Tensor:
    """Return `convert` of every element. Raises CompileError if `round_mode` isn't in ROUND_MODES."""
    if round_mode not in ROUND_MODES:
        raise CompileError(f"round_mode {round_mode!r} is none of {', '.join(ROUND_MODES)}")
    if dtype.is_float and dtype.bits == 8 and x.dtype != dtype:
        return b.map(lambda v: convert(v, dtype, saturate, round_mode), x)
    return b.cast(x, dtype)


def bitcast(b: Builder, x: Tensor, dtype: DType) -> Tensor:
    """Return the same bits read as another type. Raises CompileError if the types differ in width."""
    if x.dtype.bits != dtype.bits:
        raise CompileError(
            f"{x.dtype} has {x.dtype.bits} bits, {dtype} has {dtype.bits}: they must have as many"
        )
    if BOOL in (x.dtype, dtype):
        return b.cast(x, dtype)
    return b.map(lambda v: call(f"bitcast_{dtype}", v), x)


# -- arithmetic ----------------------------------------------------------------------------------


def shift(x: Expr, y: Expr, *, right: bool) -> Expr:
    """Return x shifted by y bits. If y is negative, or at least the type's width, a signed x shifted right
    becomes its sign bits, and any other x becomes 0."""
    bits = x.dtype.bits
    moved = operation("shr" if right else "shl", x, minimum(maximum(y, 0), bits - 1))
    beyond = operation("shr", x, bits - 1) if right and x.dtype.kind == "i" else const(0, x.dtype)
    return select(land(y >= 0, y < bits), moved, beyond)


def div(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    """Return x / y, broadcasting; integers truncate towards zero. Sizes are never negative, so their quotient
    is a floor division, which index arithmetic can simplify. Division by 0 isn't checked."""
    if x.data is not None and y.data is not None:
        tops, bottoms = np.broadcast_arrays(x.data, y.data)
        if all(prove(land(v >= 0, w >= 0), b.symbols) for v, w in zip(tops.flat, bottoms.flat, strict=True)):
            quotients = np.empty(tops.shape, object)
            for n, (v, w) in enumerate(zip(tops.flat, bottoms.flat, strict=True)):
                quotients.flat[n] = divide(v, w, b.symbols)
            return b.sizes(quotients, x.dtype)
    return b.map(widened(lambda v, w: v / w), x, y)


def pow_(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    """Return x ** y, broadcasting, in x's type for any type of y. An integer base with a float exponent goes
    through f64."""
    known = b.constant_value(y)
    if known is not None and known.size == 1 and x.dtype.is_float and y.rank <= x.rank:
        exponent = float(known.reshape(-1)[0])
        return b.map(widened(lambda v: power(v, exponent)), x)

    def body(v: Expr, w: Expr) -> Expr:
        between = F64 if v.dtype.is_int and w.dtype.is_float else wide(v).dtype
        return cast(v.dtype, operation("pow", cast(between, v), cast(between, w)))

    return b.map(body, x, y)


def where(b: Builder, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return x if the condition holds, else y. All three broadcast, and known sizes stay known."""
    chosen = b.constant_value(condition)
    if chosen is not None and x.data is not None and y.data is not None:
        return b.sizes(np.where(chosen, x.data, y.data), x.dtype)
    return b.map(select, condition, x, y)


def clamp(b: Builder, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Return min(max(x, low), high) with bounds of one element. `high` wins if the bounds cross."""
    bounds = [_bound(b, t, x) for t in (low, high)]
    limits = [t for t in bounds if isinstance(t, Tensor)]

    def body(v: Expr, *loaded: Expr) -> Expr:
        rest = iter(loaded)
        for bound, limit in zip(bounds, (maximum, minimum), strict=True):
            if bound is not None:
                v = limit(v, next(rest) if isinstance(bound, Tensor) else cast(v.dtype, bound))
        return v

    return b.map(widened(body), x, *limits, corner="inside")


def _bound(b: Builder, t: Tensor | None, x: Tensor) -> Const | Tensor | None:
    """Return a bound as a constant if its value is known, else as a scalar tensor."""
    if t is None:
        return None
    value = b.constant_value(t)
    return b.reshape(t, ()) if value is None else const(value.reshape(-1)[0].item(), x.dtype)
