"""The loop pass `simplify`: normal-form expressions, without decided conditions and trivial loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jangin.ir.dtype import I64
from jangin.ir.expr import Const, Expr, Var, const, is_const
from jangin.ir.loop import (
    ITEM_KINDS,
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
from jangin.ir.simplify import Range, simplifier

EMPTY = Block(())


class _Scope:
    """The ranges of the loops around a statement."""

    def __init__(self, ranges: Mapping[Var, Range]) -> None:
        self.ranges, self.simplify = ranges, simplifier(ranges)

    def inside(self, loop: For) -> _Scope:
        return _Scope({**self.ranges, loop.var: loop_range(loop)})


def simplify_func(func: Func) -> Func:
    """Return an equal kernel in simpler form.

    Every expression is simplified under the ranges of its enclosing loops. Loops of one iteration are
    substituted, and branches that the ranges decide are taken. Loops of threads and tasks stay.
    """
    return func.with_body(_go(func.body, _Scope(dict(func.symbols))))


def _go(s: Stmt, scope: _Scope) -> Stmt:
    if isinstance(s, Block):
        return block(*[_go(k, scope) for k in s.body])
    if isinstance(s, For):
        return _loop(s, scope)
    if isinstance(s, Store):
        return Store(s.buffer, tuple(map(scope.simplify, s.index)), scope.simplify(s.value))
    if isinstance(s, Prefetch):
        return Prefetch(s.buffer, tuple(map(scope.simplify, s.index)))
    if isinstance(s, Alloc):
        body = _go(s.body, scope)
        return body if body == EMPTY else Alloc(s.buffer, body)
    if isinstance(s, If):
        return _branch(s, scope)
    assert isinstance(s, Let)
    value = scope.simplify(s.value)
    if isinstance(value, (Const, Var)):
        return _go(substitute_stmt(s.body, {s.var: value}), scope)
    return Let(s.var, value, _go(s.body, scope))


def _loop(s: For, scope: _Scope) -> Stmt:
    extent = scope.simplify(s.extent)
    if is_const(extent, 0):
        return EMPTY
    if is_const(extent, 1) and s.kind not in (*ITEM_KINDS, *TASK_KINDS):
        return _go(substitute_stmt(s.body, {s.var: const(0)}), scope)
    loop = replace(s, extent=extent)
    body = _go(s.body, scope.inside(loop))
    return EMPTY if body == EMPTY else replace(loop, body=body)


def _branch(s: If, scope: _Scope) -> Stmt:
    cond = scope.simplify(s.cond)
    if isinstance(cond, Const):
        taken = s.then if cond.value else s.orelse
        return EMPTY if taken is None else _go(taken, scope)
    orelse = None if s.orelse is None else _go(s.orelse, scope)
    then = _go(s.then, scope)
    return EMPTY if then == EMPTY and orelse in (None, EMPTY) else If(cond, then, orelse)


def ceil_div(a: Expr, b: int) -> Expr:
    return (a + (b - 1)) // const(b, I64)
