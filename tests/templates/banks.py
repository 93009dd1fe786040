"""Conflicts of shared memory's banks, counted from the loops, without a device.

A warp's work-items access 32 banks. Each bank has every 32nd word of 4 bytes, and gives one word at a time.
Different words of one bank are conflicts, which are served one after the other. Accesses of 8 and 16 bytes
are made by halves and quarters of a warp (CUDA C++ Programming Guide, shared memory of each capability).

A warp loop loads matrices of 8 rows, each of 16 bytes, one matrix at a time (PTX ISA, `ldmatrix`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from jangin.ir.expr import Buffer, Const, Expr, Load, Var, const
from jangin.ir.interpret import size as evaluated
from jangin.ir.loop import For, Func, Let, Stmt, Store, expressions, statements, sub_statements
from jangin.ir.traversal import free_vars, loads, row_major, substitute

WARP, BANKS, WORD = 32, 32, 4


@dataclass(frozen=True)
class Access:
    """One access by the first warp of a group. `ways` is the number of turns of the banks, where 1 is without
    conflicts."""

    buffer: str
    stored: bool
    ways: float
    index: str


def accesses(func: Func) -> Iterator[Access]:
    """Yield each access of shared memory in a thread loop, and each load of matrices in a warp loop. Other
    loops are at their first iteration."""

    def go(s: Stmt, thread: For | None, vector: For | None, values: Mapping[Var, Expr]) -> Iterator[Access]:
        if thread is not None:
            found = [(n.buffer, n.index, False) for e in expressions(s) for n in loads(e)]
            found += [(s.buffer, s.index, True)] if isinstance(s, Store) else []
            for buffer, index, stored in found:
                if buffer.memory == "shared":
                    yield _access(buffer, index, stored, thread, vector, values)
        if isinstance(s, Store) and s.buffer.memory == "tile" and isinstance(s.value, Load):
            yield _matrix(s.value, s.index[-2:])
        if isinstance(s, Let):
            values = {**values, s.var: substitute(s.value, dict(values))}
        if isinstance(s, For):
            thread, vector = (
                s if s.kind == kind else now for kind, now in (("thread", thread), ("vector", vector))
            )
        for sub in sub_statements(s):
            yield from go(sub, thread, vector, values)

    for s in statements(func.body):
        if isinstance(s, For) and s.kind == "block":
            yield from go(s.body, None, None, {})


def _access(
    buffer: Buffer,
    index: tuple[Expr, ...],
    stored: bool,
    thread: For,
    vector: For | None,
    values: Mapping[Var, Expr],
) -> Access:
    place = substitute(row_major(index, buffer.shape), dict(values))
    by_lane = vector is not None and vector.var in free_vars(place)
    lanes = _count(vector) if vector is not None and by_lane else 1
    zeros = {v: const(0) for v in free_vars(place)}

    def at_item(n: int, lane: int) -> int:
        numbers = zeros | {thread.var: const(n)}
        if vector is not None and by_lane:
            numbers[vector.var] = const(lane)
        return evaluated(substitute(place, dict(numbers)), {})

    items = min(WARP, _count(thread))
    at = np.array([[at_item(n, lane) for n in range(items)] for lane in range(lanes)])
    at *= buffer.dtype.bytes
    together = lanes > 1 and bool((np.diff(at, axis=0) == buffer.dtype.bytes).all())
    size = buffer.dtype.bytes * (lanes if together else 1)
    turns = best = 0
    for row in at[:1] if together else at:
        size = min(size, 16)
        for part in np.split(
            row, range(WARP * WORD // max(size, WORD), items, WARP * WORD // max(size, WORD))
        ):
            words = {int(b) // WORD + k for b in part for k in range(max(1, size // WORD))}
            turns += max(Counter(w % BANKS for w in words).values())
            best += -(-len(words) // BANKS)
    return Access(buffer.name, stored, turns / best, str(place))


def _matrix(source: Load, lines: tuple[Expr, ...]) -> Access:
    """Return the access of a matrix of shared memory, whose rows and columns are numbered by `lines`."""
    place = row_major(source.index, source.buffer.shape)
    zeros = {v: const(0) for v in free_vars(place)}

    def at(row: int, column: int) -> int:
        numbers = {v: const(n) for v, n in zip(lines, (row, column), strict=True) if isinstance(v, Var)}
        return evaluated(substitute(place, dict(zeros | numbers)), {}) * source.dtype.bytes

    start, across = at(0, 0), at(0, 1) - at(0, 0) == source.dtype.bytes
    rows = [(at(n, 0) if across else at(0, n)) - start for n in range(8)]
    words = {b // WORD + k for b in rows for k in range(4)}
    ways = max(Counter(w % BANKS for w in words).values())
    return Access(source.buffer.name, False, ways, str(place))


def _count(loop: For) -> int:
    assert isinstance(loop.extent, Const)
    return int(loop.extent.value)
