"""Copies and maps that read along another axis than they write: square tiles turned in registers.

Vectors are loaded along the axis that is contiguous where it is read, and stored along the one that is where
it is written; in between, a tile's lanes change places. Some tiles side by side read whole cache lines.

    parallel task { r { x { tile { load a vector for each x; turn; store a vector for each r } } } }

Where few rows of the result are more than a task should be, a task is a block of it, as strips: half a cache
line of each of many rows. So few long pieces are read at once, as many as a processor's prefetcher follows,
and the next strip finds the lines that it fills up in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jangin.ir import te
from jangin.ir.expr import Const, Load, Select, Var
from jangin.ir.loop import Func, Store, statements
from jangin.ir.simplify import prove
from jangin.ir.traversal import loads, walk
from jangin.schedule import primitives
from jangin.templates import cost
from jangin.templates.common import fuse_all, lanes_for, messy, stride, vectorize
from jangin.templates.scheduled import Params, Recorder, Scheduled
from jangin.templates.template import Template, Workload

LINE = 64
"""Bytes of a cache line."""
TURN = 3.0
"""Instructions that turning takes for each vector: one a doubling of the lanes."""
TILES = 4
"""Read from one row before the next."""
TASK_ELEMENTS = 16384
"""Elements that a task has at least."""
MOST_ELEMENTS = 2 * TASK_ELEMENTS
"""Elements that a task of whole rows has at most."""
MOST_ROWS = 1024
"""Rows of the result that strips run through: their lines stay in the second cache, and their pages are ones
that the processor knows the addresses of."""
SAME_SETS = 2048
"""Rows this many bytes apart, or a multiple, share few sets of a cache, which doesn't keep a line of each."""


def match(workload: Workload) -> Transpose | None:
    """The kernel as tiles that are turned, or None where it reads as it writes."""
    lanes = lanes_for(workload)
    axes = merged(workload) if lanes > 1 and lanes & (lanes - 1) == 0 else None
    return Transpose(workload, axes, lanes) if axes and min(axes.rows, axes.columns) >= lanes else None


@dataclass(frozen=True)
class Axes:
    """The loops of a nest whose neighbours are merged where every access runs through them evenly: `outer`
    ones, the one along which `buffer` is read, and the last; with the sizes of these two."""

    rec: Recorder
    outer: Sequence[str]
    along: str
    last: str
    buffer: str
    rows: int
    columns: int


def merged(workload: Workload) -> Axes | None:
    """None for other kernels than maps of two axes or more, and where not just one access is across, or
    nothing is contiguous to it."""
    stage = workload.stages[0]
    if len(workload.stages) != 1 or stage.reduce_axes or len(stage.axes) < 2:
        return None
    rec = Recorder(te.lower(workload.name, workload.stages, workload.inputs, workload.symbols))
    axes = [a.var.name for a in stage.axes]
    for n in range(len(axes) - 2, -1, -1):
        name = f"{axes[n]}{axes[n + 1]}"
        trial = primitives.fuse(rec.func, axes[n], axes[n + 1], name)
        if not messy(trial, Var(name), primitives.ranges_at(trial, name)):
            rec.do("fuse", axes[n], axes[n + 1], name)
            axes[n : n + 2] = [name]
    *outer, last = axes
    across = [n for n in _reads(rec.func) if _step(rec.func, n, last) not in (0, 1)]
    if len(across) != 1 or sum(n.buffer == across[0].buffer for n in _reads(rec.func)) > 1:
        return None
    along = [n for n in outer if _step(rec.func, across[0], n) == 1]
    if (
        len(along) != 1
        or _step(rec.func, across[0], last) is None
        or not _may_read_early(rec.func, across[0])
    ):
        return None
    rows, columns = (workload.size(primitives.find(rec.func, n).extent) for n in (along[0], last))
    outer.remove(along[0])
    return Axes(rec, outer, along[0], last, across[0].buffer.name, rows, columns)


def _reads(func: Func) -> set[Load]:
    return {n for s in statements(func.body) if isinstance(s, Store) for n in loads(s.value)}


def _may_read_early(func: Func, load: Load) -> bool:
    """Whether a load is inside its buffer for all iterations, or what guards it moves with it (see `pack`):
    one operand of a concatenation is neither."""
    values = [s.value for s in statements(func.body) if isinstance(s, Store)]
    choices = [n for v in values for n in walk(v) if isinstance(n, Select) and not isinstance(n.b, Const)]
    if not any(load in loads(n.a) or load in loads(n.b) for n in choices):
        return True
    known = primitives.ranges_at(func, primitives.loop_names(func)[-1])
    within = zip(load.index, load.buffer.shape, strict=True)
    return all(prove(i >= 0, known) and prove(i < d, known) for i, d in within)


def _step(func: Func, load: Load, loop: str) -> int | None:
    return stride(load, Var(loop), primitives.ranges_at(func, loop))


class Transpose(Template):
    name = "transpose"

    def __init__(self, workload: Workload, axes: Axes, lanes: int) -> None:
        (self.stage,) = workload.stages
        self.workload, self.axes, self.lanes = workload, axes, lanes
        self.count = cost.size(workload, self.stage.axes)
        self.read = next(b for b in workload.inputs if b.name == axes.buffer)
        work = cost.arithmetic(self.stage.body) + TURN
        each = cost.vector_cycles(workload.processor, work, cost.reads([self.stage]), 1)
        self.work = each * self.count / lanes
        self.traffic = cost.traffic(workload)

    def space(self) -> Sequence[Params]:
        """Tiles along the axis that is read, before the next columns: some cache lines, or one vector."""
        return [{"tiles": n} for n in dict.fromkeys((min(TILES, self.axes.rows // self.lanes), 1))]

    def estimate(self, params: Params) -> float:
        """The arithmetic and turning, or the data, of which lines read in parts come again."""
        read = params["tiles"] * self.lanes * self.read.dtype.bytes
        again = cost.EXPOSED * max(0.0, LINE / read - 1)
        cycles = max(self.work, self.traffic * (1 + again))
        return cost.launch(cycles, math.ceil(self.count / TASK_ELEMENTS)) / self.workload.processor.clock

    def schedule(self, params: Params) -> Scheduled:
        axes, lanes = self.axes, self.lanes
        rec, wide = axes.rec.copy(), lanes * params["tiles"]
        rec.do("reorder", [*axes.outer, axes.along, axes.last])
        rec.do("rename", axes.along, "r")
        rec.do("rename", axes.last, "c")
        rows, columns, line = self._task(wide)
        rec.do("split", "r", rows, "bound")
        tasks, c = [*axes.outer, "ro"], "c"
        if columns < axes.columns:
            rec.do("split", "c", line, "bound")
            rec.do("split", "co", columns // line, "bound")
            rec.do("reorder", ["ro", "coo", "coi", "ri", "ci"])
            tasks, c = [*tasks, "coo"], "ci"
        task = fuse_all(rec, tasks, "t") if len(tasks) > 1 else "ro"
        self._tiles(rec, "ri", c, wide, line)
        if wide > lanes and "rit" in primitives.loop_names(rec.func):
            self._tiles(rec, "rit", f"{c}t", lanes, line)
        rest = next((n for n in primitives.loop_names(rec.func) if n in (f"{c}t", f"{c}tt")), "")
        if rest:
            vectorize(rec, rest, primitives.find(rec.func, rest).extent, lanes)
        rec.do("parallelize", task)
        weight = 1.0 + cost.arithmetic(self.stage.body)
        return rec.finish(self.name, params, weight * rows * columns / lanes)

    def _task(self, wide: int) -> tuple[int, int, int]:
        """Rows, in tiles of `wide`, and columns of one task, and columns read before the next tile."""
        axes, line = self.axes, LINE // self.stage.out.dtype.bytes
        if wide * axes.columns <= MOST_ELEMENTS:
            rows = math.ceil(max(1, TASK_ELEMENTS // axes.columns) / wide) * wide
            return rows, axes.columns, max(self.lanes, line)
        rows = math.ceil(axes.rows / math.ceil(axes.rows / MOST_ROWS) / wide) * wide
        apart = axes.columns * self.stage.out.dtype.bytes
        strip = max(self.lanes, line // 2 if apart % SAME_SETS else line)
        return rows, max(1, TASK_ELEMENTS // rows // strip) * strip, strip

    def _tiles(self, rec: Recorder, r: str, c: str, wide: int, line: int) -> None:
        """Loop `r` around `c` as tiles of `wide` rows by `line` columns; rows that are left keep both loops,
        called `r`t and `c`t, and columns that are left are read by vectors and stored one by one."""
        do, x, lanes = rec.do, f"{c}x", self.lanes
        do("split", r, wide, "cut")
        do("rename", c, x)
        do("reorder", [x, f"{r}i"])
        do("split", x, lanes if self.axes.columns % line else line, "cut")
        if f"{r}it" in primitives.loop_names(rec.func):
            do("split", f"{r}it", lanes)
            do("vectorize", f"{r}iti")
        do("split", f"{r}i", lanes)
        do("split", f"{x}i", lanes)
        do("reorder", [f"{r}io", f"{x}io", f"{r}ii", f"{x}ii"])
        turned = f"turned_{r}"
        do("pack", f"{x}io", self.read.name, [f"{x}ii", f"{r}ii"], turned, "register")
        do("unroll", f"{turned}_{x}ii")
        do("vectorize", f"{turned}_{r}ii")
        do("unroll", f"{r}ii")
        do("vectorize", f"{x}ii")
