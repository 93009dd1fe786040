"""Matrix products and convolutions (as implicit GEMM) by work-groups.

A group makes a tile of `bm` x `bn` elements. Each thread makes `tm` x `tn` of them in registers, from panels
of `bk` terms of both operands in shared memory. Weights that are stored in blocks become floats when they are
copied.

    block { acc = 0; k panel { copy both panels; k { acc += left * right } } write back }

With `ahead` (double buffering), the next panels' elements are fetched into registers before a panel's
products, and stored after them.

Without panels (`bk` is 0), each thread loads the elements of a term from memory, whose caches the group
shares. The shader is shorter, and work-items never wait for each other.

Sources: Volkov and Demmel, "Benchmarking GPUs to tune dense linear algebra" (2008), and for convolutions
Chetlur et al., "cuDNN: efficient primitives for deep learning" (2014).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jangin.ir import te
from jangin.ir.expr import Var, const
from jangin.ir.traversal import children
from jangin.templates import cost, weight_blocks
from jangin.templates.common import fuse_all, maskable
from jangin.templates.gpu.common import (
    BANKS,
    BUSY,
    blocks,
    constant,
    copy_panel,
    met,
    shared_out,
    shares,
    split_terms,
    spread_over_banks,
    unfilled,
)
from jangin.templates.roles import Roles, pack_right, packing_positions, roles
from jangin.templates.scheduled import Params, Recorder, Scheduled
from jangin.templates.template import Template, Workload

TILES = (
    (16, 8, 4, 4), (16, 16, 4, 4), (16, 16, 8, 4), (8, 16, 4, 4), (16, 16, 8, 8), (8, 8, 4, 4), (8, 8, 4, 8),
    (4, 16, 2, 4), (8, 8, 2, 4), (1, 32, 1, 4), (4, 8, 4, 4),
)  # fmt: skip
"""Tiles to try: threads down and across a group's tile, then rows and columns of each thread."""
DEPTHS = (16, 8)
"""Terms of a panel that are tried, the larger first. Larger panels have fewer barriers, and smaller ones fit
small shared memory."""
COMMON = {"tx": 4, "bk": 0, "ahead": 0}
"""The parameters that kernels share on devices whose compilers users wait for (`Gpu.compiling`), besides
`Gpu.tile`. Browsers fill shared memory with zeros and check each index, so there are no panels."""
COMMON_ROWS = 64
"""Rows of a group's tile with these parameters. Larger tiles would waste more on small images."""
FEW_ROWS = 16
"""The most rows of a product that tiles of `FEW` are tried for."""
FEW = ((1, 32, 1, 4), (1, 32, 2, 4), (1, 32, 4, 4), (2, 16, 4, 4))
"""Tiles for few rows on these devices, without panels. Neighbouring work-items read neighbouring rows of four
columns. On lavapipe, one row of 2,048 terms by 4,096 columns takes 20 ms of processor time instead of 110.
With 4-bit weights it takes 11 instead of 43."""
WORD = 4
"""The least bytes of a weight for tiles of `FEW`. Smaller numbers are read one by one there. On lavapipe, one
row of 2,048 terms by 4,096 columns of float16 takes 46 ms of processor time with them, and 39 without."""
ROW = 4
"""Terms of a row of the left operand that a thread loads at once, if there are no panels. Four f32 are the
widest load."""
CACHED = 2.0
"""The time of a load that neighbouring work-items share, in instructions. It is an estimate that only orders
candidates, which tuning measures."""
RESIDENT = 4
"""Groups that a compute unit runs side by side, if registers and shared memory allow it. It is an estimate
that only orders candidates, which tuning measures."""
SYNC = 60.0
"""The time of a panel's barriers, in instructions. It is an estimate that only orders candidates, which
tuning measures."""
AHEAD = 8
"""Most elements of each panel that a thread fetches ahead. Each takes a register beside the sums."""


def match(workload: Workload) -> Contraction | None:
    """Return the template for a product, or None if the kernel isn't one or has groups."""
    if len(workload.stages) != 1 or not workload.stages[0].axes:
        return None
    (stage,) = workload.stages
    role = roles(stage, guarded=True) or weight_blocks.roles(stage, workload)
    if role is None or role.left.buffer.name == role.right.buffer.name or role.groups > 1:
        return None
    if any(a.extent == const(0) for a in (*stage.axes, *stage.reduce_axes)):
        return None
    return Contraction(workload, stage, role)


@dataclass
class Contraction(Template):
    """A product. `role` says which axes are its rows, columns and terms."""

    workload: Workload
    stage: te.Stage
    role: Roles
    name = "contraction"

    def __post_init__(self) -> None:
        p, role = self.workload, self.role
        self.gpu = p.gpu
        size = {a.var.name: p.size(a.extent) for a in (*self.stage.axes, *self.stage.reduce_axes)}
        self.rows = math.prod(size[r] for r in role.rows)
        self.columns = size[role.column]
        self.depth = math.prod(size[k] for k in role.k)
        self.batches = math.prod(size[b] for b in role.batch)
        plain = role.right.buffer.name in p.constants and packing_positions(role) is not None
        self.packed = plain or bool(role.parts)
        right = next(e for e in children(self.stage.body) if e is not role.left) if role.parts else role.right
        self.fixed = all(constant(a.extent) for a in (*self.stage.axes, *self.stage.reduce_axes))
        self.common = self._common()
        self.element, self.widening = max(role.left.dtype.bytes, right.dtype.bytes), cost.arithmetic(right)

    def space(self) -> Sequence[Params]:
        choices = []
        for ty, tx, tm, tn in (tile for tile in TILES if tile[2] * tile[3] <= self.gpu.sums):
            for bk in DEPTHS:
                shared = bk * ((ty * tm + tx * tn) * self.element + 2 * BANKS)
                if ty * tx <= self.gpu.group and shared <= self.gpu.shared:
                    few = bk * max(ty * tm, tx * tn) <= AHEAD * ty * tx and self.depth > bk
                    tile = {"ty": ty, "tx": tx, "tm": tm, "tn": tn, "bk": bk}
                    every = [{**tile, "ahead": n} for n in range(1 + few)]
                    choices += every
                    if self.fixed:
                        panels = math.ceil(self.depth / bk)
                        parts = shares(self.gpu, self._tiles(tile), panels)
                        choices += [{**params, "share": n} for params in every for n in parts]
        if not self.gpu.compiling:
            return choices
        in_words = bool(self.role.parts) or self.role.right.dtype.bytes >= WORD
        tiles = FEW if self.rows <= FEW_ROWS and in_words else ()
        own = [{"ty": ty, "tx": tx, "tm": tm, "tn": tn, "bk": 0, "ahead": 0} for ty, tx, tm, tn in tiles]
        return [self.common, *own, *choices]

    def _common(self) -> Params:
        """Return the parameters that kernels share. Products with few columns have a tall tile of as many
        work-items, in which none is idle."""
        tm, tn = self.gpu.tile
        ty, tx = max(1, COMMON_ROWS // tm), COMMON["tx"]
        while tx > 1 and self.columns <= tx // 2 * tn and self.rows > ty * tm:
            ty, tx = 2 * ty, tx // 2
        return {**COMMON, "ty": ty, "tx": tx, "tm": tm, "tn": tn}

    def _tiles(self, params: Params) -> int:
        rows, columns = params["ty"] * params["tm"], params["tx"] * params["tn"]
        return self.batches * math.ceil(self.rows / rows) * math.ceil(self.columns / columns)

    def estimate(self, params: Params) -> float:
        """Return the estimated seconds: the longer of the computation and the memory traffic of whole tiles.

        The computation has each thread's multiply-adds, loads from shared memory, and share of the copies. A
        group waits for panels that aren't fetched ahead, while the unit's other groups compute.
        """
        t, (ty, tx, tm, tn, bk) = self.gpu, (params[n] for n in ("ty", "tx", "tm", "tn", "bk"))
        bm, bn = ty * tm, tx * tn
        count, tiles = 1, self._tiles(params)
        if bk:
            every = math.ceil(self.depth / bk)
            panels = params.get("share", every)
            count = math.ceil(every / panels)
            each = bk * (tm * tn + tm / 2 + tn / 4) + self._copies(params) + SYNC
        else:
            panels, each = self.depth, tm * tn + CACHED * (tm + self.widening + tn)
        groups = tiles * count
        turns = math.ceil(groups / t.units)
        resident = min(turns, RESIDENT)
        items = resident * ty * tx * min(BUSY, tm * tn / 2)  # sums that don't wait for each other
        share = min(1.0, items / (t.width * BUSY))
        kept = 2 * bk * (bm + bn) / (ty * tx)  # instructions that move the elements fetched ahead
        group = math.ceil(ty * tx / t.width) * (panels * (each + params["ahead"] * kept) + 4 * tm * tn)
        group += panels * t.panel_wait / resident if bk and not params["ahead"] else 0
        work = unfilled(t, groups) * (turns * group / share + met(4 * bm * bn, count)) / t.clock
        moved = tiles * self.depth * (bm + bn) * self.element / 4 + self.rows * self.columns * 4
        own = 0.0 if params == self.common else t.compiling
        return float(t.startup + own + max(work, moved / t.bandwidth))

    def _copies(self, params: Params) -> float:
        """Return the number of instructions with which a thread copies its share of both panels."""
        rows, columns = params["ty"] * params["tm"], params["tx"] * params["tn"]
        return params["bk"] * (12 * rows + (12 + self.widening) * columns) / (params["ty"] * params["tx"])

    def schedule(self, params: Params) -> Scheduled:
        p = self.workload
        rec = Recorder(te.lower(p.name, p.stages, p.inputs, p.symbols))
        _Tiler(self, rec, params).run()
        work = float(params["ty"] * params["tm"] * params["tx"] * params["tn"] * self.depth)
        return rec.finish(self.name, params, work)


class _Tiler:
    """Makes the schedule for one set of parameters.

    The rows are numbered through as `m` and split into mo (blocks), mio (threads) and mii (a thread's rows).
    The column `c` is split likewise. The terms are numbered through as `k` and split into ko (panels) and ki.
    """

    def __init__(self, product: Contraction, rec: Recorder, params: Params) -> None:
        self.product, self.rec, self.params = product, rec, params
        self.role, self.acc = product.role, f"{product.stage.out.name}.acc"
        self.threads = params["ty"] * params["tx"]

    def run(self) -> None:
        do, role, q = self.rec.do, self.role, self.params
        c = role.column
        if self.product.packed:
            pack_right(self.rec, role, q["tx"] * q["tn"])
        row = fuse_all(self.rec, role.rows, "m")
        k = split_terms(self.rec, role.k, q["bk"], self.acc, q.get("share", 0)) if q["bk"] else ""
        if not k and self._terms_run():
            do("split", role.k[-1], ROW)
            terms = [*role.k[:-1], f"{role.k[-1]}o", f"{role.k[-1]}i"]
        else:
            terms = [f"{k}i"] if k else [*role.k]
        for loop, many, few in ((row, q["ty"], q["tm"]), (c, q["tx"], q["tn"])):
            do("split", loop, many * few)
            do("split", f"{loop}i", few)
        lanes = [f"{row}io", f"{c}io", f"{row}ii", f"{c}ii"]
        do("reorder", [*role.batch, f"{row}o", f"{c}o", *lanes])
        do("privatize", self.acc, lanes, tuple(role.constants) if self.product.packed else ())
        do("reorder", [*lanes[:2], *terms, *lanes[2:]])
        if k:
            self._panels(row, k)
        else:
            self._loads(row, terms)
        for suffix in ("", "_z", "_w"):
            do("fuse", f"{row}io{suffix}", f"{c}io{suffix}", f"x{suffix}")
            do("bind_thread", f"x{suffix}")
            do("unroll", f"{row}ii{suffix}")
            do("unroll" if suffix == "_w" and not self._wide_stores() else "vectorize", f"{c}ii{suffix}")
        if self.product.gpu.compiling:
            do("hoist_guards")  # a row's stores are under one condition
        do("join_axes", self.acc, 2)
        if k:
            self._store_panels(k)
        tasks = blocks(self.rec, [*role.batch, f"{row}o", f"{c}o"])
        if "share" in q:
            shared_out(self.rec, tasks, k, self.acc)

    def _loads(self, row: str, terms: Sequence[str]) -> None:
        """Let a thread load the elements of a term for its rows and columns, each of them once. If the left
        operand is contiguous along the terms, a row's elements of `ROW` terms are loaded at once."""
        do, role, c, k = self.rec.do, self.role, self.role.column, terms[-1]
        right = role.constants if role.parts else role.right.buffer.name
        by_rows = len(terms) > len(role.k)
        own = [f"{row}ii", k] if by_rows else [f"{row}ii"]
        do("pack", terms[-2] if by_rows else k, role.left.buffer.name, own, "left", "register")
        do("pack", k, right, [f"{c}ii"], "right", "register")
        do("unroll", f"left_{row}ii")
        if by_rows:
            do("vectorize", f"left_{k}")
            do("unroll", k)
        do("vectorize", f"right_{c}ii")

    def _terms_run(self) -> bool:
        """Return whether `ROW` neighbouring terms are neighbours in the left operand."""
        role = self.role
        extent = next(a.extent for a in self.product.stage.reduce_axes if a.var.name == role.k[-1])
        whole = constant(extent)
        return whole is not None and whole % ROW == 0 and role.left.index[-1] is Var(role.k[-1])

    def _panels(self, row: str, k: str) -> None:
        """Let a group copy its rows and columns of each panel's terms to shared memory."""
        do, role, c = self.rec.do, self.role, self.role.column
        right = role.constants if role.parts else role.right.buffer.name
        do("pack", f"{k}o", role.left.buffer.name, [f"{k}i", f"{row}io", f"{row}ii"], "left", "shared")
        do("pack", f"{k}o", right, [f"{k}i", f"{c}io", f"{c}ii"], "right", "shared")
        columns = [f"{c}io", f"{c}ii"]
        copy_panel(self.rec, "left", [f"{row}io", f"{row}ii", f"{k}i"], self.threads)
        order = [f"{k}i", *columns] if self._columns_run() else [*columns, f"{k}i"]
        copy_panel(self.rec, "right", order, self.threads)

    def _store_panels(self, k: str) -> None:
        """Spread the panels over the banks of shared memory, and fetch them ahead if that is asked for."""
        do, q = self.rec.do, self.params
        spread_over_banks(self.rec, "left", self.product.element)
        if not self._columns_run():
            spread_over_banks(self.rec, "right", self.product.element)
        if q["ahead"]:
            for panel in ("left", "right"):
                do("unroll", f"{panel}_eo")
            do("fetch_ahead", f"{k}o", ["left", "right"])

    def _wide_stores(self) -> bool:
        """Return whether results are stored by vectors. If columns are left over, the stores need masks."""
        extent = constant(self.product.stage.axes[-1].extent)
        whole = extent is not None and extent % (self.params["tx"] * self.params["tn"]) == 0
        return whole or maskable(self.rec.func)

    def _columns_run(self) -> bool:
        """Return whether the right operand is contiguous along the columns."""
        return self.product.packed or self.role.right.index[-1] is Var(self.role.column)
