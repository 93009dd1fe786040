"""Depthwise convolution and pooling, channels last.

A register tile has a few output pixels of a row by vectors of channels, so neighbouring windows share their
loads. The tiles at the row's ends have a copy of the code for their padding. In an image one pixel wide, a
column is the row, and its channels are divided among tasks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from jangin.ir import te
from jangin.ir.dtype import I16
from jangin.ir.expr import Buffer, Const, Load, Select, const, product_of
from jangin.ir.graph import static_shape
from jangin.ir.simplify import simplify
from jangin.ir.traversal import free_vars, loads, walk
from jangin.schedule.normalize import ceil_div
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
from jangin.templates.register_tile import HALVED, at_once, begin_with_bias, written_wide
from jangin.templates.scheduled import Packing, Params, Recorder, Scheduled
from jangin.templates.template import Template, Workload

LARGEST_WINDOW = 64
"""Most taps of a window that may reach outside the image while a row has several windows. Larger ones are
left to other templates."""
LINE, WAYS = 64, 8
"""Bytes of a cache line, and lines in a set of the L1 cache."""
JOINS = 1.5
"""Instructions that join the rows' bytes to words, for each vector of bytes. It is an estimate that only
orders candidates, which tuning measures."""
MOST_PIXELS = 8
"""Most pixels times vectors of a tile. Each has an accumulator and, for each tap, a load, so that more make
the code long."""
EACH = 2
"""Vector registers for each accumulator, because operands and intermediate results need some too."""


def match(workload: Workload) -> Window | None:
    """Return the template for a sliding window over channels-last data, or None for other kernels."""
    return Window(workload) if fits(workload) else None


def fits(workload: Workload) -> bool:
    """Return whether the kernel is a sliding window over channels-last data."""
    if len(workload.stages) != 1:
        return False
    (stage,) = workload.stages
    taps = static_shape(tuple(a.extent for a in stage.reduce_axes))
    if taps is None or len(stage.axes) < 3 or not 2 <= len(taps) <= 4:
        return False
    if any(a.extent == const(0) for a in stage.axes):
        return False
    tested = any(isinstance(n, Select) for n in walk(stage.body))
    if math.prod(taps) > LARGEST_WINDOW and tested and stage.axes[-2].extent != const(1):
        return False
    column = stage.axes[-1].var
    inner = {a.var for a in stage.reduce_axes if a.extent != const(1)}
    data = [n for n in loads(stage.body) if stride(n, column, dict(workload.symbols)) == 1]
    data = [n for n in data if inner.isdisjoint(free_vars(n.index[-1]))]
    return bool(data) and _weights_fit(stage, data, workload.constants)


def _weights_fit(stage: te.Stage, data: Sequence[Load], constants: Collection[str]) -> bool:
    """Return whether every other operand than data along the channels is a constant weight [C, 1,
    taps...]."""
    others = [n for n in loads(stage.body) if n not in data]
    column = stage.axes[-1].var
    taps = [a.var for a in stage.reduce_axes]
    return all(
        n.buffer.name in constants
        and n.index[0] == column
        and all(i in taps or i == const(0) for i in n.index[1:])
        for n in others
    )


def weights_of(stage: te.Stage, workload: Workload) -> Buffer | None:
    """Return the constant that a window's data are multiplied by, or None for pooling."""
    column, symbols = stage.axes[-1].var, dict(workload.symbols)
    return next((n.buffer for n in loads(stage.body) if stride(n, column, symbols) != 1), None)


def _bytes_of_words(stage: te.Stage) -> int:
    """Return how many of the rows' bytes a word of a window's term holds; 1 if there are no words."""
    return max((p.terms for n in walk(stage.body) if (p := product_of(n))), default=1)


def pack_weights(rec: Recorder, weights: Buffer, lanes: int) -> None:
    """Pack weights [C, 1, taps...] to [1, 1, 1, taps..., C], C padded with zeros to whole vectors."""
    width = simplify(ceil_div(weights.shape[0], lanes) * lanes)
    assert isinstance(width, Const)
    rec.pack(weights.name, Packing(tuple(range(len(weights.shape))), 0, 1, int(width.value)))


def _row(stage: te.Stage) -> int:
    """Return the position of the row's axis: -2, or -3 for images one pixel wide unless the window is
    large."""
    high = len(stage.axes) > 3 and isinstance(stage.axes[-3].extent, Const)
    taps = math.prod(n.value for a in stage.reduce_axes if isinstance(n := a.extent, Const))
    narrow = high and stage.axes[-2].extent == const(1) != stage.axes[-3].extent
    return -3 if narrow and taps <= LARGEST_WINDOW else -2


def _step(load: Load, row: te.Axis, workload: Workload) -> int:
    """Return the number of input pixels between the windows of neighbouring output pixels; 0 for weights."""
    elements = stride(load, row.var, dict(workload.symbols)) or 0
    return elements // max(1, workload.size(load.buffer.shape[-1]))


def _lanes(workload: Workload) -> int:
    """Return the lanes of a vector.

    - If multiply-adds widen int16, and whole vectors of it cover the channels: the lanes of int16. LLVM
      splits the vectors of sums.
    - If the sums are floats, and whole vectors of them cover the channels: the lanes of the sums.
    - If half a vector covers the channels: half the lanes.
    - If the target has no masks: few enough lanes that leave no remainder.
    """
    (stage,), processor = workload.stages, workload.processor
    column, lanes = stage.axes[-1].extent, processor.lanes(max(4, stage.body.dtype.wide.bytes))
    size = int(column.value) if isinstance(column, Const) else 1
    widened = processor.wide_products and {n.buffer.dtype for n in loads(stage.body)} == {I16}
    if widened and size % processor.lanes(I16.bytes) == 0:
        return processor.lanes(I16.bytes)
    if stage.body.dtype.is_float and size % lanes == 0:
        return lanes
    lanes = lanes_for(workload)
    if size <= lanes // 2 and isinstance(column, Const) and processor.vector_bytes > HALVED:
        return lanes // 2
    part = lanes if processor.masks else math.gcd(workload.size(column), lanes)
    return part if part == lanes or processor.half_vectors else 1


class Image:
    """The axes and sizes of a sliding window, independent of the machine."""

    def __init__(self, workload: Workload) -> None:
        (self.stage,) = workload.stages
        self.workload, self.symbols = workload, workload.symbols
        self.column = self.stage.axes[-1].var.name
        row = self.stage.axes[_row(self.stage)]
        self.row, self.narrow = row.var.name, row is not self.stage.axes[-2]
        self.outer = [a.var.name for a in self.stage.axes[: _row(self.stage)]]
        self.taps = [a.var.name for a in self.stage.reduce_axes]
        self.extent, self.size = row.extent, workload.size(row.extent)
        self.count = cost.size(workload, self.stage.reduce_axes)
        self.in_word = _bytes_of_words(self.stage)
        self.work = 1.0 if self.in_word > 1 else max(cost.arithmetic(self.stage.body), 1.0)
        self.final = cost.arithmetic(self.stage.result)
        self.across = next((n for n in map(self._extent, reversed(self.stage.reduce_axes)) if n > 1), 1)
        steps = [_step(n, row, workload) for n in loads(self.stage.body)]
        self.stride = max((s for s in steps if s), default=1)
        self.weighted = int(len(steps) > 1)

    def _extent(self, axis: te.Axis) -> int:
        return self.workload.size(axis.extent)


class Window(Image, Template):
    """The template for a sliding window on processors. `each` is the number of registers for a vector's
    sums."""

    name = "window"

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.processor, self.lanes = workload.processor, _lanes(workload)
        self.each = max(1, self.lanes // self.processor.lanes(self.stage.body.dtype.wide.bytes))
        self.border = row_border(self.stage, self.stage.axes[_row(self.stage)], self.symbols)
        self.alone = self.extent == const(1)
        self.rows = cost.size(workload, self.stage.axes[: _row(self.stage)])
        self.vectors = math.ceil(workload.size(self.stage.axes[-1].extent) / self.lanes)
        self.traffic = cost.traffic(workload)
        self.pixel_bytes = (
            workload.size(self.stage.axes[-1].extent) * self.stage.body.dtype.bytes // self.each
        )

    def space(self) -> Sequence[Params]:
        held = MOST_PIXELS if self.lanes == 1 else min(MOST_PIXELS, self.processor.registers // EACH)
        most = min(self.size, held)
        several = (1, 2, 4, 8) if self.alone else (1, 2) if self.processor.offsets else (1,)
        vectors = [n for n in several if self.vectors % n == 0]
        pairs = [(n, v) for v in vectors for n in range(1, most + 1) if n * v <= held]
        return [{"tile": n, "vectors": v} for n, v in pairs]

    def estimate(self, params: Params) -> float:
        """Return the cycles of the rows, overlapped with the data traffic."""
        vectors = params["vectors"]
        cycles = cost.overlapped(self.rows * self.row_cycles(params), self.traffic)
        if self.workload.size(self.stage.axes[-1].extent) % self.lanes:
            cycles += self.rows * self.size * cost.MASKED_STORE
        tasks = self.rows * (self.vectors // vectors if self.alone or self.narrow else 1)
        return cost.launch(cycles, tasks) / self.processor.clock

    def row_cycles(self, params: Params) -> float:
        """Return the cycles of a row's tiles: of their arithmetic, their loads or their latency, whichever is
        longest."""
        tile, vectors = params["tile"], params["vectors"]
        full, rest = divmod(self.size, tile)
        row = full * self._tile_cycles(tile, vectors) + (self._tile_cycles(rest, vectors) if rest else 0)
        return row * self.vectors / vectors

    def _tile_cycles(self, tile: int, vectors: int) -> float:
        t, width, height = self.processor, self.across, self.count / self.across
        reach = min(tile * width, (tile - 1) * self.stride + width)
        live = vectors * (tile * self.each + self.weighted + reach)
        spilled = max(0, live - t.registers)
        loads = height * (vectors * (reach * self.in_word + self.weighted * width) + 2 * spilled)
        work = vectors * tile * self.each * (self.count * self.work + self.final)
        work += vectors * height * reach * (JOINS if self.in_word > 1 else 0)
        at_once = max(1.0, cost.REORDERED / (vectors * tile * self.count + loads))
        cycles = max(work / t.multiply_adds, loads / t.loads, self.count * t.latency / at_once)
        if t.issue:
            cycles = max(cycles, (work + loads + vectors * tile) / t.issue)
        looped = height * cost.LOOP / 2 if self.count > UNROLLED else 0
        return cycles + looped + cost.LOOP + tile * vectors + self._evicted(tile, vectors, height * reach)

    def _evicted(self, tile: int, vectors: int, reads: float) -> float:
        """Return the cycles for fetching cache lines a second time. Lines that are read in parts are evicted
        in between if one cache set can't hold all of them.

        Pixels at a multiple of a large power of two share few sets."""
        t, parts = self.processor, LINE // (vectors * self.processor.vector_bytes)
        apart = math.gcd(self.pixel_bytes, t.l1 // WAYS)
        if parts <= 1 or reads + tile <= WAYS * (t.l1 // WAYS) / apart:
            return 0.0
        return (parts - 1) * (reads + tile) * LINE / t.l2_rate

    def schedule(self, params: Params) -> Scheduled:
        p, x, c = self.workload, self.row, self.column
        rec = Recorder(te.lower(p.name, p.stages, p.inputs, p.symbols))
        self.arrange(rec, params)
        shared = [f"{x}o", f"{c}oo"] if self.alone else [f"{c}oo"] if self.narrow else []
        task = fuse_all(rec, [*self.outer, *shared], "t")
        rec.do("parallelize", task)
        rec.do("simplify")
        rec.do("hoist_guards")
        work = self.size * self.count * (params["vectors"] if shared else self.vectors)
        return rec.finish(self.name, params, work)

    def arrange(self, rec: Recorder, params: Params) -> None:
        """Schedule the loops over a row's pixels, their channels and taps."""
        _Scheduler(self, rec, params).run()

    def tiles(self, tile: int) -> tuple[int, int, int, int | None]:
        """Return how many of a row's tiles read padding before the row, no padding, and padding after the
        row. The fourth number is the remaining pixels, or None if the row's size isn't known."""
        if not isinstance(self.extent, Const):
            return 0, 1, 0, None
        full, rest = divmod(self.size, tile)
        before, after = self.border
        first = min(math.ceil(before / tile), full)
        last = min(math.ceil(max(0, after - rest) / tile), full - first)
        return first, full - first - last, last, rest


class _Scheduler:
    """Makes the schedule of a row for one set of parameters."""

    def __init__(self, window: Window, rec: Recorder, params: Params) -> None:
        workload, self.stage = window.workload, window.stage
        self.rec = rec
        self.window, self.params, self.lanes = window, params, window.lanes
        self.column, self.row = window.column, window.row
        self.acc = f"{self.stage.out.name}.acc"
        self.weights = weights_of(self.stage, workload)

    def run(self) -> None:
        rec, c, x, tile = self.rec, self.column, self.row, self.params["tile"]
        if self.weights is not None:
            pack_weights(rec, self.weights, self.lanes)
        self.bias = begin_with_bias(rec, self.window.workload, self.stage, self.lanes)
        rec.do("predicate", self.acc)
        rec.do("split", c, self.lanes)
        rec.do("split", f"{c}o", self.params["vectors"])
        if self.window.narrow:
            x = fuse_all(rec, [x, self.stage.axes[-2].var.name], f"{x}w")
            rec.do("reorder", [f"{c}oo", x])
        rec.do("split", x, tile, "cut")
        first, middle, last, rest = self.window.tiles(tile)
        if first or last:
            rec.do("peel", f"{x}o", first, last)
        for suffix, count in (("_b", first), ("", middle), ("_a", last)):
            if count:
                self._segment(suffix, f"{x}i{suffix}", f"{x}o{suffix}")
        if rest is None:
            self._segment("t", "")
        elif rest:
            self._segment("t", f"{x}t")
        rec.do("hoist_guards")

    def _segment(self, suffix: str, pixels: str, tiles: str = "") -> None:
        """Schedule one copy of the row's loops: the channels inside tiles, and the tile's pixels inside the
        channels.

        `pixels`: the loop over a tile's pixels. If it is "", pixels are scheduled one by one. `suffix`: the
        ending of the copy's loop names.
        """
        rec, c = self.rec, self.column
        tile = [f"{c}oi{suffix}", f"{c}i{suffix}"]
        if pixels:
            tile = [pixels, *tile]
            groups = [] if self.window.narrow else [f"{c}oo{suffix}"]
            rec.do("reorder", [*([tiles] if tiles else []), *groups, *tile])
        constants = (*self.bias, *((self.weights.name,) if self.weights is not None else ()))
        rec.do("privatize", self.acc + suffix, tile, constants)
        for tap in self._unrolled():
            rec.do("unroll", tap + suffix)
        several = bool(pixels) and self.params["vectors"] > 1 and not self.window.alone
        wide = at_once(self.window.workload, self.stage) if several else 0
        for part in ("", "_z", *(() if wide else ("_w",))):
            for loop in tile[:-1]:
                rec.do("unroll", loop + part)
            rec.do("vectorize", tile[-1] + part)
        if wide:
            written_wide(rec, tile[:1], tile[1:], wide, f"w{suffix}")
        if not self._unrolled():
            shorten_sum(rec, self.stage, [tap + suffix for tap in self.window.taps])

    def _unrolled(self) -> Sequence[str]:
        """Return the unrolled taps: those along the row, or all taps of a small window."""
        taps = [a.var.name for a in self.stage.reduce_axes if a.extent != const(1)] or [self.window.taps[-1]]
        if self.window.across > LONGEST_ROW:
            return []
        return taps if self.window.count <= UNROLLED else taps[-1:]
