"""Rows of lanes in WGSL.

Aligned rows of four words are loaded and stored at once, as vectors. Sums and products of vectors are
vectors, so that their text is short. All else is done lane by lane: devices run work-items side by side, and
their compilers divide vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from jangin.backends.walk.writer import Pointer, Value
from jangin.backends.wgsl.halves import HalfWriter
from jangin.backends.wgsl.longs import INFIX
from jangin.backends.wgsl.writer import Place
from jangin.ir.dtype import BOOL, F32, DType
from jangin.ir.expr import Binary, Const, Expr, Load, Select, Var, const, land
from jangin.ir.loop import For, Func, If, Let, Stmt, Store, map_children, statements
from jangin.ir.simplify import terms
from jangin.ir.traversal import buffers_loaded, children, conjuncts, free_vars, substitute

LANES = 4
"""Lanes of a row, as many as WGSL's longest vectors have."""
PARTS = "xyzw"
"""The names of a vector's lanes."""
WORD = 4
"""Bytes of an element of a row that is loaded at once. WGSL's buffers are arrays of words of 32 bits."""


class RowWriter(HalfWriter):
    """A row is a vector, or its name lists the names of its lanes. `vectors` has the names of vectors."""

    most_lanes = LANES

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.vectors: set[str] = set()

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

    # --- vectors

    def _vector(self, text: str, dtype: DType, state: str = "") -> Value:
        name = self.name(text, state)
        self.vectors.add(name)
        self.rows[name, dtype] = [Value(f"{name}.{part}", dtype) for part in PARTS]
        return Value(name, dtype, LANES)

    def whole(self, v: Value) -> str:
        """Return a row as the text of a vector."""
        if v.ref in self.vectors:
            return v.ref
        parts = [p.ref for p in self.rows[v.ref, v.dtype]]
        return f"vec4<{self.type(v.dtype)}>({', '.join(parts[:1] if len({*parts}) == 1 else parts)})"

    def _are_vectors(self, *values: Value) -> bool:
        """Return whether an operation on rows of f32 is best done on vectors: one of them is a vector."""
        rows = all(v.lanes == LANES and v.dtype is F32 for v in values)
        return rows and any(v.ref in self.vectors for v in values)

    def hidden(self, x: Value) -> str:
        if x.lanes == 1:
            return super().hidden(x)
        return self.name(f"bitcast<vec4<f32>>(bitcast<vec4<u32>>({self.whole(x)}) | vec4<u32>(u.zero))")

    def _follow(self, total: Value, added: Sequence[Value], factors: Sequence[Value] = ()) -> Value:
        """Keep the operands of a sum of vectors, and those of its lanes (see `sums`)."""
        for n in range(-1, LANES):
            name, *refs = (v.ref if n < 0 else self.lane(v, n).ref for v in (total, *added, *factors))
            self.sums[name] = tuple(refs[: len(added)])
            if factors:
                self.factors[name] = {*refs[len(added) :]}
        return total

    # --- arithmetic, lane by lane unless there are vectors

    def binary(self, op: str, x: Value, y: Value) -> Value:
        if op in ("add", "sub", "mul") and self._are_vectors(x, y):
            return self._of_vectors(op, x, y)
        one = super().binary
        return self.by_lane(lambda a, b: one(op, a, b), x, y)

    def _of_vectors(self, op: str, x: Value, y: Value) -> Value:
        if op == "mul":
            return self._vector(f"{self.whole(x)} * {self.whole(y)}", F32)
        a = self.hidden(x) if y.ref in self.sums.get(x.ref, ()) else self.whole(x)
        zero = any(self.cancels(op, self.lane(x, n), self.lane(y, n)) for n in range(LANES))
        b = self.hidden(y) if zero or x.ref in self.sums.get(y.ref, ()) else self.whole(y)
        return self._follow(self._vector(f"{a} {INFIX[op]} {b}", F32), (x, y))

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
        if name == "fma" and self._are_vectors(*values):
            x, y, z = values
            c = self.hidden(z) if {x.ref, y.ref} & self.factors.get(z.ref, set()) else self.whole(z)
            return self._follow(self._vector(f"fma({self.whole(x)}, {self.whole(y)}, {c})", F32), [z], [x, y])
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
        if self._is_row(place, lanes, dtype, aligned):
            i = self.narrow(place.index)
            if place.rows:
                return self._vector(_row(place, i), dtype, state)
            self.accesses.setdefault(place.words, set()).add("q")
            return self._vector(f"bitcast<vec4<{self.type(dtype)}>>(q{place.words}({i}))", dtype, state)
        return self.from_lanes(
            [one(dtype, 1, self.step(dtype, at, self.index(n)) if n else at, state) for n in range(lanes)]
        )

    def _is_row(self, place: Place, lanes: int, dtype: DType, aligned: bool) -> bool:
        """Return whether these lanes are loaded or stored at once: four aligned words of a buffer, or of a
        local array of rows."""
        whole = aligned and lanes == LANES and dtype.bytes == WORD
        return whole and (place.rows or (place.words != "" and not place.base))

    def gather(
        self, dtype: DType, at: Pointer, index: Value, state: str, masks: Sequence[Value] = ()
    ) -> Value:
        one = super().gather
        return self.by_lane(lambda lane: one(dtype, at, lane, state), index)

    def store(self, at: Pointer, v: Value, mask: Value | None = None, *, aligned: bool = False) -> None:
        assert mask is None, "lanes of a row aren't masked"
        place = self.places[at]
        if self._is_row(place, v.lanes, v.dtype, aligned):
            i = self.narrow(place.index)
            if place.rows:
                self.effect(f"{_row(place, i)} = {self.whole(v)}")
                return
            self.accesses.setdefault(place.words, set()).add("t")
            self.effect(f"t{place.words}({i}, bitcast<vec4<u32>>({self.whole(v)}))")
            return
        for n in range(v.lanes):
            super().store(self.step(v.dtype, at, self.index(n)) if n else at, self.lane(v, n))


def _row(place: Place, i: str) -> str:
    """Return the text of the row that begins with element `i` of a local array of rows."""
    return f"{place.array}[{int(i) // LANES}]" if i.isdigit() else f"{place.array}[({i}) >> 2u]"


def in_rows(func: Func) -> Func:
    """Return the kernel with the iterations of vector loops copied out, apart from loops that access rows of
    four words. `func`: a kernel whose vector loops have at most four lanes."""
    return replace(func, body=_in_rows(func.body))


def _in_rows(s: Stmt) -> Stmt:
    s = map_children(s, _in_rows)
    if not isinstance(s, For) or s.kind != "vector":
        return s
    whole = _with_whole_guard(s)
    if isinstance(whole, If):
        return whole
    return s if _has_rows(s) else replace(s, kind="unroll")


def _with_whole_guard(s: For) -> Stmt:
    """Return a row's loop inside its guard, if the guard holds for all lanes or none, and the row is then
    accessed at once. Otherwise return the loop."""
    body = s.body
    if s.extent != const(LANES) or not isinstance(body, If) or body.orelse is not None:
        return s
    parts = [_of_first_lane(part, s.var) for part in conjuncts(body.cond)]
    bare = replace(s, body=body.then)
    if None in parts or not _has_rows(bare):
        return s
    return If(reduce(land, [part for part in parts if part is not None]), bare)


def _of_first_lane(part: Expr, lane: Var) -> Expr | None:
    """Return a condition for the first lane if it is the same for all lanes, else None. An index of a row's
    begin and the index's end are multiples of a row's lanes."""
    if buffers_loaded(part) or lane not in free_vars(part):
        return None if buffers_loaded(part) else part
    if not isinstance(part, Binary) or part.op != "lt" or not isinstance(part.b, Const):
        return None
    if not part.b.dtype.is_int or part.b.value % LANES:
        return None
    rest = [(c, atoms) for c, atoms in terms(part.a) if (c, atoms) != (1, (lane,))]
    if any(c % LANES or any(lane in free_vars(atom) for atom in atoms) for c, atoms in rest):
        return None
    return substitute(part, {lane: const(0, lane.dtype)})


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
