"""The schedule of a tiled product, step by step (see `contraction`).

Loops are named by their origin: `split` makes the outer `io` and the inner `ii` from `i`. The rows are
numbered through as `m`, and the column `c` is an output axis. This table has their loops.

    moo    tasks                     cooo   tasks
    moi    a task's row tiles        cooi   a task's panels
    mi     a tile's rows             coi    a panel's vectors
                                     ci     a vector's lanes.

A sum's `k` has `ko` around `ki`, its unrolled terms. If some terms are loaded at once, `ki` is `kio` around
`kii`.

The tile's loops have copies: _z begin the sums, _w write them back. If a sum is made in blocks, _l fetch the
partial sums and _s store them. Loops that copy a panel are called panel_*, and loops that pack rows are
called rows_*. Outer loops that become tasks are fused to `t`.

If instructions multiply small matrices (`Product.of_matrices`), `mi` is pairs `mio` of rows `mii`. The lanes
of a vector of sums, `v`, are then a pair's rows by a vector's columns. The sums are written back row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jangin.ir.expr import Const, Expr, Var, const
from jangin.ir.graph import static_shape
from jangin.ir.simplify import linear, simplify
from jangin.ir.traversal import row_major
from jangin.schedule.primitives import find, loop_names
from jangin.templates.common import fuse_all
from jangin.templates.micro import Micro
from jangin.templates.panel import Panel, panel_of
from jangin.templates.register_tile import (
    begin_with_bias,
    written_wide,
)
from jangin.templates.roles import Roles, pack_right
from jangin.templates.scheduled import Params, Recorder
from jangin.templates.template import Workload

FAR = 32
"""Panels larger than the L2 cache's size divided by FAR come from the L3 cache or memory. The next panel is
then prefetched."""
AHEAD = 8192
"""Bytes by which the prefetch of weights that are read once runs ahead: two pages. At 10 GB/s they take 0.8
us, longer than memory's latency."""
COLUMNS = "columns"
"""The name of the loop over columns of several axes."""
DEEP_SUM = 512
"""Fewest terms of a sum that is made in parts, if its loops allow. Rounding errors of shorter sums are
small."""
DEEP_PART = 64
"""Fewest terms of a part of a sum that is made in parts. With fewer, leaving the inner loop costs a
noticeable share of the time."""
LONGEST_SUM = 8192
"""Terms of one loop from which on it is split for partial sums. Leaving the inner loop costs nothing then."""
LONG_PART = 1024
"""Most terms of a part, if a single loop of very many terms is split for it. An eighth of `LONGEST_SUM` makes
at least eight parts."""


class Tiler:
    """Makes the schedule of a product for one set of parameters."""

    def __init__(
        self, workload: Workload, role: Roles, micro: Micro, params: Params, packed: bool, rec: Recorder
    ) -> None:
        (self.stage,) = workload.stages
        self.workload, self.processor = workload, workload.processor
        self.role, self.lanes, self.params = role, micro.lanes, params
        self.micro, self.rows = micro, micro.row_loops(params)
        self.l2, self.hints = self.processor.l2, self.processor.hints
        self.s = rec
        self.packed = packed
        self.symbols = dict(self.s.func.symbols)
        self.extents = {a.var.name: a.extent for a in self.stage.axes}
        columns = math.prod((self.extents[c] for c in role.columns), start=const(1))
        self.columns = simplify(columns // role.groups, self.symbols)
        self.width = params["nv"] * self.lanes
        self.acc = f"{self.stage.out.name}.acc"
        self.panel = panel_of(params, packed)
        self.longest: Expr | None = None

    def run(self) -> list[str]:
        """Schedule the loops. Return the loops that may become tasks."""
        do, role = self.s.do, self.role
        column = fuse_all(self.s, role.columns, COLUMNS)
        groups = []  # inside the rows: a row's data of all groups are contiguous
        if role.groups > 1:
            per_group = int(self.columns.value) if isinstance(self.columns, Const) else 0
            do("split", column, per_group)
            groups.append(column + "o")
            column += "i"
        if self.packed:
            pack_right(self.s, self.role, self.micro.panel_width(self.width), self.micro.together)
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
        """Schedule a tile of vectors: its panel, its terms, its beginning and its end."""
        do, across = self.s.do, (f"{column}oi", f"{column}i")
        blocks = self._block_loops(k)
        self._split_longest(k)
        if blocks:
            tiles, most = (f"{column}ooi", "panels") if self.params["panels_inside"] else ("moi", "row_tiles")
            do("block_sum", tiles, blocks, self.params[most], f"{self.stage.out.name}.sums")
        self.panel.make(self, column, k, across, blocks)
        self.micro.load(self, column, k)
        parts = self.micro.parts(self, [n for n in k if n not in blocks])
        self.micro.unrolled(self, k, across)
        wide = self.micro.finish(self, tile, ("_l", "_s") if blocks else ())
        if not self.processor.offsets:
            do("hoist_guards")  # the vectors of a row then share an address
        if self.hints:
            self._prefetch(k[-1], column, blocks)
        if wide:
            written_wide(self.s, self.rows, across, wide)
        if parts:
            do("partial_sums", parts)
        self.panel.finish(self)

    def prefetch_once(self) -> None:
        """Prefetch the weights if a single tile of rows reads them, each once, because they come from
        memory."""
        rows = simplify(math.prod((self.extents[r] for r in self.role.rows), start=const(1)), self.symbols)
        if not isinstance(rows, Const) or int(rows.value) > self.params["mr"]:
            return
        params = {p.name: p for p in self.s.func.params}
        parts = [params[p.buffer.name] for p in self.role.parts or (self.role.right,)]
        held = {p.name: math.prod(static_shape(p.shape) or (0,)) * p.dtype.bytes for p in parts}
        largest = max(held, key=lambda name: held[name])
        if held[largest] > self.processor.l1:
            self.s.do("prefetch_ahead", "moi", largest, AHEAD)

    def _prefetch(self, k: str, column: str, blocks: Sequence[str]) -> None:
        """Prefetch for the write-back, and for the next panel or block of it if panels come from far."""
        do, tiles, inside = self.s.do, self.params["row_tiles"], self.params["panels_inside"]
        loop = (f"{column}ooi" if inside else "moi") + ("_w" if blocks else "")
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
        """Return the loops over k. The two innermost are fused if the left operand's address grows evenly
        over both."""
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
        """Return the innermost loops of a sum that are short enough together to be unrolled. There are none
        if the innermost loop alone is longer than `unroll`.

        One loop always stays: without any, LLVM would move computations down to the stores.
        """
        extents = [simplify(find(self.s.func, n).extent, self.symbols) for n in k]
        most = self.processor.short_sum
        turns = [int(n.value) if isinstance(n, Const) else most for n in extents]
        first = next((n for n, turn in enumerate(turns) if turn > 1), 0) + 1
        inside = next((n for n in range(first, len(k)) if math.prod(turns[n:]) <= most), len(k))
        return k[inside:] if turns[-1] <= self.params["unroll"] else ()

    def _block_loops(self, k: list[str]) -> list[str]:
        """Return the sum's outer loops, around blocks of at most `terms` terms.

        If the innermost loop of `k` has more terms, it is split. The list is empty if the sum isn't made in
        blocks.
        """
        extents = [simplify(find(self.s.func, n).extent, self.symbols) for n in k]
        sizes = [int(n.value) for n in extents if isinstance(n, Const)]
        terms = self.params.get("terms", 0)
        if not terms or len(sizes) < len(k):
            return []
        if sizes[-1] > terms:
            factor = next((f for f in range(terms, terms // 2, -1) if sizes[-1] % f == 0), terms)
            self.s.do("split", k[-1], factor, "bound")
            outer, k[-1] = f"{k[-1]}o", f"{k[-1]}i"
            return [*k[:-1], outer]
        inside = len(k)
        while inside and math.prod(sizes[inside - 1 :]) <= terms:
            inside -= 1
        return k[:inside]

    def _split_longest(self, k: list[str]) -> None:
        """Split the innermost loop of `k` for partial sums if it alone is a very long sum of floats. It stays
        if tasks copy their panels or rows, which are copied at once."""
        extent = simplify(find(self.s.func, k[-1]).extent, self.symbols)
        size = int(extent.value) if isinstance(extent, Const) else 0
        copies = type(self.panel) is not Panel or "rows_packed" in self.params
        if size >= LONGEST_SUM and not copies and not self.stage.body.dtype.is_int:
            self.s.do("split", k[-1], LONG_PART, "bound")
            k[-1:] = [f"{k[-1]}o", f"{k[-1]}i"]
            self.longest = simplify(find(self.s.func, k[-1]).extent, self.symbols)

    def part_loop(self, k: Sequence[str]) -> str:
        """Return the innermost loop around long enough parts of a long sum. Return "" if there is none, or
        the sum is exact.

        Only very long loops are split for it: leaving a loop more often costs 1 to 5 % of a product's time.
        """
        if self.stage.body.dtype.is_int:
            return ""
        extents = [simplify(find(self.s.func, n).extent, self.symbols) for n in k]
        if extents[-1] == self.longest:
            return k[-2]
        sizes = [int(n.value) for n in extents if isinstance(n, Const)]
        if len(sizes) < len(k) or math.prod(sizes) < DEEP_SUM:
            return ""
        around = (n for n in reversed(range(len(k))) if math.prod(sizes[n + 1 :]) >= DEEP_PART)
        return next((k[n] for n in around if sizes[n] > 1), "")

    def _contiguous(self, outer: str, inner: str, size: Expr) -> bool:
        flat = row_major(self.role.left.index, self.role.left.buffer.shape)
        a, b = linear(flat, Var(outer)), linear(flat, Var(inner))
        return a is not None and b is not None and simplify(a[0] - b[0] * size, self.symbols) == const(0)
