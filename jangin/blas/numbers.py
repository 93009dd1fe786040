"""Elements of BLAS's operands: real expressions, or complex numbers whose parts lie side by side.

Vectors and matrices of complex numbers count parts: element i has the parts 2 i and 2 i + 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jangin.ir.dtype import BOOL, DType
from jangin.ir.expr import Buffer, Expr, Load, Var, call, const, eq, land, select
from jangin.ir.loop import Let, Stmt, Store, block
from jangin.ir.records import dataclass

Value = Any
"""An expression, or a Number. Both have the operators of arithmetic."""


@dataclass(frozen=True)
class Number:
    """A complex number."""

    re: Expr
    im: Expr

    def __add__(self, other: Number) -> Number:
        return Number(self.re + other.re, self.im + other.im)

    def __mul__(self, other: Number) -> Number:
        return Number(self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re)

    def __neg__(self) -> Number:
        return Number(-self.re, -self.im)

    def __truediv__(self, other: Number) -> Number:
        """Return the quotient by Smith's method ("Algorithm 116: Complex division", 1962), which doesn't
        square the divisor."""
        wide = call("abs", other.re) >= call("abs", other.im)
        large, small = select(wide, other.re, other.im), select(wide, other.im, other.re)
        ratio = small / large
        total = large + small * ratio
        re = select(wide, self.re + self.im * ratio, self.re * ratio + self.im)
        im = select(wide, self.im - self.re * ratio, self.im * ratio - self.re)
        return Number(re / total, im / total)

    def conjugate(self, really: bool = True) -> Number:
        return Number(self.re, -self.im) if really else self

    @property
    def is_zero(self) -> Expr:
        zero = const(0, self.re.dtype)
        return land(eq(self.re, zero), eq(self.im, zero))

    def unless(self, cond: Expr) -> Number:
        """Return this number, or 0 if a condition holds."""
        zero = const(0, self.re.dtype)
        return Number(select(cond, zero, self.re), select(cond, zero, self.im))


def at(buffer: Buffer, *index: Expr) -> Number:
    """Return a complex element of a buffer of parts. No index means a buffer with one element."""
    *rows, i = index or (const(0),)
    return Number(Load(buffer, (*rows, 2 * i)), Load(buffer, (*rows, 2 * i + 1)))


def element(parts: int, buffer: Buffer, *index: Expr) -> Value:
    """Return an element that has so many parts."""
    return at(buffer, *index) if parts == 2 else Load(buffer, index)


def number(value: Expr | Number) -> Number:
    """Return a number as a complex one. A real number gets the imaginary part 0."""
    return value if isinstance(value, Number) else Number(value, const(0, value.dtype))


def zero(parts: int, dtype: DType) -> Value:
    nothing = const(0, dtype)
    return Number(nothing, nothing) if parts == 2 else nothing


def parts_of(value: Value) -> tuple[Expr, ...]:
    return (value.re, value.im) if isinstance(value, Number) else (value,)


def conjugate(value: Value, really: bool = True) -> Value:
    """Return the conjugate of a complex number if `really`, and a real one itself."""
    return value.conjugate(really) if isinstance(value, Number) else value


def is_zero(value: Value) -> Expr:
    return value.is_zero if isinstance(value, Number) else eq(value, const(0, value.dtype))


def is_some(value: Value) -> Expr:
    """Return whether a value differs from 0."""
    return eq(is_zero(value), const(False, BOOL))


def times(factor: Value, value: Value) -> Value:
    """Return the product. A real factor multiplies both parts of a complex number, so that NaN or infinity in
    one of them doesn't get into the other."""
    if isinstance(value, Number) and not isinstance(factor, Number):
        return Number(factor * value.re, factor * value.im)
    return factor * value


def scaled(factor: Value, value: Value) -> Value:
    """Return the product, which is 0 for a factor of 0 even if the value is NaN."""
    product, nothing = times(factor, value), is_zero(factor)
    if isinstance(product, Number):
        return product.unless(nothing)
    return select(nothing, const(0, product.dtype), product)


def stored(buffer: Buffer, index: tuple[Expr, ...], value: Value) -> Stmt:
    """Return the store of an element. Both parts of a complex one are known before one of them is written."""
    if not isinstance(value, Number):
        return Store(buffer, index, value)
    *rows, i = index

    def parts(own: Number) -> Stmt:
        return block(Store(buffer, (*rows, 2 * i), own.re), Store(buffer, (*rows, 2 * i + 1), own.im))

    return held("own", value, parts)


def held(name: str, value: Value, body: Callable[[Value], Stmt]) -> Stmt:
    """Return statements that use a value which is computed once."""
    if not isinstance(value, Number):
        own = Var(name, value.dtype)
        return Let(own, value, body(own))
    re, im = Var(f"{name}_re", value.re.dtype), Var(f"{name}_im", value.re.dtype)
    return Let(re, value.re, Let(im, value.im, body(Number(re, im))))
