"""Solutions of triangular systems with many right sides: a panel of right sides after the other.

A panel has the right sides of some vectors side by side, so that each step is one for all of them. Unknowns
are found a few at a time. The known ones' part is summed in registers, and the small triangle that is left is
solved there. Callers split large triangles (see `blocked`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jangin.blas.dense import ceil
from jangin.blas.elements import Elements, Panel, tile_of
from jangin.blas.kernel import Kernel
from jangin.ir.expr import Buffer, Expr, Load, Var, const, minimum, ne, select
from jangin.ir.loop import Alloc, For, If, Let, Stmt, Store, block
from jangin.ops.values import Tensor


def trsm(k: Kernel) -> Tensor:
    """b := the solution y of op(a) y = alpha b, or of y op(a) = alpha b."""
    return _Solution(k).result()


class _Solution:
    """The nest. `lines` right sides are columns of b from the left, and rows of b from the right.

    From the right, the system is transposed: op(a)' y' = alpha b'. `lower` is whether it is solved from the
    first unknown on."""

    def __init__(self, k: Kernel) -> None:
        self.k, self.dtype = k, k.dtype
        right, turned = k.is_set("side"), k.is_set("transa")
        self.order, self.lines = k.order, k.size("m" if right else "n")
        self.tile = tile_of(k.machine, k.dtype.bytes)
        self.lower = k.is_set("uplo") ^ turned ^ right
        a = Buffer("x1", k.dtype, k["a"].shape)
        self.a = Elements(a, self.order, turned ^ right, "triangular", self.lower, k.is_set("diag"))
        self.out = Buffer("out", k.dtype, k.result("b"))
        self.b = Elements(self.out, self.lines, not right)
        width = self.tile.rows
        panel = Buffer("panel", k.dtype, (self.order, const(width)), "scratch")
        self.panel = Panel(panel, width, self.tile.lanes)
        self.alpha, self.lane, self.line = Load(Buffer("x0", k.dtype, ()), ()), Var("lane"), Var("line")

    def result(self) -> Tensor:
        task, turn, blocks, first = Var("task"), Var("turn"), Var("blocks"), Var("first")
        place = turn if self.lower else blocks - 1 - turn
        solved = For(turn, blocks, Let(first, place * self.tile.columns, self._block(first)))
        zero, term, row = const(0, self.dtype), Var("zt"), Var("zr")
        store = Store(self.panel.buffer, (term, row), zero)
        zeros = For(term, self.order, For(row, const(self.panel.rows), store, "vector"))
        # With a factor of 0, no element of either operand counts, even if it is NaN.
        chosen = If(ne(self.alpha, zero), block(self._taken(), solved), zeros)
        whole = Let(blocks, ceil(self.order, self.tile.columns), block(chosen, self._put()))
        body = Let(self.line, task * self.panel.rows, Alloc(self.panel.buffer, whole))
        return self.k.nest("alpha a", For(task, ceil(self.lines, self.panel.rows), body, "parallel"), "b")

    def _taken(self) -> Stmt:
        return self.b.copied(self.panel, lambda row, term: (term, row), self.line, const(0), self.order)

    def _put(self) -> Stmt:
        """Return the copy of the panel to the result."""
        row, term = Var("pr"), Var("pt")
        rows, all_rows = minimum(const(self.panel.rows), self.lines - self.line), const(self.panel.rows)
        store = Store(
            self.out,
            Elements.place(self.line + row, term, self.b.turned),
            Load(self.panel.buffer, (term, row)),
        )
        few = For(term, self.order, For(row, rows, store))
        if not self.b.turned:
            vectors = For(term, self.order, For(row, all_rows, store, "vector"))
            return If(self.line + self.panel.rows <= self.lines, vectors, few)
        return If(self.line + self.panel.rows <= self.lines, self._turned_back(), few)

    def _turned_back(self) -> Stmt:
        """Return the copy of a panel whose rows lie along the terms, by squares."""
        size, turn, rest, row = self.panel.square, Var("pk"), Var("pe"), Var("pr")
        square, lane = Buffer("back", self.dtype, (const(size), const(size)), "register"), Var("cl")
        term = turn * size
        squares: list[Stmt] = []
        for start in range(0, self.panel.rows, size):
            loads = [
                Store(square, (const(t), lane), Load(self.panel.buffer, (term + t, start + lane)))
                for t in range(size)
            ]
            stores = [
                Store(self.out, (self.line + start + r, term + lane), Load(square, (lane, const(r))))
                for r in range(size)
            ]
            copies = (For(lane, const(size), s, "vector") for s in (*loads, *stores))
            squares.append(Alloc(square, block(*copies)))
        last = self.order // size * size + rest
        single = Store(self.out, (self.line + row, last), Load(self.panel.buffer, (last, row)))
        return block(
            For(turn, self.order // size, block(*squares)),
            For(rest, self.order % size, For(row, const(self.panel.rows), single)),
        )

    # --- a few unknowns

    def _block(self, first: Expr) -> Stmt:
        """Return the solution for the unknowns from `first` on."""
        tile, term = self.tile, Var("term")
        sums = Buffer(
            "sums", self.dtype, (*map(const, (tile.columns, tile.vectors, tile.lanes)),), "register"
        )
        start, count = self._known(first)

        def begun(r: int, v: int) -> Stmt:
            value = self.alpha * Load(self.panel.buffer, self._place(first + r, v))
            return Store(sums, self._cell(r, v), select(first + r < self.order, value, const(0, self.dtype)))

        def less(r: int, v: int) -> Stmt:
            known = Load(self.panel.buffer, self._place(start + term, v))
            element = self.a.at(minimum(first + r, self.order - 1), start + term)
            return Store(sums, self._cell(r, v), Load(sums, self._cell(r, v)) + -element * known)

        rows = range(tile.columns)
        return Alloc(
            sums,
            block(
                self._each(rows, begun),
                For(term, count, self._each(rows, less)),
                *(self._row(sums, first, r) for r in (rows if self.lower else reversed(rows))),
            ),
        )

    def _known(self, first: Expr) -> tuple[Expr, Expr]:
        """Return the first of the unknowns that are known already, and their number."""
        if self.lower:
            return const(0), first
        start = minimum(first + self.tile.columns, self.order)
        return start, self.order - start

    def _row(self, sums: Buffer, first: Expr, r: int) -> Stmt:
        """Return the solution for one unknown, and its part in those that are left."""
        one, last = const(1, self.dtype), self.order - 1
        inverse, inside = Var("inverse", self.dtype), first + r < self.order

        def scale(_: int, v: int) -> Stmt:
            return Store(sums, self._cell(r, v), Load(sums, self._cell(r, v)) * inverse)

        def stored(_: int, v: int) -> Stmt:
            return Store(self.panel.buffer, self._place(first + r, v), Load(sums, self._cell(r, v)))

        def less(other: int, v: int) -> Stmt:
            element = self.a.at(minimum(first + other, last), minimum(first + r, last))
            product = -element * Load(sums, self._cell(r, v))
            return Store(sums, self._cell(other, v), Load(sums, self._cell(other, v)) + product)

        left = range(r + 1, self.tile.columns) if self.lower else range(r)
        work = [self._each([r], stored), self._each(left, less)]
        if self.k.is_set("diag"):
            return If(inside, block(*work))
        diagonal = self.a.at(minimum(first + r, last), minimum(first + r, last))
        return If(inside, Let(inverse, one / diagonal, block(self._each([r], scale), *work)))

    def _cell(self, r: int, v: int) -> tuple[Expr, ...]:
        return const(r), const(v), self.lane

    def _place(self, row: Expr, v: int) -> tuple[Expr, Expr]:
        return row, v * self.tile.lanes + self.lane

    def _each(self, rows: Iterable[int], statement: Callable[[int, int], Stmt]) -> Stmt:
        cells = [(r, v) for r in rows for v in range(self.tile.vectors)]
        return block(*(For(self.lane, const(self.tile.lanes), statement(r, v), "vector") for r, v in cells))
