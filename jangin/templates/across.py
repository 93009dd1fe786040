"""The micro-kernel for instructions that add all lanes' products of bytes to one number (Helium's VMLADAVA).

A vector holds neighbouring terms. A column's weights lie one after another, and its sums are single numbers.
They are rounded and written in vectors along the columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jangin.ir import te
from jangin.ir.dtype import I8, I32
from jangin.ir.expr import Binary, Cast, Const, Expr
from jangin.ir.simplify import simplify
from jangin.ir.traversal import loads
from jangin.schedule.primitives import find, loop_names
from jangin.templates.micro import Micro, fuse_terms
from jangin.templates.scheduled import Recorder
from jangin.templates.template import Workload

if TYPE_CHECKING:
    from jangin.templates.contraction import Contraction
    from jangin.templates.tiling import Tiler

LANES = 16, 8, 4
"""Lanes of a vector of terms: of bytes, and of bytes that are widened to int16 or int32."""
RESTS = "t", "tt", "ttt"
"""The endings of the loops' copies for the terms that fill no vector, with fewer lanes each."""
SHORT = 4
"""Most vectors of terms that are unrolled. A loop of more vectors costs little beside its work, and copies
would fill the flash memory."""
MOST_COLUMNS = 5
"""Most columns of a tile whose width isn't that of a vector of sums. There are registers for so many sums
(`targets.helium_rows.SUMS`), so wider tiles never fit."""
WRITTEN = 5
"""Number of instructions that round a sum and write it, in a vector with others. Estimates of tiles add
them."""
TILE_INSTRUCTIONS = 20
"""Number of instructions that begin and end a tile: addresses, loops and branches. Estimates of tiles add
them."""


def sums_across(workload: Workload, stage: te.Stage) -> bool:
    """Return whether the stage sums products of bytes with constant ones, and the target adds up such
    products across lanes."""
    body, constants = stage.body, workload.constants
    if workload.target.row("products_across", I8, LANES[0]) is None or not isinstance(body, Binary):
        return False
    if not any(n.buffer.name in constants for n in loads(body)):
        return False
    of_bytes = all(isinstance(f, Cast) and f.a.dtype is I8 for f in (body.a, body.b))
    return stage.combiner == "sum" and body.op == "mul" and body.dtype is I32 and of_bytes


class Across(Micro):
    """The micro-kernel that keeps each sum of a register tile in a general register. A vector instruction
    multiplies neighbouring terms of a row and a column, and adds all products to one sum."""

    begins = False

    @property
    def together(self) -> int:  # type: ignore[override]
        """The number of terms in a vector, if all vectors of a sum have the same length. The weights of all
        columns of a tile then lie together, term by term. Otherwise each column's weights lie by themselves,
        and the value is 1."""
        sizes = {a.var.name: self.workload.size(a.extent) for a in self.stage.reduce_axes}
        inner = sizes[self.role.k[-1]]
        if inner % LANES[0] == 0:
            return LANES[0]
        return inner if inner in LANES and math.prod(sizes.values()) == inner else 1

    def panel_width(self, width: int) -> int:
        return width if self.together > 1 else 1

    def tiles(self, columns: int) -> Iterator[tuple[int, int]]:
        """Yield the tiles (rows, columns). Their width divides the columns, and is that of a vector if
        possible."""
        row = self.workload.target.row("products_across", I8, LANES[0])
        assert row is not None
        four = self.processor.lanes(I32.bytes)
        dividing = [n for n in range(1, MOST_COLUMNS + 1) if columns % n == 0]
        for nv in [four] if four in dividing else dividing:
            yield from ((mr, nv) for mr in range(1, row.registers + 1) if mr * nv <= row.registers)

    def run(self, product: Contraction) -> int:
        return product.depth

    def tile_cycles(self, product: Contraction, mr: int, nv: int, unroll: int) -> float:
        """Return the cycles of one tile, which are its instructions."""
        steps, rest = 0, product.depth
        for lanes in (*LANES, 1):
            steps, rest = steps + rest // lanes, rest % lanes
        return steps * (mr + nv + mr * nv + 1) + WRITTEN * mr * nv + TILE_INSTRUCTIONS

    def load(self, tiler: Tiler, column: str, k: list[str]) -> None:
        """Copy a tile's rows if their terms lie in memory in pieces that fill no vectors."""
        sizes = [_size(tiler.s, n) for n in k]
        pieces = math.prod(sizes[:-1])
        if pieces == 1 or sizes[-1] % LANES[0] == 0:
            return
        do, (rows,) = tiler.s.do, self.row_loops(tiler.params)
        do("pack", "moi", tiler.role.left.buffer.name, [rows, *k], "rows")
        in_vectors_of_bytes(tiler.s, f"rows_{k[-1]}", "vectorize")
        fuse_terms(tiler, k)

    def unrolled(self, tiler: Tiler, k: Sequence[str], across: Sequence[str]) -> None:
        """Multiply the terms of the innermost loop by vectors, and the few remaining terms one by one."""
        in_vectors_of_bytes(tiler.s, k[-1], "across_lanes")

    def finish(self, tiler: Tiler, tile: list[str], copies: Sequence[str]) -> int:
        """Unroll the tile. Return the number of sums that are written together."""
        nv, four = tiler.params["nv"], self.processor.lanes(I32.bytes)
        wide = four if nv % four == 0 else 0
        names = loop_names(tiler.s.func)
        for suffix in ("", *RESTS, "_z", *(() if wide else ("_w",)), *copies):
            for loop in (n + suffix for n in tile if n + suffix in names):
                tiler.s.do("unroll", loop)
        return wide


def in_vectors_of_bytes(rec: Recorder, loop: str, step: str) -> None:
    """Make a loop over bytes one over vectors of 16, then of 8 and of 4, then of single elements. `step`:
    the primitive that makes a vector loop. A few vectors are unrolled."""
    for lanes in LANES:
        size = _size(rec, loop)
        if size == lanes:
            rec.do(step, loop)
            return
        if size < lanes:
            continue
        rec.do("split", loop, lanes, "cut")
        rec.do(step, f"{loop}i")
        if size // lanes <= SHORT:
            rec.do("unroll", f"{loop}o")
        loop += "t"
        if loop not in loop_names(rec.func):
            return
    rec.do("unroll", loop)


def _size(rec: Recorder, loop: str) -> int:
    extent: Expr = simplify(find(rec.func, loop).extent, dict(rec.func.symbols))
    assert isinstance(extent, Const), f"the loop {loop} has a known size"
    return int(extent.value)
