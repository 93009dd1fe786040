"""Prefetch hints ask for the right elements, and change no result."""

from __future__ import annotations

import pytest

from jangin.ir.expr import Buffer, Expr, Var, const
from jangin.ir.loop import For, Func, Prefetch, Store, block, statements
from jangin.ir.parse import parse_func
from jangin.ir.text import print_func
from jangin.schedule.checks import ScheduleError
from jangin.schedule.prefetch import LINE
from jangin.schedule.steps import PRIMITIVES

from .nests import assert_same, naive


def panels(rows: int, columns: int, depth: int) -> Func:
    """Return a kernel of out[m, p] = the sum over k and over the lanes of a panel of `w`, for `rows` rows."""
    w = Buffer("w", naive("map").params[0].dtype, (const(columns), const(depth), const(16)))
    x = Buffer("x", w.dtype, (const(rows), const(columns)))
    out = Buffer("out", w.dtype, (const(rows), const(columns)))
    m, p, k = Var("m"), Var("p"), Var("k")
    value = x[m, p] + w[p, k, 0]
    body = For(p, const(columns), For(m, const(rows), For(k, const(depth), Store(out, (m, p), value))))
    return Func("panels", (w, x, out), 1, (), body)


def hints(func: Func) -> list[Prefetch]:
    return [s for s in statements(func.body) if isinstance(s, Prefetch)]


def value(e: Expr, **at: int) -> int:
    from jangin.ir.simplify import simplify
    from jangin.ir.traversal import substitute

    found = simplify(substitute(e, {Var(n): const(v) for n, v in at.items()}))
    return int(str(found))


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_the_next_panel_is_asked_for_whole(rows: int) -> None:
    func = PRIMITIVES["prefetch_panels"](panels(rows, 4, 6), "k", "m", "p", "w", rows)
    assert_same(panels(rows, 4, 6), func)
    asked = {
        (value(h.index[0], p=1), value(h.index[2], m=m, k=k))
        for h in hints(func) for m in range(rows) for k in range(6)
    }  # fmt: skip
    assert asked >= {(2, line * 16) for line in range(6)}
    assert parse_func(print_func(func)) == func


def test_the_write_back_is_asked_for() -> None:
    func = PRIMITIVES["split"](panels(9, 4, 6), "m", 3)
    after = PRIMITIVES["prefetch_tile"](func, "mo", "mi", 4)
    assert_same(func, after)
    assert {h.buffer.name for h in hints(after)} == {"x", "out"}
    assert parse_func(print_func(after)) == after


@pytest.mark.parametrize("lines", [1, 2, 7])
def test_what_is_read_once_is_asked_for_ahead(lines: int) -> None:
    """The innermost loop prefetches a line for each line that it reads, `lines` lines ahead."""
    before = panels(1, 4, 6)
    func = PRIMITIVES["prefetch_ahead"](before, "m", "w", lines * LINE)
    assert_same(before, func)
    asked = [
        6 * p + k + value(h.index[2], p=p, k=k) // 16 for p in range(4) for k in range(6) for h in hints(func)
    ]
    assert asked == list(range(lines, 24 + lines))
    assert parse_func(print_func(func)) == func


def test_what_is_not_read_is_not_asked_for_ahead() -> None:
    with pytest.raises(ScheduleError, match="out is not read in m"):
        PRIMITIVES["prefetch_ahead"](panels(1, 4, 6), "m", "out", LINE)


def test_a_panel_that_is_not_read_there() -> None:
    with pytest.raises(ScheduleError, match="b is not read in k"):
        PRIMITIVES["prefetch_panels"](panels(2, 4, 6), "k", "m", "p", "b", 2)


def test_hints_alone_are_no_work() -> None:
    func = panels(2, 4, 6)
    assert_same(
        func, func.with_body(block(Prefetch(func.params[0], (const(9), const(9), const(0))), func.body))
    )
