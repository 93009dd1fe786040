"""The verifier of memory that all groups of a launch share, and of the work of a tile's last group (see
`ir.groups`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

from jangin.ir.expr import Buffer, Const, Expr, Var, const, eq
from jangin.ir.groups import ARRIVALS, is_meeting
from jangin.ir.loop import (
    OWN,
    Alloc,
    Block,
    Func,
    If,
    Let,
    Stmt,
    Store,
    buffers_written,
    expressions,
    statements,
    sub_statements,
    task_loops,
)
from jangin.ir.simplify import simplify
from jangin.ir.traversal import free_vars, loads, rewrite, substitute

Fail = Callable[[str], NoReturn]
_TILE = Var("tile of a meeting")


def verify_meetings(func: Func, fail: Fail) -> None:
    """Verify these rules of launch memory.

    - It is allocated once, outside of all loops, and the groups of a tile fit the number of groups.
    - A group stores to its own part alone. Only a meeting reads the memory.
    - A meeting ends its task. Its condition is that of the last share.
    - Its work depends on the tile and not on the share, and it reads no registers that came before it."""
    buffers = [
        s.buffer for s in statements(func.body) if isinstance(s, Alloc) and s.buffer.memory == "launch"
    ]
    if not buffers:
        return
    groups = task_loops(func.body)[1]
    outside = {s.buffer.name for s in _around(func.body)}
    if len(buffers) > 1 or buffers[0].name not in outside or groups is None or groups.kind != "block":
        fail(f"launch buffer {buffers[-1].name} must be the only one, outside of a block loop")
    tiles, shares = _shape(buffers[0], fail)
    if groups.extent != const(tiles * shares) or tiles * 4 > ARRIVALS:
        fail(f"{groups.extent} groups can't be {shares} shares of {tiles} tiles")
    group = groups.var
    tile, share = (
        simplify(e, {group: (const(0), groups.extent - 1)}) for e in (group // shares, group % shares)
    )
    met = 0
    for s, values, last in _ends(groups.body, {}):
        if is_meeting(s):
            met += 1
            _verify_meeting(s, fail, group, (tile, share, shares), values, last)
    inside = [s for s in statements(func.body) if is_meeting(s)]
    if met != 1 or len([s for s in inside if isinstance(s, If)]) != 1:
        fail(f"launch buffer {buffers[0].name} needs one meeting, at the end of each task")
    _verify_stores(groups.body, {}, fail, (tile, share))


def _around(s: Stmt) -> Iterator[Alloc]:
    while isinstance(s, (Let, Alloc)):
        if isinstance(s, Alloc):
            yield s
        s = s.body


def _shape(buffer: Buffer, fail: Fail) -> tuple[int, int]:
    sizes = [int(d.value) for d in buffer.shape[:2] if isinstance(d, Const)]
    if len(buffer.shape) < 3 or len(sizes) < 2 or min(sizes) < 1:
        fail(f"launch buffer {buffer.name} has no tiles and shares")
    return sizes[0], sizes[1]


def _ends(s: Stmt, values: Mapping[Var, Expr]) -> Iterator[tuple[Stmt, Mapping[Var, Expr], bool]]:
    """Yield the statements of a task that are in no loop, with the values of names, and whether each is the
    last."""
    if isinstance(s, Let):
        yield from _ends(s.body, {**values, s.var: substitute(s.value, values)})
    elif isinstance(s, Alloc):
        yield from _ends(s.body, values)
    elif isinstance(s, Block):
        for n, k in enumerate(s.body, 1):
            for inner, known, last in _ends(k, values):
                yield inner, known, last and n == len(s.body)
    else:
        yield s, values, True


def _verify_meeting(
    s: Stmt, fail: Fail, group: Var, parts: tuple[Expr, Expr, int], values: Mapping[Var, Expr], last: bool
) -> None:
    tile, share, shares = parts
    assert isinstance(s, If)
    if not last or s.orelse is not None or substitute(s.cond, values) != eq(share, const(shares - 1)):
        fail(
            f"a meeting must end its task, and its condition is {eq(share, const(shares - 1))}, not {s.cond}"
        )

    def go(k: Stmt, known: Mapping[Var, Expr]) -> None:
        for e in expressions(k):
            one = rewrite(substitute(e, known), lambda n: _TILE if n == tile else None)
            if group in free_vars(one):
                fail(f"a meeting's work depends on {group} in {e}, and not on the tile alone")
        if isinstance(k, Let):
            known = {**known, k.var: substitute(k.value, known)}
        for sub in sub_statements(k):
            go(sub, known)

    go(s.then, values)
    own = {k.buffer.name for k in statements(s.then) if isinstance(k, Alloc)}
    ready = set(own)
    for k in s.then.body if isinstance(s.then, Block) else (s.then,):
        reads = {
            n.buffer.name
            for i in statements(k)
            for e in expressions(i)
            for n in loads(e)
            if n.buffer.memory in OWN
        }
        if reads - ready:
            fail(f"a meeting reads {min(reads - ready)}, which each group has its own of")
        ready |= buffers_written(k)


def _verify_stores(s: Stmt, values: Mapping[Var, Expr], fail: Fail, part: tuple[Expr, Expr]) -> None:
    """Verify that a group stores to its own part of launch memory, and reads none outside of its meeting."""
    if is_meeting(s) and isinstance(s, If):
        if any(isinstance(k, Store) and k.buffer.memory == "launch" for k in statements(s)):
            fail("a meeting stores to launch memory")
        return
    if isinstance(s, Store) and s.buffer.memory == "launch":
        at = tuple(substitute(i, values) for i in s.index[:2])
        if at != part:
            fail(
                f"a group stores to part [{s.index[0]}, {s.index[1]}] of {s.buffer.name}, which isn't its own"
            )
    if any(n.buffer.memory == "launch" for e in expressions(s) for n in loads(e)):
        fail("launch memory is read outside of a meeting")
    if isinstance(s, Let):
        values = {**values, s.var: substitute(s.value, values)}
    for sub in sub_statements(s):
        _verify_stores(sub, values, fail, part)
