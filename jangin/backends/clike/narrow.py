"""Cuts vector loops to the processor's registers, for compilers that write wider vectors badly.

LLVM cuts a vector of several registers itself. GCC keeps it in memory, element by element. OpenCL C has no
vectors of more than 16 lanes.
"""

from __future__ import annotations

from dataclasses import replace

from jangin.backends.walk.lanes import reads_itself
from jangin.ir.expr import Const, Var, const
from jangin.ir.loop import (
    Block,
    For,
    Func,
    Stmt,
    Store,
    expressions,
    map_children,
    statements,
    substitute_stmt,
)
from jangin.ir.traversal import free_vars, loads
from jangin.targets.target import Target


def narrowed(func: Func, target: Target, most: int) -> Func:
    """Return the kernel with vector loops of at most a register's lanes, and of at most `most` lanes, the
    language's limit.

    Lanes mean consecutive iterations, so the results are the same. Sums across lanes aren't cut, because
    their order would change.
    """
    return replace(func, body=_narrowed(func.body, target, most))


def _narrowed(s: Stmt, target: Target, most: int) -> Stmt:
    s = map_children(s, lambda sub: _narrowed(sub, target, most))
    if not isinstance(s, For) or s.kind != "vector" or not isinstance(s.extent, Const):
        return s
    lanes, extent = min(target.machine.lanes(_element_bytes(s)), most), int(s.extent.value)
    if extent <= lanes or any(_combines(n, s.var) for n in statements(s.body)):
        return s
    pieces: list[Stmt] = []
    for first in range(0, extent, lanes):
        count = min(lanes, extent - first)
        body = substitute_stmt(s.body, {s.var: s.var + first}) if first else s.body
        pieces.append(replace(s, extent=const(count), body=body))
    return Block(tuple(pieces))


def _combines(s: Stmt, lane: Var) -> bool:
    """Return whether a store combines all lanes in one element."""
    return isinstance(s, Store) and not any(lane in free_vars(i) for i in s.index) and reads_itself(s)


def _element_bytes(s: For) -> int:
    """Return the bytes of the largest elements that a loop reads or writes."""
    stores = (n for n in statements(s.body) if isinstance(n, Store))
    read = [x.buffer for n in statements(s.body) for e in expressions(n) for x in loads(e)]
    return max([b.dtype.bytes for b in (*(n.buffer for n in stores), *read)], default=1)
