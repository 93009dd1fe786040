"""Primitives over several nests, and over the buffers between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeGuard

from jangin.ir.expr import Buffer, Expr, Var, const, minimum
from jangin.ir.loop import (
    Alloc,
    Block,
    For,
    Func,
    If,
    Stmt,
    Store,
    block,
    buffers_written,
    expressions,
    map_children,
    map_stmt,
    replace_buffer,
    statements,
    substitute_stmt,
)
from jangin.ir.simplify import simplify
from jangin.ir.traversal import free_vars, loads, rewrite, substitute
from jangin.schedule.checks import ScheduleError, bound_inside, chain, reads_of, serial, touched, well_formed
from jangin.schedule.normalize import ceil_div
from jangin.schedule.primitives import find


def merge(func: Func, depth: int, names: Sequence[str], rows: int = 1) -> Func:
    """Merge sibling nests into one nest of `depth` shared outer loops (called `names`), and shrink each local
    buffer to one iteration's part.

    Every access of a local must use the outer loops' own variables as its leading indices. The last shared
    loop takes `rows` iterations at once; if there are several, each nest keeps its own loop over them.
    """
    if depth < 1 or len(names) != depth:
        raise ScheduleError(f"{func.name}: {depth} loops to merge can't be called {list(names)}")
    if rows < 1:
        raise ScheduleError(f"{func.name}: loop {names[-1]} can't be merged {rows} rows at once")
    locals_, nests = _peel_allocs(func.body)
    loops = [_outer(n, depth, func.name) for n in nests]
    _check_extents(func, [own for own, _ in loops])
    shared, last = [Var(n) for n in names], loops[-1][0]
    bodies: list[Stmt] = []
    for own, body in loops:
        values: dict[Var, Expr] = dict(zip((p.var for p in own), shared, strict=True))
        bodies.append(substitute_stmt(body, values))
    for name in sorted({a.buffer.name for a in locals_} | _shared_buffers(bodies)):
        _check_leading(block(*bodies), name, last, shared, func.name)
    small = [_shrunk(a.buffer, depth, rows) for a in locals_]
    extents, symbols = [p.extent for p in last], dict(func.symbols)
    left = simplify(minimum(rows, extents[-1] - shared[-1] * rows), symbols)
    for n, (own, _) in enumerate(loops):
        row = own[-1].var

        def inside(i: tuple[Expr, ...], row: Var = row) -> tuple[Expr, ...]:
            return ((row,) if rows > 1 else ()) + i[depth:] or (const(0),)

        for b in small:
            bodies[n] = replace_buffer(bodies[n], b.name, b, inside)
        if rows > 1:
            bodies[n] = For(row, left, substitute_stmt(bodies[n], {shared[-1]: shared[-1] * rows + row}))
    extents[-1] = simplify(ceil_div(extents[-1], rows), symbols)
    whole: Stmt = block(*bodies)
    for b in small:
        whole = Alloc(b, whole)
    for var, extent in zip(reversed(shared), reversed(extents), strict=True):
        whole = For(var, extent, whole)
    return well_formed(func.with_body(whole))


def _shrunk(local: Buffer, depth: int, rows: int) -> Buffer:
    """Return the part of a local that `rows` iterations of the last of `depth` shared loops need."""
    block_rows = (const(rows),) if rows > 1 else ()
    return replace(local, shape=(*block_rows, *local.shape[depth:]) or (const(1),))


def reuse(func: Func, old: str, new: str) -> Func:
    """Keep local `new` in the memory of local `old`. Both must have one type and shape. Each element of `new`
    must be made of `old` at the same index only, and `old` must not be touched after that."""
    allocs = {s.buffer.name: s.buffer for s in statements(func.body) if isinstance(s, Alloc)}
    if old not in allocs or new not in allocs:
        raise ScheduleError(f"{func.name}: {old} and {new} are not both locals")
    a, b = allocs[old], allocs[new]
    if (a.dtype, a.shape, a.memory) != (b.dtype, b.shape, b.memory):
        raise ScheduleError(f"{func.name}: {new} is of another type or shape than {old}")
    written = False
    for s in statements(func.body):
        reads = [n for e in expressions(s) for n in loads(e) if n.buffer.name == old]
        if isinstance(s, Store) and s.buffer.name == new:
            written = True
            if any(n.index != s.index for n in reads):
                raise ScheduleError(
                    f"{func.name}: {new} is computed from elements of {old} at other indices, so they need "
                    "two buffers"
                )
        elif written and (reads or (isinstance(s, Store) and s.buffer.name == old)):
            raise ScheduleError(
                f"{func.name}: {old} is still used after {new} is written, so they need two buffers"
            )

    def go(s: Stmt) -> Stmt:
        return go(s.body) if isinstance(s, Alloc) and s.buffer.name == new else map_children(s, go)

    return well_formed(func.with_body(replace_buffer(go(func.body), new, a)))


def in_result(func: Func, local: str) -> Func:
    """Keep a local in the memory of a result that is made of it.

    Both must have one type and shape. Each element of the result must be made only of the local's element at
    the same index. The local must not be touched after that. Storing the local then fetches the result's
    cache lines.
    """
    alloc = next((s for s in statements(func.body) if isinstance(s, Alloc) and s.buffer.name == local), None)
    if alloc is None:
        raise ScheduleError(f"{func.name}: {local} is no local")
    own, rank = alloc.buffer, len(alloc.buffer.shape)
    fitting = (p for p in func.results if p.dtype is own.dtype and p.shape[-rank:] == own.shape)
    if (out := next(fitting, None)) is None:
        raise ScheduleError(f"{func.name}: no result has the dtype and shape of {local}")
    rows = {s.index[:-rank] for s in statements(alloc) if isinstance(s, Store) and s.buffer.name == out.name}
    if len(rows) != 1:
        raise ScheduleError(
            f"{func.name}: {local} would lie in several parts of the result, and may lie in one"
        )
    (row,) = rows
    inside = bound_inside(alloc)
    if any(free_vars(i) & inside for i in row):
        raise ScheduleError(
            f"{func.name}: {local} would lie in several parts of the result, and may lie in one"
        )
    begun = False
    for part in _peel_allocs(alloc.body)[1]:  # a loop that stores to the result has begun it from its start
        stores = [s for s in statements(part) if isinstance(s, Store) and s.buffer.name == out.name]
        begun = begun or bool(stores)
        for s in statements(part):
            reads = [n for e in expressions(s) for n in loads(e) if n.buffer.name == local]
            if isinstance(s, Store) and s.buffer.name == out.name:
                at = s.index[-rank:]
                if any(n.index != at for n in reads) or any(free_vars(i) - inside for i in at):
                    raise ScheduleError(
                        f"{func.name}: the result is computed from elements of {local} at other indices"
                    )
            elif begun and (reads or (isinstance(s, Store) and s.buffer.name == local)):
                raise ScheduleError(f"{func.name}: {local} is still used after the result is written")
    body = replace_buffer(alloc.body, local, out, lambda index: (*row, *index))

    def go(s: Stmt) -> Stmt:
        return body if s is alloc else map_children(s, go)

    return well_formed(func.with_body(go(func.body)))


def inline_sum(func: Func, local: str) -> Func:
    """Compute each element of a local that is a reduction at its only read, in the one statement that reads
    it. The local isn't stored."""
    allocs, nests = _peel_allocs(func.body)
    makers = [s for s in nests if local in buffers_written(s)]
    if local not in {a.buffer.name for a in allocs} or len(makers) != 1:
        raise ScheduleError(f"{func.name}: {local} is not a local that a single loop nest writes")
    loops = chain(makers[0])
    own = loops[-1].body if loops else makers[0]
    if not isinstance(own, Alloc) or not isinstance(own.body, Block) or len(own.body.body) != 3:
        raise ScheduleError(f"{func.name}: {local} is no reduction")
    init, terms, final = own.body.body
    if not isinstance(final, Store) or final.index != tuple(p.var for p in loops):
        raise ScheduleError(f"{func.name}: {local} isn't made element by element")
    rest = block(*(s for s in nests if s is not makers[0]))
    reads = [
        (s, n) for s in statements(rest) for e in expressions(s) for n in loads(e) if n.buffer.name == local
    ]
    if len({n for _, n in reads}) != 1 or len({id(s) for s, _ in reads}) != 1:
        raise ScheduleError(f"{func.name}: {local} is read by several statements, or at several places")
    (reader, load), *_ = reads
    if not isinstance(reader, Store) or touched(makers[0]) & buffers_written(rest):
        raise ScheduleError(f"{func.name}: what {local} is made of changes before it is read")
    at: dict[Var, Expr] = {p.var: i for p, i in zip(loops, load.index, strict=True)}
    value = substitute(final.value, at)
    use = map_stmt(reader, lambda e: rewrite(e, lambda n: value if n == load else None))
    inner = Alloc(own.buffer, block(substitute_stmt(init, at), substitute_stmt(terms, at), use))

    def go(s: Stmt) -> Stmt:
        return inner if s is reader else map_children(s, go)

    whole = go(rest)
    for a in reversed([a for a in allocs if a.buffer.name != local]):
        whole = Alloc(a.buffer, whole)
    return well_formed(func.with_body(whole))


def _check_extents(func: Func, nests: Sequence[Sequence[For]]) -> None:
    for loops in zip(*nests, strict=True):
        gaps = [simplify(p.extent - loops[-1].extent, dict(func.symbols)) for p in loops]
        if any(gap != const(0) for gap in gaps):
            raise ScheduleError(f"{func.name}: loops {[p.var.name for p in loops]} differ in extent")
        for p in loops:
            serial(func, p)


def side_by_side(func: Func, first: str, second: str) -> Func:
    """Run two loops of one extent, in neighbouring independent nests, as one loop with the name of the first.
    Operands of both are read once, and neither loop waits for the other."""

    def joined(a: Stmt, b: Stmt) -> Stmt:
        if buffers_written(a) & touched(b) or buffers_written(b) & touched(a):
            raise ScheduleError(f"{func.name}: one of {first} and {second} touches what the other stores")
        (allocs, before, one, after), (others, early, two, late) = _around(a, first), _around(b, second)
        if one is None or two is None or simplify(one.extent - two.extent, dict(func.symbols)) != const(0):
            raise ScheduleError(f"{func.name}: {first} and {second} aren't loops of one extent side by side")
        for p in (one, two):
            serial(func, p)
        both = replace(one, body=block(one.body, substitute_stmt(two.body, {two.var: one.var})))
        whole = block(*before, *early, both, *after, *late)
        for alloc in reversed([*allocs, *others]):
            whole = Alloc(alloc.buffer, whole)
        return whole

    def go(s: Stmt) -> Stmt:
        if isinstance(s, Block):
            for n, (a, b) in enumerate(pairwise(s.body)):
                if _has_loop(a, first) and _has_loop(b, second):
                    return block(*s.body[:n], joined(a, b), *s.body[n + 2 :])
        return map_children(s, go)

    changed = go(func.body)
    if changed is func.body:
        raise ScheduleError(f"{func.name}: {first} and {second} aren't in neighbouring nests")
    return well_formed(func.with_body(changed))


def _around(nest: Stmt, loop: str) -> tuple[list[Alloc], Sequence[Stmt], For | None, Sequence[Stmt]]:
    """Return a nest's local buffers, the statements before a loop, the loop, and the statements after it. The
    loop is None if the nest doesn't have it."""
    allocs, parts = _peel_allocs(nest)
    for n, s in enumerate(parts):
        if isinstance(s, For) and s.var.name == loop:
            return allocs, parts[:n], s, parts[n + 1 :]
    return allocs, parts, None, ()


def _has_loop(s: Stmt, name: str) -> bool:
    return any(isinstance(p, For) and p.var.name == name for p in statements(s))


def _shared_buffers(bodies: Sequence[Stmt]) -> set[str]:
    """Return the names of the buffers that one nest stores to and another touches."""
    stored, used = [buffers_written(b) for b in bodies], [touched(b) for b in bodies]
    return {
        name for n, own in enumerate(stored) for m, other in enumerate(used) if m != n for name in own & other
    }


def _peel_allocs(s: Stmt) -> tuple[list[Alloc], tuple[Stmt, ...]]:
    allocs = []
    while isinstance(s, Alloc):
        allocs.append(s)
        s = s.body
    return allocs, s.body if isinstance(s, Block) else (s,)


def _outer(s: Stmt, depth: int, name: str) -> tuple[list[For], Stmt]:
    loops = []
    for _ in range(depth):
        if not isinstance(s, For):
            raise ScheduleError(f"{name}: a nest has fewer than {depth} outer loops to merge")
        loops.append(s)
        s = s.body
    return loops, s


def _check_leading(s: Stmt, local: str, loops: Sequence[For], shared: Sequence[Var], name: str) -> None:
    """Raise ScheduleError unless every access of `local` is at the shared rows. An axis of size 1 may be
    indexed by 0."""
    unit = [p.extent == const(1) for p in loops]

    def same_row(index: tuple[Expr, ...]) -> bool:
        lead = index[: len(shared)]
        return len(lead) == len(shared) and all(
            i == v or (u and i == const(0)) for i, v, u in zip(lead, shared, unit, strict=True)
        )

    for st in statements(s):
        if isinstance(st, Store) and st.buffer.name == local and not same_row(st.index):
            raise ScheduleError(f"{name}: {local} is written at other rows than the loop's")
        for e in expressions(st):
            if any(r.buffer.name == local and not same_row(r.index) for r in loads(e)):
                raise ScheduleError(f"{name}: {local} is read at other rows than the loop's")


def copy_as_read(func: Func, name: str, tiles: str) -> Func:
    """Make the local copy `name` in the first iteration of loop `tiles`, part by part at its reads. Before, a
    nest ahead of the loop made it.

    Processors then copy beside the arithmetic. Each iteration must read the same elements, in the same order
    of loops.
    """
    tile, allocations = find(func, tiles), [s for s in statements(func.body) if _allocates(s, name)]
    first, *others = (
        allocations[0].body.body if allocations and isinstance(allocations[0].body, Block) else (func.body,)
    )
    rest, loops = block(*others), chain(first)
    copy = loops[-1].body if loops else first
    if not isinstance(copy, Store) or copy.buffer.name != name or copy.index != tuple(p.var for p in loops):
        raise ScheduleError(f"{func.name}: no nest makes {name} before anything else is done")
    serial(func, tile)
    inside = any(s is tile for s in statements(rest)) and reads_of(rest, {name}) == reads_of(tile, {name})
    if not inside or name in buffers_written(rest):
        raise ScheduleError(f"{func.name}: {name} is used elsewhere than in {tiles}")
    if buffers_written(tile) & {n.buffer.name for n in loads(copy.value)}:
        raise ScheduleError(f"{func.name}: {tiles} stores what {name} is made of")
    if any(tile.var in free_vars(i) for n in reads_of(tile, {name}) for i in n.index):
        raise ScheduleError(f"{func.name}: each iteration of {tiles} reads its own part of {name}")

    def go(s: Stmt) -> Stmt:
        if not reads_of(s, {name}):
            return s
        if isinstance(s, (If, Store)) or (isinstance(s, For) and tile.var in free_vars(s.extent)):
            raise ScheduleError(f"{func.name}: iterations of {tiles} may read different parts of {name}")
        innermost = not any(p.kind == "serial" and reads_of(p, {name}) for p in _loops_inside(s))
        if isinstance(s, For) and s.kind == "serial" and innermost:
            return replace(s, body=block(If(tile.var < 1, block(*_copies(s, copy))), s.body))
        return map_children(s, go)

    def put(s: Stmt) -> Stmt:
        if s is allocations[0]:
            return Alloc(copy.buffer, put(rest))
        return go(s) if s is tile else map_children(s, put)

    return well_formed(func.with_body(put(func.body)))


def _allocates(s: Stmt, name: str) -> TypeGuard[Alloc]:
    return isinstance(s, Alloc) and s.buffer.name == name


def _loops_inside(s: Stmt) -> list[For]:
    return [p for p in statements(s) if isinstance(p, For) and p is not s]


def _copies(s: For, copy: Store) -> list[Stmt]:
    """Return nests that do what `copy` does for the elements that an iteration of `s` reads. Their loops have
    the kinds of the reading loops."""
    name, inner, copies = copy.buffer.name, _loops_inside(s), []
    for index in dict.fromkeys(n.index for n in reads_of(s.body, {name})):
        moving = [p for p in inner if any(p.var in free_vars(i) for i in index)]
        own: dict[Var, Expr] = {p.var: Var(f"{name}_{p.var.name}") for p in moving}
        at = tuple(substitute(i, own) for i in index)
        values = {i: to for i, to in zip(copy.index, at, strict=True) if isinstance(i, Var)}
        nest: Stmt = Store(copy.buffer, at, substitute(copy.value, values))
        for p in reversed(moving):
            nest = replace(p, var=Var(f"{name}_{p.var.name}"), body=nest)
        copies.append(nest)
    return copies
