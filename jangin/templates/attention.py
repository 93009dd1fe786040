"""Attention in tiles that stay in the cache: two products with a softmax or other row operations between
them.

A task is one batch entry and head. It first packs both right operands (keys and values) into panels. Then it
works on one block of rows after the other, whose scores stay in the cache. This follows Rabe and Staats,
"Self-attention does not need O(n^2) memory" (2021), but with whole rows of scores, so nothing is rescaled.

    parallel head { pack K; pack V; rows block { scores = Q K; softmax; out = scores V } }
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jangin.ir import te
from jangin.ir.expr import Var
from jangin.ir.graph import static_shape
from jangin.templates import cost
from jangin.templates.common import fuse_all, lanes_for
from jangin.templates.register_tile import in_registers, load_terms, unroll_sum
from jangin.templates.roles import Roles, by_lane, roles
from jangin.templates.rows import vectorize_stage
from jangin.templates.scheduled import Params, Recorder, Scheduled
from jangin.templates.template import Template, Workload

TILES = ((6, 2), (4, 3))
"""Register tiles to try: rows by vectors of columns. TILES are for 16 registers, MORE_TILES for 32."""
MORE_TILES = ((12, 2), (8, 3))
LANE_TILES = ((4, 2), (3, 3))
MORE_LANE_TILES = ((7, 3), (5, 4))
"""Register tiles if vectors of the rows' terms are in registers too, for 16 registers and for 32. The sums,
one row of columns and the terms of a (7, 3) tile take 21 + 3 + 7 registers."""
BLOCKS = (1, 2, 4)
"""Divisors to try: the scores of a block of rows fill half the L2 cache divided by one of these."""
PACK = 1.5
"""Cycles to copy an element into a panel if the operand isn't contiguous along the columns. The estimated
time of a call has them. It is an estimate that only orders candidates, which tuning measures."""
PARTIALS = 4
UNROLL = 4
"""Vectors of partial sums of a row's softmax, and terms in one iteration of a product. Four hide an
addition's latency of four cycles."""


def match(workload: Workload) -> Attention | None:
    """Return the template for attention, or None for other kernels.

    The first and last stages must be products with the same batch axes. The stages between must work on the
    rows of the first product.
    """
    parts = workload.stages
    if len(parts) < 3:
        return None
    first, last = roles(parts[0]), roles(parts[-1])
    depth = len(parts[0].axes) - 1
    if first is None or last is None or len(parts[-1].axes) != depth + 1 or depth < 2:
        return None
    shared = [a.extent for a in parts[0].axes[:depth]]
    if any([a.extent for a in s.axes[:depth]] != shared for s in parts):
        return None
    alike = all(
        r.rows == (s.axes[-2].var.name,) and len(r.k) == 1 and r.groups == 1
        for r, s in ((first, parts[0]), (last, parts[-1]))
    )
    local = {s.out.name for s in parts[:-1]}
    packable = not {first.right.buffer.name, last.right.buffer.name} & {*local, *workload.constants}
    if not alike or not packable or last.left.buffer.name not in local:
        return None
    return Attention(workload, (first, last))


class Attention(Template):
    name = "attention"

    def __init__(self, workload: Workload, products: tuple[Roles, Roles]) -> None:
        self.workload, self.products = workload, products
        self.lanes = lanes_for(workload)
        first, last = workload.stages[0], workload.stages[-1]
        self.depth = len(first.axes) - 1
        self.heads = cost.size(workload, first.axes[: self.depth - 1])
        self.queries, self.keys = (workload.size(a.extent) for a in first.axes[-2:])
        self.inner, self.values = (
            workload.size(first.reduce_axes[0].extent),
            workload.size(last.axes[-1].extent),
        )

    def space(self) -> Sequence[Params]:
        processor = self.workload.processor
        fewer, more = (LANE_TILES, MORE_LANE_TILES) if processor.lane_operands else (TILES, MORE_TILES)
        tiles = fewer if processor.registers <= 16 else more
        held = processor.elements or math.inf
        choices = []
        for mr, nv in (t for t in tiles if t[0] * UNROLL <= held):
            for part in BLOCKS:
                fit = max(1, processor.l2 // 2 // part // (4 * self.keys * mr))
                blocks = math.ceil(self.queries / (fit * mr))
                rows = mr * math.ceil(self.queries / blocks / mr)
                choices.append({"rows": max(rows, 2), "mr": mr, "nv": nv})
        return list({str(p): p for p in choices}.values())

    def estimate(self, params: Params) -> float:
        """Return the estimated seconds: the products at their tiles' speed, the stages between in vectors,
        and the packing.

        The scores' traffic is added if they don't stay in the L2 cache.
        """
        t, rows = self.workload.processor, params["rows"]
        scores = 4 * rows * self.keys
        cycles = self._product(params, self.keys, self.inner) + self._product(params, self.values, self.keys)
        between = self.workload.stages[1:-1]
        for s in between:
            work = cost.arithmetic(s.body) + bool(s.reduce_axes)
            step = cost.vector_cycles(t, work, cost.reads([s]), 0.0 if s.reduce_axes else 1.0)
            cycles += self.queries * (cost.LOOP + step * self.keys / self.lanes)
        if scores > t.l2 / 2:
            cycles += (2 + len(between)) * self.queries * self.keys * 4 / t.l3_rate
        packing = PACK * self.keys * self.inner + self.keys * self.values / self.lanes
        return cost.launch(self.heads * (cycles + packing), self.heads) / t.clock

    def _product(self, params: Params, columns: int, depth: int) -> float:
        mr, nv = params["mr"], params["nv"]
        tiles = math.ceil(self.queries / mr) * math.ceil(columns / (nv * self.lanes))
        rows = mr / self.lanes if self.workload.processor.lane_operands else None
        step = cost.tile_step(self.workload.processor, mr, nv, UNROLL, rows)
        return tiles * (depth * step + mr * nv + cost.LOOP)

    def schedule(self, params: Params) -> Scheduled:
        p, parts = self.workload, self.workload.stages
        rec = Recorder(te.lower(p.name, parts, p.inputs, p.symbols))
        shared = [f"r{d}" for d in range(self.depth)]
        rec.do("merge", self.depth, shared, params["rows"])
        scores = parts[0].out.name
        for s in parts[1:-1]:
            if not s.reduce_axes:
                rec.do("reuse", scores, s.out.name)
        task = fuse_all(rec, shared[:-1], "t") if self.depth > 2 else shared[0]
        named = [te.rename_axes(s, chr(97 + n)) for n, s in enumerate(parts)]
        for s in named[1:-1]:
            vectorize_stage(rec, s, self.depth, self.lanes, PARTIALS, p.processor)
        for stage, role in zip((named[0], named[-1]), self.products, strict=True):
            self._tile(rec, stage, role, params, task)
        rec.do("parallelize", task)
        ops = self.queries * self.keys * (self.inner + self.values)
        return rec.finish(self.name, params, ops / self.lanes)

    def _whole(self, stage: te.Stage, nv: int) -> bool:
        """Return whether whole panels and whole vectors cover the columns and the terms."""
        sizes = static_shape((stage.axes[-1].extent, stage.reduce_axes[0].extent))
        return sizes is not None and sizes[0] % (nv * self.lanes) == 0 and sizes[1] % self.lanes == 0

    def _turn(self, rec: Recorder, buffer: str, k: str, columns: Sequence[str]) -> None:
        """Copy a panel by vectors along the terms, and transpose these in registers."""
        vectors, lane = columns
        rec.do("split", k, self.lanes)
        rec.do("reorder", [f"{k}o", vectors, f"{k}i", lane])
        rec.do("pack", vectors, buffer, [lane, f"{k}i"], f"{vectors}_turned", "register")
        rec.do("unroll", f"{vectors}_turned_{lane}")
        rec.do("vectorize", f"{vectors}_turned_{k}i")
        rec.do("unroll", f"{k}i")
        rec.do("vectorize", lane)

    def _tile(self, rec: Recorder, stage: te.Stage, role: Roles, params: Params, task: str) -> None:
        """Schedule one product in register tiles. Its right operand is packed at the top of the task."""
        row, column, k = stage.axes[-2].var.name, stage.axes[-1].var.name, stage.reduce_axes[0].var.name
        rec.do("split", column, self.lanes)
        rec.do("split", f"{column}o", params["nv"])
        rec.do("split", row, params["mr"])
        tile = [f"{row}i", f"{column}oi", f"{column}i"]
        rec.do("reorder", [f"{column}oo", f"{row}o", *tile])
        rec.do("privatize", f"{stage.out.name}.acc", tile)
        panels = f"{column}_panels"
        rec.do("pack", task, role.right.buffer.name, [f"{column}oo", k, *tile[1:]], panels)
        copy = [f"{panels}_{n}" for n in tile[1:]]
        if role.right.index[-1] == Var(role.column):
            rec.do("vectorize", copy[1])
            if self.workload.processor.issue:
                rec.do("unroll", copy[0])
        elif self._whole(stage, params["nv"]) and self.workload.processor.lane_operands:
            self._turn(rec, role.right.buffer.name, f"{panels}_{k}", copy)
        local = {s.out.name for s in self.workload.stages}  # all of them lie in the scores' memory
        rows = self.workload.stages[0].out.name if role.left.buffer.name in local else role.left.buffer.name
        rows = rows if by_lane(role, stage, self.workload) else ""
        terms = unroll_sum(rec, k, UNROLL, rows, tile[:1])
        processor = self.workload.processor
        if rows and terms and processor.several_loads:
            load_terms(rec, processor, terms, panels, tile[1:], params["nv"], f"{column}_vectors")
        in_registers(rec, tile)
