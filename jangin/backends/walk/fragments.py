"""Warp loops: the work of one lane, which holds a part of each matrix (see `ir.fragments`).

A tile buffer in a block consists of matrices, its last two axes. A warp's lanes share each of them. The
instruction that multiplies a matrix decides which lane has which elements (`Row.fragments`). Inside a warp
loop there are two kinds of nests over a matrix's rows and columns.

- A sum of products, `c[.., r, c] = c[.., r, c] + a[.., r, k] * b[.., k, c]`, is one instruction.
- Any other nest becomes an unrolled loop over the lane's elements, with the element's row and column put in
  for the nest's variables. So matrices are set to 0, loaded, finished and stored by one rule.

A nest that only copies matrices from shared memory, and whose rows lie there in a suitable way, is the
instruction that loads them (`ldmatrix`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from jangin.backends.walk.expressions import Expressions
from jangin.backends.walk.index import constant_shape
from jangin.backends.walk.memory import in_memory
from jangin.backends.walk.writer import Pointer, Value
from jangin.ir.dtype import DType
from jangin.ir.expr import Binary, Buffer, Call, Cast, Const, Expr, Load, Var, const
from jangin.ir.fragments import HALF, LINE_BYTES, LINES, MOST, WARP, Fragment, moved
from jangin.ir.graph import CompileError
from jangin.ir.loop import (
    For,
    Func,
    Stmt,
    Store,
    block,
    expressions,
    loop_range,
    replace_buffer,
    statements,
    substitute_stmt,
)
from jangin.ir.simplify import Range, linear, simplify
from jangin.ir.traversal import free_vars, loads, row_major, substitute
from jangin.targets.rows import Row
from jangin.targets.target import Target

LANE, PART = Var("warp.lane"), Var("warp.part")
"""The number of a work-item in its warp, and of an element in a pair of a lane's elements."""


class Fragments:
    """The matrices of one kernel's warp loops."""

    def __init__(self, func: Func, x: Expressions) -> None:
        self._kernel, self._x, self._w = func.name, x, x.w
        self._maps = _maps(func, x.w.target)
        self._held: dict[str, Buffer] = {}
        self._made: dict[int, tuple[Stmt, Stmt]] = {}
        self._in_warp = self._apart = False

    @contextmanager
    def held(self, buffer: Buffer) -> Iterator[None]:
        """Give each lane registers for its elements of a tile buffer's matrices, inside the context."""
        fragment, shape = self._maps.get(buffer.name), constant_shape(buffer)
        if fragment is None or shape is None:
            raise CompileError(
                f"{self._kernel}: {buffer.name} has matrices of {buffer.dtype} "
                f"{list(map(str, buffer.shape))}, which no instruction of {self._w.target.name} multiplies"
            )
        own = replace(buffer, memory="register", shape=tuple(map(const, (*shape[:-2], fragment.count))))
        self._x.memory.bases[own.name] = self._w.registers(
            in_memory(own.dtype), math.prod(shape[:-2]) * fragment.count
        )
        self._x.memory.written(own.name)
        self._held[own.name] = own
        yield
        del self._held[own.name]

    @contextmanager
    def warp(self, lane: Value) -> Iterator[None]:
        """Write the body of a warp loop inside the context, for the lane of this number."""
        self._in_warp = True
        with self._x.binding(LANE, lane), self._x.ix.bound(LANE, (const(0), const(WARP - 1)), 0):
            yield
        self._in_warp = False

    def nest(self, s: Stmt) -> Stmt | None:
        """Return the statement that a lane carries out for a nest over matrices. It is empty if its code is
        written already. Return None for any other statement, and inside `apart`.

        Raises CompileError for a statement that lanes can't do together."""
        if not self._in_warp or self._apart:
            return None
        loops, body = list[For](), s
        while isinstance(body, For) and body.kind in ("serial", "vector", "unroll"):
            loops.append(body)
            body = body.body
        lines = _lines(body, self._held) if loops else []
        along = {v for line in lines for i in line for v in free_vars(i)}
        if self._loaded_in_pairs(loops, body):
            return block()
        if isinstance(s, Store) or (loops and s is loops[0] and loops[0].var in along):
            if not loops or along != {p.var for p in loops}:
                self._refuse(s, loops)
            return self._lane_of(s, loops, body)
        return None

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Write what `nest` returned inside the context."""
        self._apart = True
        yield
        self._apart = False

    def _refuse(self, s: Stmt, loops: Sequence[For]) -> None:
        what = next((k.buffer.name for k in statements(s) if isinstance(k, Store)), "nothing")
        over = ", ".join(f"{p.var} in {p.extent}" for p in loops) or "no loops"
        raise CompileError(
            f"{self._kernel}: a warp stores to {what} over {over}, which are no rows and columns of a matrix"
        )

    def _lane_of(self, s: Stmt, loops: Sequence[For], body: Stmt) -> Stmt:
        if isinstance(body, Store) and body.buffer.name in self._held:
            factors = _factors(body)
            if factors is not None and {f.buffer.name for f in factors} <= self._held.keys():
                self._multiply(body, *factors)
                return block()
            if self._loaded(body, loops):
                return block()
        if id(s) not in self._made:
            self._made[id(s)] = s, self._elements(s, loops, body)
        return self._made[id(s)][1]

    # --- elements

    def _elements(self, s: Stmt, loops: Sequence[For], body: Stmt) -> Stmt:
        """Return a nest's statements for the lane's elements: in pairs, if a pair lies in one row."""
        names = {name for name in self._held if any(n.buffer.name == name for n in _accesses(body))}
        maps = {self._maps[name] for name in names}
        row, column = (p.var for p in loops) if len(loops) == 2 else (None, None)
        lines = set(_lines(body, self._held))
        if (column, row) in lines:
            row, column = column, row
        if len(maps) != 1 or row is None or column is None or lines != {(row, column)}:
            self._refuse(s, loops)
        assert row is not None and column is not None
        (fragment,) = maps
        paired = fragment.elements[0] == (2, 0, 1)
        pieces = list[Stmt]()
        for first in range(0, fragment.count, 2 if paired else 1):
            element = const(first) + PART if paired else const(first)
            own = body
            for name in names:
                own = replace_buffer(own, name, self._held[name], lambda i, e=element: (*i[:-2], e))  # type: ignore[misc]
            down, across = fragment.place(LANE, const(first))
            own = substitute_stmt(own, {row: down, column: across + PART if paired else across})
            pieces.append(For(PART, const(2), own, "vector") if paired else own)
        return block(*pieces)

    # --- instructions

    def _registers(self, access: Load) -> Pointer:
        """Return the address of the lane's elements of a matrix."""
        own = self._held[access.buffer.name]
        where = self._x.ix.flat(own, (*access.index[:-2], const(0)))
        return self._x.memory.pointer(own, where)

    def _multiply(self, s: Store, left: Load, right: Load) -> None:
        total = Load(s.buffer, s.index)
        row = _row(self._w.target, total, left, right)
        assert row is not None
        lines = total.index[-2], left.index[-1], total.index[-1]
        if (*left.index[-2:], *right.index[-2:]) != (*lines[:2], *lines[1:]):
            raise CompileError(f"{self._kernel}: no instruction adds {left} * {right} to {total}")
        self._w.multiply(row, *map(self._registers, (total, left, right)))
        self._x.memory.written(s.buffer.name)

    def _loaded_in_pairs(self, loops: Sequence[For], body: Stmt) -> bool:
        """Load matrices that an unrolled loop numbers, two by each instruction. Return False, with nothing
        written, for any other nest, and if one instruction has no room for two."""
        if len(loops) != 3 or not isinstance(body, Store) or body.buffer.name not in self._held:
            return False
        number, *lines = loops
        digits, count = self._maps[body.buffer.name].matrices(body.buffer.dtype.bytes), number.extent
        along = body.index[-2:] == tuple(p.var for p in lines) and body.index[-3:-2] == (number.var,)
        if digits is None or not along or number.kind != "unroll" or not isinstance(count, Const):
            return False
        if 2 * math.prod(n for n, _, _ in digits) > MOST or int(count.value) % 2:
            return False
        with self._x.ix.bound(number.var, loop_range(number), 0), self._x.ix.numbered(number.var, 0):
            for n in range(0, int(count.value), 2):
                self._x.ix.numbers[number.var] = n
                if not self._loaded(body, lines, number.var):
                    return False
        return True

    def _loaded(self, s: Store, loops: Sequence[For], number: Var | None = None) -> bool:
        """Load a matrix from rows of shared memory by one instruction, or with `number` its matrix and the
        next. Return False, with nothing written, if its elements have no layout for it."""
        source, fragment, ix = s.value, self._maps[s.buffer.name], self._x.ix
        if not isinstance(source, Load) or source.buffer.memory != "shared" or self._x.memory.masks:
            return False
        element = source.dtype.bytes
        digits, row = fragment.matrices(element), LINE_BYTES // element
        if source.dtype is not s.buffer.dtype or digits is None:
            return False
        lines = s.index[-2:]
        along = self._contiguous(source, lines, loops)
        if along is None:
            return False
        plain = along == fragment.along  # a lane's neighbours in the matrix are neighbours in memory
        if not plain and element != HALF:
            return False
        count = math.prod(n for n, _, _ in digits)
        down, across = moved((*digits, (LINES, 0, 0)), LANE // LINES)
        places = [down, across]
        places[1 - along] = places[1 - along] + LANE % LINES
        values = {v: n for v, n in zip(lines, places, strict=True) if isinstance(v, Var)}
        if number is not None:
            values[number] = const(ix.numbers[number]) + LANE // (LINES * count)
            count *= 2
        where = ix.flat(source.buffer, tuple(substitute(i, values) for i in source.index))
        if where.offset % row or any(c % row for c, _ in where.uniform.terms):
            return False
        to, at = self._registers(Load(s.buffer, s.index)), self._x.memory.pointer(source.buffer, where)
        self._w.load_matrices(count, to, at, transposed=not plain)
        self._x.memory.written(s.buffer.name)
        return True

    def _contiguous(self, source: Load, lines: tuple[Expr, ...], loops: Sequence[For]) -> int | None:
        """Return 0 if a matrix's elements are neighbours in memory along its rows' numbers, 1 along its
        columns'; None if they are along neither."""
        ix = self._x.ix
        numbers: dict[Var, Expr] = {v: const(n) for v, n in ix.numbers.items()}
        ranges: dict[Var, Range] = {**ix.ranges, **{p.var: (const(0), p.extent - 1) for p in loops}}
        flat = simplify(substitute(row_major(source.index, source.buffer.shape), numbers), ranges)
        for n, line in enumerate(lines):
            parts = linear(flat, line) if isinstance(line, Var) else None
            if parts is not None and parts[0] == const(1):
                return n
        return None


def _accesses(s: Stmt) -> list[Load]:
    """Return all accesses of a statement, stores too."""
    inside = [*statements(s)]
    accesses = [n for k in inside for e in expressions(k) for n in loads(e)]
    return accesses + [Load(k.buffer, k.index) for k in inside if isinstance(k, Store)]


def _lines(s: Stmt, held: Mapping[str, Buffer]) -> list[tuple[Expr, Expr]]:
    """Return the rows and columns of the matrices that a statement accesses."""
    return [(n.index[-2], n.index[-1]) for n in _accesses(s) if n.buffer.name in held]


def _factors(s: Store) -> tuple[Load, Load] | None:
    """Return the factors of a product that a statement adds to the element that it stores; None for any other
    statement."""
    value, at = s.value, Load(s.buffer, s.index)
    if not isinstance(value, Binary) or value.op != "add" or at not in (value.a, value.b):
        return None
    term = value.b if value.a is at else value.a
    if isinstance(term, Call) and term.product is not None:
        factors = term.args
    elif isinstance(term, Binary) and term.op == "mul":
        factors = tuple(f.a if isinstance(f, Cast) else f for f in (term.a, term.b))
    else:
        return None
    left, right = factors
    return (left, right) if isinstance(left, Load) and isinstance(right, Load) else None


def _row(target: Target, total: Load, left: Load, right: Load) -> Row | None:
    """Return the row that multiplies these matrices, or None if the target has none."""

    def shape(access: Load) -> tuple[DType, tuple[Expr, ...]]:
        return access.buffer.dtype, access.buffer.shape[-2:]

    for row in target.fragment_rows:
        p = row.product
        assert p is not None
        rows, columns, terms = map(const, (p.rows, p.columns, p.words))
        types = (p.word, p.word) if p.of_bytes else (p.left, p.right)
        wanted = (types[0], (rows, terms)), (types[1], (terms, columns)), (p.total, (rows, columns))
        if (shape(left), shape(right), shape(total)) == wanted:
            return row
    return None


def _maps(func: Func, target: Target) -> Mapping[str, Fragment]:
    """Return the map of each tile buffer whose matrices the target multiplies."""
    maps = dict[str, Fragment]()
    for s in statements(func.body):
        factors = _factors(s) if isinstance(s, Store) and s.buffer.memory == "tile" else None
        if factors is None or not isinstance(s, Store):
            continue
        row = _row(target, Load(s.buffer, s.index), *factors)
        if row is not None:
            names = (*(f.buffer.name for f in factors), s.buffer.name)
            maps |= zip(names, row.fragments, strict=True)
    return maps
