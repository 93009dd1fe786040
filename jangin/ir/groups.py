"""Kernels for work-groups: the meaning of the loop kinds `block` and `thread` on a GPU.

Everywhere else they mean the same as serial loops. An example:

```
block b in 64 {                            a work-group
  alloc shared panel: f32[256]             local memory
  alloc register acc: f32[128, 4]          four registers of each of 128 work-items
  thread x in 128 { ... }                  each work-item does one iteration
  serial k in 16 { thread y in 128 { ... } thread z in 128 { ... } }
}
```

A thread loop begins when the thread loops before it have ended. On a GPU this takes a barrier only if the
loop touches memory that other work-items may have touched since the last barrier (`barriers`).

A register buffer that lives across thread loops has an element, or a row of elements, for each thread. Its
first axis is the thread's; a work-item needs only its own part (`per_thread`).

A warp loop has an iteration for each 32 work-items of the group, which do it together. Otherwise it counts as
a thread loop. Its iterations hold matrices in tile buffers, of which each lane has a part. A tile buffer that
lives across warp loops has the warp as its first axis.

A launch buffer is memory of all groups together. Its first two axes are [tiles, shares]: `shares` groups make
a tile together, those whose numbers are g = tile * shares + share. Each stores to its own part. Then comes a
*meeting*, a condition at the end of the task that the last share alone satisfies, in which thread loops read
all shares. On a GPU the last group to arrive does this work, whichever it is. It is the same work, because it
depends on the tile alone.

```
alloc launch part: f32[8, 4, 128]
block g in 32 {
  let t = g // 4
  let s = g % 4
  thread x in 128 { part[t, s, x] = ... }
  if s == 3 { thread y in 128 { ... part[t, 0, y] ... part[t, 3, y] ... } }
}
```
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from jangin.ir.expr import Buffer, Const, Expr, const
from jangin.ir.fragments import WARP
from jangin.ir.loop import (
    ITEM_KINDS,
    OWN,
    Alloc,
    Block,
    For,
    Func,
    If,
    Let,
    Stmt,
    Store,
    expressions,
    replace_buffer,
    statements,
    sub_statements,
    task_loops,
)
from jangin.ir.records import dataclass
from jangin.ir.simplify import simplify
from jangin.ir.traversal import loads

SHARED_ALIGN = 16
"""Alignment of each shared buffer, in bytes. The widest load of most GPUs has as many and needs this
alignment."""


ARRIVALS = 4096
"""Bytes before a launch buffer, where groups of a tile count how many have arrived: 4 for each tile, so 1,024
tiles. The last one sets the count to 0 again."""


def launch_buffer(func: Func) -> Buffer | None:
    """Return the memory of all groups together, or None if a kernel has none."""
    allocations = (s for s in statements(func.body) if isinstance(s, Alloc))
    return next((s.buffer for s in allocations if s.buffer.memory == "launch"), None)


def is_meeting(s: Stmt) -> bool:
    """Return whether a statement is the work of the last group of a tile."""
    return isinstance(s, If) and any(
        n.buffer.memory == "launch" for k in statements(s) for e in expressions(k) for n in loads(e)
    )


def thread_loops(s: Stmt) -> list[For]:
    """Return the thread loops and warp loops of a statement."""
    return [k for k in statements(s) if isinstance(k, For) and k.kind in ITEM_KINDS]


def items(loop: For) -> Expr:
    """Return the number of work-items that a thread loop or a warp loop has work for."""
    return loop.extent if loop.kind == "thread" else simplify(loop.extent * WARP)


def grouped(func: Func) -> bool:
    """Return whether a kernel's tasks are work-groups."""
    tasks = task_loops(func.body)[1]
    return tasks is not None and tasks.kind == "block"


def threads(func: Func) -> int:
    """Return the number of work-items in a work-group: those of the kernel's thread loops, or 1 without
    them."""
    counts = (items(s) for s in thread_loops(func.body))
    return next((int(n.value) for n in counts if isinstance(n, Const)), 1)


def shared_layout(func: Func) -> tuple[Mapping[str, int], int]:
    """Return the offset of each shared buffer in a work-group's local memory, by name, and the bytes of
    all."""
    at: dict[str, int] = {}
    total = 0
    for s in statements(func.body):
        if isinstance(s, Alloc) and s.buffer.memory == "shared" and s.buffer.name not in at:
            size = math.prod(int(d.value) for d in s.buffer.shape if isinstance(d, Const))
            at[s.buffer.name] = total
            total += -(-size * s.buffer.dtype.bytes // SHARED_ALIGN) * SHARED_ALIGN
    return at, total


# --- barriers


_SCRATCH = "scratch memory"


@dataclass(frozen=True)
class _Touched:
    """The names of memory that work-items read and wrote since the last barrier."""

    read: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()

    def __or__(self, other: _Touched) -> _Touched:
        return _Touched(self.read | other.read, self.written | other.written)

    def within(self, names: Collection[str]) -> _Touched:
        return _Touched(self.read & frozenset(names), self.written & frozenset(names))

    def conflicts(self, later: _Touched) -> bool:
        """Return whether an access of the memory `later` must wait until this access has ended."""
        return bool(self.written & (later.read | later.written) or self.read & later.written)


def barriers(func: Func) -> frozenset[int]:
    """Return the ids (`id`) of the loops before which all work-items of a group must wait for each other.
    They are thread loops, and serial loops around them.

    A loop must wait if it touches memory that another thread loop wrote since the last barrier, or writes
    memory that another read. If only the first iteration of a serial loop would wait, for what came before
    the loop, the barrier is before the serial loop. A group may run several tasks one after another, which
    share only the group's own memory."""
    crossed: set[int] = set()
    group = {_SCRATCH, *shared_layout(func)[0]}

    def after(s: Stmt, before: _Touched) -> _Touched:
        if isinstance(s, For) and s.kind in ITEM_KINDS:
            own = _touched(s)
            if before.conflicts(own):
                crossed.add(id(s))
            return own if id(s) in crossed else before | own
        if isinstance(s, Block):
            for sub in s.body:
                before = after(sub, before)
            return before
        if isinstance(s, For) and s.kind == "serial":
            end = after(s.body, after(s.body, _Touched()))
            inside = set(crossed)
            first = after(s.body, before)
            if crossed == inside:
                end = end | first
            else:
                crossed.intersection_update(inside)
                crossed.add(id(s))
                before = _Touched()
            return end if isinstance(s.extent, Const) and int(s.extent.value) > 0 else before | end
        if isinstance(s, For):
            end = after(s.body, before)
            again = end.within(group) if s.kind == "block" else end
            end = after(s.body, before | again)  # the next iteration meets the memory that this one touched
            return end if isinstance(s.extent, Const) and int(s.extent.value) > 0 else before | end
        if is_meeting(s):  # all groups wait for their own work-items there
            return after(sub_statements(s)[0], _Touched())
        if isinstance(s, If):
            ends = [after(sub, before) for sub in sub_statements(s)]
            return ends[0] | (ends[1] if len(ends) > 1 else before)
        return after(s.body, before) if isinstance(s, (Alloc, Let)) else before

    for loop in statements(func.body):
        if isinstance(loop, For) and loop.kind == "block":
            after(loop, _Touched())
    return frozenset(crossed)


def _touched(loop: For) -> _Touched:
    own = {k.buffer.name for k in statements(loop.body) if isinstance(k, Alloc)}
    read, written = set[str](), set[str]()
    for s in statements(loop.body):
        if isinstance(s, Store):
            written |= _places(s.buffer, own)
        for e in expressions(s):
            for n in loads(e):
                read |= _places(n.buffer, own)
    return _Touched(frozenset(read), frozenset(written))


def _places(buffer: Buffer, own: set[str]) -> set[str]:
    """Return the names of the memory that a buffer uses. There are none for registers, tiles and the loop's
    own buffers. All scratch buffers have one name, because those with disjoint lifetimes may share memory."""
    if buffer.name in own or buffer.memory in OWN:
        return set()
    return {_SCRATCH if buffer.memory == "scratch" else buffer.name}


# --- registers of each thread


def lives_across(func: Func) -> list[Buffer]:
    """Return the register buffers with a thread axis, and the tile buffers with a warp axis. They are
    allocated in a block loop outside its thread loops. Each access is in a thread loop, or in a warp loop,
    whose variable is the first index."""
    buffers: list[Buffer] = []

    def go(s: Stmt) -> None:
        if isinstance(s, For) and s.kind in ITEM_KINDS:
            return
        if isinstance(s, Alloc) and s.buffer.memory in OWN and by_thread(s):
            buffers.append(s.buffer)
        for sub in sub_statements(s):
            go(sub)

    for s in statements(func.body):
        if isinstance(s, For) and s.kind == "block":
            go(s.body)
    return buffers


def by_thread(alloc: Alloc) -> bool:
    """Return whether each access of a buffer is in a thread loop, for tiles in a warp loop, with the loop's
    variable as first index."""
    name, kind = alloc.buffer.name, "warp" if alloc.buffer.memory == "tile" else "thread"

    def good(s: Stmt, thread: Expr | None) -> bool:
        if isinstance(s, For) and s.kind == kind:
            thread = s.var
        accesses = [n.index for e in expressions(s) for n in loads(e) if n.buffer.name == name]
        if isinstance(s, Store) and s.buffer.name == name:
            accesses.append(s.index)
        if not all(i and i[0] is thread for i in accesses):
            return False
        return all(good(sub, thread) for sub in sub_statements(s))

    return bool(thread_loops(alloc.body)) and good(alloc.body, None)


def per_thread(func: Func) -> Func:
    """Return the kernel as one work-item runs it: local buffers lose their thread axis. Thread loops stay,
    and mean the work-item's own iteration, so the interpreter can't run this kernel."""
    body = func.body
    for buffer in lives_across(func):
        own = replace(buffer, shape=buffer.shape[1:] or (const(1),))
        body = replace_buffer(body, buffer.name, own, lambda i: i[1:] or (const(0),))
    return func.with_body(body)
