"""Kernels of level 1: elements and sums of vectors, and plane rotations."""

from __future__ import annotations

import math
from collections.abc import Callable

from jangin.blas.columns import SUMS, ZERO, Totals, Vector, each, factor, operand, summed, total_of
from jangin.blas.kernel import Kernel
from jangin.blas.numbers import Value, conjugate, element, scaled
from jangin.ir.dtype import BOOL, F32, F64, I64, DType
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
    select,
)
from jangin.ir.loop import Alloc, For, If, Let, Stmt, Store, block
from jangin.ops.values import Tensor

TASK = 1 << 14
"""Elements of a task, whose vectors come from memory in a few microseconds."""

WAYS = 2
"""Places in two vectors at which a task reads at once. With one, processors fetch less ahead from memory."""


def _written(k: Kernel, names: str, update: Callable[..., Value], parts: int = 1) -> Tensor:
    """Return the written vector. `update` gets the operands `names`, and the vector's old element last. A
    complex vector with 1 as `parts` is one of its parts."""
    (written,) = k.routine.written
    task, n = Var("task"), k.size("n") * (k.parts // parts)
    out = Vector(Buffer("out", k.dtype, k.result(written)), parts)
    begin, order = task * TASK, k.routine.operands

    def read_at(i: Expr, name: str) -> Value:
        if name in k.routine.scalars:
            return factor(k, name)
        return Vector(operand(k, order.index(name)).buffer, parts)[i]

    def one(i: Expr) -> Stmt:
        read = [read_at(i, name) for name in names.split()]
        return out.store(i, update(*read, out[i]))

    elements = each("e", begin, minimum(const(TASK), n - begin), out.width, one)
    return k.nest(names, For(task, (n + TASK - 1) // TASK, elements, "parallel"), written)


def axpy(k: Kernel) -> Tensor:
    return _written(k, "a x", lambda a, x, y: y + a * x, k.parts)


def axpby(k: Kernel) -> Tensor:
    return _written(k, "alpha x beta", lambda alpha, x, beta, y: scaled(alpha, x) + scaled(beta, y), k.parts)


def scal(k: Kernel) -> Tensor:
    """x := a x, with a factor that may be real though x is complex."""
    return _written(k, "a", lambda a, x: a * x, 1 if k.routine.real else k.parts)


def copy(k: Kernel) -> Tensor:
    return _written(k, "x", lambda x, y: x)


def swap(k: Kernel) -> tuple[Tensor, Tensor]:
    return k["y"], k["x"]


def _total(k: Kernel, names: str, dtype: DType, term: Callable[..., Value], parts: int = 1) -> Tensor:
    """Return the sum of `term(*operands, i)` over all elements, which have so many parts. A complex vector
    with 1 as `parts` is one of its parts. Each task has a sum of its own."""
    operands = [Buffer(f"x{n}", k.dtype, k[name].shape) for n, name in enumerate(names.split())]
    task, totals, n = Var("task"), Totals(dtype, parts), k.size("n") * (k.parts // parts)
    tasks, begin = (n + TASK - 1) // TASK, task * TASK
    out = Vector(Buffer("out", dtype, (tasks * parts,)), parts)
    count, ways = minimum(const(TASK), n - begin), WAYS if len(operands) > 1 else 1
    sums = summed("s", totals, lambda _, i: term(*operands, i), begin, count, SUMS, ways=ways)
    body = totals.within(sums, out.store(task, totals[0]))
    read = [k[name] for name in names.split()]
    partial = k.b.loop_nest(read, For(task, tasks, body, "parallel"), dtype, out.buffer.shape)

    def part(bufs: list[Buffer], place: tuple[Expr, ...], at: tuple[Expr, ...]) -> Expr:
        return bufs[0][(at[0] * parts + place[0] if place else at[0],)]

    return k.b.reduction(dtype, (const(2),) if parts == 2 else (), [tasks], "sum", [partial], part)


def dot(k: Kernel) -> Tensor:
    """The sum of products, with the first factors conjugate for `dotc`."""

    def term(x: Buffer, y: Buffer, i: Expr) -> Value:
        return conjugate(element(k.parts, x, i), k.routine.name == "dotc") * element(k.parts, y, i)

    return _total(k, "x y", k.dtype, term, k.parts)


def asum(k: Kernel) -> Tensor:
    """The sum of magnitudes. A complex number counts as the sum of its parts' magnitudes."""
    return _total(k, "x", k.dtype, lambda x, i: call("abs", Load(x, (i,))))


def sdsdot(k: Kernel) -> Tensor:
    """b + x'y, summed in double precision and rounded once."""
    return k.b.map(lambda b, s: cast(F32, cast(F64, b) + s), k["b"], dsdot(k))


def dsdot(k: Kernel) -> Tensor:
    """x'y in double precision."""
    return _total(k, "x y", F64, lambda x, y, i: cast(F64, Load(x, (i,))) * cast(F64, Load(y, (i,))))


def _square(x: Buffer, i: Expr) -> Expr:
    value = cast(F64, Load(x, (i,)))
    return value * value


TINY, HUGE = 2.0**-511, 2.0**486
"""Magnitudes of f64 whose squares lose digits below, and whose sums of squares may overflow above."""
FROM_TINY, FROM_HUGE = 2.0**537, 2.0**-538
"""Factors that bring such magnitudes to where squares are safe, as in LAPACK 3.10's NRM2 (Blue, 1978)."""
LEAST, MOST = 2.0**-900, 2.0**1000
"""Sums of squares between which no square was lost: what underflows is less than their last digit."""


def nrm2(k: Kernel) -> Tensor:
    """The length of x, without overflow or underflow.

    Singles are squared in double precision. Doubles whose sum of squares isn't safe are read again."""
    total = _total(k, "x", F64, _square)
    if k.dtype is F32:
        return k.b.map(lambda s: cast(F32, call("sqrt", s)), total)
    n = k.size("n") * k.parts
    out, x = Buffer("out", F64, ()), Buffer("x0", F64, k["x"].shape)
    squares = Load(Buffer("x1", F64, ()), ())
    careful = _careful(x, n, lambda length: Store(out, (), length))
    safe = land(squares > LEAST, squares < MOST)
    body = If(safe, Store(out, (), call("sqrt", squares)), careful)
    return k.b.loop_nest([k["x"], total], body, F64, ())


def _careful(x: Buffer, n: Expr, end: Callable[[Expr], Stmt]) -> Stmt:
    """Return the computation of a length whose tiny, medium and huge elements are summed apart.

    The method is Blue's ("A portable Fortran program to find the Euclidean norm of a vector", 1978)."""
    i, size = Var("i"), Var("size", F64)
    is_medium = eq(lor(size < TINY, size > HUGE), const(False, BOOL))
    kinds = {"tiny": (FROM_TINY, size < TINY), "medium": (1.0, is_medium), "huge": (FROM_HUGE, size > HUGE)}
    sums = {kind: Buffer(kind, F64, (const(1),), "register") for kind in kinds}

    def added(kind: str) -> Stmt:
        factor, belongs = kinds[kind]
        part = select(belongs, size * factor, const(0.0, F64))
        return Store(sums[kind], ZERO, Load(sums[kind], ZERO) + part * part)

    work = block(
        *(Store(total, ZERO, const(0.0, F64)) for total in sums.values()),
        For(i, n, Let(size, call("abs", Load(x, (i,))), block(*map(added, kinds)))),
        end(_length(*(Load(sums[kind], ZERO) for kind in ("tiny", "medium", "huge")))),
    )
    for total in sums.values():
        work = Alloc(total, work)
    return work


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
        magnitude = total_of([call("abs", x[i * k.parts + part]) for part in range(k.parts)])
        return select(eq(magnitude, magnitude), magnitude, const(-1, k.dtype))

    k.operands["most"] = k.total(n, "x", size, combiner="max")

    def place(x: Buffer, most: Buffer, i: Expr) -> Expr:
        first = land(eq(i, 0), eq(size(x, i), -1))
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
