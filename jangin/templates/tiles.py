"""Products in matrix registers (AMX; see `contraction`): the tiles, their estimates and their schedule.

A matrix register has up to 16 rows of 16 words. So a tile of sums has `mr / matrix_rows` by `nv` registers.
Each iteration of the sum's loop takes up to 16 words of the rows and of the panel. Registers are loaded from
the rows in place if a matrix's rows are pixels of one image row. If not, a task packs its rows.

Sums pass through memory to be written back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jangin.ir.expr import Const, Expr, Var, const, product_of
from jangin.ir.products import Product
from jangin.ir.simplify import linear, simplify
from jangin.ir.traversal import children, row_major
from jangin.schedule.primitives import loop_names
from jangin.templates.cost import LOOP
from jangin.templates.micro import Micro, fuse_terms
from jangin.templates.register_tile import at_once, written_wide
from jangin.templates.scheduled import Params, Recorder

if TYPE_CHECKING:
    from jangin.templates.contraction import Contraction
    from jangin.templates.tiling import Tiler

LOADED, STORED, LATENCY = 0.5, 1, 52
"""Cycles to load and to store a row of a matrix, and from the start of a multiplication to its sums. An
instruction multiplies one row a cycle (Intel's optimization reference manual, on Sapphire Rapids)."""
WAITED = 0.5
"""Share of the loads' time in which nothing is multiplied, because loads wait until their registers were
read. On a Sapphire Rapids processor, four products and four loads took 82 cycles."""
CROSSING = 3
"""Cycles to load a row that lies in two cache lines, measured on a Sapphire Rapids processor."""
CONFIGURED = 210
"""Cycles to acquire and to release the matrix registers, measured on a Sapphire Rapids processor."""
QUICKER = 8
"""Multiply-adds of words that matrix registers make in the time of one by vectors. An instruction of AMX
makes 4,096 in 16 cycles, and two vector units make 32 a cycle."""
LINE = 64
"""Bytes of a cache line on all processors with matrix registers."""
MOST = 4
"""Most tiles for which candidates are made, the quickest by estimate. Tuning compiles and times each
candidate."""
COPIED = 0.125
"""Cycles to pack a word of the rows: a vector of 16 words takes two cycles, a load and a store."""
ROWS = "mio", "mii"
"""The loop over a tile's registers downwards, and the loop over the rows of each register."""
SHAPES = (2, 2), (1, 3), (3, 1), (1, 2), (2, 1), (1, 1)
"""Registers of sums, down and across, those with the fewest loads first. Each part of the rows and of the
panel takes one register more, and there are 8 in all."""


class MatrixRegisters(Micro):
    """The micro-kernel for matrix registers.

    A tile's parameters are:

    - `matrix_rows`: rows of each register of sums.
    - `unroll`: words in an iteration of the sum's loop.
    - `rows_packed`: a task packs its rows.
    """

    copied, begun, quicker = COPIED, CONFIGURED, QUICKER

    def candidates(self, product: Contraction) -> list[Params]:
        """Return the tiles to try, the quickest first. They lack the parameters of tasks.

        The list is empty if the target has no matrix registers, or doesn't multiply the product's words in
        them.
        """
        words = product_of(self.stage.body)
        row = self.workload.target.matrix_row(words) if words else None
        if row is None or row.product is None:
            return []
        across = row.product.columns

        def cycles(tile: Params) -> float:
            count = math.ceil(product.rows / tile["mr"]) * math.ceil(product.columns / (across * tile["nv"]))
            copied = COPIED * product.rows * product.depth if "rows_packed" in tile else 0
            return count * self.cycles(product, tile) + copied

        return sorted(_tiles(product, row.product), key=cycles)[:MOST]

    def cycles(self, product: Contraction, params: Params) -> float:
        """Return the cycles of a tile: its multiplications and loads, its bias, and the stores and loads of
        its sums."""
        rows, words, across = params["matrix_rows"], params["unroll"], params["nv"]
        down = params["mr"] // rows
        crossing = 0.0 if "rows_packed" in params else CROSSING * rows * _crossing(product, 4 * words)
        loads = LOADED * (down * rows + across * words) + down * crossing
        step = down * across * rows + WAITED * loads
        ends = down * across * rows * (LOADED + STORED + LOADED + 1)
        return product.depth / words * step + product.depth / product.inner * LOOP + ends + LATENCY

    def long_loop(self, params: Params) -> float:
        return 1.0

    def row_loops(self, params: Params) -> list[str]:
        return [*ROWS]

    def rows_cut(self, params: Params) -> int:
        return params["matrix_rows"]

    def multiply(self, tiler: Tiler, tile: list[str], column: str, k: list[str]) -> None:
        """Schedule the tile's multiplication in matrix registers.

        The loop `mio` and the loop over the panel's vectors go over matrices. The loop `mii` and the loop
        over a vector's columns are inside one matrix.
        """
        rec, role, params, stage = tiler.s, self.role, tiler.params, self.stage
        do, acc, (down, rows) = rec.do, tiler.acc, ROWS
        across, columns = f"{column}oi", f"{column}i"
        if params.get("rows_packed"):
            do("pack", f"{column}ooo", role.left.buffer.name, ["moi", down, rows, *k], "rows")
            _in_whole_vectors(rec, f"rows_{k[-1]}", self.processor.lanes(role.left.buffer.dtype.bytes))
            fuse_terms(tiler, k)
        do("split", k[-1], params["unroll"])
        turn, terms = f"{k[-1]}o", f"{k[-1]}i"
        do("reorder", [down, across, rows, terms, columns])
        left = "rows" if params.get("rows_packed") else role.left.buffer.name
        do("pack", turn, left, [down, rows, terms], "left", "tile")
        do("pack", turn, role.right.buffer.name, [across, terms, columns], "right", "tile")
        do("place", acc, "tile")
        do("reorder", [f"{n}_w" for n in (down, rows, across, columns)])
        do("pack", f"{down}_w", acc, [f"{n}_w" for n in (rows, across, columns)], "sums")
        do("reorder", [f"sums_{n}_w" for n in (across, rows, columns)])
        alike = (
            f"left_{down}",
            f"right_{across}",
            f"{down}_z",
            f"{across}_z",
            down,
            across,
            f"sums_{across}_w",
        )
        for loop in alike:
            do("unroll", loop)
        for loop in (f"left_{terms}", f"right_{columns}", f"{columns}_z", columns, f"sums_{columns}_w"):
            do("vectorize", loop)
        wide = at_once(self.workload, stage) or self.processor.lanes(stage.out.dtype.bytes)
        written_wide(rec, [down], (across, columns), wide)


def _tiles(product: Contraction, matrix: Product) -> Iterator[Params]:
    """Yield the parameters of tiles for `matrix`, the product of whole registers that one instruction makes.
    There are none if the operands don't suit matrix registers."""
    role, body = product.role, product.stage.body
    if not product.packed or role.parts or role.shared or children(body) != (role.left, role.right):
        return
    extents = {a.var.name: a.extent for a in (*product.stage.axes, *product.stage.reduce_axes)}
    if product.rows == 1 or not all(isinstance(extents[k], Const) for k in role.k):
        return
    even, inner = _run(product, role.rows[-1:]), _run(product, role.k[-2:], const(1))
    if inner == 1:
        return
    every = math.prod(int(e.value) for r in role.rows if isinstance(e := extents[r], Const))
    panels, rows, words = math.ceil(product.columns / matrix.columns), product.rows, matrix.words
    for down, across in SHAPES:
        if across > panels or down * matrix.rows >= rows + matrix.rows:
            continue
        as_they_lie = [r for r in range(2, matrix.rows + 1) if even % r == every % (down * r) == 0]
        for each in as_they_lie[-2:]:
            yield _tile(down, across, each, _divisor(inner, words))
        count = math.ceil(rows / (down * matrix.rows))
        each = max(2, math.ceil(rows / (down * count))) if product.known_rows else matrix.rows
        yield {**_tile(down, across, each, _divisor(product.depth, words)), "rows_packed": 1}


def _tile(down: int, across: int, each: int, words: int) -> dict[str, int]:
    return {"mr": down * each, "nv": across, "matrix_rows": each, "unroll": words}


def _divisor(size: int, most: int) -> int:
    """Return the greatest divisor of `size` up to `most`."""
    return next(n for n in range(most, 0, -1) if size % n == 0)


def _run(product: Contraction, axes: Sequence[str], step: Expr | None = None) -> int:
    """Return the number of iterations of the innermost loops of `axes` over which the left operand's address
    grows evenly.

    If `step` is given, the address must grow by `step`. Return 1 if it doesn't grow evenly.
    """
    extents = {a.var.name: a.extent for a in (*product.stage.axes, *product.stage.reduce_axes)}
    left, symbols = product.role.left, dict(product.workload.symbols)
    flat, count = simplify(row_major(left.index, left.buffer.shape), symbols), 1
    for name in reversed(axes):
        parts, extent = linear(flat, Var(name)), extents[name]
        if parts is None or not isinstance(extent, Const) or (step is not None and parts[0] != step * count):
            break
        count *= int(extent.value)
    return count


def _crossing(product: Contraction, size: int) -> float:
    """Return the share of rows of `size` bytes, read in place, that cross the end of a cache line."""
    left = product.role.left
    flat = simplify(row_major(left.index, left.buffer.shape), dict(product.workload.symbols))
    parts = linear(flat, Var(product.role.rows[-1]))
    apart = int(parts[0].value) if parts is not None and isinstance(parts[0], Const) else 1
    places = range(0, LINE, math.gcd(LINE, apart * left.buffer.dtype.bytes))
    return sum(at + size > LINE for at in places) / len(places)


def _in_whole_vectors(rec: Recorder, loop: str, lanes: int) -> None:
    """Copy words by whole vectors and one shorter vector."""
    rec.do("split", loop, lanes, "cut")
    for part in (f"{loop}i", f"{loop}t"):
        if part in loop_names(rec.func):
            rec.do("vectorize", part)
