"""Kernels of level 1: elements and sums of vectors, and plane rotations."""

from __future__ import annotations

import math
from collections.abc import Callable

from jangin.blas.columns import each, lanes
from jangin.blas.kernel import Kernel, scaled
from jangin.ir.dtype import BOOL, F32, F64, I64
from jangin.ir.expr import (
    Buffer,
    Expr,
    Load,
    Var,
    call,
    cast,
    const,
    eq,
    land,
    lor,
    maximum,
    minimum,
    ne,
    select,
)
from jangin.ir.loop import For, Stmt, Store
from jangin.ops.values import Tensor

TASK = 1 << 14
"""Elements of a task, whose vectors come from memory in a few microseconds."""


def _written(k: Kernel, names: str, element: Callable[..., Expr]) -> Tensor:
    """Return the written vector. `element` gets the operands `names`, and the vector's old element last."""
    (written,) = k.routine.written
    out, task, n = Buffer("out", k.dtype, k.result(written)), Var("task"), k.size("n")
    operands = [(Buffer(f"x{p}", k.dtype, k[name].shape), name) for p, name in enumerate(names.split())]
    begin = task * TASK

    def one(i: Expr) -> Stmt:
        read = [Load(x, () if name in k.routine.scalars else (i,)) for x, name in operands]
        return Store(out, (i,), element(*read, Load(out, (i,))))

    elements = each("e", begin, minimum(const(TASK), n - begin), lanes(k.dtype), one)
    return k.nest(names, For(task, (n + TASK - 1) // TASK, elements, "parallel"), written)


def axpy(k: Kernel) -> Tensor:
    return _written(k, "a x", lambda a, x, y: y + a * x)


def axpby(k: Kernel) -> Tensor:
    return _written(k, "alpha x beta", lambda alpha, x, beta, y: scaled(alpha, x) + scaled(beta, y))


def scal(k: Kernel) -> Tensor:
    return _written(k, "a", lambda a, x: a * x)


def copy(k: Kernel) -> Tensor:
    return _written(k, "x", lambda x, y: x)


def swap(k: Kernel) -> tuple[Tensor, Tensor]:
    return k["y"], k["x"]


def dot(k: Kernel) -> Tensor:
    return k.total(k.size("n"), "x y", lambda x, y, i: x[i] * y[i])


def asum(k: Kernel) -> Tensor:
    return k.total(k.size("n"), "x", lambda x, i: call("abs", x[i]))


def sdsdot(k: Kernel) -> Tensor:
    """b + x'y, summed in double precision and rounded once."""
    return k.b.map(lambda b, s: cast(F32, cast(F64, b) + s), k["b"], dsdot(k))


def dsdot(k: Kernel) -> Tensor:
    """x'y in double precision."""
    return k.total(k.size("n"), "x y", lambda x, y, i: cast(F64, x[i]) * cast(F64, y[i]), dtype=F64)


TINY, HUGE = 2.0**-511, 2.0**486
"""Magnitudes of f64 whose squares lose digits below, and whose sums of squares may overflow above."""
FROM_TINY, FROM_HUGE = 2.0**537, 2.0**-538
"""Factors that bring such magnitudes to where squares are safe."""


def nrm2(k: Kernel) -> Tensor:
    """The length of x, without overflow or underflow.

    Singles are squared in double precision. Doubles are summed by magnitude: tiny, medium, huge ones (as in
    Blue, "A portable Fortran program to find the Euclidean norm of a vector", 1978)."""
    n = k.size("n")
    if k.dtype is F32:
        return k.total(
            n, "x", lambda x, i: cast(F64, x[i]) * cast(F64, x[i]), lambda s: cast(F32, call("sqrt", s))
        )

    def squares(factor: float, belongs: Callable[[Expr], Expr]) -> Tensor:
        def term(x: Buffer, i: Expr) -> Expr:
            size = call("abs", x[i])
            part = select(belongs(size), size * factor, const(0.0, F64))
            return part * part

        return k.total(n, "x", term)

    tiny = squares(FROM_TINY, lambda v: v < TINY)
    huge = squares(FROM_HUGE, lambda v: v > HUGE)
    medium = squares(1.0, lambda v: eq(lor(v < TINY, v > HUGE), const(False, BOOL)))
    return k.b.map(_length, tiny, medium, huge)


def _length(tiny: Expr, medium: Expr, huge: Expr) -> Expr:
    """Return the root of the three sums together. NaN is among the medium ones."""
    large = call("sqrt", huge + medium * FROM_HUGE * FROM_HUGE) * (1 / FROM_HUGE)
    root, small = call("sqrt", medium), call("sqrt", tiny) * (1 / FROM_TINY)
    both = select(small > root, _side_of(small, root), _side_of(root, small))
    least = select(eq(medium, 0.0), small, select(tiny > 0, both, root))
    return select(huge > 0, large, least)


def _side_of(longer: Expr, shorter: Expr) -> Expr:
    ratio = shorter / longer
    return longer * call("sqrt", 1 + ratio * ratio)


def iamax(k: Kernel) -> Tensor:
    """The place of the first element of the largest magnitude, from 0 on. NaN counts only as the first."""
    n = k.size("n")

    def size(x: Buffer, i: Expr) -> Expr:
        magnitude = call("abs", x[i])
        return select(eq(magnitude, magnitude), magnitude, const(-1, k.dtype))

    k.operands["most"] = k.total(n, "x", size, combiner="max")

    def place(x: Buffer, most: Buffer, i: Expr) -> Expr:
        first = land(eq(i, 0), ne(x[i], x[i]))
        return select(first, const(-1), select(eq(size(x, i), most[()]), i, n))

    return k.total(n, "x most", place, lambda i: maximum(i, const(0)), "min", I64)


def rot(k: Kernel) -> tuple[Tensor, Tensor]:
    x, y, c, s = (k[n] for n in ("x", "y", "c", "s"))
    return (
        k.b.map(lambda x, y, c, s: c * x + s * y, x, y, c, s),
        k.b.map(lambda x, y, c, s: c * y - s * x, x, y, c, s),
    )


def rotm(k: Kernel) -> tuple[Tensor, Tensor]:
    """The modified rotation whose matrix `param` describes by a flag and four numbers."""

    def at(param: Buffer, place: int, positive: float, zero: float) -> Expr:
        """Return a number of the matrix. A positive flag or a flag of 0 may fix it; NaN stands for no fixed
        value."""
        flag, number, nothing = param[const(0)], param[const(place)], const(0, k.dtype)
        if not math.isnan(positive):
            number = select(flag > nothing, const(positive, k.dtype), number)
        if not math.isnan(zero):
            number = select(eq(flag, nothing), const(zero, k.dtype), number)
        return number

    def mixed(own: str, other: str, diagonal: int, beside: int, sign: float) -> Tensor:
        def element(v: Buffer, w: Buffer, param: Buffer, i: Expr) -> Expr:
            same = eq(param[const(0)], const(-2, k.dtype))
            total = at(param, diagonal, math.nan, 1.0) * v[i] + at(param, beside, sign, math.nan) * w[i]
            return select(same, v[i], total)

        return k.elements(k[own].shape, f"{own} {other} param", element)

    return mixed("x", "y", 1, 3, 1.0), mixed("y", "x", 4, 2, -1.0)
