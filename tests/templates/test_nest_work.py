"""The work of a task of a loop nest, and the tasks that are worth another thread."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jangin.blas.compiled import loaded
from jangin.blas.table import routine_of
from jangin.ir.dtype import F32, I64
from jangin.ir.expr import Buffer, Expr, Load, Var, cast, const, minimum
from jangin.ir.interpret import size
from jangin.ir.loop import Alloc, For, Let, Stmt, Store, block
from jangin.templates.nest_work import LANES, operations

N, TASK, ROW, COLUMN = Var("n"), Var("task"), Var("i"), Var("j")
X, Y, ENDS = (Buffer(name, dtype, (N, N)) for name, dtype in (("x", F32), ("y", F32), ("e", I64)))


def copy(i: Expr, j: Expr) -> Stmt:
    """A store and a load: two operations."""
    return Store(Y, (i, j), Load(X, (i, j)))


def work(body: Stmt, n: int = 100, around: Callable[[Stmt], Stmt] = lambda s: s) -> int:
    """Return the operations of a task, one of n tasks."""
    return size(operations(around(For(TASK, N, body, "parallel")), {N: (None, None)}), {"n": n})


def test_loops_count_by_their_extents() -> None:
    assert work(copy(TASK, TASK)) == 2
    assert work(For(ROW, N, copy(TASK, ROW))) == 200
    assert work(For(ROW, const(4 * LANES), copy(TASK, ROW), "vector")) == 8
    assert work(For(ROW, minimum(const(3), N - TASK), copy(TASK, ROW))) == 6


def test_a_triangle_counts_half() -> None:
    assert work(For(ROW, TASK, copy(TASK, ROW))) == 2 * 49
    assert work(For(ROW, N, For(COLUMN, ROW, copy(ROW, COLUMN)))) == 2 * 100 * 50
    assert work(Let(COLUMN, TASK + 1, For(ROW, COLUMN, copy(TASK, ROW)))) == 2 * 50


def test_names_and_rounds_around_the_tasks_are_known() -> None:
    def named(s: Stmt) -> Stmt:
        return Let(ROW, N // 4, Alloc(Buffer("a", F32, (const(1),)), s))

    assert work(For(COLUMN, ROW, copy(TASK, COLUMN)), around=named) == 2 * 25
    assert work(For(COLUMN, ROW, copy(TASK, COLUMN)), around=lambda s: For(ROW, N, s)) == 2 * 50


def test_the_largest_part_counts() -> None:
    assert work(block(copy(TASK, TASK), For(ROW, N, For(COLUMN, N, copy(ROW, COLUMN))))) == 20_000


def test_an_extent_that_depends_on_data_counts_by_its_bound() -> None:
    end = cast(I64, Load(ENDS, (TASK, TASK)))
    assert work(For(ROW, end, copy(TASK, ROW))) == 2
    assert work(For(ROW, minimum(const(7), end), copy(TASK, ROW))) == 14
    assert work(Let(COLUMN, end, For(ROW, COLUMN, copy(TASK, ROW)))) == 2


@pytest.mark.parametrize(
    ("name", "options", "few", "many"),
    [("gemv", {"trans": "N"}, 300, 2048), ("symv", {"uplo": "U"}, 200, 2048), ("axpy", {}, 16, 400_000)],
)
def test_large_calls_are_worth_two_threads(name: str, options: dict[str, str], few: int, many: int) -> None:
    """They have few tasks, which are long."""
    made, _, order = loaded(routine_of(name, "d"), "d", options)
    launch = max(made.plan.launches, key=lambda x: len(str(x.tasks)))
    for n, is_shared in ((few, False), (many, True)):
        sizes = dict.fromkeys(order, n)
        assert (size(launch.tasks, sizes) > size(launch.grain, sizes)) == is_shared
