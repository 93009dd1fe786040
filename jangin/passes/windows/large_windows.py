"""Depthwise convolutions of large windows, one vector of channels a task.

A task copies its channels of the image into the cache, where they are contiguous, with zeros before and
behind each row. It computes some pixels of a row at once, each in a register, from the window's rows that
meet the image.

With channels last, the vectors that a window reads lie a whole pixel apart, most often a power of two. Few
sets of a cache must then hold all of them. The padding above and below, which is much of large windows, would
be multiplied too. The order of the sums is unchanged.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from jangin.ir.core import Conv, Kernel, LoopNest, Pad
from jangin.ir.dtype import F32
from jangin.ir.expr import Buffer, Expr, Load, Select, Var, const, maximum, minimum
from jangin.ir.graph import Graph, Node, Shape, static_shape
from jangin.ir.loop import Alloc, For, If, Let, Stmt, Store, block
from jangin.ir.records import dataclass
from jangin.ir.te import Stage, compute, redirect, value_at
from jangin.ir.traversal import loads
from jangin.ops.editor import Editor
from jangin.passes.algebra.dce import dce
from jangin.passes.fusion.stages import finishing, is_opaque, stages
from jangin.passes.layouts.padding import padding
from jangin.targets.target import Target

FEWEST_TAPS = 49
"""The fewest taps of a window that is replaced. For 5 x 5 taps, the copy takes as long as it saves. For 7 x 7
taps, the loop nest takes 0.7 to 1.0 of the time of the template `window`."""
MOST_PIXELS = 14
"""Most pixels of a row that are computed at once: two of 16 registers hold the weights and the
multiplicand."""
MOST_TAPS = 8
"""Most taps of a row that are multiplied at once. A register has each one's weights beside the sums, so that
a multiplicand is loaded once for all of them."""


def large_windows(graph: Graph, target: Target) -> Graph:
    """Return the fused graph, with some depthwise convolutions replaced by loop nests. These have large
    windows, and channels that fill whole vectors."""
    return _LargeWindows(graph, target).run()


@dataclass(frozen=True)
class Source:
    """The image that a convolution reads. `stage` computes the elements behind the first `begins` rows and
    columns, from buffers for the values `inputs`. `size` has the image's rows and columns."""

    stage: Stage
    inputs: tuple[str, ...]
    size: Shape
    begins: tuple[int, ...]


@dataclass(frozen=True)
class Match:
    """A kernel that is a large depthwise convolution.

    - `image` has the rows and columns of its input.
    - `pads` has the rows and columns of zeros before the input.
    - `result` has the rows, columns and channels of its output.
    - `taps` is the number of taps of a row that are multiplied at once."""

    stage: Stage
    source: Source
    weights: str
    kernel: tuple[int, ...]
    image: tuple[int, ...]
    pads: tuple[int, ...]
    result: tuple[int, ...]
    taps: int

    @property
    def begins(self) -> tuple[int, ...]:
        return self.source.begins

    @property
    def tiles(self) -> int:
        return math.ceil(self.result[1] / MOST_PIXELS)

    @property
    def pixels(self) -> int:
        """The number of pixels of a tile. All tiles have this length, and the last may reach beyond the
        row."""
        return math.ceil(self.result[1] / self.tiles)


class _LargeWindows(Editor):
    """Replaces the large depthwise convolutions of one fused graph."""

    def __init__(self, graph: Graph, target: Target) -> None:
        super().__init__(graph.symbols, graph.values, graph.constants)
        self.graph, self.lanes = graph, target.machine.lanes(F32.bytes)
        self.taps = min(MOST_TAPS, max(1, target.machine.registers - MOST_PIXELS - 2))
        self.producers = graph.producers()

    def run(self) -> Graph:
        for node in self.graph.nodes:
            window = self.match(node)
            self.emit(node if window is None else self.made(node, window))
        if self.nodes == list(self.graph.nodes):
            return self.graph
        return dce(self.rewritten(self.graph))

    def match(self, kernel: Node) -> Match | None:
        """Return the kernel's large depthwise convolution, or None for any other kernel."""
        if not isinstance(kernel.attrs, Kernel) or is_opaque(kernel):
            return None
        node = next((n for n in kernel.of(Kernel).body.nodes if isinstance(n.attrs, Conv)), None)
        if node is None or not self._fits(node):
            return None
        conv, (x, weights) = node.of(Conv), node.inputs
        *local, stage = stages(kernel)[0]
        source = self._source(x)
        image, result = static_shape(source.size), static_shape(stage.out.shape[1:])
        if local or image is None or result is None or conv.groups != result[-1]:
            return None
        pads = tuple(a + b for a, b in zip(conv.pads, source.begins, strict=False))
        blocks = math.ceil(conv.kernel[1] / self.taps)
        taps = math.ceil(conv.kernel[1] / blocks)
        return Match(stage, source, weights, conv.kernel, image, pads, result, taps)

    def _fits(self, node: Node) -> bool:
        conv, (x, weights) = node.of(Conv), node.inputs
        if weights not in self.graph.constants or x not in self.graph.values:
            return False
        plain = self.dtype(x) is self.dtype(weights) is F32 and conv.dtype is None and not conv.dot
        alone = conv.layout == "last" and len(conv.kernel) == 2 and self.shape(x)[-1] == const(conv.groups)
        close = all(n == 1 for n in (*conv.strides, *conv.dilations))
        whole = conv.groups % self.lanes == 0 and math.prod(conv.kernel) >= FEWEST_TAPS
        return plain and alone and close and whole

    def _source(self, x: str) -> Source:
        """Return the image that the convolution reads. If a kernel only pads the image, its operand is read
        instead."""
        pad = self.producers.get(x)
        padded = None if pad is None else padding(pad)
        if pad is not None and padded is not None:
            (stage, inputs), body = padded, pad.of(Kernel).body
            node = next(n for n in body.nodes if isinstance(n.attrs, Pad))
            begins = static_shape(node.of(Pad).pads[1:3])
            if begins is not None and isinstance(stage.body, Select):
                inside = replace(stage, body=stage.body.a)
                return Source(inside, inputs, body.shape(node.inputs[0])[1:3], begins)
        own = Buffer(x, *self.typed(x))
        return Source(compute(own, lambda *at: Load(own, at)), (x,), self.shape(x)[1:3], (0, 0))

    def made(self, kernel: Node, m: Match) -> Node:
        """Return the kernel as a loop nest, with its weights packed by vectors of channels."""
        out = kernel.outputs[0]
        weights = self.graph.constants[m.weights].reshape(-1, self.lanes, *m.kernel)
        packed = self.constant(np.ascontiguousarray(weights.transpose(0, 2, 3, 1)), f"{out}.taps")
        others = (e.buffer.name for e in loads(m.stage.result))
        inputs = tuple(dict.fromkeys((*m.source.inputs, packed, *others)))
        buffers = {n: Buffer(f"x{i}", *self.typed(n)) for i, n in enumerate(inputs)}
        buffers[out] = Buffer("out", *self.typed(out))
        source, stage = (redirect(s, buffers) for s in (m.source.stage, m.stage))
        body = _nest(replace(m, stage=stage, source=replace(m.source, stage=source)), buffers[packed])
        return self.kernel(LoopNest(body, *self.typed(out)), inputs, out, kernel.source)


def _nest(m: Match, weights: Buffer) -> Stmt:
    """Return the nest: `parallel image and vector of channels { copy its rows; row { tile of pixels { sums;
    result } } }`."""
    task, image, group = Var("t"), Var("n"), Var("g")
    (rows, columns), (left, lanes) = m.image, (m.pads[1], int(str(weights.shape[-1])))
    width, groups = m.tiles * m.pixels + m.kernel[1] - 1, int(str(weights.shape[0]))
    plane = Buffer("plane", F32, (const(rows), const(width), const(lanes)), "scratch")
    row, column, lane = Var("r"), Var("q"), Var("c")

    def fill(begin: int, end: int, value: Expr) -> Stmt:
        store = Store(plane, (row, column + begin, lane), value)
        return For(column, const(end - begin), For(lane, const(lanes), store, "vector"))

    read = value_at(m.source.stage, (image, row + m.begins[0], column + m.begins[1], group * lanes + lane))
    zero, after = const(0, F32), left + columns
    copied = block(fill(0, left, zero), fill(left, after, read), fill(after, width, zero))
    body = block(For(row, const(rows), copied), _rows(m, plane, weights, image, group))
    body = Let(image, task // groups, Let(group, task % groups, Alloc(plane, body)))
    return For(task, m.stage.out.shape[0] * groups, body, "parallel")


def _rows(m: Match, plane: Buffer, weights: Buffer, image: Expr, group: Expr) -> Stmt:
    """Return the loops that compute all rows of the result, from the window's rows that meet the image."""
    (top, _), (down, across), rows = m.pads, m.kernel, m.image[0]
    y, first, tile, lane = Var("y"), Var("first"), Var("tile"), Var("c")
    i, j, k = Var("i"), Var("j"), Var("k")
    acc = Buffer("acc", F32, (const(m.pixels),), "register")
    lanes = int(str(plane.shape[-1]))

    def taps(begin: Expr | int, count: int) -> Stmt:
        """Return the products of neighbouring taps, in the order of the multiplicands that they share."""
        terms = []
        for place in range(m.pixels + count - 1):
            for tap in range(max(0, place - m.pixels + 1), min(count, place + 1)):
                pixel = plane[y - top + first + k, tile * m.pixels + begin + place, lane]
                term = pixel * weights[group, first + k, begin + tap, lane]
                own = (const(place - tap),)
                terms.append(Store(acc, own, acc[own] + term))
        return block(*terms)

    at = (image, y, tile * m.pixels + i, group * lanes + lane)
    result: Stmt = Store(m.stage.out, at, finishing(m.stage)(acc[i], at))
    if m.tiles * m.pixels > m.result[1]:
        result = If(at[2] < m.result[1], result)

    def each(body: Stmt) -> Stmt:
        return For(i, const(m.pixels), body, "unroll")

    whole, left = divmod(across, m.taps)
    sums = block(For(j, const(whole), taps(j * m.taps, m.taps)), taps(whole * m.taps, left))
    count = maximum(minimum(down, y * -1 + (rows + top)) - first, 0)
    tile_sums = Alloc(acc, block(each(Store(acc, (i,), const(0, F32))), For(k, count, sums), each(result)))
    tiles = For(tile, const(m.tiles), For(lane, const(lanes), tile_sums, "vector"))
    return For(y, const(m.result[0]), Let(first, maximum(y * -1 + top, 0), tiles))
