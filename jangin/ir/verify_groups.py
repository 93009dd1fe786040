"""The verifier of blocks and their threads. It checks where their loops and shared memory may be, and data
races."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

from jangin.ir.dtype import I64
from jangin.ir.expr import Const, Expr, Load, Var, const
from jangin.ir.groups import items, lives_across, thread_loops
from jangin.ir.loop import (
    ITEM_KINDS,
    OWN,
    Alloc,
    For,
    Func,
    Let,
    Stmt,
    Store,
    buffers_written,
    expressions,
    loop_range,
    statements,
    sub_statements,
    task_loops,
)
from jangin.ir.races import race
from jangin.ir.records import dataclass
from jangin.ir.simplify import Range, interval
from jangin.ir.traversal import free_vars, loads

Fail = Callable[[str], NoReturn]


def verify_groups(func: Func, fail: Fail) -> None:
    """Verify these rules of work-groups.

    - Thread loops and warp loops are inside a block loop, but not inside each other or vector loops. All of a
      block's are for the same constant number of work-items.
    - Shared buffers are allocated in a block. Tile buffers of a block are allocated in a warp loop, or have
      the warp as their first axis. A warp loop allocates nothing else.
    - Outside its thread loops, a block accesses no memory that they write.
    - No two threads of a loop access one element if one of them writes it (see `ir.races`).
    - Nor do two elements of a matrix that a warp loop stores, as each lane stores its own at any time. For
      the same reason no iteration of a warp loop reads memory that it writes."""
    _verify_places(func.body, fail, ())
    across = frozenset(b.name for b in lives_across(func))
    rounds = task_loops(func.body)[0]
    around = dict(func.symbols) | ({} if rounds is None else {rounds.var: loop_range(rounds)})
    for s in statements(func.body):
        if isinstance(s, For) and s.kind == "block" and thread_loops(s.body):
            group = _Group(fail, across, buffers_written(s.body))
            group.verify(s.body, None, frozenset(), {**around, s.var: loop_range(s)})


def _verify_places(s: Stmt, fail: Fail, loops: tuple[For, ...]) -> None:
    if isinstance(s, For):
        if s.kind in ITEM_KINDS:
            _verify_thread(s, fail, loops)
        loops = (*loops, s)
    elif isinstance(s, Alloc) and s.buffer.memory == "shared" and _kinds(loops) != ["block"]:
        fail(f"shared buffer {s.buffer.name} must be allocated in a block loop, and in no thread loop")
    elif isinstance(s, Alloc) and s.buffer.memory == "tile" and "thread" in _kinds(loops):
        fail(f"tile buffer {s.buffer.name} is allocated in a thread loop: the lanes of a warp share it")
    elif isinstance(s, Alloc) and s.buffer.memory != "tile" and "warp" in _kinds(loops):
        fail(
            f"{s.buffer.memory} buffer {s.buffer.name} is allocated in a warp loop, which may have only tiles"
        )
    for sub in sub_statements(s):
        _verify_places(sub, fail, loops)


def _kinds(loops: tuple[For, ...]) -> list[str]:
    return [n.kind for n in loops if n.kind in ("block", *ITEM_KINDS)]


def _verify_thread(s: For, fail: Fail, loops: tuple[For, ...]) -> None:
    group = next((n for n in loops if n.kind == "block"), None)
    if group is None:
        fail(f"{s.kind} loop {s.var} is in no block loop")
    around = next((n for n in loops if n.kind in (*ITEM_KINDS, "vector")), None)
    if around is not None:
        fail(f"{s.kind} loop {s.var} is inside {around.kind} loop {around.var}")
    if not isinstance(s.extent, Const) or int(s.extent.value) < 1:
        fail(f"{s.kind} loop {s.var} needs a constant extent, not {s.extent}")
    first = thread_loops(group)[0]
    if items(first) != items(s):
        fail(f"the loops {first.var} and {s.var} of a block are for {items(first)} and {items(s)} work-items")


@dataclass(frozen=True)
class _Group:
    """A block's body to verify. `across` has the local buffers with a thread axis, and `written` all buffers
    to which the block stores."""

    fail: Fail
    across: frozenset[str]
    written: frozenset[str] | set[str]

    def verify(self, s: Stmt, thread: For | None, own: frozenset[str], ranges: Mapping[Var, Range]) -> None:
        """Verify a statement. `own` has the buffers allocated in the iteration of the enclosing `thread`
        loop. `ranges` are those of the enclosing variables, outermost first."""
        if isinstance(s, For):
            if s.kind in ITEM_KINDS:
                self._verify_races(s, ranges)
                thread, own = s, frozenset()
                if s.kind == "warp":
                    self._verify_lanes(s, ranges)
            ranges = {**ranges, s.var: loop_range(s)}
        elif isinstance(s, Let) and thread is None and s.var.dtype is I64:
            low, high = interval(s.value, ranges)
            ranges = {
                **ranges,
                s.var: (None if low is None else const(low), None if high is None else const(high)),
            }
        elif isinstance(s, Alloc):
            if thread is not None:
                own = own | {s.buffer.name}
            elif s.buffer.name in self.across:
                self._verify_axis(s)
        elif isinstance(s, Store):
            self._verify_store(s, thread, own)
        if thread is None:
            for e in expressions(s):
                for n in loads(e):
                    if n.buffer.name in self.written and n.buffer.memory not in OWN:
                        self.fail(f"{n} is read in a block outside its thread loops, and written in it")
        for sub in sub_statements(s):
            self.verify(sub, thread, own, ranges)

    def _verify_races(self, loop: For, ranges: Mapping[Var, Range]) -> None:
        clash = race(loop, ranges)
        if clash is not None:
            self.fail(clash)

    def _verify_lanes(self, warp: For, ranges: Mapping[Var, Range]) -> None:
        """Verify that lanes need not wait for each other in an iteration of a warp loop."""
        inside = [*statements(warp.body)]
        stored = {s.buffer.name for s in inside if isinstance(s, Store) and s.buffer.memory != "tile"}
        read = {n.buffer.name for s in inside for e in expressions(s) for n in loads(e)}
        if stored & read:
            self.fail(f"an iteration of warp loop {warp.var} reads and writes {min(stored & read)}")

        def go(s: Stmt, known: Mapping[Var, Range]) -> None:
            if isinstance(s, For):
                if s.kind != "warp" and any(s.var in free_vars(i) for i in _lines(s)) and _stores(s):
                    self._verify_races(s, known)
                known = {**known, s.var: loop_range(s)}
            for sub in sub_statements(s):
                go(sub, known)

        go(warp, ranges)

    def _verify_axis(self, s: Alloc) -> None:
        extent = next(
            n.extent for n in thread_loops(s.body) if (n.kind == "warp") == (s.buffer.memory == "tile")
        )
        if s.buffer.shape[0] != extent:
            self.fail(f"{s.buffer.name} has {s.buffer.shape[0]} elements on its thread axis, not {extent}")

    def _verify_store(self, s: Store, thread: For | None, own: frozenset[str]) -> None:
        name, register = s.buffer.name, s.buffer.memory in OWN
        if thread is None and not register:
            self.fail(f"{name} is stored to in a block outside its thread loops")
        if thread is not None and register and name not in own and name not in self.across:
            self.fail(
                f"{thread.kind} loop {thread.var} stores to {name}, which has no axis of its own for each "
                f"{thread.kind}"
            )


def _lines(s: Stmt) -> list[Expr]:
    """Return the indices of rows and columns by which a statement accesses tile buffers."""
    inside = [*statements(s)]
    touched = [n for k in inside for e in expressions(k) for n in loads(e)]
    touched += [Load(k.buffer, k.index) for k in inside if isinstance(k, Store)]
    return [i for n in touched if n.buffer.memory == "tile" for i in n.index[-2:]]


def _stores(s: Stmt) -> bool:
    """Return whether a statement stores to memory that isn't a tile."""
    return any(isinstance(k, Store) and k.buffer.memory != "tile" for k in statements(s))
