"""The sizes that tensor expressions and loop nests take for granted about their inputs.

An access by a loop variable reaches as far as its loop does. If the loop's extent is an outer variable, the
access reaches as far as that variable's last value. An access past the end of an axis means that the inputs'
shapes don't fit each other. Operators clamp or guard computed indices. A clamped index needs an axis that
isn't empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from jangin.ir.core import Compute, LoopNest
from jangin.ir.expr import Binary, Const, Expr, Load, Select, Var, const, minimum
from jangin.ir.flat import postorder
from jangin.ir.graph import Attributes
from jangin.ir.loop import For, If, Let, Stmt, Store, expressions, statements, sub_statements
from jangin.ir.te import Stage
from jangin.ir.traversal import children, free_vars, loads, substitute
from jangin.ir.words import DIVISIONS

Limit = tuple[Expr, Expr]
"""(number of entries that are accessed, number of entries that exist) along an axis."""


def parts(attrs: Attributes) -> Sequence[Stage | Stmt]:
    """Return the tensor expressions or the loop nest that a node carries."""
    if isinstance(attrs, Compute):
        return attrs.stages
    return (attrs.body,) if isinstance(attrs, LoopNest) else ()


def limits(value: Stage | Stmt) -> Iterator[Limit]:
    """Yield the limit of every unguarded access at a constant or a plain loop variable. Tensor expressions
    have limits for computed indices too."""
    if isinstance(value, Stage):
        extents = {a.var: a.extent for a in (*value.axes, *value.reduce_axes)}
        for e in (value.body, value.epilogue):
            if e is not None:
                yield from _expression(e, extents, frozenset())
                yield from _computed(e, extents)
    else:
        yield from _statement(value, {}, frozenset(), {})


def accesses(value: Stage | Stmt) -> Iterator[Load]:
    """Yield every load, and every store as a load at the same index."""
    if isinstance(value, Stage):
        yield from loads(value.body)
        if value.epilogue is not None:
            yield from loads(value.epilogue)
        return
    for s in statements(value):
        if isinstance(s, Store):
            yield Load(s.buffer, s.index)
        for e in expressions(s):
            yield from loads(e)


Extents = Mapping[Var, Expr]
Guards = frozenset[Var]


def _statement(s: Stmt, extents: Extents, guards: Guards, lets: Mapping[Var, Guards]) -> Iterator[Limit]:
    for e in expressions(s):
        yield from _expression(e, extents, guards)
    if isinstance(s, Store):
        yield from _access(Load(s.buffer, s.index), extents, guards)
    elif isinstance(s, For):
        extents, guards = {v: e for v, e in extents.items() if v != s.var}, guards - {s.var}
        if free_vars(s.extent).isdisjoint(lets) and not any(True for _ in loads(s.extent)):
            widest = {v: e - 1 for v, e in extents.items()}
            extents[s.var] = substitute(s.extent, widest)
    elif isinstance(s, Let):
        extents = {v: e for v, e in extents.items() if v != s.var}
        lets = {**lets, s.var: _origins(s.value, lets)}
    elif isinstance(s, If):
        guards = guards | _origins(s.cond, lets)
    for sub in sub_statements(s):
        yield from _statement(sub, extents, guards, lets)


def _origins(e: Expr, lets: Mapping[Var, Guards]) -> Guards:
    """Return the variables that a condition restricts, followed through `let` bindings. Variables that only
    index a load inside the condition don't count."""
    if isinstance(e, Load):
        return frozenset()
    own = {e} if isinstance(e, Var) else set[Var]()
    return frozenset(own).union(
        *(lets[v] for v in own if v in lets), *(_origins(k, lets) for k in children(e))
    )


def _expression(e: Expr, extents: Extents, guards: Guards) -> Iterator[Limit]:
    for load, around in _loads(e, guards):
        yield from _access(load, extents, around)


def _computed(e: Expr, extents: Extents) -> Iterator[Limit]:
    """Yield the limit of every unguarded access at a computed index: one entry, if there are iterations."""
    count = math.prod(extents.values(), start=const(1))
    for load, guards in _loads(e, frozenset()):
        for i, size in zip(load.index, load.buffer.shape, strict=True):
            outside = isinstance(i, Const) and int(i.value) < 0 and not guards  # clamped into no entries
            if outside or (not isinstance(i, (Const, Var)) and free_vars(i).isdisjoint(guards)):
                yield _one_entry(count, size), size


def _one_entry(count: Expr, size: Expr) -> Expr:
    """Return 1, or 0 if no iteration is left when `size` is 0. No other size matters. A count that is divided
    by the size has no value then."""
    if not isinstance(size, Var):
        return minimum(1, count)
    if any(isinstance(e, Binary) and e.op in DIVISIONS and size in free_vars(e.b) for e in postorder(count)):
        return const(1)
    return minimum(1, substitute(count, {size: const(0)}))


def _loads(e: Expr, guards: Guards) -> Iterator[tuple[Load, Guards]]:
    """Yield each load, and the variables that the conditions around it restrict."""
    if isinstance(e, Load):
        yield e, guards
    if isinstance(e, Select):
        yield from _loads(e.cond, guards)
        inner = guards | _origins(e.cond, {})
        yield from _loads(e.a, inner)
        yield from _loads(e.b, inner)
        return
    for part in children(e):
        yield from _loads(part, guards)


def _access(access: Load, extents: Extents, guards: Guards) -> Iterator[Limit]:
    for i, size in zip(access.index, access.buffer.shape, strict=True):
        if isinstance(i, Const):
            yield const(int(i.value) + 1), size
        elif isinstance(i, Var) and i in extents and i not in guards:
            yield extents[i], size
