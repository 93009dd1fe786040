"""The loop pass `simplify`: normal-form expressions, decided conditions and trivial loops gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jangin.ir.dtype import I64
from jangin.ir.expr import Const, Expr, Var, const, is_const
from jangin.ir.loop import (
    TASK_KINDS,
    Alloc,
    Block,
    For,
    Func,
    If,
    Let,
    Prefetch,
    Stmt,
    Store,
    block,
    loop_range,
    substitute_stmt,
)
from jangin.ir.simplify import Range, simplify

EMPTY = Block(())


def simplify_func(func: Func) -> Func:
    """An equal kernel: every expression simplified under the ranges of its enclosing loops, loops
    of one iteration substituted, and branches that the ranges decide taken."""
    return func.with_body(_go(func.body, dict(func.symbols)))


def _go(s: Stmt, ranges: Mapping[Var, Range]) -> Stmt:
    if isinstance(s, Block):
        return block(*(_go(k, ranges) for k in s.body))
    if isinstance(s, For):
        return _loop(s, ranges)
    if isinstance(s, Store):
        index = tuple(simplify(i, ranges) for i in s.index)
        return Store(s.buffer, index, simplify(s.value, ranges))
    if isinstance(s, Prefetch):
        return Prefetch(s.buffer, tuple(simplify(i, ranges) for i in s.index))
    if isinstance(s, Alloc):
        body = _go(s.body, ranges)
        return body if body == EMPTY else Alloc(s.buffer, body)
    if isinstance(s, If):
        return _branch(s, ranges)
    assert isinstance(s, Let)
    value = simplify(s.value, ranges)
    if isinstance(value, (Const, Var)):
        return _go(substitute_stmt(s.body, {s.var: value}), ranges)
    return Let(s.var, value, _go(s.body, ranges))


def _loop(s: For, ranges: Mapping[Var, Range]) -> Stmt:
    extent = simplify(s.extent, ranges)
    if is_const(extent, 0):
        return EMPTY
    if is_const(extent, 1) and s.kind not in ("thread", *TASK_KINDS):
        return _go(substitute_stmt(s.body, {s.var: const(0)}), ranges)
    body = _go(s.body, {**ranges, s.var: loop_range(replace(s, extent=extent))})
    return EMPTY if body == EMPTY else replace(s, extent=extent, body=body)


def _branch(s: If, ranges: Mapping[Var, Range]) -> Stmt:
    cond = simplify(s.cond, ranges)
    if isinstance(cond, Const):
        taken = s.then if cond.value else s.orelse
        return EMPTY if taken is None else _go(taken, ranges)
    orelse = None if s.orelse is None else _go(s.orelse, ranges)
    then = _go(s.then, ranges)
    return EMPTY if then == EMPTY and orelse in (None, EMPTY) else If(cond, then, orelse)


def ceil_div(a: Expr, b: int) -> Expr:
    return (a + (b - 1)) // const(b, I64)
