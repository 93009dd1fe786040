"""Linear equations and Cholesky factors by loop nests, one matrix a task. Sums have the matrices' type."""

from __future__ import annotations

from collections.abc import Callable

from jangin.ir.dtype import I64
from jangin.ir.expr import Buffer, Const, Expr, Load, Var, call, cast, const, eq, ne, select
from jangin.ir.graph import CompileError
from jangin.ir.loop import Alloc, For, If, Let, Stmt, Store, block
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

MOST = 1 << 12
"""Most rows of a matrix. The n ** 3 steps for a larger one take minutes."""


def _square(x: Tensor) -> int:
    """Return the number of rows, which is the number of columns. Raises CompileError unless it is known and
    from 1 to `MOST`."""
    rows, columns = x.shape[-2:] if x.rank > 1 else (const(0), const(1))
    if not isinstance(rows, Const) or rows != columns or not 0 < rows.value <= MOST:
        raise CompileError(f"{x} must be of square matrices, of 1 to {MOST} rows that are known")
    return int(rows.value)


def _matrices(b: Builder, x: Tensor) -> Tensor:
    """Merge all leading axes into one."""
    return b.reshape(x, [product(x.shape[:-2]), *x.shape[-2:]])


def _for(name: str, extent: Expr | int, body: Callable[[Var], Stmt]) -> Stmt:
    var = Var(name)
    return For(var, const(extent) if isinstance(extent, int) else extent, body(var))


def solved(b: Builder, a: Tensor, y: Tensor) -> Tensor:
    """Return x of a x = y for a [..., n, n] and y [..., n, k], by Gauss-Jordan elimination. The largest entry
    of a column is the pivot. The result is infinite or NaN for a singular matrix."""
    n, shape = _square(a), y.shape
    a, y = _matrices(b, a), _matrices(b, y)
    count, columns = a.shape[0], y.shape[2]
    matrix, right = Buffer("x0", a.dtype, a.shape), Buffer("x1", y.dtype, y.shape)
    out = Buffer("out", y.dtype, y.shape)
    m = Buffer("m", a.dtype, (const(n), const(n)), "scratch")
    best = Buffer("best", I64, (const(1),), "scratch")
    t, column = Var("t"), Var("column")
    zero = (const(0),)

    def at(i: Expr, j: Expr) -> Expr:
        return Load(m, (i, j))

    def result(i: Expr, j: Expr) -> Expr:
        return Load(out, (t, i, j))

    def swapped(buffer: Buffer, one: tuple[Expr, ...], other: tuple[Expr, ...], name: str) -> Stmt:
        held = Var(name, buffer.dtype)
        stores = block(Store(buffer, one, Load(buffer, other)), Store(buffer, other, held))
        return Let(held, Load(buffer, one), stores)

    pivot, factor, lead = Var("pivot"), Var("factor", a.dtype), Var("lead", a.dtype)

    def larger(i: Var) -> Stmt:
        more = call("abs", at(i, column)) > call("abs", at(cast(I64, Load(best, zero)), column))
        return If(i > column, If(more, Store(best, zero, i)))

    def without(i: Var) -> Stmt:
        """Return a statement that subtracts the pivot row's multiple that makes this row's entry of the
        column 0."""
        rows = block(
            _for("j", n, lambda j: Store(m, (i, j), at(i, j) - factor * at(column, j))),
            _for("k", columns, lambda k: Store(out, (t, i, k), result(i, k) - factor * result(column, k))),
        )
        return If(ne(i, column), Let(factor, at(i, column) / lead, rows))

    search = block(Store(best, zero, column), _for("r", n, larger))
    swap = Let(
        pivot,
        cast(I64, Load(best, zero)),
        If(
            ne(pivot, column),
            block(
                _for("j1", n, lambda j: swapped(m, (column, j), (pivot, j), "held")),
                _for("k1", columns, lambda k: swapped(out, (t, column, k), (t, pivot, k), "kept")),
            ),
        ),
    )
    eliminate = Let(lead, at(column, column), _for("i", n, without))
    copies = block(
        _for("i0", n, lambda i: _for("j0", n, lambda j: Store(m, (i, j), Load(matrix, (t, i, j))))),
        _for("i1", n, lambda i: _for("k0", columns, lambda k: Store(out, (t, i, k), Load(right, (t, i, k))))),
    )
    divide = _for("i2", n, lambda i: _for(
        "k2", columns, lambda k: Store(out, (t, i, k), result(i, k) / at(i, i))))  # fmt: skip
    body = block(copies, For(column, const(n), block(search, swap, eliminate)), divide)
    loops = For(t, count, Alloc(m, Alloc(best, body)), "parallel")
    return b.reshape(b.loop_nest([a, y], loops, y.dtype, out.shape), shape)


def inverse(b: Builder, a: Tensor) -> Tensor:
    n = _square(a)

    def one(bufs: object, *index: Expr) -> Expr:
        return cast(a.dtype, eq(index[-1], index[-2]))

    unit = b.compute(a.dtype, (*a.shape[:-2], const(n), const(n)), [], one)
    return solved(b, a, unit)


def cholesky(b: Builder, a: Tensor) -> Tensor:
    """Return the lower Cholesky factor of symmetric matrices [..., n, n], of which the lower half is read.
    Rows are NaN from the first minor that isn't positive on."""
    n, shape = _square(a), a.shape
    a = _matrices(b, a)
    matrix, out = Buffer("x0", a.dtype, a.shape), Buffer("out", a.dtype, a.shape)
    total = Buffer("total", a.dtype, (const(1),), "scratch")
    t, j, i, zero = Var("t"), Var("j"), Var("i"), (const(0),)

    def less(row: Expr) -> Stmt:
        """Return statements that compute in `total` an entry of column j, less the products of the columns
        before it."""
        product_ = _for("k", n, lambda k: If(k < j, Store(
            total, zero, Load(total, zero) - Load(out, (t, row, k)) * Load(out, (t, j, k)))))  # fmt: skip
        return block(Store(total, zero, Load(matrix, (t, row, j))), product_)

    held = Load(total, zero)
    diagonal = block(less(j), Store(out, (t, j, j), call("sqrt", held)))
    below = block(less(i), Store(out, (t, i, j), held / Load(out, (t, j, j))))
    above = If(i < j, Store(out, (t, i, j), const(0, a.dtype)))
    rows = For(i, const(n), block(above, If(i > j, below)))
    loops = For(t, a.shape[0], Alloc(total, For(j, const(n), block(diagonal, rows))), "parallel")
    return b.reshape(b.loop_nest([a], loops, a.dtype, out.shape), shape)


def triangular(b: Builder, a: Tensor, y: Tensor, upper: bool, unit: bool) -> Tensor:
    """Return x of a x = y like `solved`, for a triangular matrix of which only one half is read. `unit`: the
    diagonal is 1."""
    ones = const(1, a.dtype)

    def half(bufs: object, *index: Expr) -> Expr:
        row, column = index[-2:]
        x = bufs[0][index]  # type: ignore[index]
        inside = select(row <= column if upper else row >= column, x, const(0, a.dtype))
        return select(eq(row, column), ones, inside) if unit else inside

    return solved(b, b.compute(a.dtype, a.shape, [a], half), y)
