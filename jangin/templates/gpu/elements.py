"""One work-item for each element of the result, or for a few contiguous ones.

It fits every kernel of one stage: maps, gathers, short sums.

    block { thread { [sum { }] store } }
"""

from __future__ import annotations

from collections.abc import Sequence

from jangin.ir import te
from jangin.ir.traversal import loads
from jangin.templates import cost
from jangin.templates.common import fuse_all, lanes_for, stride
from jangin.templates.gpu.common import GROUP, constant, moved_bytes, operations, seconds
from jangin.templates.scheduled import Params, Recorder, Scheduled
from jangin.templates.template import Template, Workload

THREADS = (128, 64, 256)
"""Work-items of a group, to try. The first is preferred in doubt."""
UNEVEN = 0.05
"""Share of the estimated time that is added for each group size after the preferred one. It decides between
equal estimates, so that the preferred size is built unless tuning finds a quicker one."""
APART = 4.0
"""Factor on the time to read memory if neighbouring threads read parts of cache lines. It is an estimate that
only orders candidates, which tuning measures."""


def match(workload: Workload) -> Elements | None:
    """Return the template with a work-item for each element, or None if the kernel has several stages."""
    return Elements(workload) if len(workload.stages) == 1 else None


class Elements(Template):
    name = "elements"

    def __init__(self, workload: Workload) -> None:
        (self.stage,) = workload.stages
        self.workload, self.gpu = workload, workload.gpu
        self.count = cost.size(workload, self.stage.axes)
        self.work, self.moved = operations([self.stage], workload), moved_bytes(workload)
        self.steps = self._steps()
        if not all(s in (0, 1) for s in self.steps):
            self.moved *= (1 + APART) / 2

    def space(self) -> Sequence[Params]:
        lanes = self._lanes()
        most = min(GROUP, self.gpu.group)
        threads = [n for n in THREADS if n <= most] or [most]
        return [{"threads": n, "lanes": v} for n in threads for v in ((lanes, 1) if lanes > 1 else (1,))]

    def _lanes(self) -> int:
        """Return the number of elements of a work-item: a vector's lanes if every access is contiguous and
        vectors divide the last axis, else 1."""
        axes = self.stage.axes
        extent = constant(axes[-1].extent) if axes else None
        lanes = lanes_for(self.workload)
        if extent is None or extent % lanes:
            return 1
        return lanes if all(s in (0, 1) for s in self.steps) else 1

    def _steps(self) -> list[int | None]:
        """Return, for each load, the distance in elements between the accesses of neighbours along the last
        axis. It is None if the distance isn't constant."""
        axes, symbols = self.stage.axes, dict(self.workload.symbols)
        reads = [n for e in (self.stage.body, self.stage.result) for n in loads(e)] if axes else []
        return [stride(n, axes[-1].var, symbols) for n in reads]

    def estimate(self, params: Params) -> float:
        items = self.count / params["lanes"]
        # a wide load is one instruction, but arithmetic isn't
        work = self.work / (1 + (params["lanes"] - 1) / 2)
        turns = THREADS.index(params["threads"]) if params["threads"] in THREADS else 0
        return seconds(self.gpu, work, self.moved, items) * (1 + UNEVEN * turns)

    def schedule(self, params: Params) -> Scheduled:
        p = self.workload
        rec = Recorder(te.lower(p.name, p.stages, p.inputs, p.symbols))
        axes, lanes = [a.var.name for a in self.stage.axes], params["lanes"]
        if not axes:
            rec.do("enclose", "t")
            return rec.finish(self.name, params, self.work)
        if lanes > 1:
            self._widen(rec, axes[-1], lanes)
            axes[-1] += "o"
        loop = fuse_all(rec, axes, "e") if len(axes) > 1 else axes[0]
        rec.do("split", loop, params["threads"])
        rec.do("bind_block", f"{loop}o")
        rec.do("bind_thread", f"{loop}i")
        return rec.finish(self.name, params, self.work / max(1, self.count) * params["threads"])

    def _widen(self, rec: Recorder, last: str, lanes: int) -> None:
        """Make the last axis a vector loop of `lanes` lanes. A reduction gets a vector of accumulators."""
        rec.do("split", last, lanes)
        if self.stage.reduce_axes:
            rec.do("privatize", f"{self.stage.out.name}.acc", [f"{last}i"])
            for suffix in ("", "_z", "_w"):
                rec.do("vectorize", f"{last}i{suffix}")
        else:
            rec.do("vectorize", f"{last}i")
