"""Reductions, softmax and normalizations, and every other kernel of several stages.

A work-group takes a row, whose intermediates are in shared memory. Its threads reduce in a tree.

    block of rows { thread { part of a sum } tree { } thread { elements } ... }
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jangin.ir import te
from jangin.ir.expr import Const
from jangin.ir.loop import Alloc, statements
from jangin.templates import cost
from jangin.templates.common import fuse_all
from jangin.templates.gpu.common import (
    GROUP,
    blocks,
    moved_bytes,
    operations,
    power_of_two,
    seconds,
    spread,
)
from jangin.templates.rows import shared_rows
from jangin.templates.scheduled import Params, Recorder, Scheduled
from jangin.templates.template import Template, Workload

THREADS = (32, 64, 128, 256)
"""Work-items of a group, to try."""
STEP = 40.0
"""The time of a barrier and a step of a tree, in instructions. It is an estimate that only orders candidates,
which tuning measures."""


def match(workload: Workload) -> Rows | None:
    """Return the template for kernels of several stages or with a reduction, or None for a single map."""
    several = len(workload.stages) > 1 or workload.stages[0].reduce_axes
    return Rows(workload) if several else None


class Rows(Template):
    name = "rows"

    def __init__(self, workload: Workload) -> None:
        self.workload, self.gpu = workload, workload.gpu
        p = workload
        naive = Recorder(te.lower(p.name, p.stages, p.inputs, p.symbols))
        alone = len(p.stages) == 1
        self.depth = len(p.stages[0].axes) if alone else shared_rows(naive, p.stages)
        self.rows = cost.size(p, p.stages[-1].axes[: self.depth])
        sizes = (cost.size(p, (*s.axes[self.depth :], *s.reduce_axes)) for s in p.stages)
        self.longest = max(1, *sizes)
        self.work, self.moved = operations(p.stages, p), moved_bytes(p)

    def space(self) -> Sequence[Params]:
        most = min(GROUP, self.gpu.group)
        fit = power_of_two(self.longest, most)
        return [{"threads": n} for n in THREADS if n <= fit] or [{"threads": min(THREADS[0], most)}]

    def estimate(self, params: Params) -> float:
        """Return the estimated seconds: the threads' whole iterations over each row, and the steps of the
        trees."""
        threads = params["threads"]
        waste = math.ceil(self.longest / threads) * threads / self.longest
        trees = sum(bool(s.reduce_axes) for s in self.workload.stages)
        steps = trees * (math.log2(threads) + 2) + len(self.workload.stages)
        work = self.work * waste + self.rows * steps * STEP * threads / 4
        return seconds(self.gpu, work, self.moved, self.rows * threads)

    def schedule(self, params: Params) -> Scheduled:
        p, threads = self.workload, params["threads"]
        rec = Recorder(te.lower(p.name, p.stages, p.inputs, p.symbols))
        several = len(p.stages) > 1
        outer = [f"{'r' if several else 'i'}{d}" for d in range(self.depth)]
        if several and outer:
            rec.do("merge", self.depth, outer)
        for n, stage in enumerate(p.stages):
            named = te.rename_axes(stage, chr(97 + n % 26)) if several else stage
            self._stage(rec, named, threads)
        self._share(rec)
        if outer:
            blocks(rec, outer)
        else:
            rec.do("enclose", "t")
        return rec.finish(self.name, params, self.work / max(1, self.rows))

    def _stage(self, rec: Recorder, stage: te.Stage, threads: int) -> None:
        """Divide a stage's elements among the threads. If a row has one element, the terms of its sum are
        divided in a tree."""
        axes = list(stage.axes[self.depth :])
        single = all(a.extent == Const(1, a.extent.dtype) for a in axes)
        if stage.reduce_axes and single:
            names = [a.var.name for a in stage.reduce_axes]
            loop = fuse_all(rec, names, f"{names[0]}f") if len(names) > 1 else names[0]
            rec.do("tree", f"{stage.out.name}.acc", loop, threads)
        elif axes:
            names = [a.var.name for a in axes]
            spread(rec, fuse_all(rec, names, f"{names[0]}e") if len(names) > 1 else names[0], threads)
        else:
            rec.do("alone", stage.out.name, f"{stage.out.name}.x", threads)

    def _share(self, rec: Recorder) -> None:
        """Keep a row's intermediates in shared memory while there is room, the smallest first. The others
        stay in scratch memory."""
        buffers = [s.buffer for s in statements(rec.func.body) if isinstance(s, Alloc)]
        left = self.gpu.shared
        left -= sum(_bytes(b.shape) * b.dtype.bytes for b in buffers if b.memory == "shared")
        local = [b for b in buffers if b.memory == "scratch" and all(isinstance(d, Const) for d in b.shape)]
        for b in sorted(local, key=lambda b: _bytes(b.shape)):
            left -= -(-_bytes(b.shape) * b.dtype.bytes // 16) * 16
            if left < 0:
                break
            rec.do("place", b.name, "shared")


def _bytes(shape: Sequence[object]) -> int:
    return math.prod(int(d.value) for d in shape if isinstance(d, Const))
