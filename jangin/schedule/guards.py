"""Primitives on conditions: guarded reads of a reduction become guarded steps, then guards move out."""

from __future__ import annotations

from dataclasses import replace

from jangin.ir.dtype import BOOL
from jangin.ir.expr import Binary, Cast, Const, Expr, Load, Select, binary, const, free_vars, is_const, land
from jangin.ir.loop import Alloc, Block, For, Func, If, Let, Stmt, Store, block
from jangin.te import identity


def predicate(func: Func, acc: str) -> Func:
    """A reduction step whose term is the combiner's identity unless a condition holds (padding)
    becomes a step under that condition: `acc += c ? x : 0` is `if c { acc += x }`. A zero that
    would have met an infinite or NaN weight isn't multiplied any more."""

    def go(s: Stmt) -> Stmt:
        if isinstance(s, Store) and s.buffer.name == acc and isinstance(s.value, Binary):
            value = s.value
            if isinstance(value.a, Load) and value.a.buffer.name == acc:
                cond, term = _split_guard(value.b, value.op)
                if cond is not None:
                    return If(cond, replace(s, value=binary(value.op, value.a, term)))
            return s
        if isinstance(s, Block):
            return block(*(go(k) for k in s.body))
        if isinstance(s, (For, Alloc, Let)):
            return replace(s, body=go(s.body))
        if isinstance(s, If):
            return If(s.cond, go(s.then), None if s.orelse is None else go(s.orelse))
        return s

    return func.with_body(go(func.body))


def _split_guard(e: Expr, op: str) -> tuple[Expr | None, Expr]:
    """(condition, term) with `e` = the identity of `op` wherever the condition doesn't hold."""
    if isinstance(e, Select) and isinstance(e.b, Const) and _is_identity(e.b, op):
        return e.cond, e.a
    if isinstance(e, Cast):
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
    """Move every condition, part by part, out of the loops whose variables it doesn't mention."""
    return func.with_body(_hoist(func.body))


def _hoist(s: Stmt) -> Stmt:
    if isinstance(s, Block):
        return block(*(_hoist(k) for k in s.body))
    if isinstance(s, (Alloc, Let)):
        return replace(s, body=_hoist(s.body))
    if isinstance(s, If):
        return If(s.cond, _hoist(s.then), None if s.orelse is None else _hoist(s.orelse))
    if not isinstance(s, For):
        return s
    body = _hoist(s.body)
    if s.kind == "parallel" or not isinstance(body, If) or body.orelse is not None:
        return replace(s, body=body)
    parts = _conjuncts(body.cond)
    outside = [p for p in parts if s.var not in free_vars(p)]
    inside = [p for p in parts if s.var in free_vars(p)]
    inner = If(_all(inside), body.then) if inside else body.then
    loop: Stmt = replace(s, body=inner)
    return If(_all(outside), loop) if outside else loop


def _conjuncts(e: Expr) -> list[Expr]:
    if isinstance(e, Binary) and e.op == "and" and e.dtype is BOOL:
        return _conjuncts(e.a) + _conjuncts(e.b)
    return [e]


def _all(parts: list[Expr]) -> Expr:
    total: Expr = const(True, BOOL)
    for p in parts:
        total = land(total, p)
    return total
