"""Sums with terms in few rows only, such as an embedding's gradient, whose rows are the words.

Each term tests whether an index that was read is the row's. All of a row's tests are made at once, by
vectors. Rows without a term then make no other test, and the others branch around the terms that are zero."""

from __future__ import annotations

from dataclasses import replace

from jangin.ir import te
from jangin.ir.dtype import I32
from jangin.ir.expr import Binary, Buffer, Const, Expr, Load, Select, Var, const, is_const, land, select
from jangin.ir.loop import (
    Alloc,
    Block,
    For,
    Func,
    Stmt,
    Store,
    block,
    buffers_written,
    map_stmt,
    substitute_stmt,
)
from jangin.ir.traversal import conjuncts, free_vars, loads, rewrite
from jangin.schedule.checks import ScheduleError, chain, serial, well_formed

FEWEST_ROWS = 8
"""Fewest rows among which terms are divided. With fewer rows, a term is often in the row at hand. Its branch
can't be foreseen then, which costs as much as the additions that it saves."""


def is_seldom(stage: te.Stage) -> bool:
    """Return whether a stage adds up a term only where an index that was read equals a row's. The condition
    must be the same for all columns, the last axis."""
    body = stage.body
    if stage.combiner != "sum" or stage.rounded or len(stage.axes) < 2:
        return False
    if not isinstance(body, Select) or not is_const(body.b, 0):
        return False
    *rows, column = stage.axes
    many = {a.var for a in rows if not isinstance(a.extent, Const) or a.extent.value >= FEWEST_ROWS}
    return column.var not in free_vars(body.cond) and any(_chooses(p, many) for p in conjuncts(body.cond))


def _chooses(part: Expr, rows: set[Var]) -> bool:
    """Return whether a condition holds for one row alone, because an index from memory equals the row."""
    if not isinstance(part, Binary) or part.op != "eq":
        return False
    return any(side in rows and bool(loads(index)) for side, index in ((part.a, part.b), (part.b, part.a)))


def found_first(stage: te.Stage) -> tuple[te.Stage, te.Stage]:
    """Return the two stages that `find_first` makes of a stage. One finds whether a row has any terms. The
    other is the sum, which asks for this first."""
    assert isinstance(stage.body, Select)
    rows, cond = stage.axes[:-1], stage.body.cond
    found, some = _found(stage.out.name, rows)
    first = te.Stage(found, rows, _one_if(cond), stage.reduce_axes, "max")
    return first, replace(stage, body=select(land(some, cond), stage.body.a, stage.body.b))


def _found(name: str, rows: tuple[te.Axis, ...]) -> tuple[Buffer, Expr]:
    """Return a buffer that keeps for each row whether the row has terms, 1 or 0. Return also the condition
    that a row has some."""
    found = Buffer(f"{name}.found", I32, tuple(a.extent for a in rows), "scratch")
    return found, Load(found, tuple(a.var for a in rows)) > 0


def _one_if(cond: Expr) -> Expr:
    return select(cond, const(1, I32), const(0, I32))


def find_first(func: Func, acc: str) -> Func:
    """Find for each row, before all its columns, whether the sum `acc` has any terms there. The columns are
    the last loop around the sum.

    A term is `c ? x : 0`, where `c` doesn't depend on the column. A nest in front keeps 1 for each row in
    which `c` holds for some term, and the sum asks for this number first. The loops of the two nests get the
    prefixes a and b, as those of two stages have.
    """
    loops = chain(func.body)
    alloc = loops[-1].body if loops else func.body
    if len(loops) < 2 or not isinstance(alloc, Alloc) or alloc.buffer.name != acc:
        raise ScheduleError(f"{func.name}: {acc} isn't a sum in each of several rows and columns")
    terms = chain(alloc.body.body[1]) if isinstance(alloc.body, Block) else []
    choice = _choice(terms[-1].body) if terms else None
    if choice is None or loops[-1].var in free_vars(choice.cond):
        raise ScheduleError(f"{func.name}: {acc} has no condition, or another one for each column")
    for p in (*loops, *terms):
        serial(func, p)
    if {n.buffer.name for n in loads(choice.cond)} & buffers_written(func.body):
        raise ScheduleError(f"{func.name}: the condition of {acc} reads what the kernel stores")
    rows = tuple(te.Axis(p.var, p.extent) for p in loops[:-1])
    found, some = _found(func.results[0].name, rows)
    over = tuple(te.Axis(p.var, p.extent) for p in terms)
    first = te.nest(te.rename_axes(te.Stage(found, rows, _one_if(choice.cond), over, "max"), "a"))
    asked = select(land(some, choice.cond), choice.a, choice.b)
    main = map_stmt(func.body, lambda e: rewrite(e, lambda n: asked if n is choice else None))
    return well_formed(func.with_body(Alloc(found, block(first, _prefixed(main, "b")))))


def _choice(update: Stmt) -> Select | None:
    """Return the choice between a term and zero in `acc = acc + (c ? x : 0)`."""
    if not isinstance(update, Store) or not isinstance(update.value, Binary) or update.value.op != "add":
        return None
    term = update.value.b
    return term if isinstance(term, Select) and is_const(term.b, 0) else None


def _prefixed(s: Stmt, prefix: str) -> Stmt:
    """Return a nest with `prefix` before the names of its loops."""
    if isinstance(s, For):
        var = Var(prefix + s.var.name)
        return replace(s, var=var, body=_prefixed(substitute_stmt(s.body, {s.var: var}), prefix))
    if isinstance(s, Alloc):
        return replace(s, body=_prefixed(s.body, prefix))
    return block(*(_prefixed(k, prefix) for k in s.body)) if isinstance(s, Block) else s
