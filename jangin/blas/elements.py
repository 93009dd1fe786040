"""Elements of the operands of level 3, and copies of them to panels.

A panel has some rows (or columns) of an operand, term by term: all its rows of the first term, then all of
the second. The micro-kernel of a product reads it from one end to the other. Symmetric and triangular
matrices are read from the triangle that is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jangin.ir.expr import Buffer, Expr, Load, Var, const, eq, minimum, select
from jangin.ir.loop import Alloc, For, If, Stmt, Store, block
from jangin.ir.records import dataclass
from jangin.targets.machine import Machine

Place = Callable[[Expr, Expr], tuple[Expr, ...]]
"""Returns the index in a panel's buffer, from a row of the panel and a term."""
Around = Callable[[Stmt], Stmt]
"""Puts a loop over panels around each part of a copy."""
BESIDE = 3
"""Vectors beside each other in a register tile, if there are enough registers. With 3 by 4 or 3 by 8 sums,
loads take less time than multiply-adds."""
MANY = 32
"""Registers with which a tile has eight columns: 24 sums, three vectors of rows, and a number. AVX-512 and
AArch64 have as many."""


def alone(part: Stmt) -> Stmt:
    """Return a part of a copy of one panel."""
    return part


@dataclass(frozen=True)
class Tile:
    """The sums that a micro-kernel keeps in registers: `vectors` of `lanes` rows, by `columns`."""

    lanes: int
    vectors: int
    columns: int

    @property
    def rows(self) -> int:
        return self.lanes * self.vectors


def tile_of(machine: Machine, size: int) -> Tile:
    """Return the tile for elements of `size` bytes. Its rows are a multiple of its columns."""
    lanes, many = machine.lanes(size), machine.registers >= MANY
    if many and lanes * BESIDE % 8 == 0:
        return Tile(lanes, BESIDE, 8)
    if many or lanes * BESIDE % 4:
        return Tile(lanes, 4 if many else 2, 4)
    return Tile(lanes, BESIDE, 4)


@dataclass(frozen=True)
class Panel:
    """Memory for panels of so many rows, `lanes` of which fill a vector."""

    buffer: Buffer
    rows: int
    lanes: int

    @property
    def square(self) -> int:
        """The side of a square that is copied at once: so many rows, with so many terms each."""
        return 8 if self.rows % 8 == 0 else 4


@dataclass(frozen=True)
class Elements:
    """The elements (row, term) of an operand, of which there are `rows`.

    - `turned`: the terms of a row lie side by side, else the rows of a term.
    - `kind`: "whole", "symmetric" or "triangular".
    - `lower`: of a stored triangle, the rows aren't less than the terms. A symmetric matrix counts as it is
      stored, a triangular one as it is read.
    - `unit`: the diagonal of a triangle is 1.
    """

    buffer: Buffer
    rows: Expr
    turned: bool
    kind: str = "whole"
    lower: bool = False
    unit: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the elements are the stored ones, so that they can be read where they lie."""
        return self.kind == "whole"

    def at(self, row: Expr, term: Expr) -> Expr:
        """Return an element that is stored."""
        return Load(self.buffer, self.place(row, term, self.turned))

    @staticmethod
    def place(row: Expr, term: Expr, turned: bool) -> tuple[Expr, Expr]:
        return (row, term) if turned else (term, row)

    def any(self, row: Expr, term: Expr) -> Expr:
        """Return an element, which may be of the other triangle."""
        if self.kind == "symmetric":
            stored = (Load(self.buffer, self.place(row, term, turned)) for turned in (False, True))
            return select(self._is_inside(row, term), *stored)
        element = self.at(row, term)
        return self._in_triangle(row, term, element) if self.kind == "triangular" else element

    def _is_inside(self, row: Expr, term: Expr) -> Expr:
        return row >= term if self.lower else row <= term

    def _in_triangle(self, row: Expr, term: Expr, element: Expr) -> Expr:
        """Return an element of a triangular operand: a stored one, 0 outside, or 1 on a unit diagonal."""
        zero, one = (const(n, self.buffer.dtype) for n in (0, 1))
        element = select(self._is_inside(row, term), element, zero)
        return select(eq(row, term), one, element) if self.unit else element

    def terms(self, first: Expr, count: int, depth: Expr) -> tuple[Expr, Expr]:
        """Return the first term and the end of the terms that `count` rows have, from row `first` on."""
        if self.kind != "triangular":
            return const(0), depth
        return (const(0), minimum(depth, first + count)) if self.lower else (minimum(first, depth), depth)

    # --- copies

    def copied(
        self, panel: Panel, place: Place, first: Expr, begin: Expr, end: Expr, around: Around = alone
    ) -> Stmt:
        """Return a copy of a panel's rows from row `first` on, and of the terms from `begin` to `end`. Rows
        behind the last one become any numbers. `around` repeats a few terms for other panels."""
        size, turn, rest, row = panel.square, Var("ct"), Var("cr"), Var("ci")
        whole = (end - begin) // size
        term = begin + whole * size + rest
        single = Store(panel.buffer, place(row, term), self.any(self._within(first + row), term))
        return block(
            For(turn, whole, around(self._square(panel, place, first, begin + turn * size))),
            For(rest, (end - begin) % size, around(For(row, const(panel.rows), single))),
        )

    def _within(self, row: Expr) -> Expr:
        return minimum(row, self.rows - 1)

    def _square(self, panel: Panel, place: Place, first: Expr, start: Expr) -> Stmt:
        """Return a copy of a few terms. If the diagonal crosses them in a symmetric operand, it is made of
        squares, of which one or two are copied element by element."""
        if self.kind == "whole":
            return self._straight(self.turned, panel, place, first, start)
        part, size = Var("bp"), panel.square
        if self.kind == "triangular":
            is_whole = start + size <= first if self.lower else start >= first + panel.rows
            whole = self._straight(self.turned, panel, place, first, start)
            return If(is_whole, whole, self._straight(self.turned, panel, place, first, start, True))
        row = part * size

        def within(own: Expr, term: Expr) -> tuple[Expr, ...]:
            return place(row + own, term)

        crossed = self._beside(Panel(panel.buffer, size, size), within, first + row, start)
        crossing: Stmt = For(part, const(panel.rows // size), crossed)
        return self._beside(panel, place, first, start, crossing)

    def _beside(
        self, panel: Panel, place: Place, first: Expr, start: Expr, crossing: Stmt | None = None
    ) -> Stmt:
        """Return a copy of a few terms of a symmetric operand by vectors if they lie on one side of the
        diagonal, else `crossing`. By default that goes element by element."""
        turn, row, size = Var("bt"), Var("bi"), panel.square
        before, behind = start + size <= first, start >= first + panel.rows
        if crossing is None:
            element = self.any(self._within(first + row), start + turn)
            store = Store(panel.buffer, place(row, start + turn), element)
            crossing = For(turn, const(size), For(row, const(panel.rows), store))
        as_stored, across = (
            self._straight(turned, panel, place, first, start) for turned in (not self.lower, self.lower)
        )
        return If(before, as_stored, If(behind, across, crossing))

    def _straight(
        self, turned: bool, panel: Panel, place: Place, first: Expr, start: Expr, is_crossed: bool = False
    ) -> Stmt:
        """Return a copy of a few terms by vectors. `is_crossed` is whether a triangle's diagonal may cross
        them."""
        if turned:
            return block(*self._transposed(panel, place, first, start, is_crossed))

        def lines(begin: int, rows: int, is_last: bool = False) -> Stmt:
            return self._lines(panel, place, first, start, begin, rows, is_last, is_crossed)

        lanes, parts = panel.lanes, []
        for begin in range(0, panel.rows, lanes):
            last = If(first + begin < self.rows, lines(begin, lanes, is_last=True))
            is_whole = first + begin + lanes <= self.rows
            parts.append(last if lanes == panel.rows else If(is_whole, lines(begin, lanes), last))
        return If(first + panel.rows <= self.rows, lines(0, panel.rows), block(*parts))

    def _lines(
        self,
        panel: Panel,
        place: Place,
        first: Expr,
        start: Expr,
        begin: int,
        rows: int,
        is_last: bool,
        is_crossed: bool,
    ) -> Stmt:
        """Return a copy of some rows of a panel from row `begin` on, for a few terms. Rows that are the last
        ones of the operand are copied by masks."""
        lane, copies = Var("cl"), []
        row = begin + lane
        for t in range(panel.square):
            element: Expr = Load(self.buffer, (start + t, first + row))
            if is_crossed:
                element = self._in_triangle(first + row, start + t, element)
            copy: Stmt = Store(panel.buffer, place(row, start + t), element)
            copy = If(first + row < self.rows, copy) if is_last else copy
            copies.append(For(lane, const(rows), copy, "vector"))
        return block(*copies)

    def _transposed(
        self, panel: Panel, place: Place, first: Expr, start: Expr, is_crossed: bool
    ) -> Iterator[Stmt]:
        """Yield copies of squares of elements, which are transposed in registers."""
        lane, size = Var("cl"), panel.square
        square = Buffer("square", self.buffer.dtype, (const(size), const(size)), "register")
        for row in range(0, panel.rows, size):
            loads = [
                Store(
                    square, (const(r), lane), Load(self.buffer, (self._within(first + row + r), start + lane))
                )
                for r in range(size)
            ]
            stores = []
            for t in range(size):
                element: Expr = Load(square, (lane, const(t)))
                if is_crossed:
                    element = self._in_triangle(first + row + lane, start + t, element)
                stores.append(Store(panel.buffer, place(row + lane, start + t), element))
            yield Alloc(square, block(*(For(lane, const(size), s, "vector") for s in (*loads, *stores))))
