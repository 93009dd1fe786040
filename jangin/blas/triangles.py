"""Kernels of level 3 with a triangular matrix.

From the left, each column of b is a vector. From the right, each row is one, and many rows go side by side.
Callers split large matrices (see `blocked`)."""

from __future__ import annotations

from jangin.blas.columns import At, Columns, Vector, Work, each, in_order, lanes, multiplied_by, solved_for
from jangin.blas.kernel import Kernel, scaled
from jangin.ir.expr import Buffer, Expr, Load, Var, const, minimum
from jangin.ir.loop import For, Stmt, Store, block
from jangin.ops.values import Tensor

ROWS = 64
"""Rows of a task from the right."""


def multiplied(k: Kernel) -> Tensor:
    """b := alpha op(a) b, or alpha b op(a)."""
    return _beside(k, False) if k.is_set("side") else _below(k, multiplied_by, True)


def solved(k: Kernel) -> Tensor:
    """b := the solution y of op(a) y = alpha b, or of y op(a) = alpha b."""
    return _beside(k, True) if k.is_set("side") else _below(k, solved_for, False)


def _buffers(k: Kernel) -> tuple[Expr, Columns, Buffer, Buffer]:
    """Return alpha, the triangle, the result, and b."""
    alpha = Load(Buffer("x0", k.dtype, ()), ())
    out, b = Buffer("out", k.dtype, (k.size("n"), k.size("m"))), Buffer("x2", k.dtype, k["b"].shape)
    return alpha, Columns(k, "a", "x1"), out, b


def _below(k: Kernel, work: Work, first_up: bool) -> Tensor:
    """Return a nest whose tasks are columns of b."""
    alpha, a, out, b = _buffers(k)
    column = Var("column")
    vector = Vector(out, (column,))
    start = each(
        "c", const(0), a.n, lanes(k.dtype), lambda i: vector.store(i, scaled(alpha, Load(b, (column, i))))
    )
    loops = in_order(k, a, first_up, lambda j: work(k, a, vector, j))
    return k.nest("alpha a b", For(column, k.size("n"), block(start, loops), "parallel"), "b")


def _beside(k: Kernel, solves: bool) -> Tensor:
    """Return a nest whose tasks are some rows of b."""
    alpha, a, out, b = _buffers(k)
    task, c, i, m = Var("task"), Var("c"), Var("i"), k.size("m")
    begin, count = task * ROWS, minimum(const(ROWS), m - task * ROWS)

    def rows(name: str, column: Expr, value: At) -> Stmt:
        return each(name, begin, count, lanes(k.dtype), lambda r: Store(out, (column, r), value(r)))

    def step(j: Expr) -> Stmt:
        place = a.begin(j) + i
        factor = -a.at(place, j) if solves else a.at(place, j)
        target, source = (j, place) if k.is_transposed else (place, j)
        others = For(i, a.count(j), rows(
            "o", target, lambda r: Load(out, (target, r)) + factor * Load(out, (source, r))))  # fmt: skip
        if k.is_set("diag"):
            return others
        diagonal = a.at(j, j)
        own = rows("d", j, lambda r: Load(out, (j, r)) / diagonal if solves else Load(out, (j, r)) * diagonal)
        return block(own, others) if solves ^ k.is_transposed else block(others, own)

    start = For(c, a.n, rows("s", c, lambda r: scaled(alpha, Load(b, (c, r)))))
    loops = in_order(k, a, not solves, step)
    return k.nest("alpha a b", For(task, (m + ROWS - 1) // ROWS, block(start, loops), "parallel"), "b")
