"""Convolutions without the taps of their windows that see nothing but padding.

A window that reaches beyond the image multiplies zeros with most of its weights. DeepLab's dilated pyramid is
an example: 36 rows to each side of 32. Taps that are in the padding at every position of the window are cut
off. Other taps see only padding for whole bands of outputs. If it saves enough, each band becomes a
convolution of its own, with the taps that see the image. The omitted terms are zero, because weights are
finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from jangin.ir.core import Concat, Conv, CoreAttributes, Slice
from jangin.ir.expr import const
from jangin.ir.graph import Graph, Node, static_shape
from jangin.ir.records import dataclass
from jangin.ops.core_window import split_layout
from jangin.ops.editor import Editor

GAIN = 0.75
"""A convolution is cut into bands if these have at most this share of its products. Less isn't worth it,
because each band reads its weights again."""
OVERHEAD = 0.05
"""The cost of a band besides its products, as a share of the whole axis's products. It is an estimate: a band
is a convolution of its own, whose launch and borders take time."""
FEWEST = 32
"""Outputs whose products take as long as reading the weights. A band of fewer outputs costs as much as one of
this many."""


@dataclass(frozen=True)
class Band:
    """A band of an axis: outputs from `first` to `last` (excluded), and the taps from `low` to `high`
    (excluded) that see the image there."""

    first: int
    last: int
    low: int
    high: int

    @property
    def outputs(self) -> int:
        return self.last - self.first

    @property
    def taps(self) -> int:
        return self.high - self.low

    def joined(self, other: Band) -> Band:
        """Return this band joined with the next one."""
        return Band(self.first, other.last, min(self.low, other.low), max(self.high, other.high))


class Read(NamedTuple):
    """The elements of an axis that a band's windows see, from `first` to `last` (excluded), and the padding
    around them."""

    first: int
    last: int
    before: int
    after: int


@dataclass(frozen=True)
class Axis:
    """A convolution's window along one axis of `size` elements, with padding `before` and `after` them."""

    size: int
    taps: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def outputs(self) -> int:
        return (self.size + self.before + self.after - self.dilation * (self.taps - 1) - 1) // self.stride + 1

    @property
    def whole(self) -> Band:
        """The band of all outputs. Its taps see the image for at least one output."""
        return reduce(Band.joined, self.bands())

    def bands(self) -> list[Band]:
        """Return the axis cut into the longest bands whose outputs need the same taps. A band has no taps if
        its windows see only padding."""
        ends = (self.before - i * self.dilation + n for i in range(self.taps) for n in (0, self.size))
        edges = {0, self.outputs, *(min(self.outputs, max(0, -(-e // self.stride))) for e in ends)}
        return [self._between(*e) for e in pairwise(sorted(edges))]

    def _between(self, first: int, last: int) -> Band:
        """Return the band of the outputs from `first` to `last` (excluded). All of them need the taps that
        the first one needs."""
        start = first * self.stride - self.before
        low, high = -(start // self.dilation), -((start - self.size) // self.dilation)
        return Band(first, last, max(0, low), min(self.taps, high))

    def cost(self, band: Band, fewest: float) -> float:
        return max(fewest, band.outputs) * band.taps

    def best(self, fewest: float) -> tuple[float, list[Band]]:
        """Return the cost of the cheapest way to join neighbouring bands, in products, and the joined bands.
        A band of fewer outputs than `fewest` costs as much as one of `fewest`."""
        least = self.bands()
        fixed = OVERHEAD * self.outputs * self.taps
        ways: list[tuple[float, list[Band]]] = [(0.0, [])]
        for end in range(1, len(least) + 1):
            parts = [(ways[start], reduce(Band.joined, least[start:end])) for start in range(end)]
            costs = [cost + fixed + self.cost(band, fewest) for (cost, _), band in parts]
            n = int(np.argmin(costs))
            ways.append((costs[n], [*parts[n][0][1], parts[n][1]]))
        return ways[-1]

    def read(self, band: Band) -> Read:
        start = band.first * self.stride - self.before + band.low * self.dilation
        end = (band.last - 1) * self.stride - self.before + (band.high - 1) * self.dilation + 1
        first, last = max(0, start), min(self.size, end)
        return Read(first, last, first - start, end - last)


def taps(graph: Graph) -> Graph:
    """Return the graph with convolutions cut into bands if it pays."""
    run = Editor(graph.symbols, graph.values, graph.constants)
    changed = False
    for node in graph.nodes:
        axes = _axes(node, graph)
        bands = None if axes is None else _bands(axes, graph.constants[node.inputs[1]].shape[1])
        if axes is None or bands is None or not _finite(graph, node.inputs[1]):
            run.emit(node)
        else:
            changed = True
            _Split(run, node, axes, bands).emit()
    return run.rewritten(graph) if changed else graph


def _axes(node: Node, graph: Graph) -> list[Axis] | None:
    """Return the windows of a convolution with padding, constant weights and known sizes, if each window sees
    some of the image; else None."""
    if not isinstance(node.attrs, Conv) or not any(node.attrs.pads) or node.inputs[1] not in graph.constants:
        return None
    conv, x = node.attrs, node.inputs[0]
    sizes = static_shape(split_layout(graph.shape(x), conv.layout)[2])
    if sizes is None or not all(sizes):
        return None
    rank = len(conv.kernel)
    windows = zip(
        sizes, conv.kernel, conv.strides, conv.dilations, conv.pads[:rank], conv.pads[rank:], strict=True
    )
    axes = [Axis(*w) for w in windows]
    seen = (a.outputs > 0 and all(b.taps > 0 for b in a.bands()) for a in axes)
    return axes if all(seen) else None


def _finite(graph: Graph, weights: str) -> bool:
    """Return whether all weights are finite. Only convolutions that would be cut are tested, because the test
    reads all weights."""
    return not graph.dtype(weights).is_float or bool(np.isfinite(graph.constants[weights]).all())


def _bands(axes: Sequence[Axis], channels: int) -> list[list[Band]] | None:
    """Return the bands of each axis, or None if the convolution is best uncut.

    Windows of one channel keep one band an axis: `large_windows` skips padding rows itself, and small windows
    don't pay for a join.
    """
    fewest = FEWEST ** (1 / len(axes))
    whole = [a.whole for a in axes]
    costs, best = zip(*(a.best(fewest) for a in axes), strict=True)
    if channels > 1 and math.prod(costs) <= GAIN * math.prod(
        a.cost(b, fewest) for a, b in zip(axes, whole, strict=True)
    ):
        return list(best)
    return [[b] for b in whole] if any(b.taps < a.taps for a, b in zip(axes, whole, strict=True)) else None


class _Split:
    """A convolution that becomes one convolution for each of its `bands` along each axis."""

    def __init__(
        self, run: Editor, node: Node, axes: Sequence[Axis], bands: Sequence[Sequence[Band]]
    ) -> None:
        self.run, self.node, self.axes, self.bands = run, node, axes, bands
        self.conv = node.of(Conv)
        self.leading = 2 if self.conv.layout == "first" else 1

    def emit(self) -> None:
        attrs, inputs = self.made(())
        self.run.emit(replace(self.node, inputs=tuple(inputs), attrs=attrs))

    def made(self, chosen: tuple[Band, ...]) -> tuple[CoreAttributes, Sequence[str]]:
        """Return the attributes and inputs of a node that computes some of the outputs. On the first axes it
        computes the `chosen` bands, one for each axis. On the remaining axes it computes all bands."""
        axis = len(chosen)
        if axis == len(self.axes):
            return self.part(chosen)
        parts = [self.made((*chosen, band)) for band in self.bands[axis]]
        if len(parts) == 1:
            return parts[0]
        return Concat(self.leading + axis), [
            self.run.add(a, x, f"{self.node.name}.band", self.node.source) for a, x in parts
        ]

    def part(self, bands: Sequence[Band]) -> tuple[CoreAttributes, Sequence[str]]:
        """Return the attributes and inputs of the convolution of one band of each axis."""
        reads = [a.read(b) for a, b in zip(self.axes, bands, strict=True)]
        pads = (*(r.before for r in reads), *(r.after for r in reads))
        attrs = replace(self.conv, kernel=tuple(b.taps for b in bands), pads=pads)
        return attrs, (self.operand(reads), self.weights(bands))

    def operand(self, reads: Sequence[Read]) -> str:
        """Return the name of the part of the image that the windows see."""
        x = self.node.inputs[0]
        starts, shape = [const(0)] * len(self.run.shape(x)), list(self.run.shape(x))
        for axis, r in enumerate(reads, self.leading):
            starts[axis], shape[axis] = const(r.first), const(r.last - r.first)
        if tuple(shape) == self.run.shape(x):
            return x
        attrs = Slice(tuple(starts), (1,) * len(starts), tuple(shape))
        return self.run.add(attrs, [x], f"{x}.band", self.node.source)

    def weights(self, bands: Sequence[Band]) -> str:
        name = self.node.inputs[1]
        taps = (slice(None), slice(None), *(slice(b.low, b.high) for b in bands))
        return self.run.constant(np.ascontiguousarray(self.run.constants[name][taps]), f"{name}.taps")
