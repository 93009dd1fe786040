"""The verifier of blocks and their threads. It checks where their loops and shared memory may be, and data
races."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

from jangin.ir.dtype import I64
from jangin.ir.expr import Const, Var, const
from jangin.ir.groups import lives_across, thread_loops
from jangin.ir.loop import (
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
from jangin.ir.traversal import loads

Fail = Callable[[str], NoReturn]


def verify_groups(func: Func, fail: Fail) -> None:
    """Verify these rules of work-groups.

    - Thread loops are inside a block loop, but not inside each other or vector loops. All of a block's have
      one constant extent.
    - Shared buffers are allocated in a block.
    - Outside its thread loops, a block accesses no memory that they write.
    - No two threads of a loop access one element if one of them writes it (see `ir.races`)."""
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
        if s.kind == "thread":
            _verify_thread(s, fail, loops)
        loops = (*loops, s)
    elif isinstance(s, Alloc) and s.buffer.memory == "shared" and _kinds(loops) != ["block"]:
        fail(f"shared buffer {s.buffer.name} must be allocated in a block loop, and in no thread loop")
    elif isinstance(s, Alloc) and s.buffer.memory == "tile" and _kinds(loops):
        fail(f"tile buffer {s.buffer.name} is allocated in a block loop: work-groups have no such registers")
    for sub in sub_statements(s):
        _verify_places(sub, fail, loops)


def _kinds(loops: tuple[For, ...]) -> list[str]:
    return [n.kind for n in loops if n.kind in ("block", "thread")]


def _verify_thread(s: For, fail: Fail, loops: tuple[For, ...]) -> None:
    group = next((n for n in loops if n.kind == "block"), None)
    if group is None:
        fail(f"thread loop {s.var} is in no block loop")
    around = next((n for n in loops if n.kind in ("thread", "vector")), None)
    if around is not None:
        fail(f"thread loop {s.var} is inside {around.kind} loop {around.var}")
    if not isinstance(s.extent, Const) or int(s.extent.value) < 1:
        fail(f"thread loop {s.var} needs a constant extent, not {s.extent}")
    first = thread_loops(group)[0]
    if first.extent != s.extent:
        fail(f"thread loops {first.var} and {s.var} of a block have {first.extent} and {s.extent} iterations")


@dataclass(frozen=True)
class _Group:
    """A block's body to verify. `across` has the register buffers with a thread axis, and `written` all
    buffers to which the block stores."""

    fail: Fail
    across: frozenset[str]
    written: frozenset[str] | set[str]

    def verify(self, s: Stmt, thread: For | None, own: frozenset[str], ranges: Mapping[Var, Range]) -> None:
        """Verify a statement. `own` has the buffers allocated in the iteration of the enclosing `thread`
        loop. `ranges` are those of the enclosing variables, outermost first."""
        if isinstance(s, For):
            if s.kind == "thread":
                found = race(s, ranges)
                if found is not None:
                    self.fail(found)
                thread, own = s, frozenset()
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
                    if n.buffer.name in self.written and n.buffer.memory != "register":
                        self.fail(f"{n} is read in a block outside its thread loops, and written in it")
        for sub in sub_statements(s):
            self.verify(sub, thread, own, ranges)

    def _verify_axis(self, s: Alloc) -> None:
        extent = thread_loops(s.body)[0].extent
        if s.buffer.shape[0] != extent:
            self.fail(f"{s.buffer.name} has {s.buffer.shape[0]} elements on its thread axis, not {extent}")

    def _verify_store(self, s: Store, thread: For | None, own: frozenset[str]) -> None:
        name, register = s.buffer.name, s.buffer.memory == "register"
        if thread is None and not register:
            self.fail(f"{name} is stored to in a block outside its thread loops")
        if thread is not None and register and name not in own and name not in self.across:
            self.fail(
                f"thread loop {thread.var} stores to {name}, which has no axis of its own for each thread"
            )
