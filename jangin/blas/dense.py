"""Products of matrices by panels and register tiles: the kernel of level 3.

A task has some rows and columns of the result. It copies its rows to panels, block by block of the terms, and
multiplies them with one panel of columns after the other. A block of a task's rows stays in the L2 cache. A
panel of columns stays in the L1 cache (as in Goto and van de Geijn, "Anatomy of high-performance matrix
multiplication", 2008). Columns whose terms lie side by side are read where they are.

The sums of a tile are kept in registers. A tile's right operand is one element for all lanes of a vector,
which the multiply-add reads from memory.
"""

from __future__ import annotations

from jangin.blas.elements import Around, Elements, Panel, alone, tile_of
from jangin.blas.kernel import Kernel
from jangin.ir.dtype import BOOL
from jangin.ir.expr import Buffer, Expr, Load, Var, const, eq, land, maximum, minimum, select
from jangin.ir.loop import Alloc, For, If, Let, Prefetch, Stmt, Store, block
from jangin.ir.records import dataclass
from jangin.ops.values import Tensor

TERMS = 256
"""Terms of a block. A panel of eight columns then takes half of a small L1 cache."""
PANELS = 10
"""Panels of rows of a task. A block of them takes half of a small L2 cache."""
WIDEST, ACROSS, FEW_ACROSS = 128, 64, 16
"""The most panels of columns of one thread's task, of a task for several threads, and of a task of a product
with few rows. Each task copies its rows, so that wide tasks copy less. A product with few rows has few tasks
by rows, so threads share its columns in smaller parts."""
MANY_TASKS = 4
"""The number of a thread's tasks from which on they are as wide as those of one thread. Copies of rows that
come from memory are then halved: products of the order 2048 take 0.95 of the time."""
FINER = 2
"""Tasks of a triangle have a part of these columns, because some of them have little work."""
ABREAST = 8
"""Panels of columns that are copied at once. Columns of a term lie side by side, and the next term's lie in
another page. Copied one by one, panels take a sixth of the time of `dsyrk`."""
FEW_TASKS = 4
"""The number of tasks by rows below which columns are shared by more tasks."""
LEAST_ACROSS = 2
"""The least panels of columns of a task that is made for another thread. Each task copies its rows again."""
FEW_BYTES = 80 << 10
"""The most bytes of a matrix whose panels are read where they lie. With the other operands it stays near the
processor, and copying it would take a tenth of a product of the order 64."""
WORTH = 20_000
"""Multiply-adds of vectors that are worth another thread, about 2.5 us. Waking a thread that still spins
takes about a microsecond."""


def ceil(a: Expr, b: Expr | int) -> Expr:
    return (a + b - 1) // b


@dataclass(frozen=True)
class Pair:
    """The operands of one product: rows, and columns."""

    rows: Elements
    columns: Elements

    @property
    def in_place(self) -> bool:
        """Whether the columns are read where they lie."""
        return self.columns.is_plain and self.columns.turned

    @property
    def rows_in_place(self) -> bool:
        """Whether small matrices of rows are read where they lie."""
        return self.in_place and self.rows.is_plain and not self.rows.turned

    @property
    def triangular(self) -> bool:
        return "triangular" in (self.rows.kind, self.columns.kind)


@dataclass(frozen=True)
class Block:
    """A block of the terms of one product, in a task. `begin` and `end` are the terms. `row` and `column` are
    the task's first panels. `factor` is alpha, and `keeps` is the factor of what the result has so far.
    `first` is whether no block came before. `direct` is whether the rows are read where they lie."""

    pair: Pair
    begin: Expr
    end: Expr
    row: Expr
    column: Expr
    factor: Expr
    keeps: Expr
    first: Expr
    direct: Expr


class Product:
    """The nest of out := alpha * (sum of products) + beta * out, for a result of `shape` and sums of `depth`
    terms.

    `names` are the kernel's operands in order. Without "beta" among them, `out` isn't read. `triangle` is "L"
    or "U" if only this triangle of the result is written."""

    def __init__(
        self, k: Kernel, names: str, shape: tuple[Expr, Expr], depth: Expr, triangle: str = ""
    ) -> None:
        self.k, self.names, self.dtype = k, names, k.dtype
        (self.m, self.n), self.depth = shape, depth
        self.tile = tile_of(k.machine, k.dtype.bytes)
        self.triangle, self.last = triangle, Var("last_row")
        (written,) = k.routine.written
        self.out = Buffer("out", k.dtype, k.result(written))
        self.copied = Panel(
            Buffer("rows", k.dtype, (const(PANELS), const(TERMS), const(self.tile.rows)), "scratch"),
            self.tile.rows,
            self.tile.lanes,
        )
        self.columns = Panel(
            Buffer("columns", k.dtype, (const(ABREAST), const(TERMS), const(self.tile.columns)), "scratch"),
            self.tile.columns,
            self.tile.columns,
        )

    def operand(
        self, name: str, rows: Expr, turned: bool, kind: str = "whole", lower: bool = False
    ) -> Elements:
        """Return the elements of an operand (see `Elements`)."""
        place = self.names.split().index(name)
        buffer = Buffer(f"x{place}", self.dtype, self.k[name].shape)
        unit = kind == "triangular" and self.k.is_set("diag")
        return Elements(buffer, rows, turned, kind, lower, unit)

    def result(self, *pairs: Pair) -> Tensor:
        """Return the sum of products."""
        return self.k.nest(self.names, self.loops(*pairs), self.k.routine.written[0])

    def loops(self, *pairs: Pair) -> For:
        """Return the loop over the tasks of a sum of products."""
        tile, task, down = self.tile, Var("task"), self.down
        across = ceil(self.n, tile.columns)
        tasks_down, tasks_across = self._tasks(across)
        own_down, own_across = Var("own_down"), Var("own_across")
        row, column = Var("row"), Var("column")
        rows = minimum(minimum(own_down, down - row), const(PANELS))
        columns = minimum(minimum(own_across, across - column), const(self._widest))
        work = block(*(self._blocks(pair, row, rows, column, columns, not n) for n, pair in enumerate(pairs)))
        body = Let(row, task % tasks_down * own_down, Let(column, task // tasks_down * own_across, work))
        body = Let(own_across, ceil(across, maximum(tasks_across, const(1))), body)
        body = Let(own_down, ceil(down, maximum(tasks_down, const(1))), self._with_last(body))
        return For(task, tasks_down * tasks_across, body, "parallel")

    @property
    def _widest(self) -> int:
        """The most panels of columns of a task."""
        return ACROSS // FINER if self.triangle and self.k.threads > 1 else WIDEST

    def _tasks(self, across: Expr) -> tuple[Expr, Expr]:
        """Return the number of tasks by rows, and by columns, of which there are `across` panels."""
        down, widest, threads = ceil(self.down, PANELS), const(self._widest), self.k.threads
        if threads == 1:
            return down, ceil(across, widest)
        some_down, finer = maximum(down, const(1)), FINER if self.triangle else 1
        are_many = down * ceil(across, widest) >= MANY_TASKS * threads
        most = select(are_many, widest, minimum(widest, const(ACROSS)))
        pieces = ceil(const(FEW_TASKS), some_down) * (threads * finer)
        few = minimum(maximum(ceil(across, pieces), const(FEW_ACROSS // finer)), most)
        tasks = ceil(across, select(down < FEW_TASKS, few, most))
        tasks = maximum(tasks, ceil(self._parts(across), some_down))
        even = minimum(ceil(tasks * down, threads) * threads // some_down, across)
        return down, select(tasks * down > threads, maximum(tasks, even), tasks)

    @property
    def down(self) -> Expr:
        """The number of panels of rows."""
        return ceil(self.m, self.tile.rows)

    def _with_last(self, body: Stmt) -> Stmt:
        """Return a body with the first row of the last panel.

        A panel of one vector takes another one from the panel before: the sums of one vector are too few
        for the processor's multipliers."""
        lanes, most = self.tile.lanes, self.tile.vectors
        vectors, last = ceil(self.m, lanes), (self.down - 1) * self.tile.rows
        if most > 2:
            is_alone = land(eq(vectors % most, const(1)), vectors > 1)
            last = last - select(is_alone, const(lanes), const(0))
        return Let(self.last, last, body)

    def start(self, number: Expr) -> Expr:
        """Return the first row of a panel, which is the end of the panel before."""
        return select(number < self.down, minimum(number * self.tile.rows, self.last), self.m)

    def _parts(self, across: Expr) -> Expr:
        """Return the number of tasks that the threads need, which is fewer in a small product."""
        work = self.m * self.n * self.depth // (self.tile.lanes * WORTH)
        return minimum(minimum(const(self.k.threads), across // LEAST_ACROSS), work)

    def _scalar(self, name: str) -> Expr:
        if name not in self.names.split():
            return const(0, self.dtype)
        return Load(Buffer(f"x{self.names.split().index(name)}", self.dtype, ()), ())

    # --- a task

    def _blocks(self, pair: Pair, row: Expr, rows: Expr, column: Expr, columns: Expr, is_first: bool) -> Stmt:
        """Return a task's loops over blocks of terms, its panels of columns and its panels of rows."""
        tile, turn, p, q, group = self.tile, Var("turn"), Var("p"), Var("q"), Var("group")
        size, depth, blocks = Var("size"), Var("depth"), Var("blocks")
        begin, end = Var("begin"), Var("end")
        factor, keeps = Var("factor", self.dtype), Var("keeps", self.dtype)
        one, zero = const(1, self.dtype), const(0, self.dtype)
        first = eq(turn, 0) if is_first else eq(turn, -1)
        direct = Var("direct", BOOL)
        b = Block(pair, begin, end, row, column, factor, keeps, first, direct)
        copies = self._copies(b, p, rows)
        if pair.rows_in_place:
            copies = If(direct, block(), copies)
        tiles: Stmt = For(p, rows, self._tile(b, p, q))
        first_row, first_column = self.start(row), column * tile.columns
        above, panel = self.start(row + rows), first_column + q * tile.columns
        tiles = self._reached(first_row, above, panel, panel + tile.columns, tiles)
        if pair.in_place:
            work: Stmt = block(copies, For(q, columns, tiles))
        else:
            begun, few = group * ABREAST, minimum(columns - group * ABREAST, const(ABREAST))
            beside, panel = Var("beside"), first_column + begun * tile.columns
            each = For(beside, few, Let(q, begun + beside, tiles))
            both: Stmt = Alloc(self.columns.buffer, block(self._copied_columns(b, begun, few), each))
            both = self._reached(first_row, above, panel, panel + few * tile.columns, both)
            work = block(copies, For(group, ceil(columns, ABREAST), both))
        work = Let(keeps, select(first, self._scalar("beta"), one) if is_first else one, work)
        work = Let(begin, turn * size, Let(end, minimum(turn * size + size, depth), work))
        loop: Stmt = For(turn, blocks, work)
        loop = Let(blocks, maximum(ceil(depth, TERMS), const(1)), Let(size, ceil(depth, blocks), loop))
        loop = Let(depth, select(eq(factor, zero), const(0), self.depth), loop)
        beyond = first_column + columns * tile.columns
        loop = self._reached(first_row, above, first_column, beyond, loop)
        if pair.rows_in_place:
            loop = Let(direct, self._is_small(pair.rows), loop)
        return Alloc(self.copied.buffer, Let(factor, self._scalar("alpha"), loop))

    def _is_small(self, rows: Elements) -> Expr:
        """Return whether a matrix of rows has few bytes, no gaps, and no part of a vector."""
        is_small = self.m * self.depth <= FEW_BYTES // self.dtype.bytes
        is_dense = land(eq(rows.buffer.shape[1], self.m), eq(self.m % self.tile.lanes, const(0)))
        return land(is_small, is_dense)

    def _reached(self, row: Expr, end: Expr, column: Expr, beyond: Expr, work: Stmt) -> Stmt:
        """Return a statement that does the work if the written triangle has an element in these rows and
        columns."""
        if not self.triangle:
            return work
        return If(self.element(end) > column if self.triangle == "L" else self.element(row) < beyond, work)

    def element(self, row: Expr) -> Expr:
        """Return the element of a row of the result, which may be a part of a complex one."""
        return row if self.k.parts == 1 else row // self.k.parts

    def _copies(self, b: Block, p: Var, rows: Expr) -> Stmt:
        """Return the copy of a block of a task's panels of rows."""
        return self._copied_together(b, b.pair.rows, self.copied, p, rows, self.start(b.row + p))

    def _copied_columns(self, b: Block, first: Expr, count: Expr) -> Stmt:
        """Return the copy of a block of a few of a task's panels of columns."""
        n = Var("copied")
        start = (b.column + first + n) * self.tile.columns
        return self._copied_together(b, b.pair.columns, self.columns, n, count, start)

    def _copied_together(
        self, b: Block, of: Elements, panel: Panel, n: Var, count: Expr, first: Expr
    ) -> Stmt:
        """Return the copy of `count` panels, of which the n-th begins at row `first`. All panels take some
        terms before the next ones, so that memory is read in long pieces. A triangle's panels have different
        terms."""
        if of.kind == "triangular":
            return For(n, count, self._copy(of, panel, n, first, b))
        return self._copy(of, panel, n, first, b, lambda part: For(n, count, part))

    def _copy(
        self, of: Elements, panel: Panel, at: Expr, first: Expr, b: Block, around: Around = alone
    ) -> Stmt:
        """Return the copy of a block of the panel whose first row is given."""
        low, high = of.terms(first, panel.rows, b.end)
        start = maximum(b.begin, low)
        return of.copied(
            panel,
            lambda row, term: (at, term - b.begin, row),
            first,
            start,
            maximum(start, minimum(b.end, high)),
            around,
        )

    # --- a tile

    def _tile(self, b: Block, p: Expr, q: Expr) -> Stmt:
        """Return the work of the tile of two panels of the task. A tile at the end has fewer vectors."""
        tile, i, j, end = self.tile, Var("i"), Var("j"), Var("row_end")
        start, stop = Var("start"), Var("stop")

        def all_vectors(is_copied: bool) -> Stmt:
            chosen: Stmt | None = None
            for vectors in range(tile.vectors, 0, -1):
                part = _Sums(self, b, p, q % ABREAST, i, j, start, stop, vectors, is_copied).all()
                chosen = part if chosen is None else If(end - i <= vectors * tile.lanes, part, chosen)
            assert chosen is not None
            return chosen

        chosen = all_vectors(is_copied=True)
        if b.pair.rows_in_place:
            chosen = If(b.direct, all_vectors(is_copied=False), chosen)
        if b.pair.triangular:
            chosen = If(stop > start, chosen, If(b.first, chosen))
        of_rows = b.pair.rows.terms(i, tile.rows, b.end)
        of_columns = b.pair.columns.terms(j, tile.columns, b.end)
        first, last = maximum(of_rows[0], of_columns[0]), minimum(of_rows[1], of_columns[1])
        chosen = Let(start, maximum(b.begin, first), Let(stop, minimum(b.end, last), chosen))
        chosen = self._reached(i, i + tile.rows, j, j + tile.columns, chosen)
        chosen = Let(end, self.start(b.row + p + 1), Let(j, (b.column + q) * tile.columns, chosen))
        return Let(i, self.start(b.row + p), chosen)


class _Sums:
    """The sums of a tile of `vectors` vectors of rows from row `i` on, and its columns from column `j` on."""

    def __init__(
        self,
        product: Product,
        b: Block,
        panel: Expr,
        place: Expr,
        i: Expr,
        j: Expr,
        start: Expr,
        stop: Expr,
        vectors: int,
        is_copied: bool,
    ) -> None:
        self.of, self.block, self.tile = product, b, product.tile
        self.panel, self.place = panel, place
        self.i, self.j, self.start, self.stop = i, j, start, stop
        self.is_copied = is_copied
        self.vectors, self.c, self.v, self.lane = vectors, Var("c"), Var("v"), Var("lane")
        self.cell = self.c, self.v, self.lane
        self.column, self.row = j + self.c, i + self.v * self.tile.lanes + self.lane
        shape = const(self.tile.columns), const(vectors), const(self.tile.lanes)
        self.sums = Buffer("sums", product.dtype, shape, "register")

    def all(self) -> Stmt:
        """Return the statements: sums of 0, the loop over the terms, and the result's update."""
        term, zero = Var("term"), const(0, self.of.dtype)
        cleared = self._each(Store(self.sums, self.cell, zero))
        line = Prefetch(self.of.out, (self.column, self.i + self.v * self.tile.lanes))
        lines = For(self.v, const(self.vectors), line, "unroll")
        ahead = For(self.c, const(self.tile.columns), lines, "unroll")
        count = minimum(self.stop - self.start, const(TERMS))
        loop = For(term, count, self._each(self._added(self.start + term)))
        return Alloc(self.sums, block(cleared, ahead, loop, self._written()))

    def _vectors(self, statement: Stmt) -> Stmt:
        """Return a statement for each vector of a column."""
        lanes = For(self.lane, const(self.tile.lanes), statement, "vector")
        return For(self.v, const(self.vectors), lanes, "unroll")

    def _each(self, statement: Stmt) -> Stmt:
        """Return a statement for each vector, a column after the other. LLVM then keeps a panel's vectors and
        one element in registers, and not the elements of all columns."""
        return For(self.c, const(self.tile.columns), self._vectors(statement), "unroll")

    def _added(self, term: Expr) -> Stmt:
        place = self.panel, term - self.block.begin, self.v * self.tile.lanes + self.lane
        row = (
            Load(self.of.copied.buffer, place) if self.is_copied else self.block.pair.rows.at(self.row, term)
        )
        product = row * self._column(term)
        return Store(self.sums, self.cell, Load(self.sums, self.cell) + product)

    def _column(self, term: Expr) -> Expr:
        if self.block.pair.in_place:
            return self.block.pair.columns.at(minimum(self.column, self.of.n - 1), term)
        return Load(self.of.columns.buffer, (self.place, term - self.block.begin, self.c))

    def _written(self) -> Stmt:
        """Return the update of the result, with conditions only for a tile at its edge."""
        lanes, triangle = self.vectors * self.tile.lanes, self.of.triangle
        whole = land(self.i + lanes <= self.of.m, self.j + self.tile.columns <= self.of.n)
        if triangle == "L":
            whole = land(whole, self.of.element(self.i) >= self.j + self.tile.columns - 1)
        elif triangle:
            whole = land(whole, self.of.element(self.i + lanes - 1) <= self.j)
        nothing = eq(self.block.keeps, const(0, self.of.dtype))
        new, updated = self._each(self._stored(False)), self._each(self._stored(True))
        inside = self.row < self.of.m
        if triangle:
            row = self.of.element(self.row)
            inside = land(inside, row >= self.column if triangle == "L" else row <= self.column)
        masked = self._vectors(If(inside, If(nothing, self._stored(False), self._stored(True))))
        edge = For(self.c, const(self.tile.columns), If(self.column < self.of.n, masked), "unroll")
        return If(whole, If(nothing, new, updated), edge)

    def _stored(self, kept: bool) -> Stmt:
        value = self.block.factor * Load(self.sums, self.cell)
        if kept:
            value = value + self.block.keeps * Load(self.of.out, (self.column, self.row))
        return Store(self.of.out, (self.column, self.row), value)
