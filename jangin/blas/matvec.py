"""Kernels of products of a dense matrix and a vector."""

from __future__ import annotations

from jangin.blas.columns import (
    ABREAST,
    Totals,
    Vector,
    all_held,
    each,
    factor,
    operand,
    scaled_before,
    summed,
)
from jangin.blas.elements import MANY
from jangin.blas.kernel import Kernel
from jangin.blas.numbers import Value, conjugate, element, is_some, scaled
from jangin.ir.expr import Buffer, Expr, Var, const, maximum, minimum
from jangin.ir.loop import For, If, Let, Stmt, block
from jangin.ops.values import Tensor

ROW_BYTES, LEAST = 1 << 13, 256
"""The bytes of a task's sums in a product with columns, and the least rows of a task that is made for another
thread. The sums stay in the L1 cache."""
WIDE = 8
"""Real columns that are taken at once if there are many registers. Fewer columns fetch less ahead."""
SUMS_ABREAST = 2
"""Vectors of partial sums of each column of a transposed product. With the columns beside each other they
hide an addition's latency."""


def gemv(k: Kernel) -> Tensor:
    """y := alpha op(a) x + beta y."""
    return _by_columns(k) if k.is_set("trans") else _by_rows(k)


def _by_rows(k: Kernel) -> Tensor:
    """y := alpha a x + beta y. A task has some rows, and adds the columns a few at a time."""
    a, x, y = (operand(k, place) for place in (1, 2, 4))
    out, alpha, beta = (
        Vector(Buffer("out", k.dtype, k["y"].shape), k.parts),
        factor(k, "alpha"),
        factor(k, "beta"),
    )
    m, n, task, turn = k.size("m"), k.size("n"), Var("task"), Var("turn")
    most, own = ROW_BYTES // (k.dtype.bytes * k.parts), Var("own_rows")
    tasks = maximum((m + most - 1) // most, minimum(const(k.threads), m // LEAST))
    begin, count = task * own, minimum(own, m - task * own)

    def some(first: Expr, columns: int) -> Stmt:
        def worked(factors: list[Value]) -> Stmt:
            def one(i: Expr) -> Stmt:
                total = out[i]
                for c in range(columns):
                    total = total + factors[c] * element(k.parts, a.buffer, first + c, i)
                return out.store(i, total)

            return each("a", begin, count, out.width, one)

        return all_held([alpha * x[first + c] for c in range(columns)], worked)

    start = scaled_before("s", out, y, beta, begin, count)
    columns, before = [], const(0)
    wide = (WIDE,) if k.machine.registers >= MANY and k.parts == 1 else ()
    for abreast in (*wide, ABREAST, 1):
        turns = (n - before) // abreast
        columns.append(For(turn, turns, some(before + turn * abreast, abreast)))
        before = before + turns * abreast
    work = block(start, If(is_some(alpha), block(*columns)))
    rows = (m + tasks - 1) // maximum(tasks, const(1))
    rows = maximum((rows + out.width - 1) // out.width, const(1)) * out.width
    # Tasks of whole vectors may be fewer.
    body = For(task, (m + rows - 1) // rows, Let(own, rows, work), "parallel")
    return k.nest("alpha a x beta y", body, "y")


def _by_columns(k: Kernel) -> Tensor:
    """y := alpha a' x + beta y. A task has a few columns, for which x is read once."""
    a, x, y = (operand(k, place) for place in (1, 2, 4))
    out, task, rest = Vector(Buffer("out", k.dtype, k["y"].shape), k.parts), Var("task"), Var("rest")
    alpha, beta = factor(k, "alpha"), factor(k, "beta")
    m, n, is_conjugate = k.size("m"), k.size("n"), k.options["trans"] == "C"

    def some(first: Expr, columns: int) -> Stmt:
        totals = Totals(k.dtype, k.parts, columns)

        def term(c: int, i: Expr) -> Value:
            return conjugate(element(k.parts, a.buffer, first + c, i), is_conjugate) * x[i]

        sums = summed("d", totals, term, const(0), m, SUMS_ABREAST)
        stores = [
            out.store(at, scaled(alpha, totals[c]) + scaled(beta, y[at]))
            for c in range(columns)
            for at in [first + c]
        ]
        return totals.within(If(is_some(alpha), sums), *stores)

    first, abreast = task * ABREAST, ABREAST
    body = If(
        first + abreast <= n,
        some(first, abreast),
        For(rest, minimum(n - first, abreast - 1), some(first + rest, 1)),
    )
    return k.nest("alpha a x beta y", For(task, (n + abreast - 1) // abreast, body, "parallel"), "y")
