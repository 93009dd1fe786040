"""Windows over planes (NCHW): pooling, and convolutions of few channels.

A channel's pixels are contiguous. A register tile has a few vectors of a row's pixels, for a few output
channels. Each vector of pixels that a tap reads serves all these channels, with one weight each. The tiles at
the row's ends have a copy of the code that tests for padding, and the others don't test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jangin.ir import te
from jangin.ir.expr import Const, Load, const
from jangin.ir.graph import static_shape
from jangin.ir.traversal import free_vars, loads
from jangin.templates import cost
from jangin.templates.common import (
    LONGEST_ROW,
    UNROLLED,
    fuse_all,
    lanes_for,
    row_border,
    shorten_sum,
    stride,
)
from jangin.templates.scheduled import Params, Recorder, Scheduled
from jangin.templates.template import Template, Workload

MOST_VECTORS = 6
"""Most vectors of a row's pixels in one tile. With more, too few registers are left for several output
channels."""
MOST_OUTPUTS = 8
"""Most output channels of one tile. Each takes an accumulator for each vector of pixels, and a weight for
each tap."""
MOST_ACCUMULATORS = 12
"""Most accumulators of one tile: vectors times output channels. AVX2 has 16 registers, and pixels and weights
need the others."""
FEW = 4
"""Most input or output channels in each group of a convolution for this template. With more of both, a
product in channels-last layout is quicker. The same is true if many outputs read strided rows."""
MASKED = 2.0
"""Factor on the time of a tile at a row's end, whose code tests each position for padding. It is an estimate
that only orders candidates, which tuning measures."""


def match(workload: Workload) -> Planes | None:
    """Return the template for sliding windows over channels-first data (NCHW). Return None for other kernels
    and for convolutions of too many channels."""
    if len(workload.stages) != 1:
        return None
    (stage,) = workload.stages
    taps = static_shape(tuple(a.extent for a in stage.reduce_axes))
    if taps is None or not taps or len(stage.axes) < 3 or not isinstance(stage.axes[-1].extent, Const):
        return None
    reads = list(loads(stage.body))
    data = [n for n in reads if _of_planes(n, stage)]
    weights = [n for n in reads if n not in data]
    if len(data) != 1 or len(weights) > 1 or not all(_weighs(n, stage, workload) for n in weights):
        return None
    if not weights and data[0].index[1] not in (stage.axes[1].var, const(0)):
        return None
    planes = Planes(workload, data[0], bool(weights))
    few = planes.outputs <= FEW or (planes.step == 1 and planes.terms <= FEW * planes.window)
    return planes if not weights or few else None


def _of_planes(load: Load, stage: te.Stage) -> bool:
    """Return whether a load reads channels-first data [n, channel, spatial...]. Each spatial index must run
    along one of the result's axes."""
    axes = [None if a.extent == const(1) else a.var for a in stage.axes]
    if len(load.index) != len(axes) or load.index[0] not in (stage.axes[0].var, const(0)):
        return False
    along = all(x is None or x in free_vars(i) for i, x in zip(load.index[2:], axes[2:], strict=True))
    return along and (stride(load, stage.axes[-1].var, {}) or 0) > 0


def _weighs(load: Load, stage: te.Stage, workload: Workload) -> bool:
    """Return whether a load reads a convolution's constant weights [outputs, channels, taps...]."""
    inner = {const(0), *(a.var for a in stage.reduce_axes)}
    if not load.index:
        return False
    plain = load.index[0] in (stage.axes[1].var, const(0)) and all(i in inner for i in load.index[1:])
    return plain and load.buffer.name in workload.constants


class Planes(Template):
    name = "planes"

    def __init__(self, workload: Workload, data: Load, weighted: bool) -> None:
        (self.stage,) = workload.stages
        self.workload, self.weighted = workload, weighted
        self.lanes = lanes_for(workload)
        axes, column = self.stage.axes, self.stage.axes[-1]
        self.width = workload.size(column.extent)
        self.step = stride(data, column.var, dict(workload.symbols)) or 1
        read = free_vars(data.index[1])
        inner = [a for a in self.stage.reduce_axes if a.extent != const(1)]
        own = [a for a in inner if a.var in read]
        taps = [a for a in inner if a not in own]
        self.depth, self.taps = [a.var.name for a in own], [a.var.name for a in taps]
        self.terms, self.window = cost.size(workload, self.stage.reduce_axes), cost.size(workload, taps)
        self.across = workload.size(taps[-1].extent) if taps else 1
        self.outputs = 1 if axes[1].var in read else workload.size(axes[1].extent)
        self.rows = cost.size(workload, axes[:-1])
        self.work = max(cost.arithmetic(self.stage.body), 1.0)
        self.final = cost.arithmetic(self.stage.result)
        self.border = row_border(self.stage, column, workload.symbols)
        self.traffic = cost.traffic(workload)

    def space(self) -> Sequence[Params]:
        vectors = range(1, min(MOST_VECTORS, math.ceil(self.width / self.lanes)) + 1)
        outputs = [n for n in range(1, MOST_OUTPUTS + 1) if self.outputs % n == 0]
        pairs = [(v, n) for v in vectors for n in outputs if v * n <= MOST_ACCUMULATORS]
        return [{"vectors": v, "outputs": n} for v, n in pairs]

    def estimate(self, params: Params) -> float:
        """Return the estimated seconds: the arithmetic, loads or latency of the rows' tiles, overlapped with
        the data traffic.

        A task is a row and costs nothing more. Its few addresses are computed while the task before ends.
        """
        t, (vectors, outputs) = self.workload.processor, (params["vectors"], params["outputs"])
        first, last, tiles = self._ends(vectors)
        apart = {1: 1.0, 2: 2.0}.get(self.step, float(self.lanes))
        each, loads = vectors * outputs, vectors * apart + outputs * self.weighted
        at_once = max(1.0, cost.REORDERED / (self.terms * (each * self.work + loads)))
        step = max(each * self.work / t.multiply_adds, loads / t.loads, t.latency / at_once)
        turns = 0.0 if self.terms <= UNROLLED else self.terms / self.across
        looped = turns if self.across <= LONGEST_ROW else self.terms
        tile = self.terms * step + cost.LOOP * (1 + looped) / 2 + each * (1 + self.final)
        ends = min(first + last, tiles)
        cycles = self.rows / outputs * tile * (tiles + (MASKED - 1) * ends)
        if self.width % self.lanes:
            cycles += self.rows * cost.MASKED_STORE
        whole = cost.overlapped(cycles, self.traffic)
        return cost.launch(whole, min(self.rows // self.outputs, cost.HANDED_OUT)) / t.clock

    def _ends(self, vectors: int) -> tuple[int, int, int]:
        """Return three numbers of a row's tiles: with padding before them, with padding or positions after
        them, and in all."""
        wide = vectors * self.lanes
        before, after = self.border
        tiles = math.ceil(self.width / wide)
        whole = (self.width - after) // wide
        return min(math.ceil(before / wide), tiles), tiles - whole, tiles

    def schedule(self, params: Params) -> Scheduled:
        p, acc = self.workload, f"{self.stage.out.name}.acc"
        rec = Recorder(te.lower(p.name, p.stages, p.inputs, p.symbols))
        outer, x = [a.var.name for a in self.stage.axes[:-1]], self.stage.axes[-1].var.name
        if self.depth and self.taps:
            single = [a.var.name for a in self.stage.reduce_axes if a.extent == const(1)]
            rec.do("reorder", [*single, *self.depth, *self.taps])
        rec.do("predicate", acc)
        rec.do("split", x, self.lanes)
        rec.do("split", f"{x}o", params["vectors"])
        tile, tasks = [f"{x}oi", f"{x}i"], outer
        if self.outputs > 1:
            o = outer[1]
            rec.do("split", o, params["outputs"])
            tasks = [outer[0], *outer[2:]]
            rec.do("reorder", [*tasks, f"{o}o", f"{x}oo", f"{o}i", *tile])
            tile = [f"{o}i", *tile]
        first, last, tiles = self._ends(params["vectors"])
        middle = first + last < tiles and first + last > 0
        if middle:
            rec.do("peel", f"{x}oo", first, last)
        held = [n.buffer.name for n in loads(self.stage.body) if n.buffer.name in p.constants]
        for suffix, count in (("_b", first), ("", 1), ("_a", last)):
            if suffix == "" or (middle and count):
                self._tile(rec, acc, [n + suffix for n in tile], suffix, held)
        rec.do("hoist_guards")
        rec.do("parallelize", fuse_all(rec, tasks, "t"))
        work = self.width * self.terms * self.outputs * self.work / self.lanes
        return rec.finish(self.name, params, work)

    def _tile(self, rec: Recorder, acc: str, tile: list[str], suffix: str, held: list[str]) -> None:
        """Schedule one copy of a tile's loops."""
        rec.do("privatize", acc + suffix, tile, held)
        unrolled = self._unrolled()
        for tap in unrolled:
            rec.do("unroll", tap + suffix)
        for part in ("", "_z", "_w"):
            for loop in tile[:-1]:
                rec.do("unroll", loop + part)
            rec.do("vectorize", tile[-1] + part)
        shorten_sum(rec, self.stage, [n + suffix for n in (*self.depth, *self.taps) if n not in unrolled])

    def _unrolled(self) -> Sequence[str]:
        """Return the unrolled taps: those along the row, or all taps of a small window."""
        if self.across > LONGEST_ROW:
            return []
        return self.taps if self.window <= UNROLLED else self.taps[-1:]
