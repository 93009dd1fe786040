"""Flash attention for work-groups: a group has a tile of queries, and tiles of keys and values pass through
shared memory.

The sums are rescaled when a greater score comes (online softmax, `schedule.online`).

    `block { copy queries; sums = 0; tile of keys { copy both; scores = queries keys; greatest; powers;
      sums = sums gain + powers values }; write sums / total }`

Source: Dao et al., "FlashAttention: fast and memory-efficient exact attention with IO-awareness" (2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jangin.ir import te
from jangin.ir.expr import Load
from jangin.ir.loop import If, statements
from jangin.schedule.primitives import find
from jangin.templates import attention, cost
from jangin.templates.gpu.common import BANKS, blocks, constant, copy_panel, power_of_two, spread_over_banks
from jangin.templates.gpu.contraction import SYNC
from jangin.templates.scheduled import Params, Recorder, Scheduled
from jangin.templates.template import Template, Workload

TILES = (
    (8, 16, 4, 4), (8, 8, 4, 4), (16, 16, 4, 4), (8, 16, 4, 2), (4, 16, 4, 4), (4, 8, 4, 4), (4, 8, 2, 4),
    (2, 8, 2, 2),
)  # fmt: skip
"""Tiles of scores to try: threads down and across, then rows and columns of each thread."""
ACROSS = 8
"""Most columns of the values that a thread sums. Each takes a register for each row of the tile."""
ROOM = 4
"""Elements of padding after each row of a tile of scores. Rows then begin in different banks, and at
multiples of the widest access."""
TOPS = 2
"""Elements of padding after each row's greatest scores, so that neighbours lie in different banks."""
RUN = 8
"""Neighbours of a row that are copied together: 32 bytes of float32, a sector that memory gives at once."""
STEPS = 6
"""Barriers for each tile of keys. They separate the tile's copies, products and reductions, which share
memory."""


def match(workload: Workload) -> Attention | None:
    """Return the template for attention, or None for other kernels.

    The kernel must fit the processors' template and have a softmax between the products. The sizes of a head
    must be known, and its tiles must fit in shared memory.
    """
    parts = workload.stages
    if [s.combiner for s in parts] != ["sum", "max", "", "sum", "", "sum"]:
        return None
    operands = attention.match(workload)
    sizes = constant(parts[0].reduce_axes[0].extent), constant(parts[-1].axes[-1].extent)
    if operands is None or 0 in sizes or None in sizes or constant(parts[0].axes[-1].extent) == 0:
        return None
    template = Attention(workload, operands)
    return template if template.space() else None


class Attention(Template):
    """See `templates.template.Template`. `cpu`: the processors' template for the kernel."""

    name = "attention"

    def __init__(self, workload: Workload, cpu: attention.Attention) -> None:
        self.workload, self.cpu, self.gpu = workload, cpu, workload.gpu
        self.bytes = workload.stages[0].out.dtype.bytes

    def space(self) -> Sequence[Params]:
        choices = [dict(zip(("ty", "tx", "tm", "tn"), tile, strict=True)) for tile in TILES]
        return [q for q in choices if q["ty"] * q["tx"] <= self.gpu.group and self._fits(q)]

    def _across(self, params: Params) -> int:
        """Return the number of columns of the values that a thread sums."""
        return power_of_two(math.ceil(self.cpu.values / params["tx"]), ACROSS)

    def _fits(self, params: Params) -> bool:
        """Return whether the tiles of queries, keys, values and scores, and the rows' state, fit in shared
        memory."""
        rows, keys = params["ty"] * params["tm"], params["tx"] * params["tn"]
        held = (rows + keys) * self.cpu.inner + keys * params["tx"] * self._across(params)
        held += rows * (keys + ROOM + params["tx"] + TOPS)
        return held * self.bytes + 2 * BANKS * self.cpu.inner <= self.gpu.shared

    def estimate(self, params: Params) -> float:
        """Return the estimated seconds: each thread's multiply-adds and loads for whole tiles, its share of
        the copies and powers, and the barriers."""
        t, cpu, (ty, tx, tm, tn) = self.gpu, self.cpu, (params[n] for n in ("ty", "tx", "tm", "tn"))
        rows, keys, across, threads = ty * tm, tx * tn, self._across(params), ty * tx
        groups = cpu.heads * math.ceil(cpu.queries / rows) * math.ceil(cpu.values / (tx * across))
        tiles = math.ceil(cpu.keys / keys)
        each = cpu.inner * (tm * tn + tm / 2 + tn / 4) + keys * (tm * across + tm / 2 + across / 4)
        each += tm * tn * (2 * cost.CALL) + tm * across
        each += 12 * keys * (cpu.inner + tx * across) / threads + STEPS * SYNC + 2 * self.gpu.panel_wait
        group = math.ceil(threads / t.width) * tiles * each
        turns = math.ceil(groups / t.units)
        return float(t.startup + turns * group / t.clock)

    def schedule(self, params: Params) -> Scheduled:
        p = self.workload
        rec = Recorder(te.lower(p.name, p.stages, p.inputs, p.symbols))
        _Tiler(self, rec, params).run()
        work = params["ty"] * params["tm"] * self.cpu.keys * (self.cpu.inner + self.cpu.values)
        return rec.finish(self.name, params, float(work))


class _Tiler:
    """Makes the schedule for one set of parameters.

    Queries, keys, and columns of the values are each split into blocks, threads, and each thread's own.
    """

    def __init__(self, found: Attention, rec: Recorder, params: Params) -> None:
        self.found, self.rec, self.params = found, rec, params
        parts = found.workload.stages
        first, last = te.rename_axes(parts[0], "a"), te.rename_axes(parts[-1], "f")
        self.row, self.key = (a.var.name for a in first.axes[-2:])
        self.query, self.column = (a.var.name for a in last.axes[-2:])
        self.inner, self.term = (s.reduce_axes[0].var.name for s in (first, last))
        self.sums, self.scores = f"{last.out.name}.acc", f"{first.out.name}.acc"
        self.state = [f"{first.out.name}.{n}" for n in ("powers", "top", "gain", "peak", "total")]
        self.operands = [r.buffer.name for r in (*self._operands(0), self._operands(1)[1])]
        self.weights = parts[-2].out.name
        self.panels: list[str] = []

    def _operands(self, n: int) -> tuple[Load, Load]:
        role = self.found.cpu.products[n]
        return role.left, role.right

    def run(self) -> None:
        do, q, depth = self.rec.do, self.params, self.found.cpu.depth - 1
        heads = [f"r{d}" for d in range(depth)]
        do("merge", depth, heads)
        across, rows = self.found._across(q), q["ty"] * q["tm"]
        self._split(self.row, rows, q["tm"])
        self._split(self.key, q["tx"] * q["tn"], q["tn"])
        self._split(self.query, rows, q["tm"])
        self._split(self.column, q["tx"] * across, across)
        do("split", self.term, q["tx"] * q["tn"])
        block, panel, tile = f"{self.column}o", f"{self.term}o", f"{self.key}o"
        lanes, own = self._lanes(self.query, self.column), self._lanes(self.row, self.key)
        do("reorder", [f"{self.query}o", block, *lanes])
        do("privatize", self.sums, lanes, (self.weights,))
        if any(isinstance(s, If) for s in statements(find(self.rec.func, panel))):
            do("pad_terms", self.sums)
        do("reorder", [*lanes[:2], f"{self.term}i", *lanes[2:]])
        do("reorder", [f"{self.row}o", tile, *own])
        do("privatize", self.scores, own)
        do("reorder", [*own[:2], self.inner, *own[2:]])
        do("online", [f"{self.query}o", block, panel], [f"{self.row}o", tile])
        self._copies(block, panel, own, lanes)
        self._threads(own, lanes)
        self._memory()
        blocks(self.rec, [*heads, f"{self.query}o", block])

    def _split(self, loop: str, many: int, few: int) -> None:
        self.rec.do("split", loop, many)
        self.rec.do("split", f"{loop}i", few)

    def _lanes(self, row: str, column: str) -> list[str]:
        return [f"{row}io", f"{column}io", f"{row}ii", f"{column}ii"]

    def _copies(self, block: str, panel: str, own: Sequence[str], lanes: Sequence[str]) -> None:
        """Copy the queries once, and the keys and values for each tile. All threads take part."""
        threads = self.params["ty"] * self.params["tx"]
        for name, at, buffer, tile in zip(
            ("queries", "keys"), (block, panel), self.operands[:2], (own[::2], own[1::2]), strict=True
        ):
            self.rec.do("pack", at, buffer, [self.inner, *tile], name, "shared")
            copy_panel(self.rec, name, self._rows_run(name, tile), threads)
            self.panels.append(name)
        terms = [f"{self.term}i", lanes[1], lanes[3]]
        self.rec.do("pack", panel, self.operands[2], terms, "values", "shared")
        copy_panel(self.rec, "values", terms, threads)

    def _rows_run(self, panel: str, tile: Sequence[str]) -> Sequence[str]:
        """Return the loops of a panel's copy in order: `RUN` neighbours of each row at a time. The elements
        of a warp are stored in columns, and at most two lie in one bank."""
        self.rec.do("split", f"{panel}_{self.inner}", power_of_two(self.found.cpu.inner, RUN))
        return [f"{self.inner}o", *tile, f"{self.inner}i"]

    def _threads(self, own: Sequence[str], lanes: Sequence[str]) -> None:
        do, whole = self.rec.do, self.found.cpu.values % (self.params["tx"] * self.found._across(self.params))
        for (down, across, row, column), last in (
            (own, "unroll"),
            (lanes, "unroll" if whole else "vectorize"),
        ):
            for suffix in ("", "_z", "_w", *(("_zr",) if row == lanes[2] else ())):
                self._bind(f"{down}{suffix}", f"{across}{suffix}")
                do("unroll", f"{row}{suffix}")
                do(last if suffix == "_w" else "vectorize", f"{column}{suffix}")
        for name in ("begin", "power", "end", "norm"):
            self._bind(f"{name}_down", f"{name}_across")
            do("unroll", f"{name}_row")
        do("vectorize", "power_stored")

    def _bind(self, down: str, across: str) -> None:
        self.rec.do("fuse", down, across, f"{down}x")
        self.rec.do("bind_thread", f"{down}x")

    def _memory(self) -> None:
        """Keep sums and the rows' state in registers. Values that threads exchange are in shared memory."""
        do, (powers, top, *kept) = self.rec.do, self.state
        for name in (self.sums, self.scores, *kept):
            do("join_axes", name, 2)
        for name in kept:
            do("place", name, "register")
        for name in self.panels:
            spread_over_banks(self.rec, name, self.found.bytes)
        do("stretch", powers, ROOM)
        do("stretch", top, TOPS)
        for name in (powers, top):
            do("place", name, "shared")
