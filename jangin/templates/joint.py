"""Kernels of several results that are maps of one shape, such as a parameter's update and its optimizer's
state.

One loop computes all results, so that each operand is loaded once."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jangin.ir import te
from jangin.ir.expr import Const
from jangin.ir.simplify import simplify
from jangin.ir.traversal import free_vars, loads, walk
from jangin.schedule import primitives
from jangin.templates import cost
from jangin.templates.common import flat_index, fuse_all, lanes_for, vectorize
from jangin.templates.elementwise import TASK_ELEMENTS
from jangin.templates.scheduled import Params, Recorder, Scheduled
from jangin.templates.template import Template, Workload


def match(workload: Workload) -> Joint | None:
    """Return the template for maps that are all results, or None for other kernels."""
    stages = workload.stages
    if workload.outputs < 2 or len(stages) != workload.outputs or not stages[0].axes:
        return None
    return Joint(workload) if all(_is_map(workload, s) for s in stages) else None


def _is_map(workload: Workload, stage: te.Stage) -> bool:
    """Return whether a stage has the first one's shape, and loads nothing but single elements and operands'
    elements of the same place."""
    ranges = dict(workload.symbols)
    shapes = [[simplify(a.extent, ranges) for a in s.axes] for s in (stage, workload.stages[0])]
    made = {s.out.name for s in workload.stages}
    if stage.reduce_axes or stage.at or shapes[0] != shapes[1]:
        return False
    if any(n.buffer.name in made for n in loads(stage.body)):
        return False
    own = {a.var for a in stage.axes}
    ranges |= {a.var: (simplify(a.extent * 0), a.extent - 1) for a in stage.axes}
    place = flat_index(stage.out, stage.stored_at, ranges)
    places = [flat_index(n.buffer, n.index, ranges) for n in loads(stage.body)]
    return all(p == place or not free_vars(p) & own for p in places)


class Joint(Template):
    name = "joint"
    several = True

    def __init__(self, workload: Workload) -> None:
        self.workload, stages = workload, workload.stages
        self.count = cost.size(workload, stages[0].axes)
        operands = {n.buffer.name for s in stages for n in loads(s.body)}
        work = cost.arithmetic(stages[0].body)  # which has the other stages' work
        each = cost.vector_cycles(workload.processor, work, len(operands), len(stages))
        self.work = each * self.count / lanes_for(workload)
        self.traffic = cost.traffic(workload)

    def space(self) -> Sequence[Params]:
        return [{"elements": n} for n in TASK_ELEMENTS]

    def estimate(self, params: Params) -> float:
        cycles, tasks = max(self.work, self.traffic), math.ceil(self.count / params["elements"])
        return cost.launch(cycles, tasks) / self.workload.processor.clock

    def schedule(self, params: Params) -> Scheduled:
        """Schedule all stages in one loop over elements, by vectors."""
        p, stages = self.workload, self.workload.stages
        rec = Recorder(te.lower(p.name, stages, p.inputs, p.symbols, p.outputs))
        shared = [f"r{d}" for d in range(len(stages[0].axes))]
        rec.do("merge", len(shared), shared)
        loop = fuse_all(rec, shared, "v")
        extent, elements = primitives.find(rec.func, loop).extent, params["elements"]
        if isinstance(extent, Const):
            elements = max(1, min(elements, int(extent.value)))
        rec.do("split", loop, elements, "bound")
        lanes = lanes_for(p)
        vectorize(rec, f"{loop}i", primitives.find(rec.func, f"{loop}i").extent, lanes)
        rec.do("parallelize", f"{loop}o")
        weight = sum(1 for s in stages for _ in walk(s.body))
        return rec.finish(self.name, params, weight * elements / lanes)
