"""Reductions, softmax and normalizations. The stages share outer rows, and each row's intermediates are in
scratch memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

from jangin.ir import te
from jangin.ir.expr import Binary, Const, Expr, Load, Select, Var, const
from jangin.ir.graph import static_shape
from jangin.ir.loop import Alloc, For, Func, expressions, statements
from jangin.ir.records import dataclass
from jangin.ir.traversal import free_vars, loads, walk
from jangin.schedule import primitives, seldom, stages
from jangin.schedule.checks import ScheduleError
from jangin.schedule.primitives import loop_names
from jangin.targets.processor import Processor
from jangin.templates import cost
from jangin.templates.common import fuse_all, lanes_for, shorten_sum, stride, together, vectorize
from jangin.templates.scheduled import Params, Recorder, Scheduled
from jangin.templates.template import Template, Workload

PARTIALS = (4, 2, 8, 1)
"""Vectors of partial sums, to try. So many additions overlap. The first is preferred in doubt."""

AT_ONCE = 4
"""Vectors in one iteration of a loop over elements, if instructions limit the speed. An iteration has three
or four instructions of its own."""

MASKED = 4.0
"""Factor on the time of a vector with a condition for each lane. It is an estimate that only orders
candidates, which tuning measures."""
SHORT = 2
"""Rows of at most so many vectors are reduced side by side, one row in each lane. For such rows, the
remainder and the sum over lanes take longer than single loads of all elements."""
SHORT_STAGES = 4
"""Most vectors of a row for kernels of several stages, whose rows are then reduced side by side. The limit is
higher than `SHORT` because each reduction has a remainder."""
ROWS_AT_ONCE = 1024
"""Rows of a task that reduces rows side by side. Short rows in this number are enough work for a task, and
their data stay in the L2 cache."""
STAGED_ROWS = 256
"""Most rows of a task whose stages each go through all of the task's rows. Fewer rows stay in a cache from
stage to stage."""
IN_PAIRS = 8
"""Terms of a sum that are unrolled and added in pairs before the accumulator, a power of two. Rounding errors
then grow with an eighth of the terms."""
FEWEST_PAIRED = 4
"""Fewest remaining terms that are added in pairs, if their number isn't known. Fewer need no tree: their
errors are those of two additions."""
CHEAP = 4.0
"""Most vector instructions of a term that is unrolled for pairs. For dearer terms the additions aren't what
limits the speed."""
COMBINE = 15.0
"""Cycles to start a vector of partial sums and to add it to the others at the end. Estimates weigh them
against the additions that overlap."""


def match(workload: Workload) -> Rows:
    """Return the template for kernels whose stages share outer axes, the rows. It fits every kernel."""
    return Rows(workload)


@dataclass(frozen=True)
class _Cost:
    """The figures of a stage's time.

    - `step`: cycles for each of the `points`, with `lanes` at once.
    - `rows`: rows along one axis, which may be the sum's.
    - `sums`: whether the vectors of a row are reduced.
    - `results`: number of sums, each with `final` cycles.
    - `together`: vectors of columns that are reduced side by side, or 0.
    """

    step: float
    points: int
    lanes: float
    rows: int
    sums: bool
    results: int
    final: float
    together: int

    @staticmethod
    def of(p: Workload, s: te.Stage) -> _Cost:
        columns = bool(s.reduce_axes and s.axes) and _column_like(s)
        along = s.reduce_axes[-1:] if s.reduce_axes and not columns else s.axes[-1:]
        lanes: float = lanes_for(p) if along and _contiguous(s, along[0].var) else 1
        tests = [n.cond for n in walk(s.body) if isinstance(n, Select)]
        if lanes > 1 and s.reduce_axes and any(along[0].var in free_vars(c) for c in tests):
            run = p.size(along[0].extent)  # the rest after whole vectors goes one by one
            lanes = lanes / MASKED if columns else run / (run // lanes + run % lanes)
        work = cost.arithmetic(s.body) + bool(s.reduce_axes)
        step = cost.vector_cycles(p.processor, work, cost.reads([s]), 0.0 if s.reduce_axes else 1.0)
        points = cost.size(p, (*s.axes, *s.reduce_axes))
        results = cost.size(p, s.axes) // (max(1, int(lanes)) if columns else 1) if s.reduce_axes else 0
        sums = bool(s.reduce_axes) and not columns
        together = _side_by_side(s.axes[-1].extent, lanes_for(p), max(PARTIALS)) if columns else 0
        rows = points // max(1, cost.size(p, along))
        return _Cost(
            step, points, lanes, rows, sums, results, cost.arithmetic(s.result) + cost.LOOP, together
        )

    def cycles(self, t: Processor, partials: int) -> float:
        ways = partials if self.lanes > 1 else 1
        step = self.step
        if self.sums or self.together:
            ways = min(ways, self.together) if self.together else ways
            step = max(step, t.latency / ways) + 1 / ways
        return step * self.points / self.lanes + self.results * (self.final + COMBINE * partials * self.sums)


class Rows(Template):
    name = "rows"
    several = True

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        *_, last = group = workload.stages
        depth = _single_depth(last) if len(group) == 1 else _common_depth(group)
        rare = _rare(group, depth)
        self.costs = [_Cost.of(workload, s) for s in group if s.out.name not in rare]
        self.traffic = cost.traffic(workload)
        self.columns = (
            last if len(group) == 1 and last.reduce_axes and last.axes and _column_like(last) else None
        )
        self.tasks = cost.size(workload, last.axes[:depth])

    def space(self) -> Sequence[Params]:
        reduces = any(s.reduce_axes for s in self.workload.stages)
        return [{"partials": n} for n in (PARTIALS if reduces else PARTIALS[:1])]

    def estimate(self, params: Params) -> float:
        """Return the estimated seconds. Stages with contiguous data are computed by vectors, others element
        by element. Partial sums overlap."""
        t = self.workload.processor
        cycles = sum(s.cycles(t, params["partials"]) for s in self.costs)
        cycles += max(s.rows for s in self.costs) * cost.LOOP
        traffic = self.traffic * self._jumps(params["partials"])
        return cost.launch(cost.overlapped(cycles, traffic), self.tasks) / t.clock

    def _jumps(self, partials: int) -> float:
        """Return the factor on the time to read an array because its columns are reduced in pieces of
        rows."""
        if self.columns is None:
            return 1.0
        p, lanes, extent = self.workload, lanes_for(self.workload), self.columns.axes[-1].extent
        size = max(n.buffer.dtype.bytes for n in loads(self.columns.body))
        whole = size * cost.size(p, (*self.columns.axes, *self.columns.reduce_axes))
        piece, row = size * lanes * _side_by_side(extent, lanes, partials), size * p.size(extent)
        return p.processor.rate(whole) / cost.far_rate(p.processor, whole, piece, row)

    def schedule(self, params: Params) -> Scheduled:
        """Schedule the stages over merged rows, each vectorized along its own contiguous axis."""
        p, group = self.workload, self.workload.stages
        rec = Recorder(te.lower(p.name, group, p.inputs, p.symbols, p.outputs))
        if self.columns is not None and seldom.is_seldom(group[0]):
            rec.do("find_first", _acc_name(group[0]))
            group = seldom.found_first(group[0])
        lanes = lanes_for(p)
        several = len(group) > 1
        depth = shared_rows(rec, group)
        rare = _rare(group, depth)
        if several and depth and (rows := _short_rows(group, depth, lanes)):
            _stages_across_rows(rec, group, depth, lanes, rows)
            return rec.finish(self.name, params, _row_cost(group, depth, lanes) * rows)
        if several and depth:
            rec.do("merge", depth, [f"r{d}" for d in range(depth)])
        outer = [f"{'r' if several else 'i'}{d}" for d in range(depth)]
        task = fuse_all(rec, outer, "t") if outer else ""
        whole = not several and depth == len(group[0].axes)  # a task is one row
        if task and whole and _across_rows(rec, group[0], task, lanes):
            return rec.finish(self.name, params, _row_cost(group, depth, lanes) * ROWS_AT_ONCE)
        for stage in group:
            if stage.out.name in rare:
                rec.do("only_where", _acc_name(stage) if stage.reduce_axes else stage.out.name)
        loops: list[str] = []
        for n, stage in enumerate(group):
            own = te.rename_axes(stage, chr(97 + n % 26)) if several else stage
            loops.append(vectorize_stage(rec, own, depth, lanes, params["partials"], p.processor))
        if p.outputs > 1:
            _join_results(rec, group, loops)
        if task:
            rec.do("parallelize", task)
        _keep_in_result(rec, group, depth)
        _keep_in_registers(rec)
        work = _row_cost([s for s in group if s.out.name not in rare], depth, lanes)
        return rec.finish(self.name, params, work)


def _keep_in_registers(rec: Recorder) -> None:
    """Keep intermediates of one element in registers. In memory, a vector load right after the element's
    store would wait for the store."""
    for s in [*statements(rec.func.body)]:
        if isinstance(s, Alloc) and s.buffer.memory == "scratch" and s.buffer.shape == (const(1),):
            rec.do("place", s.buffer.name, "register")


def _keep_in_result(rec: Recorder, group: Sequence[te.Stage], depth: int) -> None:
    """Keep a row of intermediates in the memory of the result's row, which is computed from it. The first
    stage that allows it is taken."""
    for stage in group[:-1]:
        if len(stage.axes) > depth:
            try:
                rec.do("in_result", stage.out.name)
                return
            except ScheduleError:
                continue


def _rare(group: Sequence[te.Stage], depth: int) -> set[str]:
    """Return the names of the results that are computed in few rows only.

    These are sums marked `sometimes`, with terms only if earlier stages found something in the row. The
    selections that follow a sum for the next row are rare too.
    """
    rare, computed, before = set[str](), set[str](), False
    for s in group:
        chosen = isinstance(s.body, Select) and len(s.axes) == depth
        if chosen and s.reduce_axes:
            read = {n.buffer.name for n in loads(s.body.cond)} if isinstance(s.body, Select) else set()
            before = s.sometimes and bool(read) and read <= computed
        else:
            before = chosen and before
        rare |= {s.out.name} if before else set()
        computed.add(s.out.name)
    return rare


def _contiguous(stage: te.Stage, var: Var) -> bool:
    """Return whether every load of the body is constant or contiguous along `var`."""
    return all(stride(n, var, {}) in (0, 1) for n in loads(stage.body))


def shared_rows(rec: Recorder, group: Sequence[te.Stage]) -> int:
    """Return the number of leading axes that all stages share, so that a row reads no other row's
    intermediates."""
    if len(group) == 1:
        return _single_depth(group[0])
    depth = _common_depth(group)
    while depth:
        try:
            stages.merge(rec.func, depth, [f"r{d}" for d in range(depth)])
            return depth
        except ScheduleError:
            depth -= 1
    return 0


def _common_depth(group: Sequence[te.Stage]) -> int:
    """Return the number of leading axes with the same size in all stages."""
    depth, last = min(len(s.axes) for s in group), group[-1]
    for s in group:
        while any(a.extent != b.extent for a, b in zip(s.axes[:depth], last.axes[:depth], strict=True)):
            depth -= 1
    sums = [s for s in group if s.reduce_axes]
    if sums and depth and all(len(s.axes) == depth for s in group) and all(map(_column_like, sums)):
        return depth - 1  # the last axis is for vectors
    return depth


def _single_depth(stage: te.Stage) -> int:
    """Return the number of a single stage's outer axes. A reduction keeps its last axis for vectors if its
    inputs are contiguous along that axis."""
    if stage.reduce_axes and stage.axes and _column_like(stage):
        return len(stage.axes) - 1
    return len(stage.axes)


def _column_like(stage: te.Stage) -> bool:
    column = stage.axes[-1].var
    steps = [stride(n, column, {}) for n in loads(stage.body)]
    return (
        bool(steps) and all(s in (0, 1) for s in steps) and 1 in steps and not _is_unit(stage.axes[-1].extent)
    )


def _is_unit(e: Expr) -> bool:
    return isinstance(e, Const) and int(e.value) == 1


def _across_rows(rec: Recorder, stage: te.Stage, task: str, lanes: int) -> bool:
    """Reduce short rows side by side, one in each lane. Return False, with nothing changed, if the rows are
    too long, too few, or not contiguous."""
    extents = [a.extent for a in stage.reduce_axes]
    if not extents or not all(isinstance(e, Const) for e in extents) or rec.func.symbols:
        return False
    terms = math.prod(int(e.value) for e in extents if isinstance(e, Const))
    loop = primitives.find(rec.func, task)
    ranges = primitives.ranges_at(rec.func, task)
    steps = {stride(n, loop.var, ranges) for n in _term_loads(rec.func, loop)}
    rows = int(loop.extent.value) if isinstance(loop.extent, Const) else 0
    if not 1 < terms <= SHORT * lanes or rows < 2 * lanes or not steps <= {0, 1, terms}:
        return False
    acc, inner = _acc_name(stage), [a.var.name for a in stage.reduce_axes]
    rec.do("split", task, ROWS_AT_ONCE, "bound")
    rec.do("split", f"{task}i", lanes, "cut")
    rec.do("privatize", acc, [f"{task}ii"])
    _unroll_terms(rec, stage, inner)
    for suffix in ("", "_z", "_w"):
        rec.do("vectorize", f"{task}ii{suffix}")
    rec.do("parallelize", f"{task}o")
    return True


def _short_rows(group: Sequence[te.Stage], depth: int, lanes: int) -> int:
    """Return the number of rows of a task that are reduced side by side.

    Each stage must give one value a row, and each reduction must have few terms. Return 0 if not.
    """
    last = group[-1].axes[depth - 1].extent
    sums = [s for s in group if s.reduce_axes]
    if not sums or any(len(s.axes) != depth for s in group) or not isinstance(last, Const):
        return 0
    for s in sums:
        terms = static_shape(tuple(a.extent for a in s.reduce_axes))
        if terms is None or not 1 < math.prod(terms) <= SHORT_STAGES * lanes:
            return 0
        steps = {stride(n, s.axes[-1].var, {}) for n in loads(s.body)}
        if not steps <= {0, 1, math.prod(terms)}:
            return 0
    rows = min(int(last.value), STAGED_ROWS)
    return rows if rows >= 2 * lanes else 0


def _stages_across_rows(rec: Recorder, group: Sequence[te.Stage], depth: int, lanes: int, rows: int) -> None:
    """Schedule each stage over all rows of a task, one row in each lane."""
    shared = [f"r{d}" for d in range(depth)]
    rec.do("merge", depth, shared, rows)
    for n, stage in enumerate(group):
        own = te.rename_axes(stage, chr(97 + n % 26))
        row = own.axes[-1].var.name
        rec.do("split", row, lanes, "cut")
        if own.reduce_axes:
            rec.do("privatize", _acc_name(own), [f"{row}i"])
            _unroll_terms(rec, own, [axis.var.name for axis in own.reduce_axes])
        for suffix in ("", "_z", "_w") if own.reduce_axes else ("",):
            rec.do("vectorize", f"{row}i{suffix}")
    rec.do("parallelize", fuse_all(rec, shared, "t") if depth > 1 else shared[0])


def _is_cheap_sum(stage: te.Stage) -> bool:
    """Return whether a stage sums floats with so few instructions a term (`CHEAP`) that several terms may be
    unrolled."""
    adds = stage.combiner == "sum" and stage.body.dtype.is_float
    return adds and cost.arithmetic(stage.body) <= CHEAP


def _unroll_terms(rec: Recorder, stage: te.Stage, loops: Sequence[str]) -> None:
    """Unroll all loops of a sum of few terms, floats in pairs."""
    adds = stage.combiner == "sum" and stage.body.dtype.is_float
    for loop in reversed(loops):
        rec.do("pairwise" if adds else "unroll", loop)


def _pair_terms(rec: Recorder, loop: str, most: int = IN_PAIRS) -> None:
    """Unroll a sum's loop by `most` terms, which are added in pairs. The remaining terms are added in pairs
    too."""
    rec.do("split", loop, most, "cut")
    rec.do("pairwise", f"{loop}i")
    rest = f"{loop}t"
    left = primitives.find(rec.func, rest).extent if rest in loop_names(rec.func) else const(0)
    if not isinstance(left, Const):
        if most > FEWEST_PAIRED:
            _pair_terms(rec, rest, most // 2)
    elif left.value:
        rec.do("pairwise", rest)


def _join_results(rec: Recorder, group: Sequence[te.Stage], loops: Sequence[str]) -> None:
    """Reduce neighbouring stages in one loop if they read the same buffers. `loops`: each stage's loop over
    vectors, or ""."""
    for (a, first), (b, second) in pairwise(zip(group, loops, strict=True)):
        if first and second and {n.buffer for n in loads(a.body)} == {n.buffer for n in loads(b.body)}:
            with suppress(ScheduleError):
                rec.do("side_by_side", first, second)


def vectorize_stage(
    rec: Recorder, stage: te.Stage, depth: int, lanes: int, partials: int, processor: Processor
) -> str:
    """Vectorize a stage inside the kernel's `depth` outer loops.

    The stage's axes must have the names of the kernel's loops. Return the name of the loop over vectors if a
    reduction makes partial sums by lane, else an empty string.
    """
    axes = [a.var.name for a in stage.axes[depth:]]
    if not stage.reduce_axes:
        if axes:
            vectorize(rec, axes[-1], stage.axes[-1].extent, lanes, together(processor, stage.body))
            if processor.issue and f"{axes[-1]}o" in loop_names(rec.func):
                rec.do("split", f"{axes[-1]}o", AT_ONCE, "cut")
                rec.do("unroll", f"{axes[-1]}oi")
        return ""
    if axes and _column_like(stage):
        column, ways = axes[-1], _side_by_side(stage.axes[-1].extent, lanes, partials)
        rec.do("split", column, lanes)
        rec.do("split", f"{column}o", ways)
        rec.do("privatize", _acc_name(stage), [f"{column}oi", f"{column}i"])
        for suffix in ("", "_z", "_w"):
            rec.do("unroll", f"{column}oi{suffix}")
            rec.do("vectorize", f"{column}i{suffix}")
        *others, k = (a.var.name for a in stage.reduce_axes)
        if seldom.is_seldom(stage):
            rec.do("predicate", _acc_name(stage))
            rec.do("hoist_guards")
        elif _is_cheap_sum(stage):
            _pair_terms(rec, k)
            shorten_sum(rec, stage, [*others, f"{k}o"], IN_PAIRS)
        else:
            shorten_sum(rec, stage, [*others, k])
        return ""
    return _vector_reduction(rec, stage, lanes, partials)


def _side_by_side(columns: Expr, lanes: int, partials: int) -> int:
    """Return the number of vectors of columns that are reduced together: the most up to `partials` that leave
    none over."""
    vectors = math.ceil(int(columns.value) / lanes) if isinstance(columns, Const) else 1
    return next(n for n in range(partials, 0, -1) if vectors % n == 0)


def _acc_name(stage: te.Stage) -> str:
    return f"{stage.out.name}.acc"


def _vector_reduction(rec: Recorder, stage: te.Stage, lanes: int, partials: int) -> str:
    """Make partial sums by lane, along the contiguous loops of the reduction. Return the loop over vectors,
    or "" if the reduction stays scalar."""
    k = [a.var.name for a in stage.reduce_axes]
    loop = _contiguous_loop(rec, k)
    if not loop:
        return ""
    extent = primitives.find(rec.func, loop).extent
    size = int(extent.value) if isinstance(extent, Const) else 64
    if size < lanes:
        if _is_cheap_sum(stage):
            rec.do("pairwise", loop)
        return ""
    rec.do("rfactor", loop, lanes, max(1, min(partials, size // lanes)))
    if f"{loop}t" in loop_names(rec.func) and _is_cheap_sum(stage):
        _pair_terms(rec, f"{loop}t")
    shorten_sum(rec, stage, [f"{loop}o"])
    return f"{loop}o"


def _contiguous_loop(rec: Recorder, k: Sequence[str]) -> str:
    """Fuse as many innermost loops of `k` as possible to one along which all loads are contiguous.

    Return its name, or "" if the loads aren't contiguous along the last loop either.
    """
    for first in range(len(k)):
        inner = list(k[first:])
        trial = rec.copy()
        loop = fuse_all(trial, inner, f"{inner[0]}f") if len(inner) > 1 else inner[0]
        innermost = primitives.find(trial.func, loop)
        ranges = primitives.ranges_at(trial.func, loop)
        steps = [stride(n, innermost.var, ranges) for n in _term_loads(trial.func, innermost)]
        if steps and all(s in (0, 1) for s in steps):
            rec.adopt(trial)
            return loop
    return ""


def _term_loads(func: Func, loop: For) -> list[Load]:
    reads = [n for st in statements(loop.body) for e in expressions(st) for n in loads(e)]
    return [n for n in reads if n.buffer.memory != "register"]


def _row_cost(group: Sequence[te.Stage], depth: int, lanes: int) -> float:
    """Return the approximate vector operations of a row."""
    total = 0.0
    for s in group:
        size: Expr = const(1)
        for a in (*s.axes[depth:], *(() if seldom.is_seldom(s) else s.reduce_axes)):
            size = size * a.extent
        count = float(size.value) if isinstance(size, Const) else 256.0
        total += count * sum(1 for n in walk(s.body) if isinstance(n, Binary)) + count
    return total / lanes
