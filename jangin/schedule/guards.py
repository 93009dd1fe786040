"""Primitives on conditions: guarded reads of a reduction become guarded steps, guards move out of loops, and
loaded indices are hoisted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from jangin.ir.dtype import BOOL
from jangin.ir.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Var,
    binary,
    call,
    const,
    is_const,
    land,
    select,
)
from jangin.ir.loop import (
    TASK_KINDS,
    Alloc,
    Block,
    For,
    Func,
    If,
    Let,
    Stmt,
    Store,
    block,
    buffers_written,
    expressions,
    map_children,
    map_stmt,
    statements,
    sub_statements,
)
from jangin.ir.te import identity
from jangin.ir.traversal import children, conjuncts, free_vars, loads, rewrite
from jangin.schedule.checks import ScheduleError, bound_inside
from jangin.schedule.primitives import at_loop, find, guarded_loads


def predicate(func: Func, acc: str) -> Func:
    """Turn a guarded term into a guarded step: `acc += c ? x : 0` becomes `if c { acc += x }`.

    The other choice must be the combiner's identity (padding). A zero that would have met an infinite or NaN
    weight isn't multiplied any more.
    """
    if all(s.buffer.name != acc for s in statements(func.body) if isinstance(s, Store)):
        raise ScheduleError(f"{func.name}: no accumulator {acc}")

    def go(s: Stmt) -> Stmt:
        if isinstance(s, Store) and s.buffer.name == acc and isinstance(s.value, Binary):
            value = s.value
            if isinstance(value.a, Load) and value.a.buffer.name == acc:
                cond, term = _split_guard(value.b, value.op)
                if cond is not None:
                    return If(cond, replace(s, value=binary(value.op, value.a, term)))
        return map_children(s, go)

    return func.with_body(go(func.body))


def only_where(func: Func, name: str) -> Func:
    """Compute a value that depends on one condition in a branch.

    The value may be a reduction in the accumulator `name`, all of whose terms are the combiner's identity
    unless the condition holds. It may also be an element of the buffer `name` that is a choice. The result is
    `if c { acc = 0, loops of acc += x, out = f(acc) } else { out = f(0) }`. Neighbouring branches under the
    same condition are joined.
    """

    def go(s: Stmt) -> Stmt:
        if isinstance(s, Block):
            return _joined([go(k) for k in s.body])
        if isinstance(s, Alloc) and s.buffer.name == name and s.buffer.memory == "register":
            return _reduced_where(func, s)
        if isinstance(s, Store) and s.buffer.name == name and isinstance(s.value, Select):
            return If(s.value.cond, replace(s, value=s.value.a), replace(s, value=s.value.b))
        return map_children(s, go)

    return func.with_body(go(func.body))


def _reduced_where(func: Func, s: Alloc) -> If:
    """Return a branch that holds a reduction with its accumulator."""
    acc = s.buffer.name
    begin, *loops, end = s.body.body if isinstance(s.body, Block) else (s.body,)
    terms = predicate(func.with_body(block(*loops)), acc).body
    inner = terms
    while isinstance(inner, For):
        inner = inner.body
    if not (isinstance(inner, If) and isinstance(begin, Store) and isinstance(end, Store)):
        raise ScheduleError(f"{func.name}: {acc} isn't reduced under a condition")
    cond = inner.cond
    if free_vars(cond) & bound_inside(terms) or any(n.buffer.name == acc for n in loads(cond)):
        raise ScheduleError(f"{func.name}: the condition of {acc} isn't one for all terms")
    body = block(begin, _without(terms, inner), replace(end, value=_decided(end.value, cond, True)))
    total, none = Load(s.buffer, (const(0),)), begin.value
    nothing = rewrite(end.value, lambda e: none if e is total else None)
    return If(cond, replace(s, body=body), replace(end, value=_decided(nothing, cond, False)))


def _joined(parts: Sequence[Stmt]) -> Stmt:
    """Return a sequence of statements, in which neighbours under one condition are joined."""
    joined: list[Stmt] = []
    for s in parts:
        last = joined[-1] if joined else None
        if isinstance(last, If) and isinstance(s, If) and last.cond is s.cond and last.orelse and s.orelse:
            settled = not {n.buffer.name for n in loads(s.cond)} & buffers_written(last)
            if settled:
                joined[-1] = If(s.cond, block(last.then, s.then), block(last.orelse, s.orelse))
                continue
        joined.append(s)
    return block(*joined)


def _decided(e: Expr, cond: Expr, holds: bool) -> Expr:
    """Return an expression simplified for a condition that holds, or doesn't (`holds`)."""
    return rewrite(e, lambda n: (n.a if holds else n.b) if isinstance(n, Select) and n.cond is cond else None)


def _without(s: Stmt, guard: If) -> Stmt:
    """Return the statement with `guard` replaced by the statement under the guard."""
    return guard.then if s is guard else map_children(s, lambda k: _without(k, guard))


def begin_with(func: Func, acc: str, buffer: str) -> Func:
    """Start a sum with the element of `buffer` that is added to it in the end, instead of zero. This saves an
    addition; the order of additions changes."""
    begins: list[Expr] = []

    def added(e: Expr) -> Expr | None:
        for place, other in ((e.a, e.b), (e.b, e.a)) if isinstance(e, Binary) and e.op == "add" else ():
            mine = isinstance(place, Load) and place.buffer.name == acc
            if mine and isinstance(other, Load) and other.buffer.name == buffer:
                begins.append(other)
                return place
        return None

    def go(s: Stmt) -> Stmt:
        if isinstance(s, Alloc) and s.buffer.name == acc and isinstance(s.body, Block):
            begin, *nest, end = s.body.body
            if (
                isinstance(begin, Store)
                and begin.value == const(0, begin.value.dtype)
                and isinstance(end, Store)
            ):
                end = replace(end, value=rewrite(end.value, added))
                if len(begins) == 1:
                    return replace(s, body=block(replace(begin, value=begins[0]), *nest, end))
        return map_children(s, go)

    body = go(func.body)
    if len(begins) != 1:
        raise ScheduleError(f"{func.name}: {buffer} is added to {acc} {len(begins)} times, and must be once")
    return func.with_body(body)


def guard_loads(func: Func, buffer: str) -> Func:
    """Guard the reads of `buffer` in a store under a condition: `if c { out = f(x) }` becomes `if c { out =
    f(c ? x : 0) }`.

    The load can then be made early, for whole tiles (see `pack`).
    """

    def go(s: Stmt, cond: Expr) -> Stmt:
        if isinstance(s, If) and s.orelse is None:
            return replace(s, then=go(s.then, land(cond, s.cond)))
        if isinstance(s, Store):
            reads = guarded_loads(s.value, buffer)
            value = rewrite(s.value, lambda n: select(cond, n, const(0, n.dtype)) if n in reads else None)
            return replace(s, value=value)
        return map_children(s, lambda k: go(k, cond))

    return func.with_body(go(func.body, const(True, BOOL)))


def _split_guard(e: Expr, op: str) -> tuple[Expr | None, Expr]:
    """Return (condition, term) such that `e` is the term if the condition holds, else the identity of `op`.
    Without a guard, return (None, e)."""
    if isinstance(e, Select) and isinstance(e.b, Const) and _is_identity(e.b, op):
        return e.cond, e.a
    if isinstance(e, Call) and e.fn == "rounded":
        cond, term = _split_guard(e.args[0], op)
        return cond, call("rounded", term)
    if isinstance(e, Cast) and (op == "add" or e.dtype.is_float):
        cond, term = _split_guard(e.a, op)
        return cond, Cast(e.dtype, term) if cond is not None else e
    if isinstance(e, Binary) and e.op == "mul" and op == "add":
        left, a = _split_guard(e.a, op)
        right, b = _split_guard(e.b, op)
        conds = [c for c in (left, right) if c is not None]
        if conds:
            return conds[0] if len(conds) == 1 else land(*conds), binary("mul", a, b)
    return None, e


def _is_identity(c: Const, op: str) -> bool:
    if op == "add":
        return is_const(c, 0)
    return op in ("max", "min") and c == identity(op, c.dtype)


def hoist_guards(func: Func) -> Func:
    """Move every condition, part by part, out of the loops whose variables it doesn't mention. A part that
    reads memory stays in place, unless the loop surely evaluates it and stores nothing there."""
    return func.with_body(_hoist(func.body))


def _hoist(s: Stmt) -> Stmt:
    s = map_children(s, _hoist)
    if not isinstance(s, For) or s.kind in TASK_KINDS:
        return s
    body = s.body
    if not isinstance(body, If) or body.orelse is not None:
        return s
    outside: list[Expr] = []
    inside: list[Expr] = []
    for part in conjuncts(body.cond):
        moves = s.var not in free_vars(part) and (not loads(part) or (not inside and _reads_before(s, part)))
        (outside if moves else inside).append(part)
    loop = replace(s, body=If(_all(inside), body.then) if inside else body.then)
    return If(_all(outside), loop) if outside else loop


def _reads_before(loop: For, part: Expr) -> bool:
    """Return whether a condition's first part may read memory before the loop instead of inside it."""
    stored = {s.buffer for s in statements(loop) if isinstance(s, Store)}
    some = isinstance(loop.extent, Const) and loop.extent.value > 0
    return some and not any(n.buffer in stored for n in loads(part))


def hoist_indices(func: Func, loop: str) -> Func:
    """Read each loaded index, such as a gathered row's, once before the loops in `loop` if it doesn't depend
    on them. Indices that only a condition's branch needs stay in place."""
    inside = find(func, loop).body
    fixed = bound_inside(inside)
    stored = {s.buffer.name for s in statements(inside) if isinstance(s, Store)}
    indices: dict[Expr, Var] = {}
    for s in _unconditional(inside):
        for n in (n for e in expressions(s) for n in _certain_loads(e)):
            for i in n.index:
                read = {x.buffer.name for x in loads(i)}
                if read and not read & stored and not free_vars(i) & fixed and n.buffer.name not in stored:
                    indices.setdefault(i, Var(f"{loop}_at{len(indices)}"))

    def bound(s: For) -> Stmt:
        body = map_stmt(s.body, lambda e: rewrite(e, indices.get))
        for index, var in reversed(indices.items()):
            body = Let(var, index, body)
        return replace(s, body=body)

    return at_loop(func, loop, bound) if indices else func


def _unconditional(s: Stmt) -> Iterator[Stmt]:
    """Yield the stores that run whenever `s` does and its loops have iterations."""
    if isinstance(s, Store):
        yield s
    elif not isinstance(s, If):
        for sub in sub_statements(s):
            yield from _unconditional(sub)


def _certain_loads(e: Expr) -> Iterator[Load]:
    """Yield the loads of an expression that are evaluated for every choice."""
    if isinstance(e, Load):
        yield e
    for k in (e.cond,) if isinstance(e, Select) else () if isinstance(e, Load) else children(e):
        yield from _certain_loads(k)


def _all(parts: list[Expr]) -> Expr:
    total: Expr = const(True, BOOL)
    for p in parts:
        total = land(total, p)
    return total
