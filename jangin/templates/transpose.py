"""Copies and maps whose reads and writes are contiguous along different axes: tiles transposed in registers.

Vectors are loaded along the axis that is contiguous for the read. A tile's lanes are transposed, and vectors
are stored along the axis that is contiguous for the write. Several tiles side by side read whole cache lines.

    `parallel task { r { x { tile { load a vector for each x; turn; store a vector for each r } } } }`

If a few rows of the result are more than a task's work, a task is a block of the result, in strips. A strip
is half a cache line of each of many rows. So only few long pieces are read at once, and a processor's
prefetcher can follow them. The next strip finds the lines that it completes in the cache.
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
"""Bytes of a cache line on all processors with this template."""
TURN = 3.0
"""Instructions for each vector of a transposition: one for each doubling of the lanes, of which AVX2 has
eight of f32."""
MOVED = 2.0
"""Instructions that load and store a vector: one each."""
TILES = 4
"""Tiles that are read from one row before the next row. They fill whole cache lines."""
TASK_ELEMENTS = 16384
"""Fewest elements of a task. Handing out a smaller one takes as long as its work."""
MOST_ELEMENTS = 2 * TASK_ELEMENTS
"""Most elements of a task of whole rows."""
MOST_ROWS = 1024
"""Most rows of the result in a strip. Their lines stay in the L2 cache, and their pages in the TLB."""
FEWEST_TASKS = 8
"""Fewest tasks of rows that are a cache line of the operand, so that threads share them evenly."""
SAME_SETS = 2048
"""Bytes. Rows at a multiple of this distance share few sets of a cache, so that it can't hold a line of
each."""


def match(workload: Workload) -> Transpose | None:
    """Return the template for a map that reads one buffer contiguously along another axis than it writes.
    Return None for other kernels, for fewer rows or columns than half a vector has lanes, and for lanes that
    aren't a power of two."""
    lanes = lanes_for(workload)
    axes = merged(workload) if lanes > 1 and lanes & (lanes - 1) == 0 else None
    if axes and min(axes.rows, axes.columns) < lanes and workload.processor.half_vectors:
        lanes //= 2
    return Transpose(workload, axes, lanes) if axes and min(axes.rows, axes.columns) >= lanes > 1 else None


@dataclass(frozen=True)
class Axes:
    """The loops of a nest, after neighbours along which every access is linear were fused.

    The `outer` loops stand around `along`, along which `buffer` is contiguous, and the loop `last`. `rows`
    and `columns` are the sizes of `along` and `last`.
    """

    rec: Recorder
    outer: Sequence[str]
    along: str
    last: str
    buffer: str
    rows: int
    columns: int


def merged(workload: Workload) -> Axes | None:
    """Return the fused loops of a transposing map, or None for other kernels.

    The kernel must be a map of two axes or more. Exactly one access must be strided along the last axis, and
    it must be contiguous along another.
    """
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
    """Return whether a load may be moved before its condition.

    It may if its index is inside its buffer in all iterations, or if its condition moves with it (see
    `pack`). An operand of a concatenation fulfils neither.
    """
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
        """Return the numbers of tiles along the axis of the reads to try: enough for some cache lines, or one
        vector."""
        most = LINE // self.stage.out.dtype.bytes // self.lanes if self.within_lines else TILES
        return [{"tiles": n} for n in dict.fromkeys((max(1, min(most, self.axes.rows // self.lanes)), 1))]

    def estimate(self, params: Params) -> float:
        """Return the estimated seconds: the arithmetic and transposition, or the data traffic if that takes
        longer. Cache lines that are read in parts come again."""
        read = params["tiles"] * self.lanes * self.read.dtype.bytes
        again = cost.EXPOSED * max(0.0, LINE / read - 1)
        cycles = max(self.work, self.traffic * (1 + again))
        return cost.launch(cycles, math.ceil(self.count / TASK_ELEMENTS)) / self.workload.processor.clock

    @property
    def within_lines(self) -> bool:
        """Whether the result's rows are shorter than two cache lines, and lie one after the other along the
        loop around them. A task then goes along this loop, so that it fills the lines that it begins."""
        axes, out = self.axes, self.stage.out
        few = axes.rows * out.dtype.bytes < FEWEST_TASKS * LINE
        if not axes.outer or few or axes.columns * out.dtype.bytes >= 2 * LINE:
            return False
        (store,) = (s for s in statements(axes.rec.func.body) if isinstance(s, Store))
        return stride(Load(out, store.index), Var(axes.outer[-1]), {}) == axes.columns

    def schedule(self, params: Params) -> Scheduled:
        axes, lanes = self.axes, self.lanes
        rec, wide = axes.rec.copy(), lanes * params["tiles"]
        rec.do("reorder", [*axes.outer, axes.along, axes.last])
        rec.do("rename", axes.along, "r")
        rec.do("rename", axes.last, "c")
        rows, columns, line = self._task(wide)
        rec.do("split", "r", rows, "bound")
        tasks, c = [*axes.outer, "ro"], "c"
        if self.within_lines:
            *outer, around = axes.outer
            rec.do("reorder", ["ro", around])
            tasks = [*outer, "ro"]
        elif columns < axes.columns:
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
        weight = MOVED + TURN + cost.arithmetic(self.stage.body)
        return rec.finish(self.name, params, weight * rows * columns / lanes)

    def _task(self, wide: int) -> tuple[int, int, int]:
        """Return the numbers of a task's rows, of its columns, and of the columns that are read before the
        next tile. The rows are whole tiles of `wide` rows."""
        axes, line = self.axes, LINE // self.stage.out.dtype.bytes
        if self.within_lines:
            return max(wide, line), axes.columns, max(self.lanes, line)
        if wide * axes.columns <= MOST_ELEMENTS:
            rows = math.ceil(max(1, TASK_ELEMENTS // axes.columns) / wide) * wide
            return rows, axes.columns, max(self.lanes, line)
        rows = math.ceil(axes.rows / math.ceil(axes.rows / MOST_ROWS) / wide) * wide
        apart = axes.columns * self.stage.out.dtype.bytes
        strip = max(self.lanes, line // 2 if apart % SAME_SETS else line)
        return rows, max(1, TASK_ELEMENTS // rows // strip) * strip, strip

    def _tiles(self, rec: Recorder, r: str, c: str, wide: int, line: int) -> None:
        """Schedule loop `r` around `c` as tiles of `wide` rows by `line` columns.

        Remaining rows keep both loops, named `r`t and `c`t. Remaining columns are read by vectors and stored
        one by one.
        """
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
