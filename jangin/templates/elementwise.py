"""Kernels of one injective stage: maps, copies and gathers.

They are bound by memory. The innermost axes are one loop over whole vectors, and the others are tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jangin.ir import te
from jangin.ir.dtype import F32
from jangin.ir.expr import Const, Select, Var, const
from jangin.ir.loop import Func
from jangin.ir.simplify import simplify
from jangin.ir.traversal import loads, walk
from jangin.schedule import primitives
from jangin.templates import cost
from jangin.templates.common import fuse_all, lanes_for, messy, stride, together, vectorize
from jangin.templates.scheduled import Params, Recorder, Scheduled
from jangin.templates.template import Template, Workload

MOST_BORDER = 32
"""Most vectors at either end of a row that get code of their own, because they aren't read contiguously."""
TASK_ELEMENTS = (8192, 32768, 2048)
"""Elements of one task, to try, if all axes are one loop. Smaller tasks share out evenly, and larger ones
start more rarely. The first is preferred in doubt."""


def match(workload: Workload) -> Elementwise | None:
    """Return the template for a single map, or None if the kernel has several stages or a reduction."""
    return Elementwise(workload) if len(workload.stages) == 1 and not workload.stages[0].reduce_axes else None


class Elementwise(Template):
    name = "elementwise"

    def __init__(self, workload: Workload) -> None:
        (self.stage,) = workload.stages
        self.workload = workload
        self.count = cost.size(workload, self.stage.axes)
        lanes, apart = lanes_for(workload), self._apart()
        reads = cost.reads([self.stage]) + apart * (lanes - 1)
        each = cost.vector_cycles(workload.processor, cost.arithmetic(self.stage.body), reads, 1)
        self.work = each * self.count / lanes
        self.hidden = not apart
        self.traffic = cost.traffic(workload)

    def _apart(self) -> int:
        """Return the number of loads whose elements in a vector aren't contiguous. Each element is loaded
        from its own cache line."""
        along, ranges = self.stage.axes[-1:], dict(self.workload.symbols)
        return sum(stride(n, a.var, ranges) not in (0, 1) for a in along for n in loads(self.stage.body))

    def _quantizes(self) -> bool:
        """Return whether elements narrower than f32 are made of values that are contiguous along the
        second-last axis only.

        Along the last axis, they would be loaded and tested one by one.
        """
        axes, ranges = self.stage.axes[-2:], dict(self.workload.symbols)
        along = [[stride(n, a.var, ranges) for n in loads(self.stage.body)] for a in axes]
        out = self.stage.out.dtype
        rounds = out.wide is not out and any(n.dtype is not out for n in loads(self.stage.body))
        return (
            out.bytes < F32.bytes
            and len(along) == 2
            and along[0] == [1]
            and along[1] != [1]
            and (rounds or bool(cost.arithmetic(self.stage.body)))
        )

    def space(self) -> Sequence[Params]:
        return [{"elements": n} for n in TASK_ELEMENTS]

    def estimate(self, params: Params) -> float:
        t, tasks = self.workload.processor, math.ceil(self.count / params["elements"])
        cycles = max(self.work, self.traffic) if self.hidden else self.work + self.traffic
        return cost.launch(cycles, tasks) / t.clock

    def schedule(self, params: Params) -> Scheduled:
        """Schedule the stage by vectors. The innermost axes along which every access is linear become one
        loop."""
        p, stage = self.workload, self.stage
        rec = Recorder(te.lower(p.name, p.stages, p.inputs, p.symbols))
        axes = [a.var.name for a in stage.axes]
        weight = float(sum(1 for _ in walk(stage.body)))
        if not axes:
            return rec.finish(self.name, {}, weight)
        lanes = lanes_for(p)
        if (p.processor.issue or self._quantizes()) and _turns(rec, axes, lanes):
            return self._turned(rec, axes, lanes, params, weight)
        loop, count = _fuse_suffix(rec, axes, p.processor.shortest(p.processor.vector_bytes // lanes))
        outer, several = axes[: len(axes) - count], together(p.processor, stage.body)
        extent = primitives.find(rec.func, loop).extent
        borders = _borders(stage, lanes, p) if count == 1 and outer else None
        if outer:
            task = fuse_all(rec, outer, "t")
            if borders is None:
                vectorize(rec, loop, extent, lanes, several)
            else:
                _bordered(rec, loop, lanes, *borders)
            if any(True for n in loads(stage.body) for i in n.index for _ in loads(i)):
                rec.do("hoist_indices", task)
            work = weight * (float(extent.value) if isinstance(extent, Const) else 256.0)
        else:
            task, elements = f"{loop}o", params["elements"]
            if isinstance(extent, Const):
                elements = max(1, min(elements, int(extent.value)))
            rec.do("split", loop, elements, "bound")
            vectorize(rec, f"{loop}i", primitives.find(rec.func, f"{loop}i").extent, lanes, several)
            work = weight * params["elements"]
        rec.do("parallelize", task)
        return rec.finish(self.name, params, work / lanes)

    def _turned(
        self, rec: Recorder, axes: Sequence[str], lanes: int, params: Params, weight: float
    ) -> Scheduled:
        """Vectorize the second-last axis, and unroll the last one."""
        *outer, loop, last = axes
        size = primitives.find(rec.func, loop).extent
        rec.do("split", loop, lanes, "cut")
        rec.do("reorder", [last, f"{loop}i"])
        rec.do("unroll", last)
        rec.do("vectorize", f"{loop}i")
        if f"{loop}t" in primitives.loop_names(rec.func):
            rec.do("unroll", f"{last}t")
        task = fuse_all(rec, outer, "t")
        # so that the code for borders leaves the rest
        if isinstance(size, Const) and int(size.value) >= 3 * lanes:
            rec.do("peel", f"{loop}o", 1, 1)
        rec.do("parallelize", task)
        each = float(size.value) if isinstance(size, Const) else 256.0
        return rec.finish(self.name, params, weight * each / lanes)


def _borders(stage: te.Stage, lanes: int, workload: Workload) -> tuple[int, int] | None:
    """Return the number of vectors at either end of a row that aren't read contiguously, for example at a
    reflecting border.

    All others must be read contiguously. Return None if there are no such ends, or nothing is gained.
    """
    axis, ranges = stage.axes[-1], dict(workload.symbols)
    ranges |= {a.var: (const(0), a.extent - 1) for a in stage.axes}
    if not isinstance(axis.extent, Const):
        return None
    vectors = int(axis.extent.value) // lanes

    def even(first: int, last: int) -> bool:
        """Return whether the vectors `first` to `last` are read contiguously, without a condition for each
        lane."""
        inside = {**ranges, axis.var: (const(first * lanes), const(last * lanes + lanes - 1))}
        body = simplify(stage.body, inside)
        if any(isinstance(n, Select) and axis.var in walk(n.cond) for n in walk(body)):
            return False
        return all(stride(n, axis.var, inside) in (0, 1) for n in loads(body))

    if vectors < 3 or even(0, vectors - 1):
        return None
    middle, most = vectors // 2, min(vectors // 2, MOST_BORDER)
    first = next((n for n in range(most) if even(n, middle)), None)
    last = next((n for n in range(most) if even(middle, vectors - 1 - n)), None)
    return None if first is None or last is None else (first, last)


def _bordered(rec: Recorder, loop: str, lanes: int, first: int, last: int) -> None:
    """Vectorize a loop. Its `first` and `last` vectors get copies of the code."""
    rec.do("split", loop, lanes, "cut")
    if first or last:
        rec.do("peel", f"{loop}o", first, last)
    for suffix in ("_b", "", "_a"):
        if f"{loop}i{suffix}" in primitives.loop_names(rec.func):
            rec.do("vectorize", f"{loop}i{suffix}")


def _turns(rec: Recorder, axes: Sequence[str], lanes: int) -> bool:
    """Return whether the last of three axes or more is too short for vectors, and the one before it is long
    enough. Both can't be read as one axis."""
    if len(axes) < 3:
        return False
    extents = [primitives.find(rec.func, n).extent for n in axes[-2:]]
    short = isinstance(extents[1], Const) and 1 < int(extents[1].value) < lanes
    long = not isinstance(extents[0], Const) or int(extents[0].value) >= lanes
    trial = primitives.fuse(rec.func, axes[-2], axes[-1], "v")
    return short and long and messy(trial, Var("v"), primitives.ranges_at(trial, "v"))


def _fuse_suffix(rec: Recorder, axes: Sequence[str], least: int) -> tuple[str, int]:
    """Fuse the innermost axes as long as every access stays linear, or the inner loop has fewer than `least`
    elements. Return the fused loop's name and the number of its axes."""
    loop, count = axes[-1], 1
    for axis in reversed(axes[:-1]):
        trial: Func = primitives.fuse(rec.func, axis, loop, f"v{count}")
        extent = primitives.find(rec.func, loop).extent
        short = isinstance(extent, Const) and 1 < int(extent.value) < least
        if not short and messy(trial, Var(f"v{count}"), primitives.ranges_at(trial, f"v{count}")):
            break
        rec.do("fuse", axis, loop, f"v{count}")
        loop, count = f"v{count}", count + 1
    return loop, count
