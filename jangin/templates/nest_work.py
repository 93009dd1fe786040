"""The work of a task of a loop nest. It decides how many tasks are worth another thread."""

from __future__ import annotations

from collections.abc import Mapping

from jangin.ir.expr import Binary, Const, Expr, Var, const, maximum
from jangin.ir.loop import TASK_KINDS, Alloc, For, Let, Stmt, Store, sub_statements
from jangin.ir.simplify import Range, simplify
from jangin.ir.traversal import free_vars, loads, substitute

LANES = 8
"""Iterations of a vector loop that count as one operation of a nest: the lanes of f32 in AVX2, between those
of other targets."""

USUAL = 1000
"""A size of an operand that is worth several threads. It only decides which part of a nest counts as the
largest."""

Known = Mapping[Var, Expr]
"""Variables by their usual values, which are expressions of sizes. A loop's variable has the middle of its
range."""


def operations(body: Stmt, symbols: Mapping[Var, Range]) -> Expr:
    """Return the stores of a task's largest part and their loads from memory, times the extents of loops, for
    the sizes of a run. `body` is a kernel with a loop over tasks.

    An extent that depends on data counts as its constant bound, or as 1 if it has none. Vector loops count by
    vectors. The largest part is that of many elements (`USUAL`), so that the expression stays short."""
    known: dict[Var, Expr] = {v: v for v in symbols}
    while not (isinstance(body, For) and body.kind in TASK_KINDS):
        assert isinstance(body, (Let, Alloc, For))
        if isinstance(body, Let):
            known = _with(known, body)
        elif isinstance(body, For):
            known[body.var] = _extent(body.extent, known) // 2
        body = body.body
    middle = (_extent(body.extent, known) - 1) // 2  # the last task may be a short one
    return simplify(_of(body.body, {**known, body.var: middle}), symbols)


def _with(known: Known, s: Let) -> dict[Var, Expr]:
    """Return the known variables with a bound one, unless that depends on data."""
    is_known = not loads(s.value) and free_vars(s.value) <= known.keys()
    return {**known, s.var: substitute(s.value, known)} if is_known else dict(known)


def _of(s: Stmt, known: Known) -> Expr:
    if isinstance(s, Store):
        return const(1 + sum(n.buffer.memory != "register" for n in loads(s.value)))
    if isinstance(s, Let):
        return _of(s.body, _with(known, s))
    if isinstance(s, For):
        extent = _extent(s.extent, known)
        turns = (extent + LANES - 1) // LANES if s.kind == "vector" else extent
        return turns * _of(s.body, {**known, s.var: extent // 2})
    return max((_of(sub, known) for sub in sub_statements(s)), key=_usual, default=const(0))


def _usual(work: Expr) -> int:
    value = simplify(substitute(work, {v: const(USUAL) for v in free_vars(work)}))
    return int(value.value) if isinstance(value, Const) else 0


def _extent(extent: Expr, known: Known) -> Expr:
    """Return a loop's extent. The smaller of a number and a constant counts as the constant, and an extent
    that depends on data as 1."""
    bounds = (extent.a, extent.b) if isinstance(extent, Binary) and extent.op == "min" else (extent,)
    for bound in bounds:
        if isinstance(bound, Const):
            return bound
    if loads(extent) or not free_vars(extent) <= known.keys():
        return const(1)
    return maximum(substitute(extent, known), const(0))
