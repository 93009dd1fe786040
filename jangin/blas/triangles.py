"""Kernels of triangular matrices and vectors: products and solutions, column by column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce

from jangin.blas.columns import (
    ABREAST,
    SUMS,
    Columns,
    Totals,
    Vector,
    added,
    all_held,
    each,
    factor,
    summed,
    total_of,
)
from jangin.blas.kernel import Kernel
from jangin.blas.numbers import Value, held, is_some, scaled
from jangin.ir.expr import Buffer, Expr, Var, const, eq, land, maximum, minimum, select
from jangin.ir.loop import For, If, Let, Stmt, block
from jangin.ops.values import Tensor

BLOCK, SMALLEST = 256, 1024
"""The order of a block of a system for several threads, and the order up to which one thread solves a system.
A smaller one takes 40 us, and each block waits for the slowest thread."""
TASKS = 4
"""Tasks of a thread in a round. The first one also solves a block, so others take more of the rest."""


def multiplied_by(k: Kernel, a: Columns, out: Vector, j: Expr) -> Stmt:
    """Return the step for column j of out := op(a) out."""
    own, unit = out[j], k.is_set("diag")
    if k.is_transposed:
        start = own if unit else own * a.at(j, j)
        return _summed_up(k, start, lambda i: a.at(i, j) * out[i], a, j, partial(out.store, j))

    def work(own: Value) -> Stmt:
        others = added("a", out, own, lambda i: a.at(i, j), a.begin(j), a.count(j))
        return If(is_some(own), block(others, out.store(j, own if unit else own * a.at(j, j))))

    return held("held", own, work)


def solved_for(k: Kernel, a: Columns, out: Vector, j: Expr) -> Stmt:
    """Return the step for column j of out := the solution y of op(a) y = out."""
    own, unit = out[j], k.is_set("diag")
    if k.is_transposed:
        return _summed_up(
            k, own, lambda i: -(a.at(i, j) * out[i]), a, j,
            lambda total: out.store(j, total if unit else total / a.at(j, j)),
        )  # fmt: skip

    def work(own: Value) -> Stmt:
        others = added("a", out, -own, lambda i: a.at(i, j), a.begin(j), a.count(j))
        return block(out.store(j, own), others)

    return If(is_some(own), held("held", own if unit else own / a.at(j, j), work))


def _summed_up(
    k: Kernel, start: Value, term: Callable[[Expr], Value], a: Columns, j: Expr, end: Callable[[Value], Stmt]
) -> Stmt:
    totals = Totals(k.dtype, k.parts)
    terms = summed("d", totals, lambda _, i: term(i), a.begin(j), a.count(j), SUMS)
    return totals.within(totals.put(0, start), terms, end(totals[0]))


def in_order(k: Kernel, a: Columns, first_up: bool, column: Callable[[Expr], Stmt]) -> Stmt:
    """Return a loop over the columns. Those of an upper triangle that isn't transposed are taken in ascending
    order if `first_up`."""
    step, j = Var("step"), Var("j")
    ascending = first_up ^ a.lower ^ k.is_transposed
    return For(step, a.n, Let(j, step if ascending else a.n - 1 - step, column(j)))


def _triangular(k: Kernel, loops: Callable[[Columns, Vector], Stmt]) -> Tensor:
    """Return a nest that works on a copy of x, some columns after the others."""
    name = k.routine.operands[0]
    out, x = (Vector(Buffer(n, k.dtype, k["x"].shape), k.parts) for n in ("out", "x1"))
    a = Columns(k, name, "x0")
    copied = each("c", const(0), a.n, out.width, lambda i: out.store(i, x[i]))
    return k.nest(f"{name} x", block(copied, loops(a, out)), "x")


def solved_systems(k: Kernel) -> Tensor:
    """b := the solution y of op(a) y = alpha b, or of y op(a) = alpha b.

    The right sides are solved for one after the other. Each is a column of b, or a row of it."""
    out, line = Buffer("out", k.dtype, k.result("b")), Var("line")
    right = k.is_set("side")
    own = Vector(out, k.parts, down=(line,)) if right else Vector(out, k.parts, of=(line,))
    a, alpha = Columns(k, "a", "x1"), factor(k, "alpha")
    scale = each("s", const(0), a.n, own.width, lambda i: own.store(i, scaled(alpha, own[i])))
    loops = in_order(k, a, False, lambda j: solved_for(k, a, own, j))
    body = block(scale, If(is_some(alpha), loops))
    return k.nest("alpha a", For(line, k.size("m" if right else "n"), body, "parallel"), "b")


def multiplied(k: Kernel) -> Tensor:
    """x := op(a) x for a triangular `a`, dense, banded or packed."""
    return _triangular(k, lambda a, out: in_order(k, a, True, lambda j: multiplied_by(k, a, out, j)))


def solved(k: Kernel) -> Tensor:
    """x := the solution y of op(a) y = x for a triangular `a`, dense, banded or packed."""
    if k.threads > 1 and k.parts == 1 and "k" not in k.routine.sizes:
        return _solved_in_rounds(k)
    return _triangular(k, lambda a, out: _solutions(k, a, out))


def _solved_in_rounds(k: Kernel) -> Tensor:
    """x := the solution of a large system, block by block, by several threads.

    In each round, tasks subtract the last block's part from the unknowns that are left. The first task does
    it for the next block, which it then solves."""
    name, round_, task = k.routine.operands[0], Var("round"), Var("task")
    out, x = (Vector(Buffer(n, k.dtype, k["x"].shape), k.parts) for n in ("out", "x1"))
    a, first, end = Columns(k, name, "x0"), Var("first_own"), Var("end_own")
    n, ascending, is_small = a.n, a.lower ^ k.is_transposed, a.n <= SMALLEST
    size = maximum(select(is_small, n, const(BLOCK)), const(1))
    blocks, tasks = (n + size - 1) // size, select(is_small, const(1), const(TASKS * k.threads))

    def ends(turn: Expr) -> tuple[Expr, Expr]:
        begin = (turn if ascending else blocks - 1 - turn) * size
        return begin, minimum(begin + size, n)

    own, before = ends(round_), ends(round_ - 1)
    others, left = (own[1], n - own[1]) if ascending else (const(0), own[0])
    share = (left // maximum(tasks - 1, const(1)) // out.width + 1) * out.width
    behind = others + minimum((task - 1) * share, left)
    copied = each("c", first, end - first, out.width, lambda i: out.store(i, x[i]))
    less = (_less_columns if k.is_transposed else _less_rows)(a.within(*before), out, first, end - first)
    solved = If(eq(task, 0), _solutions(k, a.within(*own), out))
    body = block(If(eq(round_, 0), copied, less), solved)
    is_first = eq(task, 0)
    body = Let(end, select(is_first, own[1], others + minimum(task * share, left)), body)
    body = Let(first, select(is_first, own[0], behind), body)
    return k.nest(f"{name} x", For(round_, blocks, For(task, tasks, body, "parallel")), "x")


def _less_rows(a: Columns, out: Vector, begin: Expr, count: Expr) -> Stmt:
    """Subtract the columns of a square, times their unknowns, from some rows."""
    turn, rest, column, groups = (
        Var("less_turn"),
        Var("less_rest"),
        Var("less_column"),
        (a.end - a.first) // ABREAST,
    )
    last = a.first + groups * ABREAST + rest

    def single(column: Expr) -> Stmt:
        def less(y: Value) -> Stmt:
            return If(is_some(y), added("l", out, -y, partial(_element, a, column), begin, count))

        return held("known", out[column], less)

    return block(
        For(
            turn,
            groups,
            Let(
                column,
                a.first + turn * ABREAST,
                all_held(
                    [out[column + c] for c in range(ABREAST)],
                    lambda y: _less_of(a, out, column, y, range(ABREAST), begin, count),
                ),
            ),
        ),
        For(rest, a.end - a.first - groups * ABREAST, single(last)),
    )


def _less_columns(a: Columns, out: Vector, begin: Expr, count: Expr) -> Stmt:
    """Subtract the products of some columns with the unknowns of a square from the columns' unknowns."""
    turn, rest, groups = Var("less_turn"), Var("less_rest"), count // ABREAST

    def some(first: Expr, columns: int) -> Stmt:
        totals = Totals(out.buffer.dtype, 1, columns)
        terms = summed("l", totals, lambda c, i: a.at(i, first + c) * out[i], a.first, a.end - a.first, 1)
        return totals.within(
            terms, *(out.store(first + c, out[first + c] - totals[c]) for c in range(columns))
        )

    return block(
        For(turn, groups, some(begin + turn * ABREAST, ABREAST)),
        For(rest, count - groups * ABREAST, some(begin + groups * ABREAST + rest, 1)),
    )


def _solutions(k: Kernel, a: Columns, out: Vector) -> Stmt:
    """Return the loops over the columns of a system: over some at a time, then over the last ones."""
    if k.parts > 1 or a.width is not None:
        return in_order(k, a, False, lambda j: solved_for(k, a, out, j))
    ascending, turn, rest, first = a.lower ^ k.is_transposed, Var("turn"), Var("rest"), Var("first")
    groups = (a.end - a.first) // ABREAST
    begin = a.first + turn * ABREAST if ascending else a.end - (turn + 1) * ABREAST
    last = a.first + groups * ABREAST + rest if ascending else a.end - 1 - groups * ABREAST - rest
    return block(
        For(turn, groups, Let(first, begin, solved_together(k, a, out, first, ascending))),
        For(rest, a.end - a.first - groups * ABREAST, Let(first, last, solved_for(k, a, out, first))),
    )


def solved_together(k: Kernel, a: Columns, out: Vector, first: Expr, ascending: bool) -> Stmt:
    """Return the step for ABREAST columns of a real system. The other rows read each vector once for all of
    them. As in the reference, a solution of 0 leaves its column out if the system isn't transposed."""
    order = [*range(ABREAST)] if ascending else [*reversed(range(ABREAST))]
    begin, count = (first + ABREAST, a.end - first - ABREAST) if a.lower else (a.first, first - a.first)
    totals, nothing = Totals(k.dtype, 1, ABREAST), const(0, k.dtype)

    def product(row: int, column: int, value: Value) -> Value:
        if k.is_transposed:
            return a.at(first + column, first + row) * value
        return select(eq(value, nothing), nothing, a.at(first + row, first + column) * value)

    def values(end: Callable[[dict[int, Value]], Stmt], known: dict[int, Value]) -> Stmt:
        """Return statements that solve the square on the diagonal, one unknown after the other."""
        if len(known) == ABREAST:
            return block(*(out.store(first + c, y) for c, y in known.items()), end(known))
        c = order[len(known)]
        left = out[first + c] - totals[c] if k.is_transposed else out[first + c]
        for d, y in known.items():
            left = left - product(c, d, y)
        return held(f"left{c}", left, lambda left: held(
            f"y{c}", divided(left, c), lambda y: values(end, {**known, c: y})
        ))  # fmt: skip

    def divided(left: Value, c: int) -> Value:
        if k.is_set("diag"):
            return left
        whole = left / a.at(first + c, first + c)
        return whole if k.is_transposed else select(eq(left, nothing), left, whole)

    def update(y: dict[int, Value]) -> Stmt:
        return _less_of(a, out, first, [y[c] for c in range(ABREAST)], order, begin, count)

    if not k.is_transposed:
        return values(update, {})  # `totals` are of transposed systems
    terms = summed("d", totals, lambda c, i: a.at(i, first + c) * out[i], begin, count, 1)
    return totals.within(terms, values(lambda _: block(), {}))


def _less_of(
    a: Columns, out: Vector, first: Expr, y: Sequence[Value], order: Sequence[int], begin: Expr, count: Expr
) -> Stmt:
    """Subtract ABREAST columns, times their unknowns `y`, from some rows. A vector of rows is read once if no
    unknown is 0."""

    def one(i: Expr) -> Stmt:
        return out.store(i, out[i] - total_of([y[c] * a.at(i, first + c) for c in range(ABREAST)]))

    single = [If(is_some(y[c]), added(f"a{c}", out, -y[c], partial(_element, a, first + c), begin, count))
              for c in order]  # fmt: skip
    together = each("a", begin, count, out.width, one)
    return If(reduce(land, map(is_some, y)), together, block(*single))


def _element(a: Columns, column: Expr, row: Expr) -> Value:
    return a.at(row, column)
