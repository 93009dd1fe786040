"""Rows of lanes in WGSL.

A row's lanes are scalars, because devices run work-items side by side and their compilers divide vectors.
Aligned rows of four words are loaded and stored at once, as vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jangin.backends.walk.writer import Pointer, Value
from jangin.backends.wgsl.writer import WgslWriter
from jangin.ir.dtype import BOOL, DType
from jangin.ir.expr import Expr, Load, Select, Var, const
from jangin.ir.loop import For, Func, If, Let, Stmt, Store, map_children, statements
from jangin.ir.traversal import buffers_loaded, children, free_vars

LANES = 4
"""Lanes of a row, as many as WGSL's longest vectors have."""
WORD = 4
"""Bytes of an element of a row that is loaded at once."""


class RowWriter(WgslWriter):
    """A row's name lists the names of its lanes."""

    most_lanes = LANES

    # --- lanes

    def from_lanes(self, parts: Sequence[Value]) -> Value:
        if len(parts) == 1:
            return parts[0]
        ref, dtype = "; ".join(p.ref for p in parts), parts[0].dtype
        self.rows[ref, dtype] = tuple(parts)
        return Value(ref, dtype, len(parts))

    def lane(self, v: Value, number: int) -> Value:
        return v if v.lanes == 1 else self.rows[v.ref, v.dtype][number]

    def zeros(self, dtype: DType, lanes: int) -> Value:
        return self.broadcast(self.constant(0, dtype), lanes)

    def iota(self, lanes: int, dtype: DType, step: int = 1) -> Value:
        return self.from_lanes([self.constant(n * step, dtype) for n in range(lanes)])

    def broadcast(self, v: Value, lanes: int) -> Value:
        return v if v.lanes == lanes else self.from_lanes([v] * lanes)

    def shuffle(self, a: Value, b: Value | None, picks: Sequence[int]) -> Value:
        lanes = [self.lane(v, n) for v in ([a] if b is None else [a, b]) for n in range(v.lanes)]
        return self.from_lanes([lanes[n] for n in picks])

    def any_lane(self, mask: Value) -> Value:
        out, *others = (self.lane(mask, n) for n in range(mask.lanes))
        for other in others:
            out = self.binary("or", out, other)
        return out

    # --- arithmetic, lane by lane

    def binary(self, op: str, x: Value, y: Value) -> Value:
        one = super().binary
        return self.by_lane(lambda a, b: one(op, a, b), x, y)

    def compare(self, op: str, x: Value, y: Value) -> Value:
        one = super().compare
        return self.by_lane(lambda a, b: one(op, a, b), x, y)

    def extreme(self, op: str, x: Value, y: Value) -> Value:
        one = super().extreme
        return self.by_lane(lambda a, b: one(op, a, b), x, y)

    def select(self, cond: Value, x: Value, y: Value) -> Value:
        return self.by_lane(super().select, cond, x, y)

    def negate(self, x: Value) -> Value:
        return self.by_lane(super().negate, x)

    def absolute(self, x: Value) -> Value:
        return self.by_lane(super().absolute, x)

    def cast(self, dtype: DType, x: Value) -> Value:
        one = super().cast
        return self.by_lane(lambda a: one(dtype, a), x)

    def bitcast(self, dtype: DType, x: Value) -> Value:
        one = super().bitcast
        return self.by_lane(lambda a: one(dtype, a), x)

    def instruction(self, name: str, dtype: DType, result: DType, *values: Value) -> Value:
        one = super().instruction
        return self.by_lane(lambda *lanes: one(name, dtype, result, *lanes), *values)

    # --- memory

    def load(
        self,
        dtype: DType,
        lanes: int,
        at: Pointer,
        state: str,
        masks: Sequence[Value] = (),
        *,
        aligned: bool = False,
    ) -> Value:
        assert lanes == 1 or not masks, "lanes of a row aren't masked"
        one, place = super().load, self.places[at]
        if aligned and lanes == LANES and dtype.bytes == WORD and place.words and not place.base:
            self.accesses.setdefault(place.words, set()).add("q")
            call = f"q{place.words}({self.narrow(place.index)})"
            row = self.name(f"bitcast<vec4<{self.type(dtype)}>>({call})", state)
            return self.from_lanes([Value(f"{row}.{part}", dtype) for part in "xyzw"])
        return self.from_lanes(
            [one(dtype, 1, self.step(dtype, at, self.index(n)) if n else at, state) for n in range(lanes)]
        )

    def gather(
        self, dtype: DType, at: Pointer, index: Value, state: str, masks: Sequence[Value] = ()
    ) -> Value:
        one = super().gather
        return self.by_lane(lambda lane: one(dtype, at, lane, state), index)

    def store(self, at: Pointer, v: Value, mask: Value | None = None, *, aligned: bool = False) -> None:
        assert mask is None, "lanes of a row aren't masked"
        place, parts = self.places[at], [self.lane(v, n) for n in range(v.lanes)]
        if aligned and v.lanes == LANES and v.dtype.bytes == WORD and place.words and not place.base:
            self.accesses.setdefault(place.words, set()).add("t")
            row = f"vec4<{self.type(v.dtype)}>({', '.join(p.ref for p in parts)})"
            self.effect(f"t{place.words}({self.narrow(place.index)}, bitcast<vec4<u32>>({row}))")
            return
        for n, part in enumerate(parts):
            super().store(self.step(v.dtype, at, self.index(n)) if n else at, part)


def in_rows(func: Func) -> Func:
    """Return the kernel with the iterations of vector loops copied out, apart from loops that access rows of
    four words. `func`: a kernel whose vector loops have at most four lanes."""
    return replace(func, body=_in_rows(func.body))


def _in_rows(s: Stmt) -> Stmt:
    s = map_children(s, _in_rows)
    if not isinstance(s, For) or s.kind != "vector" or _has_rows(s):
        return s
    return replace(s, kind="unroll")


def _has_rows(s: For) -> bool:
    """Return whether a vector loop has four lanes of words, between which no condition differs."""
    inner, lane = [*statements(s.body)], s.var
    if s.extent != const(LANES) or any(isinstance(n, Let | For) for n in inner):
        return False
    if any(isinstance(n, If) and lane in free_vars(n.cond) for n in inner):
        return False
    stores = [n for n in inner if isinstance(n, Store)]
    return all(_of_words(Load(n.buffer, n.index), lane) and _of_words(n.value, lane) for n in stores)


def _of_words(e: Expr, lane: Var) -> bool:
    """Return whether an expression is made of words, and depends on the lane only by where it reads."""
    waiting = [e]
    while waiting:
        node = waiting.pop()
        if lane not in free_vars(node):
            continue
        if isinstance(node, Load):
            if node.dtype.bytes != WORD or len(buffers_loaded(node)) > 1:
                return False
            continue
        if node == lane or (isinstance(node, Select) and lane in free_vars(node.cond)):
            return False
        if node.dtype is not BOOL and node.dtype.bytes != WORD:
            return False
        waiting.extend(children(node))
    return True
