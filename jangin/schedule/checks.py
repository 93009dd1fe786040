"""Checks of the primitives' preconditions: a step that would change a kernel's meaning is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from jangin.ir.expr import Expr, Load, Var
from jangin.ir.loop import (
    TASK_KINDS,
    Alloc,
    For,
    Func,
    Let,
    Stmt,
    Store,
    expressions,
    statements,
    sub_statements,
)
from jangin.ir.races import Ranges, race
from jangin.ir.simplify import simplify
from jangin.ir.traversal import free_vars, loads

Index = tuple[Expr, ...]


class ScheduleError(Exception):
    """A step doesn't fit the kernel. The message names the step and the reason."""


def well_formed(func: Func) -> Func:
    """Return the kernel unchanged. Raises ScheduleError if loops or local buffers share a name, or if a
    parallel or vector loop stands where it isn't allowed."""
    names = [v.name for v, _ in func.symbols]
    buffers = [b.name for b in func.params]
    waiting: list[tuple[Stmt, For | None, bool]] = [(func.body, None, False)]
    while waiting:
        s, outside, in_vector = waiting.pop()
        if isinstance(s, For):
            names.append(s.var.name)
            if s.kind in TASK_KINDS and outside is not None:
                raise ScheduleError(f"{func.name}: loop {s.var} can't be {s.kind} inside loop {outside.var}")
            if s.kind == "vector" and in_vector:
                raise ScheduleError(f"{func.name}: vector loop {s.var} would be inside another one")
            outside, in_vector = s, in_vector or s.kind == "vector"
        elif isinstance(s, Let):
            names.append(s.var.name)
        elif isinstance(s, Alloc):
            buffers.append(s.buffer.name)
        waiting += [(k, outside, in_vector) for k in sub_statements(s) if type(k) is not Store]
    for group, what in ((names, "variables"), (buffers, "buffers")):
        if len(set(group)) < len(group):
            twice = sorted({n for n in group if group.count(n) > 1})
            raise ScheduleError(f"{func.name}: two {what} would be called {', '.join(twice)}")
    return func


def serial(func: Func, loop: For) -> None:
    """Raise ScheduleError unless the loop is still serial, because loops are shaped before they are
    marked."""
    if loop.kind != "serial":
        raise ScheduleError(f"{func.name}: loop {loop.var} is {loop.kind} already")


def bound_inside(s: Stmt) -> set[Var]:
    """Return the variables that a statement binds."""
    return {k.var for k in statements(s) if isinstance(k, (For, Let))}


def touched(s: Stmt) -> set[str]:
    """Return the buffers that a statement reads or writes."""
    stored = {k.buffer.name for k in statements(s) if isinstance(k, Store)}
    return stored | {n.buffer.name for k in statements(s) for e in expressions(k) for n in loads(e)}


def outer_accesses(s: Stmt) -> Iterator[tuple[str, list[Index], list[Index]]]:
    """Yield (name, indices stored to, indices loaded) for each buffer that outlives `s` and is stored to."""
    local = {k.buffer.name for k in statements(s) if isinstance(k, Alloc)}
    stores: dict[str, list[Index]] = {}
    for k in statements(s):
        if isinstance(k, Store) and k.buffer.name not in local:
            stores.setdefault(k.buffer.name, []).append(k.index)
    reads = reads_of(s, set(stores))
    for name, at in stores.items():
        yield name, at, [n.index for n in reads if n.buffer.name == name]


def _normal(index: Iterable[Expr]) -> Index:
    return tuple(simplify(i) for i in index)


def any_order(func: Func, loop: For, purpose: str) -> None:
    """Raise ScheduleError if an iteration reads an element that another iteration stored. An iteration may
    only read the element that it updates. `purpose`: what the loop is to become, for the message."""
    for name, at, reads in outer_accesses(loop.body):
        if not _updates(at, reads):
            raise _read_elsewhere(func, loop, purpose, name)


def independent(func: Func, loop: For, ranges: Ranges, purpose: str) -> None:
    """Raise ScheduleError if two iterations store to one element, or one reads an element that another
    stored.

    `ranges`: of the symbols and of the outer loops. `purpose`: what the loop is to become, for the message.
    """
    depends = {loop.var}
    for s in statements(loop.body):
        if isinstance(s, Let) and depends & free_vars(s.value):
            depends.add(s.var)
    for name, at, reads in outer_accesses(loop.body):
        if not _updates(at, reads) and race(loop, ranges):
            raise _read_elsewhere(func, loop, purpose, name)
        if not all(any(depends & free_vars(e) for e in index) for index in at):
            raise ScheduleError(
                f"{func.name}: loop {loop.var} can't be {purpose}: iterations store to one element of {name}"
            )


def _updates(stored: Sequence[Index], read: Sequence[Index]) -> bool:
    """Return whether a buffer is only read at the indices where it is stored."""
    others = {i for i in read if i not in stored}
    return not others or {_normal(i) for i in others} <= {_normal(i) for i in stored}


def _read_elsewhere(func: Func, loop: For, purpose: str, name: str) -> ScheduleError:
    why = f"{name} is read elsewhere than it is stored"
    return ScheduleError(f"{func.name}: loop {loop.var} can't be {purpose}: {why}")


def reads_of(s: Stmt, buffers: set[str]) -> list[Load]:
    """Return the loads of these buffers anywhere in a statement."""
    return [n for k in statements(s) for e in expressions(k) for n in loads(e) if n.buffer.name in buffers]


def chain(s: Stmt) -> list[For]:
    """Return directly nested loops, outermost first. The list is empty if the statement isn't a loop."""
    loops = []
    while isinstance(s, For):
        loops.append(s)
        s = s.body
    return loops
