"""Whether the lanes of a vector loop can run side by side, and the parts of its body that belong to each
lane."""

from __future__ import annotations

from dataclasses import replace

from jangin.ir.expr import Binary, Expr, Load, Var
from jangin.ir.loop import Alloc, For, Let, Stmt, Store, replace_buffer, statements, sub_statements
from jangin.ir.traversal import free_vars, loads

REDUCTIONS = {"add": "sum", "mul": "prod", "max": "max", "min": "min", "and": "and", "or": "or"}
"""Operations that combine all lanes in any order, each with the reduction of tensor expressions that it
computes."""


def privatized(s: For) -> Stmt:
    """Return the body of a vector loop, in which each local buffer has one element a lane."""
    body = s.body
    for n in statements(s.body):
        if isinstance(n, Alloc):
            wide = replace(n.buffer, shape=(*n.buffer.shape, s.extent))
            body = replace_buffer(body, n.buffer.name, wide, lambda i: (*i, s.var))
    return body


def side_by_side(s: Stmt, varying: frozenset[Var]) -> bool:
    """Return whether lanes, which differ in `varying`, can run `s` side by side.

    Loop bounds must agree. An element to which all lanes store must get one value, or a reduction of the
    lanes' values.
    """

    def varies(e: Expr) -> bool:
        return not free_vars(e).isdisjoint(varying)

    if isinstance(s, Store):
        private = any(varies(i) for i in s.index)
        return private or not (varies(s.value) or reads_itself(s)) or reduction(s) is not None
    if isinstance(s, For) and varies(s.extent):
        return False
    if isinstance(s, Let) and varies(s.value):
        varying = varying | {s.var}
    return all(side_by_side(sub, varying) for sub in sub_statements(s))


def reads_itself(s: Store) -> bool:
    """Return whether a store's value depends on the buffer that it stores to."""
    return any(n.buffer.name == s.buffer.name for n in loads(s.value))


def reduction(s: Store) -> tuple[str, Expr] | None:
    """Return (op, value) of a store `place = op(place, value)`; None for any other store."""
    if isinstance(s.value, Binary) and s.value.op in REDUCTIONS:
        for place, other in ((s.value.a, s.value.b), (s.value.b, s.value.a)):
            mine = isinstance(place, Load) and place.buffer.name == s.buffer.name and place.index == s.index
            if mine and all(n.buffer.name != s.buffer.name for n in loads(other)):
                return s.value.op, other
    return None
