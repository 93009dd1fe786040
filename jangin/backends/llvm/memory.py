"""Loads and stores: scalar, contiguous vectors, gathers and scatters, each with or without a mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

from jangin.backends.llvm.arithmetic import convert, select
from jangin.backends.llvm.builder import Builder
from jangin.backends.llvm.index import Indexer, Linear, Term
from jangin.backends.llvm.values import Value, constant, vector_type
from jangin.ir.dtype import BOOL, I64, SMALL, U8, DType
from jangin.ir.expr import Buffer, Expr, Load


def in_memory(dtype: DType) -> DType:
    """How a type is stored: bool as one byte, 0 or 1, and small types as the byte they are."""
    return U8 if dtype is BOOL or dtype in SMALL else dtype


def _read(b: Builder, dtype: DType, stored: Value) -> Value:
    return Value(stored.ref, dtype, stored.lanes) if dtype in SMALL else convert(b, dtype, stored)


def _written(b: Builder, v: Value) -> Value:
    return Value(v.ref, U8, v.lanes) if v.dtype in SMALL else convert(b, in_memory(v.dtype), v)


@dataclass
class Memory:
    """The buffers in scope: where each starts, and how often each has been written (an equal load
    of unchanged memory is written once)."""

    b: Builder
    ix: Indexer
    bases: dict[str, str]
    value: Callable[[Expr], Value]
    masks: list[Value] = field(default_factory=list)
    """Of the enclosing conditions that differ by lane, each implying those before it."""
    lanes: int = 1
    _writes: dict[str, int] = field(default_factory=dict)

    def written(self, name: str) -> None:
        self._writes[name] = self._writes.get(name, 0) + 1

    def _state(self, buffer: Buffer) -> str:
        # by name too: scratch buffers that live one after another share addresses
        return f" ;{buffer.name} {self._writes.get(buffer.name, 0)}"

    # --- addresses

    def total(self, terms: tuple[Term, ...] | list[Term]) -> Value:
        """The i64 sum of terms, outermost loops first."""
        out: Value | None = None
        for c, atoms in sorted(terms, key=lambda t: self.ix.level(t[1])):
            factors = [self.value(a) for a in sorted(atoms, key=lambda a: self.ix.level((a,)))]
            if c != 1 or not factors:
                factors.insert(1 if factors else 0, constant(c, I64))
            product = factors[0]
            for f in factors[1:]:
                product = self._i64("mul", product, f)
            out = product if out is None else self._i64("add", out, product)
        return constant(0, I64) if out is None else out

    def _i64(self, op: str, x: Value, y: Value) -> Value:
        x, y = self.b.unify(x, y)
        return self.b.op(f"{op} {x}, {y.ref}", I64, x.lanes)

    def _step(self, dtype: DType, ref: str, by: str) -> str:
        return self.b.name(f"getelementptr {vector_type(in_memory(dtype), 1)}, ptr {ref}, i64 {by}")

    def pointer(self, buffer: Buffer, where: Linear, extra: int = 0) -> str:
        """The address of lane 0 of a linear access: one step a loop level, so that each level's
        part is invariant in the loops inside; the constant last, where it folds into the access."""
        ref = self.bases[buffer.name]
        by_level = sorted(where.uniform, key=lambda t: self.ix.level(t[1]))
        for _, group in groupby(by_level, key=lambda t: self.ix.level(t[1])):
            ref = self._step(buffer.dtype, ref, self.total(list(group)).ref)
        offset = where.offset + extra
        return self._step(buffer.dtype, ref, str(offset)) if offset else ref

    def _offsets(self, where: Linear) -> Value:
        if where.step is not None:
            return self.b.iota(self.lanes, I64, where.step)
        return self.b.broadcast(self.total(where.varying), self.lanes)

    # --- loads

    def load(self, access: Load) -> Value:
        """The element, or one for each lane. A masked-off lane reads no memory."""
        buffer = access.buffer
        stored = in_memory(buffer.dtype)
        where = self.ix.flat(buffer, access.index)
        if where.step == 0:
            text = f"load {vector_type(stored, 1)}, ptr {self.pointer(buffer, where)}, align {stored.bytes}"
            out = self.b.op(text, stored, 1, self._state(buffer))
        elif where.step == 1:
            out = self._load_row(access, where)
        else:
            out = self._load_scattered(access, where)
        return _read(self.b, buffer.dtype, out)

    def _load_row(self, access: Load, where: Linear) -> Value:
        b, stored, state = self.b, in_memory(access.buffer.dtype), self._state(access.buffer)
        pointer, wide = self.pointer(access.buffer, where), vector_type(stored, self.lanes)
        plain = f"load {wide}, ptr {pointer}, align {stored.bytes}"
        if not self.masks or self.ix.inside(access):
            return b.op(plain, stored, self.lanes, state)
        masked = (b.row("masked_load", stored, self.lanes, memory=pointer, mask=m.ref) for m in self.masks)
        return self._weakest([plain, *masked], stored, state)

    def _weakest(self, texts: list[str], stored: DType, state: str) -> Value:
        """The value of the last of `texts`, or of an earlier (less masked) one already loaded."""
        for text in texts[:-1]:
            ref = self.b.known(text, state)
            if ref is not None:
                return Value(ref, stored, self.lanes)
        return self.b.op(texts[-1], stored, self.lanes, state)

    def _load_scattered(self, access: Load, where: Linear) -> Value:
        buffer, lanes = access.buffer, self.lanes
        stored, state = in_memory(buffer.dtype), self._state(buffer)
        free = not self.masks or self.ix.inside(access)
        if free and where.step == 2 and lanes % 2 == 0:
            return self._load_every_second(buffer, where)
        in_hardware = self.b.target.row("gather", stored) is not None
        if free and not in_hardware:
            return self._load_lanes(buffer, where)
        places = self._places(buffer, where)
        texts = [self.b.row("gather", stored, lanes, **places)] if in_hardware else []
        for mask in [] if free else self.masks:
            texts.append(self.b.row("masked_gather", stored, lanes, **places, mask=mask.ref))
        return self._weakest(texts, stored, state)

    def _places(self, buffer: Buffer, where: Linear) -> dict[str, str]:
        """Operands of rows that access an element of their own for each lane."""
        return {"memory": self.pointer(buffer, where), "index": self._offsets(where).ref}

    def _load_every_second(self, buffer: Buffer, where: Linear) -> Value:
        """Two overlapping rows and a shuffle; both lie between the first and the last element."""
        stored, lanes = in_memory(buffer.dtype), self.lanes
        rows = []
        for start in (0, lanes - 1):
            pointer = self.pointer(buffer, where, start)
            text = f"load {vector_type(stored, lanes)}, ptr {pointer}, align {stored.bytes}"
            rows.append(self.b.op(text, stored, lanes, self._state(buffer)))
        picks = [2 * n if 2 * n < lanes else lanes + 2 * n - (lanes - 1) for n in range(lanes)]
        return self.b.shuffle(rows[0], rows[1], picks)

    def _load_lanes(self, buffer: Buffer, where: Linear) -> Value:
        stored = in_memory(buffer.dtype)
        kind = vector_type(stored, 1)
        parts = [
            self.b.op(f"load {kind}, ptr {p}, align {stored.bytes}", stored, 1, self._state(buffer))
            for p in self._lane_pointers(buffer, where)
        ]
        return self.b.gather_lanes(parts)

    def _lane_pointers(self, buffer: Buffer, where: Linear) -> list[str]:
        if where.step is not None:
            return [self.pointer(buffer, where, n * where.step) for n in range(self.lanes)]
        base, offsets = self.pointer(buffer, where), self._offsets(where)
        return [self._step(buffer.dtype, base, self.b.lane(offsets, n).ref) for n in range(self.lanes)]

    def prefetch(self, buffer: Buffer, index: tuple[Expr, ...]) -> None:
        """Ask for a cache line, to be read."""
        pointer = self.pointer(buffer, self.ix.flat(buffer, index))
        self.b.declarations["llvm.prefetch"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
        self.b.effect(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 3, i32 1)")

    # --- stores

    def store(self, buffer: Buffer, index: tuple[Expr, ...], v: Value) -> None:
        """Store an element, or one for each lane that the masks leave on."""
        stored = in_memory(buffer.dtype)
        where = self.ix.flat(buffer, index)
        if where.step == 0:
            assert v.lanes == 1, "one place, a value for each lane"
            pointer = self.pointer(buffer, where)
            self.b.effect(f"store {_written(self.b, v)}, ptr {pointer}, align {stored.bytes}")
        else:
            v = _written(self.b, self.b.broadcast(v, self.lanes))
            (self._store_row if where.step == 1 else self._store_scattered)(buffer, index, where, v)
        self.written(buffer.name)

    def _store_row(self, buffer: Buffer, index: tuple[Expr, ...], where: Linear, v: Value) -> None:
        pointer, align = self.pointer(buffer, where), v.dtype.bytes
        if self.masks and buffer.memory == "register" and self.ix.inside(Load(buffer, index)):
            old = self.b.op(
                f"load {v.type}, ptr {pointer}, align {align}", v.dtype, v.lanes, self._state(buffer)
            )
            v = select(self.b, self.masks[-1], v, old)
        elif self.masks:
            mask = self.masks[-1].ref
            self.b.effect(self.b.row("masked_store", v.dtype, v.lanes, memory=pointer, mask=mask, x=v.ref))
            return
        self.b.effect(f"store {v}, ptr {pointer}, align {align}")

    def _store_scattered(self, buffer: Buffer, index: tuple[Expr, ...], where: Linear, v: Value) -> None:
        align = v.dtype.bytes
        if not self.masks:
            for n, pointer in enumerate(self._lane_pointers(buffer, where)):
                self.b.effect(f"store {self.b.lane(v, n)}, ptr {pointer}, align {align}")
            return
        places, mask = self._places(buffer, where), self.masks[-1].ref
        self.b.effect(self.b.row("masked_scatter", v.dtype, v.lanes, **places, mask=mask, x=v.ref))
