"""The walk over one kernel's loops: it decides what the kernel does, and calls a writer's operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack

from jangin.backends.walk.expressions import Expressions
from jangin.backends.walk.fragments import Fragments
from jangin.backends.walk.index import Linear, constant_shape
from jangin.backends.walk.lanes import REDUCTIONS, privatized, reads_itself, reduction, side_by_side
from jangin.backends.walk.memory import in_memory
from jangin.backends.walk.tiles import Tiles
from jangin.backends.walk.writer import Value, Writer
from jangin.ir import te
from jangin.ir.dtype import BOOL, I64
from jangin.ir.expr import Binary, Const, Expr, Load, Select, Var, const, is_const, land, select
from jangin.ir.fragments import WARP
from jangin.ir.graph import CompileError
from jangin.ir.groups import ARRIVALS, barriers, is_meeting, launch_buffer, shared_layout, threads
from jangin.ir.kernel import buffer_bytes, sizes
from jangin.ir.loop import (
    ITEM_KINDS,
    Alloc,
    Block,
    For,
    Func,
    If,
    Let,
    Prefetch,
    Stmt,
    Store,
    buffers_written,
    expressions,
    loop_range,
    statements,
    task_loops,
)
from jangin.ir.simplify import Range, interval, linear, simplify
from jangin.ir.traversal import free_vars, loads, rewrite, substitute

COPIED = 16
"""Bytes of a copy to shared memory that goes on beside other work (PTX ISA, `cp.async`)."""


class Kernel:
    """Writes one kernel's statements through a writer. Raises CompileError, which names the kernel, if
    something in it has no code. If the writer's language has work-groups, the kernel is that of one work-item
    (`ir.groups.per_thread`)."""

    def __init__(self, func: Func, writer: Writer) -> None:
        self.func, self.w = func, writer
        self.x = Expressions(func.name, writer)
        self.ix, self.memory = self.x.ix, self.x.memory
        self.tiles = Tiles(func.name, self.x)
        self.memory.bases |= {p.name: writer.parameter(n) for n, p in enumerate(func.params)}
        self.depth = 0
        self.scratch: Expr = const(0)
        self._vector_bodies: dict[int, Stmt | None] = {}
        self._rounds, self._split = task_loops(func.body)
        self._grouped = self._split is not None and self._split.kind == "block"
        self._item = writer.work_item() if self._grouped else None
        self._barriers = barriers(func) if self._item else frozenset[int]()
        self.fragments = Fragments(func, self.x)
        self._in_thread = self._copied = False
        self._stages = writer.asynchronous and any(map(_is_copied_in_turn, statements(func.body)))

    def run(self) -> None:
        with ExitStack() as stack:
            for n, (var, known) in enumerate(sizes(self.func)):
                stack.enter_context(self.x.binding(var, self.w.size(n)))
                stack.enter_context(self.ix.bound(var, known, 0))
            if self._split is None:
                first = self.w.compare("eq", self.w.lo, self.w.index(0))
                self.w.when(first, lambda: self.statement(self.func.body))
            else:
                self.statement(self.func.body)
        if self.tiles.shapes:
            self.w.tiles(self.tiles.shapes)
        if self._copied:
            self.w.wait_at_barriers()

    def statement(self, s: Stmt) -> None:
        if isinstance(s, Block):
            for sub in s.body:
                self.statement(sub)
        elif self.tiles.nest(s):
            return
        elif (own := self.fragments.nest(s)) is not None:
            with self.fragments.apart():
                self.statement(own)
        elif isinstance(s, For):
            self._for(s)
        elif isinstance(s, Store):
            self._store(s)
        elif isinstance(s, Prefetch):
            self.x.prefetch(s.buffer, s.index)
        elif isinstance(s, If):
            self._if(s)
        elif isinstance(s, Let):
            self._let(s)
        else:
            assert isinstance(s, Alloc)
            self._alloc(s)

    # --- loops

    def _for(self, s: For) -> None:
        extent = int(s.extent.value) if isinstance(s.extent, Const) else None
        if s.kind in ("vector", "unroll") and extent is None:
            raise CompileError(
                f"{self.func.name}: {s.kind} loop {s.var} has extent {s.extent}, which isn't constant"
            )
        if s.kind == "serial":
            self._wait(s)
        if s is self._rounds:
            self.statement(s.body)
        elif s.kind in ITEM_KINDS and self._item is not None:
            self._thread(s, self._item)
        elif s is self._split:
            self._serial(s, self.w.lo, self.w.hi)
        elif extent is not None and (extent <= 1 or s.kind == "unroll"):
            if not self._interleaved(s, extent):
                self._unrolled(s, extent)
        elif s.kind == "vector" and extent is not None:
            if self.ix.lane is not None:
                self._unrolled(s, extent)
            elif extent <= self.w.most_lanes and (body := self._vector_body(s)) is not None:
                with self.ix.by_lane(s.var, extent), self.ix.bound(s.var, loop_range(s), self.depth):
                    self.statement(body)
            else:
                self._serial(s, self.w.index(0), self.w.index(extent))
        else:
            self._serial(s, self.w.index(0), self.x.evaluate(self._trips(s)))

    def _trips(self, s: For) -> Expr:
        """Return the number of iterations of a serial loop.

        It is 0 if the loop's body is nested loops one of which is empty. The loop would otherwise do nothing,
        up to 2^31 times.
        """
        runs: Expr = const(True, BOOL)
        inner, own = s.body, {s.var}
        while isinstance(inner, For):
            if own.isdisjoint(free_vars(inner.extent)):
                runs = land(runs, self.ix.condition(inner.extent > 0))
            own.add(inner.var)
            inner = inner.body
        return select(runs, s.extent, 0)

    def _thread(self, s: For, item: Value) -> None:
        """Write a work-item's own iteration of a thread loop, or its warp's iteration of a warp loop, after a
        barrier if it is needed."""
        self._wait(s)
        self._in_thread = True
        with ExitStack() as stack:
            if s.kind == "warp":
                size = self.w.index(WARP)
                stack.enter_context(self.fragments.warp(self.w.binary("urem", item, size)))
                item = self.w.binary("udiv", item, size)
            stack.enter_context(self.x.binding(s.var, item))
            stack.enter_context(self.ix.bound(s.var, loop_range(s), 0))
            self.statement(s.body)
        self._in_thread = False

    def _wait(self, s: For) -> None:
        """Write the barrier before a loop, if it is needed."""
        if id(s) in self._barriers:
            self.w.barrier()
            for name in self.memory.bases:
                self.memory.written(name)

    def _serial(self, s: For, first: Value, end: Value) -> None:
        for name in buffers_written(s.body):
            self.memory.written(name)
        self.depth += 1

        def body(i: Value) -> None:
            with self.x.binding(s.var, i), self.ix.bound(s.var, loop_range(s), self.depth):
                self.statement(s.body)

        self.w.loop(first, end, body, entered=s is not self._split and self.ix.nonnegative(s.extent - 1))
        self.depth -= 1

    def _unrolled(self, s: For, extent: int) -> None:
        with self.ix.bound(s.var, loop_range(s), self.depth), self.ix.numbered(s.var, 0):
            for n in range(extent):
                self.ix.numbers[s.var] = n
                self.statement(s.body)

    def _interleaved(self, s: For, extent: int) -> bool:
        """Write an unrolled loop around a vector loop that stores bytes with a stride, if all stores together
        are contiguous.

        The bytes are interleaved and stored at once. Return False, with nothing written, for any other loop.
        """
        inner = s.body
        store, lanes = (inner.body, inner.extent) if isinstance(inner, For) else (None, None)
        if not (isinstance(inner, For) and isinstance(store, Store) and isinstance(lanes, Const)):
            return False
        count, buffer, ix = int(lanes.value), store.buffer, self.ix
        fits = extent in (2, 4) and count >= extent and count & (count - 1) == 0
        plain = inner.kind == "vector" and ix.lane is None and not self.memory.masks
        if not (fits and plain and in_memory(buffer.dtype).bytes == 1):
            return False
        if any(n.buffer == buffer for n in loads(store.value)):
            return False
        copies = ix.bound(s.var, loop_range(s), self.depth), ix.numbered(s.var, 0)
        with (
            copies[0],
            copies[1],
            ix.by_lane(inner.var, count),
            ix.bound(inner.var, loop_range(inner), self.depth),
        ):
            places, values = list[Linear](), list[Value]()
            for n in range(extent):
                ix.numbers[s.var] = n
                places.append(ix.flat(buffer, store.index))
            first = places[0]
            apart = first.step == extent
            if not apart or any(
                p[1:] != first[1:] or p.offset != first.offset + n for n, p in enumerate(places)
            ):
                return False
            for n in range(extent):
                ix.numbers[s.var] = n
                values.append(self.memory.stored(self.x.evaluate(store.value)))
            self.memory.store_interleaved(buffer, first, values)
        return True

    def _vector_body(self, s: For) -> Stmt | None:
        """Return the body of a vector loop whose lanes can run side by side; None if they can't, and the loop
        must run serially."""
        if id(s) not in self._vector_bodies:
            body = privatized(s)
            agree = side_by_side(body, frozenset({s.var}))
            self._vector_bodies[id(s)] = body if agree else None
        return self._vector_bodies[id(s)]

    # --- stores and choices

    def _store(self, s: Store) -> None:
        uniform = self.ix.lane is not None and not any(self.ix.varies(i) for i in s.index)
        if uniform and (self.ix.varies(s.value) or reads_itself(s)):
            self._reduce(s)
        elif self._copies_apart(s):
            self._copied = True
        else:
            self.memory.store(s.buffer, s.index, self.x.evaluate(s.value))

    def _copies_apart(self, s: Store) -> bool:
        """Copy a vector to shared memory beside the work that follows, where the target can. Other work-items
        read it only after a barrier, which waits for it. Return False, with nothing written, for any other
        store."""
        source, whole = _copied(s)
        if not (self._in_thread and self._stages) or source is None:
            return False
        if source.dtype is not s.buffer.dtype or self.ix.lanes * source.dtype.bytes != COPIED:
            return False
        agreed = self.x.condition(whole)
        return agreed.lanes == 1 and self.memory.copy_apart(s.buffer, s.index, source, agreed)

    def _reduce(self, s: Store) -> None:
        """Write `place = op(place, value of each lane)`: the values of all lanes are combined with one
        element."""
        parts = reduction(s)
        assert parts is not None
        op, other = parts
        place = Load(s.buffer, s.index)
        if op == "add" and not self.memory.masks and (whole := self.x.added_across(place, other)):
            self.memory.store(s.buffer, s.index, whole)
            return
        arithmetic = self.x.math
        value = self.w.broadcast(self.x.evaluate(other), self.ix.lanes)
        if self.memory.masks:
            neutral = te.identity(REDUCTIONS[op], s.value.dtype)
            off = self.w.broadcast(self.w.constant(neutral.value, neutral.dtype), value.lanes)
            value = self.w.select(self.memory.masks[-1], value, off)
        total = arithmetic.across(op, value)
        before = self.x.evaluate(place)
        self.memory.store(s.buffer, s.index, arithmetic.binary(op, before, total))

    def _if(self, s: If) -> None:
        if self._item is not None and is_meeting(s):
            self._meet(s)
            return
        cond = self.x.condition(s.cond)
        if cond.is_const:
            chosen = s.then if cond.number else s.orelse
            if chosen is not None:
                self.statement(chosen)
        elif cond.lanes == 1:
            self.w.when(cond, self._later(s.then), None if s.orelse is None else self._later(s.orelse))
        elif (whole := self._whole(s)) is not None:
            self.w.when(whole, self._later(s.then), lambda: self._masked(cond, s.then))
        else:
            self._masked(cond, s.then)
            if s.orelse is not None:
                self._masked(self.w.flip(cond), s.orelse)

    def _meet(self, s: If) -> None:
        """Write the work of a tile's last group."""
        buffer = launch_buffer(self.func)
        assert buffer is not None and self._split is not None and isinstance(buffer.shape[1], Const)
        tile = self.x.evaluate(self._split.var // buffer.shape[1])

        def work() -> None:
            for name in self.memory.bases:
                self.memory.written(name)
            self.statement(s.then)

        self.w.when_last(tile, int(buffer.shape[1].value), work)

    def _later(self, s: Stmt) -> Callable[[], None]:
        return lambda: self.statement(s)

    def _whole(self, s: If) -> Value | None:
        """Return the condition that all lanes satisfy an upper limit that guards stores to memory, or None
        for any other condition.

        Masked stores are slow on some processors, and only the last vector needs them.
        """
        c, lane = s.cond, self.ix.lane
        stores = any(isinstance(n, Store) and n.buffer.memory != "register" for n in statements(s.then))
        if not (isinstance(c, Binary) and c.op == "lt" and stores and s.orelse is None) or lane is None:
            return None
        slope = linear(rewrite(c.a, lambda e: lane if _quotient_of(e, lane) else None), lane)
        if slope is None or not isinstance(slope[0], Const) or slope[0].value <= 0 or self.ix.varies(c.b):
            return None
        return self.x.condition(substitute(c, {lane: const(self.ix.lanes - 1)}))

    def _masked(self, cond: Value, s: Stmt) -> None:
        """Write a statement for the lanes in which `cond` holds. If it accesses one element for all lanes, it
        is skipped when no lane is active."""
        with self.x.masked(cond) as mask:
            if self._touches_one_place(s):
                self.w.when(self.w.any_lane(mask), self._later(s))
            else:
                self.statement(s)

    def _touches_one_place(self, s: Stmt) -> bool:
        for n in statements(s):
            if isinstance(n, Store) and not any(self.ix.varies(i) for i in n.index):
                return True
            if any(self.x.uniform_access(e) for e in expressions(n)):
                return True
        return False

    # --- bindings

    def _let(self, s: Let) -> None:
        value, varies, known = self.x.evaluate(s.value), self.ix.varies(s.value), self._known(s.value)
        simple = self.ix.condition(s.value) if s.value.dtype is I64 else s.value
        with ExitStack() as stack:
            if varies:
                stack.enter_context(self.ix.by_lane(s.var))
            if isinstance(simple, Const) and s.value.dtype is I64:
                stack.enter_context(self.ix.numbered(s.var, int(simple.value)))
            stack.enter_context(self.x.binding(s.var, value))
            stack.enter_context(self.ix.bound(s.var, known, self.ix.level((s.value,))))
            self.statement(s.body)

    def _known(self, value: Expr) -> Range:
        """Return the range of a bound name. A value that differs by lane is its own range, so that it is
        substituted for the name if this helps."""
        if value.dtype is not I64:
            return None, None
        if self.ix.varies(value) and not loads(value):
            return value, value
        low, high = interval(value, self.ix.ranges)
        return None if low is None else const(low), None if high is None else const(high)

    def _alloc(self, s: Alloc) -> None:
        buffer, bases, start = s.buffer, self.memory.bases, self.scratch
        before = bases.get(buffer.name)
        if buffer.memory == "tile" and self._item is not None:
            with self.fragments.held(buffer):
                self.statement(s.body)
            return
        if buffer.memory == "tile" and not self._grouped and self.tiles.holds(buffer):
            with self.tiles.allotted(buffer):
                self.statement(s.body)
            return
        if buffer.memory in ("register", "tile"):
            shape = constant_shape(buffer)
            if shape is None:
                raise CompileError(
                    f"{self.func.name}: {buffer.memory} buffer {buffer.name} needs a constant shape, "
                    f"not {list(buffer.shape)}"
                )
            bases[buffer.name] = self.w.registers(in_memory(buffer.dtype), math.prod(shape))
        elif buffer.memory == "shared" and self._item is not None:
            at = self.w.index(shared_layout(self.func)[0][buffer.name])
            bases[buffer.name] = self.w.shared(in_memory(buffer.dtype), at)
        elif buffer.memory == "launch":
            bases[buffer.name] = self.w.scratch(in_memory(buffer.dtype), self.w.index(ARRIVALS))
            self.scratch = simplify(buffer_bytes(self.func, buffer) + ARRIVALS, dict(self.func.symbols))
        elif buffer.memory in ("scratch", "shared"):
            own = buffer_bytes(self.func, buffer)
            at = self.x.evaluate(start)
            if self._in_thread and self._item is not None:
                share = self.w.binary("mul", self._item, self.x.evaluate(own))
                at, own = self.w.binary("add", at, share), own * threads(self.func)
            bases[buffer.name] = self.w.scratch(in_memory(buffer.dtype), at)
            self.scratch = simplify(start + own, dict(self.func.symbols))
        else:
            raise CompileError(f"{self.func.name}: {buffer.name} is allocated in {buffer.memory} memory")
        self.memory.written(buffer.name)
        self.statement(s.body)
        self.scratch = start
        if before is not None:
            bases[buffer.name] = before


def _copied(s: Store) -> tuple[Load | None, Expr]:
    """Return the load that a store copies from memory to shared memory, and the condition without which it
    stores 0. The load is None for any other store."""
    source: Expr = s.value
    whole: Expr = const(True, BOOL)
    while isinstance(source, Select) and is_const(source.b, 0):
        whole, source = land(whole, source.cond), source.a
    copies = s.buffer.memory == "shared" and isinstance(source, Load) and source.buffer.memory == "global"
    return (source if copies and isinstance(source, Load) else None), whole


def _is_copied_in_turn(s: Stmt) -> bool:
    """Return whether a loop copies vectors from memory to shared memory in each of its iterations. The copies
    may then go on beside its work."""
    if not isinstance(s, For) or s.kind != "serial":
        return False
    rows = (k.body for k in statements(s.body) if isinstance(k, For) and k.kind == "vector")
    return any(isinstance(row, Store) and _copied(row)[0] is not None for row in rows)


def _quotient_of(e: Expr, lane: Var) -> bool:
    """Return whether an expression is a quotient of the lane, and so grows with the lane."""
    if not isinstance(e, Binary) or e.op != "floordiv" or e.a != lane:
        return False
    return isinstance(e.b, Const) and e.b.value > 0
