"""The schedule of a tiled product, step by step (see `contraction`).

Loops are named by how they came about: `split` makes of `i` the outer `io` and the inner `ii`. Of the rows,
numbered through as `m`, and of the column `c` (an output axis) there are

    moo    tasks                     cooo   tasks
    moi    row tiles of a task       cooi   panels of a task
    mi     rows of a tile            coi    vectors of a panel's width
                                     ci     lanes of a vector

and a sum's `k` has `ko` around `ki`, its unrolled terms; where some of them are loaded at once, `ki` is `kio`
around `kii`. The tile's loops have copies: _z begin the sums, _w
write them back; where a sum is made in blocks, _l fetch the partial sums and _s keep them. The loops that
copy a panel are called panel_*, those that pack rows rows_*. Outer loops that become tasks are fused to `t`.

Where instructions multiply small matrices (`Product.of_matrices`), `mi` is pairs `mio` of rows `mii`, and the
lanes of a vector of sums, `v`, are a pair's rows by a vector's columns; they are written back row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jangin.ir.expr import Const, Expr, Var, const
from jangin.ir.graph import static_shape
from jangin.ir.simplify import linear, simplify
from jangin.ir.traversal import row_major
from jangin.schedule.primitives import find, loop_names
from jangin.templates.common import fuse_all, stride
from jangin.templates.cost import SHARE
from jangin.templates.micro import Micro
from jangin.templates.register_tile import (
    begin_with_bias,
    unroll_sum,
    written_wide,
)
from jangin.templates.roles import Roles, pack_right
from jangin.templates.scheduled import Params, Recorder
from jangin.templates.template import Workload

FAR = 32
"""Panels larger than one part in so many of the L2 cache come from further away: the next is fetched
early."""
AHEAD = 8192
"""Bytes before it is read that a weight is asked for, where all are read once: two pages."""
COLUMNS = "columns"
"""The loop over columns of several axes."""
WIDENED = 4
"""Terms of a panel that are widened in one turn of a loop, where its instructions count."""
DEEP_SUM = 512
"""Terms from which a sum is made in parts where its loops allow."""
DEEP_PART = 64
"""Terms that such a part should have."""


class Tiler:
    """Makes the schedule of a product for one set of parameters."""

    def __init__(
        self, workload: Workload, role: Roles, micro: Micro, params: Params, packed: bool, rec: Recorder
    ) -> None:
        (self.stage,) = workload.stages
        self.workload, self.target = workload, workload.target
        self.role, self.lanes, self.params = role, micro.lanes, params
        self.micro, self.rows = micro, micro.row_loops(params)
        self.l2, self.hints = workload.target.l2, workload.target.hints
        self.s = rec
        self.packed = packed
        self.copied = not packed and not params.get("in_place")
        self.symbols = dict(self.s.func.symbols)
        self.extents = {a.var.name: a.extent for a in self.stage.axes}
        columns = math.prod((self.extents[c] for c in role.columns), start=const(1))
        self.columns = simplify(columns // role.groups, self.symbols)
        self.width = params["nv"] * self.lanes
        self.acc = f"{self.stage.out.name}.acc"
        self.panel = "panel" if params.get("widened") or self.copied else role.right.buffer.name

    def run(self) -> list[str]:
        """Schedules the loops; gives those that may become tasks."""
        do, role = self.s.do, self.role
        column = fuse_all(self.s, role.columns, COLUMNS)
        groups = []  # inside the rows: what they read of all groups lies side by side
        if role.groups > 1:
            per_group = int(self.columns.value) if isinstance(self.columns, Const) else 0
            do("split", column, per_group)
            groups.append(column + "o")
            column += "i"
        if self.packed:
            pack_right(self.s, self.role, self.width)
        begins = self.micro.begins and role.groups == 1
        bias = begin_with_bias(self.s, self.workload, self.stage, self.width) if begins else ()
        row = fuse_all(self.s, role.rows, "m")
        self._tile(row, column)
        outer = [*role.batch, "moo", *groups, f"{column}ooo"]
        (first, *pair), across = self.rows, (f"{column}oi", f"{column}i")
        tile = [first, across[0], *pair, across[1]]
        inside = [f"{column}ooi", "moi"]
        do("reorder", [*outer, *(reversed(inside) if self.params["panels_inside"] else inside), *tile])
        do("privatize", self.acc, tile, (*bias, *(role.constants if self.packed else ())))
        self.micro.multiply(self, tile, column, self._reduction_loops())
        return outer

    def in_vectors(self, tile: list[str], column: str, k: list[str]) -> None:
        """Schedules a tile of vectors: where its panel comes from, its terms, and what begins and ends it."""
        do, role, across = self.s.do, self.role, (f"{column}oi", f"{column}i")
        blocks, widened = self._block_loops(k), bool(self.params.get("widened"))
        if blocks:
            do("block_sum", "moi", blocks, self.params["row_tiles"], f"{self.stage.out.name}.sums")
        if self.copied:
            self._pack_panels(column, k, across)
        elif widened:
            block = blocks[-1] if blocks else f"{column}ooi"
            self._widen_panels(block, [n for n in k if n not in blocks], across)
        self.micro.load(self, column, k)
        parts = self.micro.parts(self, [n for n in k if n not in blocks])
        self.micro.unrolled(self, k, across)
        wide = self.micro.finish(self, tile, ("_l", "_s") if blocks else ())
        if not self.workload.target.offsets:
            do("hoist_guards")  # what a row's vectors share is addressed together
        if self.hints:
            self._prefetch(k[-1], column, blocks)
        if wide:
            written_wide(self.s, self.rows, across, wide)
        if parts:
            do("partial_sums", parts)
        if widened and not role.parts and not self.workload.target.issue:
            # beside multiply-adds it takes hardly any time, but a few instructions more
            do("copy_as_read", "panel", "moi")

    def _widen_panels(self, at: str, k: Sequence[str], across: Sequence[str]) -> None:
        """Small weights are widened once a task, for all of its rows: a panel, or a block of its terms, in
        each turn of loop `at`."""
        self.s.do("pack", at, self.role.constants, [*k, *across], "panel")
        if self.workload.target.issue and not self.role.parts:
            unroll_sum(self.s, f"panel_{k[-1]}", WIDENED)
            self.s.do("fuse", *(f"panel_{n}" for n in across), "panel_w")
            self.s.do("vectorize", "panel_w")
            return
        self.s.do("unroll", f"panel_{k[-1] if self.role.parts else across[0]}")
        self.s.do("vectorize", f"panel_{across[1]}")

    def prefetch_once(self) -> None:
        """Hints for weights of which a single tile of rows reads each once, as they come from memory."""
        rows = simplify(math.prod((self.extents[r] for r in self.role.rows), start=const(1)), self.symbols)
        if not isinstance(rows, Const) or int(rows.value) > self.params["mr"]:
            return
        params = {p.name: p for p in self.s.func.params}
        parts = [params[p.buffer.name] for p in self.role.parts or (self.role.right,)]
        held = {p.name: math.prod(static_shape(p.shape) or (0,)) * p.dtype.bytes for p in parts}
        largest = max(held, key=lambda name: held[name])
        if held[largest] > self.workload.target.l1:
            self.s.do("prefetch_ahead", "moi", largest, AHEAD)

    def _prefetch(self, k: str, column: str, blocks: Sequence[str]) -> None:
        """Hints for the write-back, and for the next panel (or block of one) where panels come from far."""
        do, tiles, inside = self.s.do, self.params["row_tiles"], self.params["panels_inside"]
        loop = f"{column}ooi" if inside else "moi_w" if blocks else "moi"
        do("prefetch_tile", loop, f"{self.rows[0]}_w", self.width)
        panels = next(p for p in self.s.func.params if p.name == self.role.right.buffer.name)
        size = static_shape(panels.shape)
        again = self.packed and not self.role.parts and tiles > 1 and not inside
        if again and size and math.prod(size) * panels.dtype.bytes > self.l2 // FAR:
            loop = f"{k}o" if f"{k}o" in loop_names(self.s.func) else k
            of = blocks[-1] if blocks else f"{column}ooi"
            do("prefetch_panels", loop, "moi", of, panels.name, tiles)
        if self.packed:
            self.prefetch_once()

    def _tile(self, row: str, column: str) -> None:
        do, params = self.s.do, self.params
        do("split", column, self.lanes)
        do("split", f"{column}o", params["nv"])
        do("split", f"{column}oo", params["panels"], "bound")
        if row != "m":
            do("rename", row, "m")
        do("split", "m", params["mr"])
        do("split", "mo", params["row_tiles"], "bound")
        if len(self.rows) > 1:
            do("split", "mi", self.micro.rows_cut(params))

    def _reduction_loops(self) -> list[str]:
        """The loops over k, the innermost two fused where both operands run through them contiguously."""
        k = list(self.role.k)
        for n in ("block", "word"):
            if n in self.params:
                self.s.do("split", k[-1], self.params[n], "cut")
                k[-1:] = [f"{k[-1]}o", f"{k[-1]}i"]
        if self.role.parts:
            return k
        sizes = {a.var.name: a.extent for a in self.stage.reduce_axes}
        if len(k) >= 2 and self._contiguous(k[-2], k[-1], sizes[k[-1]]):
            fused = f"{k[-2]}{k[-1]}"
            self.s.do("fuse", k[-2], k[-1], fused)
            k[-2:] = [fused]
        return k

    def short_loops(self, k: Sequence[str]) -> Sequence[str]:
        """The innermost loops of a sum that together have few turns, where one such loop alone has too few.
        Not all: LLVM would sink what no loop holds to the stores."""
        extents = [simplify(find(self.s.func, n).extent, self.symbols) for n in k]
        most = self.workload.target.short_sum
        turns = [int(n.value) if isinstance(n, Const) else most for n in extents]
        first = next((n for n, turn in enumerate(turns) if turn > 1), 0) + 1
        inside = next((n for n in range(first, len(k)) if math.prod(turns[n:]) <= most), len(k))
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

    def part_loop(self, k: Sequence[str]) -> str:
        """The innermost loop around parts of a long sum, each long enough; "" where there is none, or the sum
        is exact. No loop is split for it: what leaves a loop more often costs 1 to 5 % of a product's
        time."""
        if self.stage.body.dtype.is_int:
            return ""
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

    def _pack_panels(self, column: str, k: Sequence[str], across: Sequence[str]) -> None:
        """Copy the right operand by panels, by vectors along the columns where those lie contiguously. Of few
        enough all panels of a task are copied at once, row after row, as short pieces of rows come from other
        pages each. Where terms lie contiguously, vectors of them are turned in registers."""
        do, right, (columns, lanes) = self.s.do, self.role.right, across
        sizes = [simplify(find(self.s.func, n).extent, self.symbols) for n in k]
        terms = math.prod(int(n.value) if isinstance(n, Const) else self.l2 for n in sizes)
        held = terms * self.width * self.params["panels"] * right.buffer.dtype.bytes
        along = right.index[-1] == Var(self.role.column)
        if along and self.params["panels"] > 1 and held <= self.l2 // SHARE:
            do("pack", f"{column}ooo", right.buffer.name, [f"{column}ooi", *k, columns, lanes], "panel")
            do("reorder", [*(f"panel_{n}" for n in k), f"panel_{column}ooi"])
        else:
            do("pack", f"{column}ooi", right.buffer.name, [*k, columns, lanes], "panel")
        short = isinstance(sizes[-1], Const) and int(sizes[-1].value) < self.lanes
        if not along and not short and stride(right, Var(k[-1]), self.symbols) == 1:
            self._turn(right.buffer.name, f"panel_{k[-1]}", f"panel_{columns}", f"panel_{lanes}")
        elif along:
            do("vectorize", f"panel_{lanes}")

    def _turn(self, buffer: str, terms: str, columns: str, lanes: str) -> None:
        """Copy by vectors of terms, as many as there are lanes, which change places."""
        do, turned = self.s.do, f"turned_{lanes}"
        do("split", terms, self.lanes, "cut")
        do("reorder", [columns, f"{terms}i"])
        do("pack", columns, buffer, [lanes, f"{terms}i"], "turned", "register")
        do("unroll", turned)
        do("vectorize", f"turned_{terms}i")
        do("unroll", f"{terms}i")
        do("vectorize", lanes)
