"""Depthwise convolution and pooling, channels last: vectors of channels, a few output pixels at a
time so that neighbouring windows share their loads. The image's border is peeled off, so that
the middle has no padding to test."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from jangin import te
from jangin.ir.expr import Binary, Const, Expr, Load, Var, const, loads, walk
from jangin.ir.graph import static_shape
from jangin.ir.simplify import Range, interval, simplify
from jangin.schedule.guards import hoist_guards
from jangin.schedule.normalize import simplify_func
from jangin.templates import cost
from jangin.templates.common import fuse_all, lanes_for, stride
from jangin.templates.scheduled import Packing, Params, Recorder, Scheduled
from jangin.templates.template import Problem, Template

LARGEST_WINDOW = 64
"""Taps up to which a window is unrolled along the row."""
SPREAD = 0.08
"""Share of the time that data take to come, for each pixel that they are apart; a third where
multiply-adds hide the rest."""
MOST_PIXELS = 8
"""Of a tile: each has an accumulator, and each tap as many loads."""


def match(problem: Problem) -> Window | None:
    """The kernel as a sliding window over channels-last data, or None where it isn't one."""
    if len(problem.stages) != 1:
        return None
    (stage,) = problem.stages
    taps = static_shape(tuple(a.extent for a in stage.reduce_axes))
    if taps is None or len(stage.axes) < 3 or not 2 <= len(taps) <= 4 or math.prod(taps) > LARGEST_WINDOW:
        return None
    column = stage.axes[-1].var
    data = [n for n in loads(stage.body) if stride(n, column, dict(problem.symbols)) == 1]
    if not data or not _weights_fit(stage, data, problem.constants):
        return None
    return Window(problem)


def _weights_fit(stage: te.Stage, data: Sequence[Load], constants: Collection[str]) -> bool:
    """Every operand that isn't data along the channels is a constant weight [C, 1, taps...]."""
    others = [n for n in loads(stage.body) if n not in data]
    column = stage.axes[-1].var
    taps = [a.var for a in stage.reduce_axes]
    return all(
        n.buffer.name in constants
        and n.index[0] == column
        and all(i in taps or i == const(0) for i in n.index[1:])
        for n in others
    )


def _step(load: Load, stage: te.Stage, problem: Problem) -> int:
    """Input pixels between the windows of neighbouring output pixels; 0 of weights."""
    elements = stride(load, stage.axes[-2].var, dict(problem.symbols)) or 0
    return elements // max(1, problem.size(load.buffer.shape[-1]))


class Window(Template):
    name = "window"

    def __init__(self, problem: Problem) -> None:
        (self.stage,) = problem.stages
        self.problem, self.symbols = problem, problem.symbols
        self.lanes = lanes_for(problem)
        self.column = self.stage.axes[-1].var.name
        self.row = self.stage.axes[-2].var.name
        self.taps = [a.var.name for a in self.stage.reduce_axes]
        self.border = self._border()
        self.middle = simplify(self.stage.axes[-2].extent - sum(self.border))
        self.size, self.count = problem.size(self.middle), cost.size(problem, self.stage.reduce_axes)
        self.work = max(cost.arithmetic(self.stage.body), 1.0)
        self.rows = cost.size(problem, self.stage.axes[:-2])
        self.vectors = math.ceil(problem.size(self.stage.axes[-1].extent) / self.lanes)
        self.final = cost.arithmetic(self.stage.result)
        self.traffic = cost.traffic(problem)
        self.across = next((n for n in map(self._extent, reversed(self.stage.reduce_axes)) if n > 1), 1)
        steps = [_step(n, self.stage, problem) for n in loads(self.stage.body)]
        self.stride = max((s for s in steps if s), default=1)
        self.weighted = int(len(steps) > 1)

    def space(self) -> Sequence[Params]:
        return [{"tile": n} for n in range(1, min(self.size, MOST_PIXELS) + 1)]

    def estimate(self, params: Params) -> float:
        """A tile's arithmetic or loads (neighbours share theirs); pixels beyond whole tiles and at the border
        one by one; then the data, which come the slower the farther apart a tile's pixels lie."""
        tile = params["tile"]
        alone = self.size % tile + sum(self.border)
        row = self.size // tile * self._tile_cycles(tile) + alone * self._tile_cycles(1)
        moved = self.traffic * SPREAD * (2 + tile * self.stride) / (1 + 2 * self.weighted)
        return cost.launch(self.rows * self.vectors * row + moved, self.rows) / self.problem.target.clock

    def _tile_cycles(self, tile: int) -> float:
        t, width, height = self.problem.target, self.across, self.count / self.across
        loads = height * (min(tile * width, (tile - 1) * self.stride + width) + self.weighted * width)
        work = tile * (self.count * self.work + self.final)
        return max(work / t.multiply_adds, loads / t.loads) + cost.LOOP + tile

    def schedule(self, params: Params) -> Scheduled:
        return _Scheduler(self, params["tile"]).run()

    def _extent(self, axis: te.Axis) -> int:
        return self.problem.size(axis.extent)

    def _border(self) -> tuple[int, int]:
        """Output columns at either side whose windows reach into the padding; (0, 0) where that isn't
        known, and the tests stay."""
        extent = self.stage.axes[-2].extent
        conds = [c for n in walk(self.stage.body) for c in self._row_conditions(n)]
        if not conds or not isinstance(extent, Const):
            return 0, 0
        size = int(extent.value)
        good = (x for x in range(size) if all(self._holds(c, x) for c in conds))
        first = next(good, size)
        if first == size or size < 4:
            return 0, 0
        last = next(x for x in range(size - 1, -1, -1) if all(self._holds(c, x) for c in conds))
        return first, size - 1 - last

    def _row_conditions(self, n: Expr) -> list[Binary]:
        row = Var(self.row)
        is_test = isinstance(n, Binary) and n.op in ("lt", "ge")
        return [n] if isinstance(n, Binary) and is_test and any(v == row for v in walk(n)) else []

    def _holds(self, cond: Binary, x: int) -> bool:
        """Whether a test holds for every tap at output column x."""
        ranges: dict[Var, Range] = dict(self.symbols)
        ranges |= {a.var: (const(0), a.extent - 1) for a in self.stage.reduce_axes}
        ranges[Var(self.row)] = (const(x), const(x))
        low, high = interval(cond.a - cond.b, ranges)
        return (high is not None and high < 0) if cond.op == "lt" else (low is not None and low >= 0)


class _Scheduler:
    """Makes the schedule for one tile size."""

    def __init__(self, window: Window, tile: int) -> None:
        problem, self.stage, self.tile = window.problem, window.stage, tile
        self.rec = Recorder(te.lower(problem.name, problem.stages, problem.inputs, problem.symbols))
        self.window, self.lanes, self.column, self.row = window, window.lanes, window.column, window.row
        self.taps = window.taps
        self.acc = f"{self.stage.out.name}.acc"
        column = self.stage.axes[-1].var
        weights = [n for n in loads(self.stage.body) if stride(n, column, dict(problem.symbols)) != 1]
        self.weights = weights[0] if weights else None

    def run(self) -> Scheduled:
        rec, tile = self.rec, self.tile
        packings = (
            {self.weights.buffer.name: self._relayout(self.weights)} if self.weights is not None else {}
        )
        rec.do("predicate", self.acc)
        outer = [a.var.name for a in self.stage.axes[:-2]]
        rec.do("split", self.column, self.lanes)
        before, after = self.window.border
        middle = self.window.middle
        if before or after:
            rec.do("peel", self.row, before, after)
        if tile > 1:
            rec.do("split", self.row, tile, "cut")
            self._segment("", tile)
            exact = isinstance(middle, Const) and int(middle.value) % tile == 0
            if not exact:
                self._segment("t", 1, loop=f"{self.row}t")
        else:
            self._segment("", 1, loop=self.row)
        for suffix, count in (("_b", before), ("_a", after)):
            if count:
                self._segment(suffix, 1, loop=f"{self.row}{suffix}")
        rec.do("hoist_guards")
        task = fuse_all(rec, outer, "t")
        rec.do("parallelize", task)
        func = simplify_func(hoist_guards(simplify_func(rec.func)))
        return Scheduled("window", func, tuple(rec.steps), packings, {"tile": tile}, self._cost())

    def _segment(self, suffix: str, tile: int, loop: str = "") -> None:
        """Schedule one copy of the row loop: channels outside, `tile` pixels by one vector inside."""
        rec, c = self.rec, self.column
        inner = [f"{c}i{suffix}"]
        if tile > 1:
            rec.do("reorder", [f"{self.row}o", f"{c}o", f"{self.row}i", f"{c}i"])
            inner = [f"{self.row}i", *inner]
        rec.do(
            "privatize",
            self.acc + suffix,
            inner,
            (self.weights.buffer.name,) if self.weights is not None else (),
        )
        rec.do("unroll", self.taps[-1] + suffix if not self._last_is_unit() else self.taps[-2] + suffix)
        for part in ("", "_z", "_w"):
            if tile > 1:
                rec.do("unroll", inner[0] + part)
            rec.do("vectorize", inner[-1] + part)

    def _last_is_unit(self) -> bool:
        last = self.stage.reduce_axes[-1].extent
        return isinstance(last, Const) and int(last.value) == 1

    def _relayout(self, load: Load) -> Packing:
        """Weights [C, 1, taps...] to [taps..., padded C]."""
        old, lanes = load.buffer, self.lanes
        channels = old.shape[0]
        width = int(simplify((channels + (lanes - 1)) // lanes * lanes).value)  # type: ignore[attr-defined]
        rest = old.shape[1:]
        self.rec.do(
            "relayout", old.name, (const(1), const(1), *rest, const(width)),
            lambda *i: (const(0), const(0), *i[1:], i[0]),
        )  # fmt: skip
        return Packing(tuple(range(len(old.shape))), 0, 1, width)

    def _cost(self) -> float:
        total = 1.0
        for a in (*self.stage.axes[-2:], *self.stage.reduce_axes):
            total *= float(a.extent.value) if isinstance(a.extent, Const) else 56.0
        return total / self.lanes
