"""The schedule of a tiled product, step by step (see `contraction`).

Loops are named by how they came about: `split` makes of `i` the outer `io` and the inner `ii`. Of the rows,
numbered through as `m`, and of the column `c` (an output axis) there are

    moo    tasks                     cooo   tasks
    moi    row tiles of a task       cooi   panels of a task
    mi     rows of a tile            coi    vectors of a panel's width
                                     ci     lanes of a vector

and a sum's `k` has `ko` around `ki`, its unrolled terms. The tile's loops have copies: _z begin the sums, _w
write them back; where a sum is made in blocks, _l fetch the partial sums and _s keep them. The loops that
copy a panel are called panel_*. Outer loops that become tasks are fused to `t`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jangin.ir.expr import Const, Expr, Load, Var, const, row_major
from jangin.ir.graph import static_shape
from jangin.ir.simplify import linear, simplify
from jangin.schedule.primitives import find, loop_names
from jangin.templates.common import fuse_all
from jangin.templates.scheduled import Packing, Params, Recorder
from jangin.templates.template import Workload

MOST_TURNS = 32
"""Of loops over a sum's terms that are unrolled whole."""

FAR = 4
"""Panels larger than one part in so many of the L2 cache come from further away: the next is fetched
early."""
FEW_TURNS = 4
"""Turns of an unrolled loop up to which a sum is unrolled evenly or not at all: a remainder would cost
more."""

DEEP_SUM = 512
"""Terms from which a sum is made in parts where its loops allow, and those that a part should have:"""
DEEP_PART = 64


@dataclass(frozen=True)
class Roles:
    """Which output axes belong to what, as loop names; `k` in loop order, innermost last."""

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    column: str
    k: tuple[str, ...]
    left: Load
    right: Load
    groups: int


def packing_positions(role: Roles) -> tuple[int, tuple[int, ...], tuple[int, ...]] | None:
    """Positions in the right operand's index of the column, of each k that stands there (in loop
    order), and of the rest (batch axes, and axes of size 1); None where an index is more than a
    variable."""
    index = role.right.index
    names = [i.name if isinstance(i, Var) else "" for i in index]
    plain = all(isinstance(i, Var) or i == const(0) for i in index)
    if not plain or role.column not in names or len(set(names) - {""}) != len(names) - names.count(""):
        return None
    ks = tuple(names.index(k) for k in role.k if k in names)
    column = names.index(role.column)
    rest = tuple(p for p in range(len(index)) if p != column and p not in ks)
    return column, ks, rest


class Tiler:
    """Makes the schedule of a product for one set of parameters."""

    def __init__(
        self, workload: Workload, role: Roles, lanes: int, params: Params, packed: bool, rec: Recorder
    ) -> None:
        (self.stage,) = workload.stages
        self.role, self.lanes, self.params = role, lanes, params
        self.l2 = workload.target.l2
        self.s = rec
        self.packed = packed
        self.symbols = dict(self.s.func.symbols)
        extents = {a.var.name: a.extent for a in self.stage.axes}
        self.columns = simplify(extents[role.column] // role.groups, self.symbols)
        self.width = params["nv"] * lanes

    def run(self) -> list[str]:
        """Schedules the loops; gives those that may become tasks."""
        do, role = self.s.do, self.role
        column = role.column
        batch = list(role.batch)
        if role.groups > 1:
            per_group = int(self.columns.value) if isinstance(self.columns, Const) else 0
            do("split", column, per_group)
            batch.append(column + "o")
            column += "i"
        if self.packed:
            self._pack()
        row = fuse_all(self.s, role.rows, "m")
        self._tile(row, column)
        outer = [*batch, "moo", f"{column}ooo"]
        tile = ["mi", f"{column}oi", f"{column}i"]
        inside = [f"{column}ooi", "moi"]
        do("reorder", [*outer, *(reversed(inside) if self.params["panels_inside"] else inside), *tile])
        acc = f"{self.stage.out.name}.acc"
        do("privatize", acc, tile, (role.right.buffer.name,) if self.packed else ())
        k = self._reduction_loops()
        if not self.packed:
            do("pack", f"{column}ooi", role.right.buffer.name, [*k, *tile[1:]], "panel")
            self._vector_copy(tile)
        blocks = self._block_loops(k)
        parts = self._part_loop([n for n in k if n not in blocks])
        short = self._short_loops(k)
        if short:
            for loop in short:
                do("unroll", loop)
        else:
            unroll_sum(self.s, k[-1], self.params["unroll"])
        if blocks:
            do("block_sum", "moi", blocks, self.params["row_tiles"], f"{self.stage.out.name}.sums")
        for suffix in ("", "_z", "_w", "_l", "_s") if blocks else ("", "_z", "_w"):
            do("unroll", tile[0] + suffix)
            do("unroll", tile[1] + suffix)
            do("vectorize", tile[2] + suffix)
        self._prefetch(k[-1], column, blocks)
        if parts:
            do("partial_sums", parts)
        return outer

    def _prefetch(self, k: str, column: str, blocks: Sequence[str]) -> None:
        """Hints for the write-back, and for the next panel (or block of one) where panels come from far."""
        do, tiles, inside = self.s.do, self.params["row_tiles"], self.params["panels_inside"]
        do("prefetch_tile", f"{column}ooi" if inside else "moi_w" if blocks else "moi", "mi_w", self.width)
        panels = next(p for p in self.s.func.params if p.name == self.role.right.buffer.name)
        size = static_shape(panels.shape)
        again = self.packed and tiles > 1 and not inside
        if again and size and math.prod(size) * panels.dtype.bytes > self.l2 // FAR:
            loop = f"{k}o" if f"{k}o" in loop_names(self.s.func) else k
            of = blocks[-1] if blocks else f"{column}ooi"
            do("prefetch_panels", loop, "moi", of, panels.name, tiles)

    def _tile(self, row: str, column: str) -> None:
        do, params = self.s.do, self.params
        do("split", column, self.lanes)
        do("split", f"{column}o", params["nv"])
        do("split", f"{column}oo", params["panels"], "bound")
        if row != "m":
            do("rename", row, "m")
        do("split", "m", params["mr"])
        do("split", "mo", params["row_tiles"], "bound")

    def _pack(self) -> None:
        """Right operand [.., N, .., k..] to [batch.., groups, panels, k.., width]."""
        positions = packing_positions(self.role)
        assert positions is not None
        column, ks, lead = positions
        packing = Packing((*lead, column, *ks), len(lead), self.role.groups, self.width)
        self.s.pack(self.role.right.buffer.name, packing)

    def _reduction_loops(self) -> list[str]:
        """The loops over k, the innermost two fused where both operands run through them contiguously."""
        k = list(self.role.k)
        sizes = {a.var.name: a.extent for a in self.stage.reduce_axes}
        while len(k) >= 2 and self._contiguous(k[-2], k[-1], sizes[k[-1]]):
            fused = f"{k[-2]}{k[-1]}"
            self.s.do("fuse", k[-2], k[-1], fused)
            sizes[fused] = sizes[k[-2]] * sizes[k[-1]]
            k[-2:] = [fused]
            break
        return k

    def _short_loops(self, k: Sequence[str]) -> Sequence[str]:
        """The innermost loops of a sum that together have few turns, where one such loop alone has too few.
        Not all: LLVM would sink what no loop holds to the stores."""
        extents = [simplify(find(self.s.func, n).extent, self.symbols) for n in k]
        turns = [int(n.value) if isinstance(n, Const) else MOST_TURNS for n in extents]
        first = next((n for n, turn in enumerate(turns) if turn > 1), 0) + 1
        inside = next((n for n in range(first, len(k)) if math.prod(turns[n:]) <= MOST_TURNS), len(k))
        return k[inside:] if turns[-1] <= self.params["unroll"] else ()

    def _block_loops(self, k: list[str]) -> list[str]:
        """The outer loops of the sum, around parts of at most `terms` terms; the innermost of `k` is split
        where it alone has more."""
        extents = [simplify(find(self.s.func, n).extent, self.symbols) for n in k]
        sizes = [int(n.value) for n in extents if isinstance(n, Const)]
        terms = self.params.get("terms", 0)
        if not terms or len(sizes) < len(k):
            return []
        if sizes[-1] > terms:
            factor = next((f for f in range(terms, terms // 2, -1) if sizes[-1] % f == 0), sizes[-1])
            if factor == sizes[-1]:
                return k[:-1]
            self.s.do("split", k[-1], factor)
            outer, k[-1] = f"{k[-1]}o", f"{k[-1]}i"
            return [*k[:-1], outer]
        inside = len(k)
        while inside and math.prod(sizes[inside - 1 :]) <= terms:
            inside -= 1
        return k[:inside]

    def _part_loop(self, k: Sequence[str]) -> str:
        """The innermost loop around parts of a long sum, each long enough; "" where there is none. No loop is
        split for it: what leaves a loop more often costs 1 to 5 % of a product's time."""
        extents = [simplify(find(self.s.func, n).extent, self.symbols) for n in k]
        sizes = [int(n.value) for n in extents if isinstance(n, Const)]
        if len(sizes) < len(k) or math.prod(sizes) < DEEP_SUM:
            return ""
        around = (n for n in reversed(range(len(k))) if math.prod(sizes[n + 1 :]) >= DEEP_PART)
        return next((k[n] for n in around if sizes[n] > 1), "")

    def _contiguous(self, outer: str, inner: str, size: Expr) -> bool:
        flat = row_major(self.role.left.index, self.role.left.buffer.shape)
        a, b = linear(flat, Var(outer)), linear(flat, Var(inner))
        return a is not None and b is not None and simplify(a[0] - b[0] * size, self.symbols) == const(0)

    def _vector_copy(self, tile: Sequence[str]) -> None:
        """Copy a panel by vectors where the right operand's columns lie contiguously."""
        last = self.role.right.index[-1]
        if last == Var(self.role.column):
            self.s.do("vectorize", f"panel_{tile[2]}")


def unroll_sum(rec: Recorder, loop: str, most: int) -> None:
    """Unroll the loop over a sum's terms (less where that leaves a remainder)."""
    extent = simplify(find(rec.func, loop).extent, dict(rec.func.symbols))
    if isinstance(extent, Const):
        n = int(extent.value)
        factor = next((f for f in range(most, 1, -1) if n % f == 0), most if n > FEW_TURNS * most else 1)
    else:
        factor = most
    if factor > 1 and not (isinstance(extent, Const) and int(extent.value) <= factor):
        rec.do("split", loop, factor, "cut")
        rec.do("unroll", f"{loop}i")
