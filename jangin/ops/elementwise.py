"""What operators on single elements share: 16-bit floats computed in f32, and powers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jangin.ir.expr import Expr, ExprLike, call, cast
from jangin.ir.expr import binary as operation
from jangin.ops.builder import Builder, Tensor
from jangin.ops.operands import wide

Body = Callable[..., Expr]
"""The value of an element, from its operands' elements."""


def widened(fn: Body) -> Body:
    """`fn` with 16-bit operands widened to f32, and a float result narrowed to the first's type."""

    def body(*xs: Expr) -> Expr:
        value = fn(*(wide(x) for x in xs))
        return cast(xs[0].dtype, value) if value.dtype.is_float and xs[0].dtype.is_float else value

    return body


def widen(b: Builder, x: Tensor) -> Tensor:
    """The tensor, in f32 if it is of a smaller float."""
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
    """x ** exponent for a float x, by multiplications and roots where these do."""
    quick = _POWERS.get(exponent)
    value = quick(x) if quick else operation("pow", x, exponent)
    assert isinstance(value, Expr)
    return value
