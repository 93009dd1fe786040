"""Reverse-mode differentiation of loop nests.

The gradient of each input is one loop nest, which runs on one thread. This nest goes through the forward
nest's statements in reverse order. For each store, it first restores the value that the store overwrote, so
that every expression has its old value again. Then it adds to the adjoints of the loads from which the stored
value was computed.

If overwritten values are needed, the forward nest runs first, and saves them on tapes. A tape is a buffer
that belongs to one statement or expression. It has an axis for each loop around the statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jangin.gradients.scalars import adjoints, reached
from jangin.gradients.step import Step
from jangin.ir.core import LoopNest
from jangin.ir.dtype import DType
from jangin.ir.expr import Buffer, Expr, Load, Var, cast, const, is_const
from jangin.ir.graph import CompileError, Shape
from jangin.ir.loop import (
    Alloc,
    Block,
    For,
    If,
    Let,
    Stmt,
    Store,
    block,
    buffers_written,
    expressions,
    map_children,
    replace_buffer,
    statements,
    substitute_stmt,
)
from jangin.ir.records import dataclass
from jangin.ir.simplify import Range, interval, simplify
from jangin.ir.traversal import buffers_loaded, free_vars, loads
from jangin.ops.index import index_vars, nest
from jangin.ops.values import Tensor

RESULT, ADJOINT, TAPE = "result", "adjoint", "tape"
"""The names of three kinds of buffers in a gradient's nest: the forward nest's result, adjoints and tapes. A
mark (see `_mark`) follows each name, because the forward nest may be a gradient itself."""
NOTHING = Block(())


def of_nest(step: Step, attrs: LoopNest) -> None:
    for n, x in enumerate(step.ins):
        if step.wants(n):
            step.give(step.b.cast(_by_input(step, attrs, n), x.dtype), n)


def _by_input(step: Step, attrs: LoopNest, n: int) -> Tensor:
    x, inputs = step.ins[n], [*step.ins, step.g]
    forward = _with_stored_lets(attrs.body)
    mark = _mark(forward)
    forward = replace_buffer(forward, "out", Buffer(RESULT + mark, attrs.dtype, attrs.shape, "scratch"))
    needed: frozenset[str] = frozenset()
    while True:  # what is put back may be needed to find the place of something else
        backwards = _Backwards(forward, f"x{n}", needed, step.b.symbols, mark)
        body = backwards.nest(inputs, attrs, n)
        if backwards.read <= needed:
            break
        needed |= backwards.read
    return step.b.loop_nest(inputs, body, x.dtype.wide, x.shape, attrs.requires)


@dataclass(frozen=True)
class Place:
    """A statement's place in the forward nest. `loops` are the loops around the statement. `path` has its
    number at each level of the nest."""

    loops: tuple[For, ...] = ()
    path: tuple[int, ...] = ()

    def part(self, n: int) -> Place:
        return Place(self.loops, (*self.path, n))

    def within(self, loop: For) -> Place:
        return Place((*self.loops, loop), (*self.path, 0))

    @property
    def index(self) -> tuple[Expr, ...]:
        """The index of the tape's element for the current iteration of the loops."""
        return tuple(f.var for f in self.loops) or (const(0),)


HERE = Place()


def _mark(forward: Stmt) -> str:
    """Return a suffix of underscores with which the new buffers' names don't occur in the forward nest."""
    names = {s.buffer.name for s in statements(forward) if isinstance(s, (Alloc, Store))}
    mark = ""
    while any(f"{RESULT}{mark}" in (n, n.split(".")[0]) for n in names):
        mark += "_"
    return mark


class _Backwards:
    """Makes the nest that computes the gradient of one input.

    - `wanted` is the input's name.
    - `needed` names the buffers whose overwritten values are restored.
    - `read` names the buffers, written by the forward nest, whose old values the new nest reads."""

    def __init__(
        self, forward: Stmt, wanted: str, needed: frozenset[str], symbols: Mapping[Var, Range], mark: str
    ) -> None:
        self.forward, self.wanted, self.needed, self.mark = forward, wanted, needed, mark
        self.symbols, self.ranges = symbols, dict(symbols)
        self.written = buffers_written(forward)
        self.read: set[str] = set()
        self.tapes: dict[tuple[tuple[int, ...], Expr | None], Buffer] = {}
        self.depends = self._depending()

    def _depending(self) -> set[str]:
        """Return the names of the buffers whose floats depend on the input `wanted`."""
        names = {self.wanted}
        stores = [s for s in statements(self.forward) if isinstance(s, Store) and s.buffer.dtype.is_float]
        before = 0
        while len(names) != before:
            before = len(names)
            names |= {s.buffer.name for s in stores if not names.isdisjoint(buffers_loaded(s.value))}
        return names

    def nest(self, inputs: Sequence[Tensor], attrs: LoopNest, n: int) -> Stmt:
        """Return the whole nest. The result's adjoint begins as the given gradient, and all others begin as
        0."""
        g = Buffer(f"x{len(inputs) - 1}", inputs[-1].dtype, attrs.shape)
        result = Buffer(RESULT + self.mark, attrs.dtype, attrs.shape, "scratch")
        out = Buffer("out", inputs[n].dtype.wide, inputs[n].shape)
        at = index_vars(len(attrs.shape), "s")
        start = nest(attrs.shape, at, Store(self._adjoint(result), at, cast(result.dtype.wide, Load(g, at))))
        body = block(_cleared(out), start, self._reversed(self.forward, HERE))
        if self.tapes:
            body = Alloc(result, block(self._taped(self.forward, HERE), body))
        for buffer in (self._adjoint(result), *self.tapes.values()):
            body = Alloc(buffer, body)
        return body

    # -- backwards ------------------------------------------------------------------------------

    def _reversed(self, s: Stmt, at: Place) -> Stmt:
        if isinstance(s, Block):
            parts = [self._reversed(part, at.part(n)) for n, part in enumerate(s.body)]
            return block(*reversed(parts))
        if isinstance(s, For):
            self.ranges[s.var] = const(0), simplify(s.extent - 1)
            body, extent = self._reversed(s.body, at.within(s)), self._kept(s.extent, at)
            return For(s.var, extent, substitute_stmt(body, {s.var: simplify(extent - 1 - s.var)}))
        if isinstance(s, If):
            orelse = None if s.orelse is None else self._reversed(s.orelse, at.part(1))
            return If(self._kept(s.cond, at), self._reversed(s.then, at.part(0)), orelse)
        if isinstance(s, Let):
            return Let(s.var, self._kept(s.value, at), self._reversed(s.body, at.part(0)))
        if isinstance(s, Alloc):
            return self._alloc(s, at)
        return self._store(s, at) if isinstance(s, Store) else NOTHING

    def _alloc(self, s: Alloc, at: Place) -> Stmt:
        """Return the reverse of a local buffer's statements. Its adjoint begins as 0. If its values are
        needed, the buffer begins with the last values of the forward nest."""
        body, buffer = self._reversed(s.body, at.part(0)), s.buffer
        if buffer.name in self.needed:
            tape = self._tape(None, buffer.dtype, at, buffer.shape)
            places = index_vars(len(buffer.shape), "s")
            held = Load(tape, (*at.index, *places))
            body = Alloc(buffer, block(nest(buffer.shape, places, Store(buffer, places, held)), body))
        if buffer.name in self.depends:
            body = Alloc(self._adjoint(buffer), block(_cleared(self._adjoint(buffer)), body))
        return body

    def _store(self, s: Store, at: Place) -> Stmt:
        index = tuple(self._kept(i, at) for i in s.index)
        done: list[Stmt] = []
        if s.buffer.name in self.needed:
            done.append(Store(s.buffer, index, Load(self._tape(None, s.buffer.dtype, at), at.index)))
        if s.buffer.name not in self.depends:
            return block(*done)
        for e in s.index:
            self._reads(e)
        adjoint = self._adjoint(s.buffer)
        g = Var("adjoint", adjoint.dtype)
        followed = [x for x in dict.fromkeys(loads(s.value)) if x.buffer.name in self.depends]
        parts = []
        for leaf, part in adjoints(s.value, cast(s.value.dtype, g), followed).items():
            assert isinstance(leaf, Load)
            parts.append(self._added(leaf, part, reached(s.value, leaf)))
        clear = Store(adjoint, index, const(0, adjoint.dtype))
        return block(*done, Let(g, Load(adjoint, index), block(clear, *parts)))

    def _added(self, load: Load, part: Expr, guard: Expr) -> Stmt:
        out = Buffer("out", load.dtype.wide, load.buffer.shape)
        target = out if load.buffer.name == self.wanted else self._adjoint(load.buffer)
        for e in (part, guard, *load.index):
            self._reads(e)
        add = Store(target, load.index, Load(target, load.index) + cast(target.dtype, part))
        guard = simplify(guard)
        return add if is_const(guard, True) else If(guard, add)

    def _reads(self, e: Expr) -> None:
        self.read |= buffers_loaded(e) & self.written

    def _kept(self, e: Expr, at: Place) -> Expr:
        """Return an expression of the forward nest, with its value in the forward nest. If the expression
        reads a buffer that the nest writes, the value comes from a tape."""
        if self.written.isdisjoint(buffers_loaded(e)):
            return e
        return Load(self._tape(e, e.dtype, at), at.index)

    def _adjoint(self, buffer: Buffer) -> Buffer:
        name = f"{buffer.name}.{ADJOINT}{self.mark}"
        return Buffer(name, buffer.dtype.wide, buffer.shape, buffer.memory)

    # -- tapes ----------------------------------------------------------------------------------

    def _tape(self, e: Expr | None, dtype: DType, at: Place, shape: Shape = ()) -> Buffer:
        """Return the tape of an expression's values, and make the tape if there is none. If `e` is None, the
        tape holds what a store overwrites or a local buffer's last values."""
        key = at.path, e
        if key not in self.tapes:
            extents = tuple(self._most(f.extent) for f in at.loops) or (const(1),)
            self.tapes[key] = Buffer(
                f"{TAPE}{self.mark}{len(self.tapes)}", dtype, (*extents, *shape), "scratch"
            )
        return self.tapes[key]

    def _most(self, extent: Expr) -> Expr:
        """Return the largest extent of a loop over all iterations of the loops around it. Raises CompileError
        if this is known only while the loop runs."""
        if free_vars(extent) <= self.symbols.keys() and not buffers_loaded(extent):
            return extent
        _, most = interval(extent, self.ranges)
        if most is None:
            raise CompileError(f"how often a loop runs, {extent} times, is known only while it runs")
        return const(max(most, 1))

    def _taped(self, s: Stmt, at: Place) -> Stmt:
        """Return the forward nest with additional stores, which save the needed values on the tapes."""
        kept = [
            Store(self.tapes[at.path, e], at.index, e) for e in expressions(s) if (at.path, e) in self.tapes
        ]
        if isinstance(s, Block):
            return block(*(self._taped(part, at.part(n)) for n, part in enumerate(s.body)))
        if isinstance(s, For):
            return block(*kept, For(s.var, s.extent, self._taped(s.body, at.within(s))))
        if isinstance(s, If):
            orelse = None if s.orelse is None else self._taped(s.orelse, at.part(1))
            return block(*kept, If(s.cond, self._taped(s.then, at.part(0)), orelse))
        if isinstance(s, Let):
            return block(*kept, Let(s.var, s.value, self._taped(s.body, at.part(0))))
        if isinstance(s, Alloc):
            return Alloc(s.buffer, block(self._taped(s.body, at.part(0)), self._last(s, at)))
        if isinstance(s, Store):
            tape = self.tapes.get((at.path, None))
            old = [Store(tape, at.index, Load(s.buffer, s.index))] if tape else []
            return block(*kept, *old, s)
        return NOTHING

    def _last(self, s: Alloc, at: Place) -> Stmt:
        """Return stores that save a local buffer's last values on its tape, if it has one."""
        tape, places = self.tapes.get((at.path, None)), index_vars(len(s.buffer.shape), "s")
        if tape is None:
            return NOTHING
        return nest(s.buffer.shape, places, Store(tape, (*at.index, *places), Load(s.buffer, places)))


def _with_stored_lets(s: Stmt) -> Stmt:
    """Return the nest with float variables (`Let`) replaced by register buffers of one element. Only stored
    values have adjoints."""
    s = map_children(s, _with_stored_lets)
    if not (isinstance(s, Let) and s.var.dtype.is_float):
        return s
    held = Buffer(f"{s.var.name}.bound", s.var.dtype, (const(1),), "register")
    body = substitute_stmt(s.body, {s.var: Load(held, (const(0),))})
    return Alloc(held, block(Store(held, (const(0),), s.value), body))


def _cleared(buffer: Buffer) -> Stmt:
    at = index_vars(len(buffer.shape), "s")
    return nest(buffer.shape, at, Store(buffer, at, const(0, buffer.dtype)))
