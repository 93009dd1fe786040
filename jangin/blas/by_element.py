"""Kernels for devices with memory of their own: each element of a result is described by itself.

Work-items of a device take elements in any order. Nothing is updated where it lies, and matrices arrive
without gaps. All operands are read through `Operands`, whichever way they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jangin.blas.columns import Columns
from jangin.blas.kernel import Kernel
from jangin.blas.numbers import (
    Number,
    Value,
    conjugate,
    element,
    is_zero,
    number,
    parts_of,
    scaled,
    stored,
    times,
    zero,
)
from jangin.ir.dtype import BOOL, F32, F64, DType
from jangin.ir.expr import (
    Buffer,
    Expr,
    ExprLike,
    Load,
    Var,
    call,
    cast,
    const,
    eq,
    land,
    maximum,
    minimum,
    select,
)
from jangin.ir.loop import For, If
from jangin.ops.values import Tensor

KINDS = {
    "sy": "symmetric", "sb": "symmetric", "sp": "symmetric",
    "he": "hermitian", "hb": "hermitian", "hp": "hermitian",
    "tr": "triangular", "tb": "triangular", "tp": "triangular", "gb": "banded",
}  # fmt: skip
"""The kind of a routine's matrix `a` or `ap`, by the first letters of the routine's name."""


def chosen(cond: Expr, yes: Value, no: Value) -> Value:
    """Return one of two values."""
    if isinstance(yes, Number) or isinstance(no, Number):
        pairs = zip(parts_of(number(yes)), parts_of(number(no)), strict=True)
        return Number(*(select(cond, a, b) for a, b in pairs))
    return select(cond, yes, no)


class Operands:
    """The operands of a kernel, read from buffers by name."""

    def __init__(self, k: Kernel, buffers: Mapping[str, Buffer]) -> None:
        self.k, self.buffers = k, buffers

    def factor(self, name: str) -> Value:
        """Return a factor, which is real in some complex routines."""
        buffer = self.buffers[name]
        return element(2, buffer, const(0)) if self.k[name].shape else Load(buffer, ())

    def __call__(self, name: str, *index: Expr) -> Value:
        """Return a stored element."""
        return element(self.k.parts, self.buffers[name], *index)

    def inside(self, name: str, i: Expr, j: Expr) -> Expr:
        """Return whether an element of a band or triangle is stored."""
        k, kind = self.k, kind_of(self.k, name)
        if kind == "whole":
            return const(True, BOOL)
        if kind == "banded":
            return land(i - j <= k.size("kl"), j - i <= k.size("ku"))
        own = i >= j if k.is_set("uplo") else i <= j
        if "k" in k.routine.sizes:
            width = k.size("k")
            return land(own, land(i - j <= width, j - i <= width))
        return own

    def at(self, name: str, i: Expr, j: Expr) -> Value:
        """Return an element of a matrix: one of the other triangle of a symmetric matrix too, and 0 beside a
        triangle or a band."""
        k, kind = self.k, kind_of(self.k, name)
        if kind == "whole":
            return self(name, j, i)
        nothing = zero(k.parts, k.dtype)
        if kind == "banded":
            row = maximum(minimum(k.size("ku") + i - j, k.size("kl+ku")), const(0))
            return chosen(self.inside(name, i, j), self(name, j, row), nothing)
        columns, lower = Columns(k, name, self.buffers[name].name), k.is_set("uplo")
        own = i >= j if lower else i <= j
        row, column = (maximum(i, j), minimum(i, j)) if lower else (minimum(i, j), maximum(i, j))
        if columns.width is not None:  # a place beside the band is taken for one inside
            row = minimum(row, column + columns.width) if lower else maximum(row, column - columns.width)
        value = self(name, *columns.place(row, column))
        if kind == "triangular":
            one = number(const(1, k.dtype)) if k.parts == 2 else const(1, k.dtype)
            value = chosen(eq(i, j), one, value) if k.is_set("diag") else value
            return chosen(self.inside(name, i, j), value, nothing)
        if kind == "hermitian" and isinstance(value, Number):
            value = chosen(eq(i, j), number(value.re), chosen(own, value, value.conjugate()))
        if columns.width is None:
            return value
        return chosen(land(i - j <= columns.width, j - i <= columns.width), value, nothing)


def kind_of(k: Kernel, name: str) -> str:
    """Return the kind of a matrix: whole, banded, symmetric, hermitian or triangular."""
    is_own = name in ("a", "ap") and name not in k.routine.written and k.routine.name[2:4] not in ("rk", "r2")
    return KINDS.get(k.routine.name[:2], "whole") if is_own else "whole"


def made(
    k: Kernel, shape: tuple[ExprLike, ...], names: str, fn: Callable[..., Value], dtype: DType | None = None
) -> Tensor:
    """Return a tensor of elements: `fn(operands, *index)`. The last size of the shape counts elements."""
    listed = names.split()

    def one(*given: Any) -> Expr:
        operands = Operands(k, dict(zip(listed, given, strict=False)))
        index = given[len(listed) :]
        if k.parts == 1:
            value: Expr = fn(operands, *index)
            return value
        own = number(fn(operands, *index[:-1], index[-1] // 2))
        return select(eq(index[-1] % 2, const(0)), own.re, own.im)

    return k.elements((*shape[:-1], shape[-1] * k.parts), names, one, dtype)


def summed(
    k: Kernel, shape: tuple[Expr, ...], count: Expr, names: str, term: Callable[..., Value],
    dtype: DType | None = None,
) -> Tensor:  # fmt: skip
    """Return a tensor of sums of `count` terms: `term(operands, *index, t)`. The shape counts elements. No
    shape stands for one sum, which is a pair of parts if it is complex."""
    listed = names.split()
    alone = not shape
    whole = (const(1),) if alone and k.parts == 2 else shape

    def one(bufs: list[Buffer], place: tuple[Expr, ...], at: tuple[Expr, ...]) -> Expr:
        operands = Operands(k, dict(zip(listed, bufs, strict=True)))
        index = place if k.parts == 1 else (*place[:-1], place[-1] // 2)
        value = term(operands, *(() if alone else index), at[0])
        if k.parts == 1 or not isinstance(value, Number):
            return value  # type: ignore[no-any-return]
        return select(eq(place[-1] % 2, const(0)), value.re, value.im)

    sizes = whole if k.parts == 1 else (*whole[:-1], whole[-1] * 2)
    return k.b.reduction(dtype or k.dtype, sizes, [count], "sum", [k[n] for n in listed], one)


# --- level 1


def _elements(names: str, update: Callable[..., Value]) -> Callable[[Kernel], Tensor]:
    """Return a body whose result has an element `update(*values)` for each element of the written vector."""

    def body(k: Kernel) -> Tensor:
        def one(o: Operands, i: Expr) -> Value:
            return update(*(o.factor(n) if n in k.routine.scalars else o(n, i) for n in names.split()))

        return made(k, (k.size("n"),), names, one)

    return body


axpy = _elements("a x y", lambda a, x, y: y + a * x)
axpby = _elements("alpha x beta y", lambda alpha, x, beta, y: scaled(alpha, x) + scaled(beta, y))
scal = _elements("a x", times)
copy = _elements("x", lambda x: x)


def swap(k: Kernel) -> tuple[Tensor, Tensor]:
    return tuple(made(k, (k.size("n"),), n, lambda o, i, n=n: o(n, i)) for n in "yx")  # type: ignore[return-value]


def dot(k: Kernel) -> Tensor:
    """The sum of products, with the first factors conjugate for `dotc`."""
    own = k.routine.name == "dotc"
    return summed(k, (), k.size("n"), "x y", lambda o, i: conjugate(o("x", i), own) * o("y", i))


def asum(k: Kernel) -> Tensor:
    return k.total(k.size("n") * k.parts, "x", lambda x, i: call("abs", Load(x, (i,))))


def dsdot(k: Kernel) -> Tensor:
    """x'y in double precision."""
    return k.total(k.size("n"), "x y", lambda x, y, i: cast(F64, x[i]) * cast(F64, y[i]), dtype=F64)


def sdsdot(k: Kernel) -> Tensor:
    """b + x'y, summed in double precision and rounded once."""
    return k.b.map(lambda b, s: cast(F32, cast(F64, b) + s), k["b"], dsdot(k))


def nrm2(k: Kernel) -> Tensor:
    """The length of x. Elements are divided by the largest one, so that no square overflows or underflows."""
    count = k.size("n") * k.parts
    k.operands["most"] = k.total(count, "x", lambda x, i: call("abs", Load(x, (i,))), combiner="max")
    largest = float(np.finfo(np.float64 if k.dtype is F64 else np.float32).max)

    def divisor(most: Expr) -> Expr:
        return select(land(most > 0, most <= largest), most, const(1, k.dtype))

    def square(x: Buffer, most: Buffer, i: Expr) -> Expr:
        value = Load(x, (i,)) / divisor(Load(most, ()))
        return value * value

    squares = k.total(count, "x most", square)
    return k.b.map(lambda s, most: call("sqrt", s) * divisor(most), squares, k["most"])


# --- level 2


def multiplied(k: Kernel) -> Tensor:
    """y := alpha op(a) x + beta y for a matrix that is stored in any way. Without alpha it is op(a) x."""
    name = next(n for n in k.routine.operands if n in ("a", "ap"))
    is_turned, is_conjugate = k.options.get("trans", "N") != "N", k.options.get("trans") == "C"
    (written,), triangular = k.routine.written, kind_of(k, name) == "triangular"
    (rows,) = (k.size(e) for e in k.routine.extent(written, k.options))
    (terms,) = (k.size(e) for e in k.routine.extent("x", k.options))
    band = _band(k)
    count = terms if band is None else band[0] + band[1] + 1
    nothing = zero(k.parts, k.dtype)

    def term(o: Operands, i: Expr, turn: Expr) -> Value:
        t: Expr = turn
        is_there: Expr = const(True, BOOL)
        if band is not None:
            t = i - band[1 if is_turned else 0] + turn
            is_there = land(t >= 0, t < terms)
            t = maximum(minimum(t, terms - 1), const(0))
        row, column = (t, i) if is_turned else (i, t)
        x = o("x", t)
        product = conjugate(o.at(name, row, column), is_conjugate) * x
        if kind_of(k, name) in ("triangular", "banded"):
            is_there = land(is_there, o.inside(name, row, column))
        if triangular and not is_turned:  # as in the reference, an element of 0 leaves its column out
            is_there = land(is_there, eq(is_zero(x), const(False, BOOL)))
        return chosen(is_there, product, nothing)

    product = summed(k, (rows,), count, f"{name} x", term)
    if "alpha" not in k.routine.scalars:
        return product
    k.operands["product"] = product
    names = f"alpha product beta {written}"

    def whole(o: Operands, i: Expr) -> Value:
        return scaled(o.factor("alpha"), o("product", i)) + scaled(o.factor("beta"), o(written, i))

    return made(k, (rows,), names, whole)


def _band(k: Kernel) -> tuple[Expr, Expr] | None:
    """Return the diagonals of a band below and above the main one, or None for another matrix."""
    if "kl" in k.routine.sizes:
        return k.size("kl"), k.size("ku")
    if "k" not in k.routine.sizes:
        return None
    if kind_of(k, "a") != "triangular":
        return k.size("k"), k.size("k")
    return (k.size("k"), const(0)) if k.is_set("uplo") else (const(0), k.size("k"))


def updated(k: Kernel) -> Tensor:
    """a := alpha x y' + a for a whole matrix, or for a triangle, which may be packed.

    A triangle becomes alpha x x' + a, or alpha (x y' + y x') + a."""
    (name,), rank_2 = k.routine.written, k.routine.name[-1] == "2"
    y, is_conjugate = "y" if "y" in k.operands else "x", k.routine.name != "geru"
    names = " ".join(n for n in k.routine.operands)
    has_triangle = "uplo" in k.options

    def value(o: Operands, before: Value, i: Expr, j: Expr) -> Value:
        alpha = o.factor("alpha")
        new = before + o("x", i) * scaled(alpha, conjugate(o(y, j), is_conjugate))
        if rank_2:
            new = new + o(y, i) * scaled(conjugate(alpha), conjugate(o("x", j)))
        if has_triangle and isinstance(new, Number):
            new = chosen(eq(i, j), number(new.re), new)
        return new

    if name not in k.routine.packed:

        def one(o: Operands, j: Expr, i: Expr) -> Value:
            before = o(name, j, i)
            if not has_triangle:
                return value(o, before, i, j)
            return chosen(i >= j if k.is_set("uplo") else i <= j, value(o, before, i, j), before)

        columns = k.size("n")
        return made(k, (columns, k.size("n" if has_triangle else "m")), names, one)
    out = Buffer("out", k.dtype, k.result(name))
    buffers = {n: Buffer(f"x{at}", k.dtype, k[n].shape) for at, n in enumerate(k.routine.operands)}
    o, a, task, n = Operands(k, buffers), Columns(k, name, "out"), Var("task"), k.size("n")
    i, j = task % n, task // n
    place = a.place(i, j)
    store = If(i >= j if a.lower else i <= j, stored(out, place, value(o, o(name, *place), i, j)))
    return k.nest(names, For(task, n * n, store, "parallel"), name)
