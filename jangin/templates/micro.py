"""Micro-kernels: a register tile's registers, how its rows are loaded, and how it is written back.

`templates.tiling` has the loops around a micro-kernel, and `templates.tiles` the one for matrix registers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jangin.ir import te
from jangin.ir.dtype import I32
from jangin.ir.expr import product_of
from jangin.ir.products import DOT4
from jangin.ir.words import HALVES
from jangin.schedule.primitives import loop_names
from jangin.targets.target import Target
from jangin.templates.cost import (
    LOOP,
    LOOP_INSTRUCTIONS,
    MOST_LOADED,
    tile_step,
    vector_loads,
)
from jangin.templates.register_tile import (
    at_once,
    in_registers,
    load_terms,
    terms_at_once,
    unroll_sum,
)
from jangin.templates.roles import Roles, by_lane
from jangin.templates.scheduled import Params
from jangin.templates.template import Workload

if TYPE_CHECKING:
    from jangin.templates.contraction import Contraction
    from jangin.templates.tiling import Tiler

MAX_ROWS = 8
"""Most rows of a register tile. Each row's address takes one of 15 general registers."""
MAX_PACKED_ROWS = 12
"""Most rows of a register tile that are packed, and so have no addresses of their own. Twelve rows of two
vectors fill 24 of 32 registers with sums."""
MAX_PANEL = 6
"""Most vectors of a panel's width. It counts pairs if instructions multiply small matrices. With wider
panels, fewer than four rows fit into 32 registers."""
UNROLL = 4
"""Terms in one iteration of the sum's loop. Their loads and multiply-adds share one counter and branch."""
PACKED_TERMS = 8, 32
"""Fewest and most terms in one iteration of the loop over packed rows. Few terms spend time on the loop's
branch, and many make long code."""
HALVED_ROW = 8
"""Number of instructions that pack a word of the rows as two words of int16. Estimates of tiles add them."""
HALVING = 3
"""Number of instructions that load a word of the panel and take it apart. Estimates of tiles add them."""
WRITTEN = 14
"""Number of instructions that round a sum and write it. Estimates of tiles add them."""
TILE_INSTRUCTIONS = 30
"""Number of instructions that begin and end a tile. Estimates of tiles add them."""
PACK_ROW = 0.75
"""Cycles to pack an element of the rows, which are transposed in registers. It is an estimate that only
orders candidates, which tuning measures."""
LONG_LOOP = 1.01
"""Factor on the estimated time for more than `UNROLL` terms in an iteration, if instructions aren't counted.
The value is a small cost because the effect is in doubt."""
TESTED = 4
"""Additional instructions to write a tile's row back if tiles don't divide the rows or the columns: a
condition, and work that rows would share."""


class Micro:
    """The micro-kernel that repeats each element of the rows in all lanes.

    - `pair`: rows whose sums share vectors; two for small matrices.
    - `each`: registers of a vector's sums for one row.
    - `multiplies`, `between`, `registers`: the figures of the product's instruction row (`targets.rows.Row`).
    - `unroll`: terms in one iteration of the sum's loop.
    """

    copied = 0.0
    """Cycles to pack an element of the rows."""
    begun = 0.0
    """Cycles of a task to acquire and to release registers."""
    quicker = 1
    """Multiply-adds that the micro-kernel makes in the time of one by vector instructions."""
    begins = True
    """Whether sums may begin with a bias."""
    together = 1
    """Neighbouring terms of a column that are neighbours in a packed panel too."""

    def __init__(self, workload: Workload, stage: te.Stage, role: Roles, lanes: int) -> None:
        self.workload, self.processor = workload, workload.processor
        self.role, self.stage, self.lanes = role, stage, lanes
        product, inner = product_of(stage.body), workload.size(stage.reduce_axes[-1].extent)
        self.pair = product.rows if product else 1
        of_sums = lanes * stage.body.dtype.bytes
        self.each = max(1, of_sums // self.processor.vector_bytes) / self.pair
        row = self.workload.target.product_row(product.by_lanes, lanes) if product else None
        self.multiplies = (1 if row is None else row.multiplies) / self.pair
        self.between = 0 if row is None else row.between
        self.registers = (row and row.registers) or self.processor.registers
        self.unroll = lanes if self.each > 1 and inner > lanes else UNROLL

    # --- estimates

    @property
    def heights(self) -> range:
        """The numbers of rows that a tile may have."""
        return range(self.pair, MAX_ROWS + 1, self.pair)

    def tiles(self, columns: int) -> Iterator[tuple[int, int]]:
        """Yield the register tiles (mr, nv) that fit the registers, with no more vectors than `columns`
        fill."""
        most = MOST_LOADED if self.each > 1 else MAX_PANEL * self.pair
        for nv in range(1, min(math.ceil(columns / self.lanes), most) + 1):
            yield from ((mr, nv) for mr in self.heights if self.fits(mr, nv, self.unroll))

    def fits(self, mr: int, nv: int, unroll: int) -> bool:
        """Return whether a tile's accumulators, a panel's vectors, and elements of the rows fit the
        registers.

        LLVM keeps no more single elements than the registers have room for.
        """
        # LLVM loads the vectors of several terms at once
        panel = UNROLL if nv == 1 and self.multiplies > 1 else nv
        if self.each > 1:
            panel = nv * terms_at_once(self.processor, nv)
        return mr * nv * self.each + panel + self.held(mr, unroll) + self.between <= self.registers

    def held(self, mr: int, unroll: int) -> int:
        """Return the number of registers for the rows' elements."""
        return 1 if self.pair == 1 else mr // self.pair

    def row_loads(self, mr: int, unroll: int) -> float:
        """Return the number of loads of the rows for one term."""
        return mr

    def panel_width(self, width: int) -> int:
        """Return the columns whose weights lie side by side for each term, for a tile of `width` columns."""
        return width

    def cycles(self, product: Contraction, params: Params) -> float:
        """Return the cycles of one tile."""
        return self.tile_cycles(product, params["mr"], params["nv"], params["unroll"])

    def tile_cycles(self, product: Contraction, mr: int, nv: int, unroll: int) -> float:
        """Return the cycles of one tile.

        Each term costs mr * nv multiply-adds and the loads of the rows and the panel, at least a
        multiply-add's latency. A term also costs its share of the loop, and its part of a panel that the L1
        cache doesn't hold. The beginning and the end of the tile are added.
        """
        t, rows = self.processor, self.row_loads(mr, unroll)
        step = tile_step(t, mr, nv, unroll if t.issue else UNROLL, rows, self.multiplies)
        if product.small and not product.widened:
            step += nv / t.multiply_adds
        step = max(step, product.panel_cycles(nv))
        rest = (product.known_rows and product.rows % mr > 0) + (product.columns % (nv * self.lanes) > 0)
        tested = mr * rest * TESTED / t.issue if t.issue else 0
        loops = product.depth / self.run(product) * LOOP
        return product.depth * step + loops + mr * nv + LOOP + tested

    def run(self, product: Contraction) -> int:
        """Return the number of terms that the sum's innermost loop goes over."""
        return product.inner

    def long_loop(self, params: Params) -> float:
        """Return the factor on the time if an iteration has more than `UNROLL` terms and instructions aren't
        counted.

        In doubt, more terms cost time. A single row gains, because more loads are under way.
        """
        if params["unroll"] <= UNROLL or self.processor.issue:
            return 1.0
        return LONG_LOOP if params["mr"] > 1 else 1 / LONG_LOOP

    # --- schedules

    def row_loops(self, params: Params) -> list[str]:
        """Return the loops over a tile's rows."""
        return ["mi"] if self.pair == 1 else ["mio", "mii"]

    def rows_cut(self, params: Params) -> int:
        """Return the extent of the inner loop, if there are two loops over the rows."""
        return self.pair

    def multiply(self, tiler: Tiler, tile: list[str], column: str, k: list[str]) -> None:
        """Schedule the tile's multiplication, with the sums already kept in registers."""
        tiler.in_vectors(tile, column, k)

    def load(self, tiler: Tiler, column: str, k: list[str]) -> None:
        """Pack or load a task's rows, unless they are read in place."""

    def parts(self, tiler: Tiler, k: Sequence[str]) -> str:
        """Return the loop around the partial sums of a long sum, or "" if the sum has none."""
        return tiler.part_loop(k)

    def unrolled(self, tiler: Tiler, k: Sequence[str], across: Sequence[str]) -> None:
        """Unroll the innermost loops of the sum if they are short. If not, unroll some terms, whose operands
        are loaded together."""
        short = tiler.short_loops(k)
        for loop in short:
            tiler.s.do("unroll", loop)
        if not short:
            self.terms(tiler, k[-1], across)

    def terms(self, tiler: Tiler, loop: str, across: Sequence[str]) -> None:
        """Unroll some terms of the sum's loop."""
        unroll_sum(tiler.s, loop, tiler.params["unroll"])

    def finish(self, tiler: Tiler, tile: list[str], copies: Sequence[str]) -> int:
        """Vectorize a tile. Return the number of elements that are written together, or 0 if they are written
        vector by vector."""
        wide = at_once(self.workload, self.stage)
        if self.pair > 1:
            wide = wide or self.processor.lanes(self.stage.out.dtype.bytes)
            tile = _lanes_of_pairs(tiler, tile, copies)
        in_registers(tiler.s, tile, (*(() if wide else ("_w",)), *copies))
        return wide


class ByLanes(Micro):
    """The micro-kernel for multiply-adds that take one lane of a vector (NEON). A vector holds the next terms
    of a row."""

    def held(self, mr: int, unroll: int) -> int:
        return 1 + mr * unroll // self.unroll

    def row_loads(self, mr: int, unroll: int) -> float:
        """Return the number of loads and lane copies of the rows for one term.

        16-bit words are each copied to all lanes. 64-bit words of two rows are joined.
        """
        return mr / max(unroll, self.lanes) + (mr if self.between else mr - mr / self.pair)

    def terms(self, tiler: Tiler, loop: str, across: Sequence[str]) -> None:
        nv = tiler.params["nv"]
        rows, together = self.role.left.buffer.name, terms_at_once(self.processor, nv)
        unrolled = unroll_sum(
            tiler.s, loop, tiler.params["unroll"], rows, self.row_loops(tiler.params), together
        )
        _load_panel(tiler, unrolled, across)


class PackedRows(ByLanes):
    """The micro-kernel that packs a task's rows term by term. A vector holds one term of several rows."""

    copied = PACK_ROW

    @property
    def heights(self) -> range:
        return range(self.lanes, MAX_PACKED_ROWS + 1, self.lanes)

    def fits(self, mr: int, nv: int, unroll: int) -> bool:
        rows = mr // self.lanes
        together = terms_at_once(self.processor, nv, rows)
        held = sum(n * (together if n <= self.processor.several // 2 else 1) for n in (nv, rows))
        return mr * nv * self.each + held <= self.registers

    def row_loads(self, mr: int, unroll: int) -> float:
        return vector_loads(self.processor, mr // self.lanes)

    def run(self, product: Contraction) -> int:
        return product.depth

    def terms_in_turn(self, product: Contraction, mr: int, nv: int) -> int:
        """Return the number of terms in one iteration that needs the fewest instructions for loads, loops and
        remaining terms."""
        processor, vectors = self.processor, (nv, mr // self.lanes)
        together = terms_at_once(processor, *vectors)
        alone = sum(math.ceil(v / max(1, processor.several)) for v in vectors)
        several = sum(vector_loads(processor, v) for v in vectors)

        def instructions(terms: int) -> float:
            turns, left = divmod(product.depth, terms)
            each = alone if terms % together else several
            return turns * (terms * each + LOOP_INSTRUCTIONS) + left * (alone + LOOP_INSTRUCTIONS)

        fewest, most = (max(UNROLL, min(n, product.depth // 2)) for n in PACKED_TERMS)
        return min(range(fewest, most + 1), key=instructions)

    def load(self, tiler: Tiler, column: str, k: list[str]) -> None:
        """Copy the rows by vectors along the terms, which are transposed in registers."""
        do, left, rows = tiler.s.do, self.role.left.buffer.name, self.row_loops(tiler.params)
        last, copies = f"rows_{k[-1]}", [f"rows_{n}" for n in rows]
        do("pack", f"{column}ooo", left, ["moi", *k, *rows], "rows")
        do("split", last, self.lanes, "cut")
        do("pack", f"{last}o", left, [*copies, f"{last}i"], "read", "register")
        for loop in (*(f"read_{n}" for n in copies), f"{last}i", *copies[:-1]):
            do("unroll", loop)
        do("vectorize", f"read_{last}i")
        do("vectorize", copies[-1])
        for loop in copies:
            if f"{loop}t" in loop_names(tiler.s.func):  # a row's address is computed once for all its terms
                do("unroll", f"{loop}t")
        fuse_terms(tiler, k)

    def unrolled(self, tiler: Tiler, k: Sequence[str], across: Sequence[str]) -> None:
        """Load the terms of the panel and of the packed rows as vectors, several at once."""
        s, loop, vectors = tiler.s, k[-1], tiler.params["mr"] // self.lanes
        together = terms_at_once(self.processor, tiler.params["nv"], vectors)
        terms = unroll_sum(s, loop, tiler.params["unroll"], at_once=together, exact=True)
        _load_panel(tiler, terms, across)
        rows = self.row_loops(tiler.params)
        load_terms(s, self.processor, terms or [loop], "rows", rows, vectors, "row")
        if f"{loop}t" in loop_names(s.func):
            load_terms(s, self.processor, [f"{loop}t"], "rows", [f"{n}t" for n in rows], 0, "rowt")


class HalvedRows(Micro):
    """A task packs the words of a tile's rows term by term, as pairs of int16. Each word of four weights is
    taken apart once for all rows (SXTB16 and SMLAD of Arm).

    A single row isn't packed. Its copy would take twice the row's memory, and save 3 % of the instructions.
    """

    copied = HALVED_ROW

    @property
    def heights(self) -> range:
        return range(1, MAX_ROWS + 1)

    def fits(self, mr: int, nv: int, unroll: int) -> bool:
        """Return whether a tile's sums, a panel's words as pairs of int16, and one of the rows' words fit the
        registers."""
        row = self.workload.target.row(HALVES[0], I32, 1)
        panel = 2 * nv if mr > 1 else HALVING  # a single row needs no word again
        return row is not None and mr * nv + panel + 1 <= row.registers

    def tiles(self, columns: int) -> Iterator[tuple[int, int]]:
        """Yield the tiles (rows, vectors) with several vectors whose width divides the columns, or else all
        tiles. With the former no weights are stored to fill up a panel."""
        shapes = [*super().tiles(columns)]
        whole = [(mr, nv) for mr, nv in shapes if columns % nv == 0]
        yield from [t for t in whole if t[1] > 1] or shapes

    def run(self, product: Contraction) -> int:
        return product.depth

    def tile_cycles(self, product: Contraction, mr: int, nv: int, unroll: int) -> float:
        """Return the cycles of one tile, which are its instructions."""
        turns = product.depth * (HALVING * nv + 2 * mr + 2 * mr * nv + LOOP_INSTRUCTIONS / unroll)
        return turns + WRITTEN * mr * nv + TILE_INSTRUCTIONS

    def load(self, tiler: Tiler, column: str, k: list[str]) -> None:
        """Copy the rows of a tile. A single row's words are taken apart when they are multiplied."""
        do, (rows,) = tiler.s.do, self.row_loops(tiler.params)
        if tiler.params["mr"] == tiler.params["row_tiles"] == 1:
            do("pack", k[-1], self.role.left.buffer.name, [rows], "rows", "register")
            do("in_halves", "rows")
            return
        do("pack", "moi", self.role.left.buffer.name, [*k, rows], "rows")
        do("in_halves", "rows")
        do("reorder", [f"rows_{rows}", *(f"rows_{n}" for n in k)])
        fuse_terms(tiler, k)

    def terms(self, tiler: Tiler, loop: str, across: Sequence[str]) -> None:
        """Load a term's words of the panel one after the other, so that an instruction can load two."""
        nv = tiler.params["nv"]
        terms = unroll_sum(tiler.s, loop, tiler.params["unroll"]) or [loop]
        if nv > 1:
            tiler.s.do("pack", terms[-1], tiler.panel.name(tiler.role.right), [*across], "words", "register")
            for loop in across:
                tiler.s.do("unroll", f"words_{loop}")


def vectors_of(workload: Workload, stage: te.Stage, role: Roles, lanes: int) -> Micro:
    """Return the micro-kernel for rows that are read in place."""
    if halves(workload.target, stage):
        return HalvedRows(workload, stage, role, lanes)
    kind = ByLanes if by_lane(role, stage, workload) else Micro
    return kind(workload, stage, role, lanes)


def halves(target: Target, stage: te.Stage) -> bool:
    """Return whether the stage sums products of four bytes, which the target computes as two products of
    pairs of int16. An instruction must make such pairs of four bytes."""
    row = target.row(HALVES[0], I32, 1)
    return product_of(stage.body) == DOT4 and row is not None and row.lanes == 1


def fuse_terms(tiler: Tiler, k: list[str]) -> None:
    """Fuse the loops over the terms of packed rows to one."""
    while len(k) > 1:
        tiler.s.do("fuse", k[-2], k[-1], f"{k[-2]}{k[-1]}")
        k[-2:] = [f"{k[-2]}{k[-1]}"]


def _load_panel(tiler: Tiler, terms: Sequence[str], across: Sequence[str]) -> None:
    """Load the panel's vectors of several terms at once, if the target has such an instruction."""
    if terms and tiler.processor.several_loads:
        panel, nv = tiler.panel.name(tiler.role.right), tiler.params["nv"]
        load_terms(tiler.s, tiler.processor, terms, panel, across, nv, "vectors")


def _lanes_of_pairs(tiler: Tiler, tile: Sequence[str], copies: Sequence[str]) -> list[str]:
    """Make a pair's rows by a vector's columns the lanes of one vector of sums.

    A vector that is written back belongs to one row. Return the tile's loops.
    """
    do, (*around, rows, columns) = tiler.s.do, tile
    left_over = ("t",) if f"{rows}t" in loop_names(tiler.s.func) else ()
    for suffix in ("", *left_over, "_z", *copies):
        do("fuse", rows + suffix, columns + suffix, f"v{suffix}")
    do("join_axes", tiler.acc, 2, len(around))
    do("reorder", [n + "_w" for n in (around[0], rows, around[1], columns)])
    return [*around, "v"]
