"""Loads and stores: scalar, contiguous vectors, gathers and scatters, each with or without a mask."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import zip_longest

from jangin.backends.walk.arithmetic import Arithmetic
from jangin.backends.walk.index import Indexer, Linear, Term, constant_shape
from jangin.backends.walk.writer import Pointer, Value, Writer
from jangin.ir.dtype import BOOL, I64, SMALL, U8, DType
from jangin.ir.expr import Binary, Buffer, Cast, Const, Expr, Load, const
from jangin.ir.traversal import buffers_loaded, free_vars, substitute

SHARED = 2
"""Most lanes that may share an element of a row that is loaded for all of them. The row's mask is made by one
shuffle for each of these lanes."""
RUNS = 4
"""Most runs of lanes that share an element for which a load for each run is quicker than a gather."""


def in_memory(dtype: DType) -> DType:
    """Return the type of a value in memory. bool is one byte, 0 or 1. A type smaller than a byte is the byte
    that holds it."""
    return U8 if dtype is BOOL or dtype in SMALL else dtype


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _aligned(where: Linear, lanes: int, extra: int = 0) -> bool:
    """Return whether an access begins at a multiple of `lanes` elements after its buffer's start."""
    return not any(n % lanes for n in (where.offset + extra, *(c for c, _ in where.uniform.terms)))


@dataclass
class Memory:
    """The buffers in scope: their addresses, and how often each has been written. Equal loads of unchanged
    memory are written once. `value`: evaluates an index."""

    w: Writer
    ix: Indexer
    math: Arithmetic
    value: Callable[[Expr], Value]
    bases: dict[str, Pointer] = field(default_factory=dict)
    masks: list[Value] = field(default_factory=list)
    """The masks of the enclosing conditions that differ by lane. Each implies those before it."""
    _writes: dict[str, int] = field(default_factory=dict)

    def written(self, name: str) -> None:
        self._writes[name] = self._writes.get(name, 0) + 1

    def _state(self, buffer: Buffer) -> str:
        # by name too, because scratch buffers with disjoint lifetimes share addresses
        return f" ;{buffer.name} {self._writes.get(buffer.name, 0)}"

    def _read(self, dtype: DType, stored: Value) -> Value:
        return self.w.bitcast(dtype, stored) if dtype in SMALL else self.math.convert(dtype, stored)

    def stored(self, v: Value) -> Value:
        return self.w.bitcast(U8, v) if v.dtype in SMALL else self.math.convert(in_memory(v.dtype), v)

    # --- addresses

    def total(self, terms: Sequence[Term]) -> Value:
        """Return the i64 sum of terms."""
        out: Value | None = None
        for c, atoms in terms:
            factors = [self.value(a) for a in atoms]
            if c != 1 or not factors:
                factors.insert(1 if factors else 0, self.w.index(c))
            product = factors[0]
            for f in factors[1:]:
                product = self.w.binary("mul", *self.w.unify(product, f))
            out = product if out is None else self.w.binary("add", *self.w.unify(out, product))
        return self.w.index(0) if out is None else out

    def pointer(self, buffer: Buffer, where: Linear, extra: int = 0) -> Pointer:
        """Return the address of lane 0 of a linear access. It takes one step a loop level, so that each
        level's part is invariant in the inner loops. The constant comes last, so that it folds into the
        access."""
        start, dtype = self.bases[buffer.name], in_memory(buffer.dtype)
        if where.uniform.loads:
            start = self._stepped(start, dtype, where)
        elif where.uniform.levels:
            key = (start, where.uniform, self.ix.bindings)
            start = self.w.remembered(key, lambda: self._stepped(self.bases[buffer.name], dtype, where))
        offset = where.offset + extra
        return self.w.step(dtype, start, self.w.index(offset)) if offset else start

    def _stepped(self, start: Pointer, dtype: DType, where: Linear) -> Pointer:
        for group in where.uniform.levels:
            start = self.w.step(dtype, start, self.total(group))
        return start

    def _offsets(self, where: Linear) -> Value:
        if where.step is not None:
            return self.w.iota(self.ix.lanes, I64, where.step)
        return self.w.broadcast(self.total(where.varying), self.ix.lanes)

    def _lane_pointers(self, buffer: Buffer, where: Linear) -> list[Pointer]:
        lanes = range(self.ix.lanes)
        if where.step is not None:
            return [self.pointer(buffer, where, n * where.step) for n in lanes]
        base, offsets, dtype = self.pointer(buffer, where), self._offsets(where), in_memory(buffer.dtype)
        return [self.w.step(dtype, base, self.w.lane(offsets, n)) for n in lanes]

    def prefetch(self, buffer: Buffer, index: tuple[Expr, ...]) -> None:
        """Prefetch a cache line for reading."""
        self.w.prefetch(in_memory(buffer.dtype), self.pointer(buffer, self.ix.flat(buffer, index)))

    # --- loads

    def _row(
        self, buffer: Buffer, where: Linear, lanes: int, extra: int = 0, masks: Sequence[Value] = ()
    ) -> Value:
        """Return `lanes` elements side by side, which begin `extra` elements after lane 0 of a linear
        access."""
        at, state = self.pointer(buffer, where, extra), self._state(buffer)
        aligned = _aligned(where, lanes, extra)
        return self.w.load(in_memory(buffer.dtype), lanes, at, state, masks, aligned=aligned)

    def load(self, access: Load) -> Value:
        """Return the element, or one for each lane. A masked-off lane reads no memory."""
        # an unrolled copy often repeats the loads of the copy before
        buffer, ix = access.buffer, self.ix
        if self.masks or buffer.memory == "register" or len(buffers_loaded(access)) > 1:
            return self._load(access)
        copy = tuple(map(ix.numbers.get, free_vars(access)))
        key = access, copy, self._writes.get(buffer.name), ix.bindings, ix.lane, ix.lanes
        return self.w.remembered(key, lambda: self._load(access))

    def _load(self, access: Load) -> Value:
        buffer, dtype = access.buffer, in_memory(access.buffer.dtype)
        where, state = self.ix.flat(buffer, access.index), self._state(buffer)
        if where.step == 0:
            out = self.w.load(dtype, 1, self.pointer(buffer, where), state)
        else:
            masks = () if not self.masks or self.ix.inside(access) else self.masks
            if where.step == 1:
                out = self._row(buffer, where, self.ix.lanes, masks=masks)
            elif (lookup := self._looked_up(access)) is not None:
                out = lookup
            else:
                out = self._load_scattered(buffer, where, masks)
        return self._read(buffer.dtype, out)

    def _looked_up(self, access: Load) -> Value | None:
        """Return the bytes that all lanes look up in a table of 256 bytes, if instructions do it in
        registers; else None."""
        buffer, lanes = access.buffer, self.ix.lanes
        place = access.index[0] if constant_shape(buffer) == (256,) and buffer.dtype.bits == 8 else None
        if not isinstance(place, Cast) or place.a.dtype is not U8 or buffer.memory in ("register", "scratch"):
            return None
        row = self.w.target.row("table", buffer.dtype, lanes)
        if row is None or not self.w.has_text(row) or buffer.dtype in SMALL:
            return None
        x = self.w.broadcast(self.value(place.a), lanes)
        table = self.w.load(buffer.dtype, 256, self.bases[buffer.name], self._state(buffer))
        return self.w.instruction("table", buffer.dtype, buffer.dtype, x, table)

    def _load_scattered(self, buffer: Buffer, where: Linear, masks: Sequence[Value]) -> Value:
        dtype = in_memory(buffer.dtype)
        if not masks and buffer.memory == "register" and self._is_column(where):
            return self._load_column(buffer, where)
        if where.step == 2 and self.ix.lanes % 2 == 0 and (not masks or self._masks_rows(dtype)):
            return self._load_every_second(buffer, where, masks)
        if not masks and (places := self._lines(where)):
            return self._load_lines(buffer, where, places)
        if not masks and (picks := self._picks(buffer, where)):
            row = _power_of_two(max(picks) + 1)
            start = where.offset % row
            loaded = self._row(buffer, where, row, -start)
            return self.w.shuffle(loaded, None, [start + p for p in picks])
        length, step = self._run(where)
        if not masks and length and self.ix.lanes <= RUNS * length:
            return self._load_runs(buffer, where, length, step)
        if masks and self._masks_rows(dtype) and (places := self._near(where)):
            return self._load_near(buffer, where, masks, places)
        if masks or self.w.target.row("gather", dtype) is not None:
            at = self.pointer(buffer, where)
            return self.w.gather(dtype, at, self._offsets(where), self._state(buffer), masks)
        pointers = self._lane_pointers(buffer, where)
        return self.w.from_lanes([self.w.load(dtype, 1, p, self._state(buffer)) for p in pointers])

    def _load_every_second(self, buffer: Buffer, where: Linear, masks: Sequence[Value]) -> Value:
        """Load every second element by two overlapping rows and a shuffle. Both rows lie between the first
        and the last element. In masked rows, elements between the lanes' elements aren't read."""
        lanes = self.ix.lanes

        def row(start: int) -> Value:
            spread = [self._spread(m, start) for m in masks]
            return self._row(buffer, where, lanes, start, spread)

        picks = [2 * n if 2 * n < lanes else lanes + 2 * n - (lanes - 1) for n in range(lanes)]
        return self.w.shuffle(row(0), row(lanes - 1), picks)

    def _masks_rows(self, dtype: DType) -> bool:
        """Return whether one instruction loads some lanes of a row."""
        row = self.w.target.row("masked_load", dtype)
        return row is not None and bool(row.becomes)

    def _places(self, where: Linear) -> list[int]:
        """Return the distances of the lanes' elements from the access's start. The list is empty if they
        aren't known."""
        lanes, lane = self.ix.lanes, self.ix.lane
        if lane is None or any({*free_vars(a)} - {lane} for _, atoms in where.varying for a in atoms):
            return []
        terms = (c * math.prod(atoms, start=const(1)) for c, atoms in where.varying)
        place, distances = sum(terms, const(0)), list[int]()
        for n in range(lanes):
            known = substitute(place, {lane: const(n)})
            if not isinstance(known, Const):
                return []
            distances.append(int(known.value))
        return distances

    def _near(self, where: Linear) -> Sequence[int]:
        """Return the distances of the lanes' elements from the access's start, if all lie within one row, and
        few lanes share one. It is empty if not."""
        distances = self._places(where)
        inside = distances and min(distances) >= 0 and max(distances) < self.ix.lanes
        return distances if inside and max(map(distances.count, distances)) <= SHARED else ()

    def _load_near(
        self, buffer: Buffer, where: Linear, masks: Sequence[Value], places: Sequence[int]
    ) -> Value:
        """Load one row, reading only elements that some lane needs, and shuffle it."""
        lanes, w = self.ix.lanes, self.w
        off = w.broadcast(w.constant(False, BOOL), lanes)
        readers = [[n for n, p in enumerate(places) if p == place] for place in range(lanes)]
        turns = [[r[turn] if turn < len(r) else lanes for r in readers] for turn in range(SHARED)]

        def read(mask: Value) -> Value:
            first, *others = (w.shuffle(mask, off, picks) for picks in turns)
            return reduce(lambda a, b: w.binary("or", a, b), others, first)

        row = self._row(buffer, where, lanes, masks=[*map(read, masks)])
        return w.shuffle(row, None, places)

    def _spread(self, mask: Value, start: int) -> Value:
        """Return a mask of every second element, widened to a mask of all elements from `start` on."""
        lanes = self.ix.lanes
        off = self.w.broadcast(self.w.constant(False, BOOL), lanes)
        return self.w.shuffle(mask, off, [lanes if n % 2 else n // 2 for n in range(start, start + lanes)])

    def _run(self, where: Linear) -> tuple[int, int]:
        """Return the number of neighbouring lanes that share an element, and the distance of these elements.
        Return (0, 0) if lanes don't share."""
        if len(where.varying) != 1:
            return 0, 0
        ((step, atoms),) = where.varying
        run = atoms[0] if len(atoms) == 1 else None
        if not (isinstance(run, Binary) and run.op == "floordiv" and run.a == self.ix.lane):
            return 0, 0
        return (int(run.b.value), step) if isinstance(run.b, Const) and step >= 1 else (0, 0)

    def _load_runs(self, buffer: Buffer, where: Linear, length: int, step: int) -> Value:
        """Load an element for each run of lanes, and put it into all lanes of the run."""
        dtype, lanes = in_memory(buffer.dtype), self.ix.lanes

        def run(n: int) -> Value:
            one = self.w.load(dtype, 1, self.pointer(buffer, where, n * step), self._state(buffer))
            return self.w.broadcast(one, lanes)

        out = run(0)
        for n, first in enumerate(range(length, lanes, length), 1):
            out = self.w.shuffle(out, run(n), [k if k < first else lanes + k for k in range(lanes)])
        return out

    def _picks(self, buffer: Buffer, where: Linear) -> Sequence[int]:
        """Return the distances of the lanes' elements from the first lane's, if runs of lanes share one each.
        It is empty if not.

        All must lie in one aligned row of elements, which then lies in the buffer.
        """
        lanes, shape = self.ix.lanes, constant_shape(buffer)
        length, step = self._run(where)
        if not length or shape is None:
            return ()
        picks = [n // length * step for n in range(lanes)]
        row = _power_of_two(picks[-1] + 1)
        aligned = math.prod(shape) % row == 0 and not any(c % row for c, _ in where.uniform.terms)
        return picks if 1 < row <= lanes and aligned and where.offset % row + picks[-1] < row else ()

    def _lines(self, where: Linear) -> Sequence[int]:
        """Return the distances of the lanes' elements from the access's start, if pairs of lanes are
        neighbours in memory. It is empty if not."""
        lane = self.ix.lane
        by_twos = lane is not None and any(lane % const(2) in atoms for _, atoms in where.varying)
        distances = self._places(where) if by_twos and self.ix.lanes % 2 == 0 else []
        return (
            distances if all(b - a == 1 for a, b in zip(distances[::2], distances[1::2], strict=True)) else ()
        )

    def _load_lines(self, buffer: Buffer, where: Linear, places: Sequence[int]) -> Value:
        """Load pairs of neighbouring elements, and pick the lanes from all of them. In a local array,
        aligned groups of four that contain the pairs are loaded."""
        shape = constant_shape(buffer)
        local = buffer.memory == "register" and not where.uniform.terms and math.prod(shape or (1,)) % 4 == 0
        length = 4 if local else 2
        firsts = [p - (where.offset + p) % 4 if local else p for p in places[::2]]
        starts = list(dict.fromkeys(firsts))
        parts = [self._row(buffer, where, length, n) for n in starts]
        while len(parts) > 1:
            pairs = zip_longest(parts[::2], parts[1::2], fillvalue=parts[-1])
            parts = [self.w.shuffle(a, b, range(2 * a.lanes)) for a, b in pairs]
        picks = [starts.index(firsts[n // 2]) * length + p - firsts[n // 2] for n, p in enumerate(places)]
        # The other elements come first, because LLVM then has a register to overwrite.
        if local and not any(p & 2 for p in picks):
            self.w.shuffle(parts[0], None, [p | 2 for p in picks])
        return self.w.shuffle(parts[0], None, picks)

    def _is_column(self, where: Linear) -> bool:
        """Return whether lanes are one column of a square tile, at a constant position."""
        lanes = self.ix.lanes
        return where.step == lanes and not where.uniform.terms and lanes & (lanes - 1) == 0

    def _load_column(self, buffer: Buffer, where: Linear) -> Value:
        """Load a column of a tile. All columns are made together, and equal operations are written once."""
        lanes = self.ix.lanes
        column = where.offset % lanes
        rows = [self._row(buffer, where, lanes, n * lanes - column) for n in range(lanes)]
        return self.w.turned(rows)[column]

    # --- stores

    def store(self, buffer: Buffer, index: tuple[Expr, ...], v: Value) -> None:
        """Store an element, or one for each lane that the masks leave active."""
        where = self.ix.flat(buffer, index)
        if where.step == 0:
            assert v.lanes == 1, "one place, a value for each lane"
            pointer = self.pointer(buffer, where)
            self.w.store(pointer, self.stored(v))
        else:
            v = self.stored(self.w.broadcast(v, self.ix.lanes))
            if where.step == 1:
                self._store_row(buffer, index, where, v)
            else:
                self._store_scattered(buffer, where, v)
        self.written(buffer.name)

    def copy_apart(self, to: Buffer, index: tuple[Expr, ...], source: Load, whole: Value) -> bool:
        """Copy the lanes' elements to shared memory by `Writer.copy_apart`. Return False, with nothing
        written, unless both are aligned rows."""
        places = self.ix.flat(to, index), self.ix.flat(source.buffer, source.index)
        if self.masks or len(buffers_loaded(source)) > 1 or any(p.step != 1 for p in places):
            return False
        if not all(_aligned(p, self.ix.lanes) for p in places):
            return False
        starts = [p._replace(offset=0) for p in places]
        at, origin = (self.pointer(b, p) for b, p in zip((to, source.buffer), starts, strict=True))
        ahead = tuple(p.offset * to.dtype.bytes for p in places)
        self.w.copy_apart(at, origin, whole, ahead)
        self.written(to.name)
        return True

    def _store_row(self, buffer: Buffer, index: tuple[Expr, ...], where: Linear, v: Value) -> None:
        pointer = self.pointer(buffer, where)
        mask = self.masks[-1] if self.masks else None
        if mask is not None and buffer.memory == "register" and self.ix.inside(Load(buffer, index)):
            old = self._row(buffer, where, v.lanes)
            v, mask = self.w.select(mask, v, old), None
        self.w.store(pointer, v, mask, aligned=_aligned(where, v.lanes))

    def store_interleaved(self, buffer: Buffer, first: Linear, values: list[Value]) -> None:
        """Store values interleaved, so that those of a lane are neighbours, from the first value's address
        on."""
        values = [self.w.broadcast(v, self.ix.lanes) for v in values]
        count, lanes = len(values), self.ix.lanes
        while len(values) > 1:
            width = 2 * values[0].lanes
            values = [
                self.w.shuffle(a, b, range(width)) for a, b in zip(values[::2], values[1::2], strict=True)
            ]
        order = [n // count + n % count * lanes for n in range(count * lanes)]
        whole = self.w.shuffle(values[0], None, order)
        self.w.store(self.pointer(buffer, first), whole, aligned=_aligned(first, whole.lanes))
        self.written(buffer.name)

    def _store_scattered(self, buffer: Buffer, where: Linear, v: Value) -> None:
        if self.masks:
            self.w.scatter(self.pointer(buffer, where), self._offsets(where), v, self.masks[-1])
            return
        for n, pointer in enumerate(self._lane_pointers(buffer, where)):
            self.w.store(pointer, self.w.lane(v, n))
