"""Estimated costs of Winograd's method and of the direct convolution, from a machine's figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jangin.ir.core import Conv
from jangin.ir.dtype import F32, DType
from jangin.ir.records import dataclass
from jangin.passes.windows.winograd_transform import F2, F4, TAPS, Transform
from jangin.targets.figures import WinogradFigures
from jangin.targets.target import Target

NO_COPIES = 1 << 62
"""The time of a launch, in multiply-adds, with which no padded copy of an image pays. No convolution has so
many."""

PACKED = 4
"""The time to pack one weight for a block of tiles, in multiply-adds. Constant weights are packed before. It
is an estimate that only orders candidates, which tuning measures."""

STORED = 3
"""The time to transform one weight that is stored in the transform's order, in multiply-adds. It is counted
in instructions of WebAssembly."""


def with_ways(target: Target, winograd: bool, library: bool) -> Target:
    """Return the target with figures of the ways of convolutions that may be taken. Without `winograd`, no
    pass waits for this method. A device's `library` knows such methods, and pads images itself."""
    figures = target.machine.winograd
    if library and target.groups:
        return target.with_figures(winograd=replace(figures, gain=0.0, launch=NO_COPIES))
    return target if winograd else target.with_figures(winograd=replace(figures, gain=0.0))


def is_window(conv: Conv) -> bool:
    """Return whether Winograd's method fits a convolution's windows, over images or videos."""
    dense = conv.layout == "last" and conv.kernel[-2:] == (TAPS, TAPS) and conv.groups == 1
    frames = len(conv.kernel) == 2 or (len(conv.kernel) == 3 and conv.dilations[0] == 1 and not conv.dot)
    return dense and frames and not any(conv.pads) and all(s == 1 for s in conv.strides)


@dataclass(frozen=True)
class Estimate:
    """Estimated times of a 3 x 3 convolution of one image, in multiply-adds of its product.

    `weight`: the type of its weights in memory, transformed ones included. `dilations`: down and across.
    `images`: images that are computed together, such as a video's frames. `changing`: the weights are
    computed by each run, which transforms them too. `batch`: images of one launch.
    """

    height: int
    width: int
    channels: int
    outputs: int
    figures: WinogradFigures
    transforms: Sequence[Transform] = (F2, F4)
    weight: DType = F32
    dilations: tuple[int, ...] = (1, 1)
    images: int = 1
    changing: bool = False
    batch: int = 1
    stored: bool = False
    """Whether a run transforms constant weights, which are stored as the transform reads them."""

    def best(self) -> Transform | None:
        """Return the transform that should be quickest, or None if none is clearly quicker than the direct
        sums.

        With 16-bit weights, and with weights that change, the larger transform must be clearly quicker than
        the smaller. It rounds more, and has more weights, which take working memory if they change.
        """
        best, choice = self.figures.gain * self.plain(), None
        better = self.figures.gain if self.changing or self.weight.bytes < F32.bytes else 1
        for t in self.transforms:
            time = min(self.whole(t), self.blocks(t))
            if time < best:
                best, choice = time * better, t
        return choice

    def by_blocks(self, t: Transform) -> bool:
        """Return whether one kernel over blocks of tiles should be quicker than three kernels."""
        return self.blocks(t) < self.whole(t)

    def plain(self) -> float:
        """Return the cost of the direct convolution."""
        return (
            TAPS
            * TAPS
            * self.channels
            * self.outputs
            * self._per_weight(self.images * self.height * self.width)
        )

    def whole(self, t: Transform) -> float:
        """Return the cost of three kernels, each over all tiles."""
        count = self._tiles(t)
        moved = count * self._kept(t)
        launches = 2 * self.figures.launch / max(1, self.batch)
        return self._product(t, count) + self._moved(moved) + self._weights(t) + launches

    def blocks(self, t: Transform) -> float:
        """Return the cost of one kernel over blocks of tiles, which reads the weights again for each
        block."""
        count, kept = self._tiles(t), self._kept(t)
        rows = min(count, max(1, self.figures.near // (kept * F32.bytes)))
        blocks = -(-count // rows)
        packed = blocks * self._transformed(t) * PACKED if self.changing else 0
        moved = count * kept * (self.figures.nearby if self.changing else self.figures.transform)
        return blocks * self._product(t, rows) + moved + packed + self._weights(t)

    def _moved(self, elements: int) -> float:
        """Return the time to make, store and read values that go through memory."""
        if self.changing:
            return elements * self.figures.changing
        slower = 2 if elements * F32.bytes > self.figures.far else 1
        return elements * self.figures.transform * slower

    def _transformed(self, t: Transform) -> int:
        """Return the number of transformed weights."""
        return t.products * self.channels * self.outputs

    def _weights(self, t: Transform) -> float:
        """Return the time to transform the weights in a run."""
        if self.stored:
            return self._transformed(t) * STORED
        each = (self.figures.changing + self.figures.nearby) / 2  # some of it stays in the L2 cache
        return self._transformed(t) * each if self.changing else 0

    def _per_weight(self, rows: int) -> float:
        """Return the time of one weight: its multiply-adds for all rows, nearly all of which overlap with
        loading the next weights."""
        stream = self.figures.stream * self.weight.bytes / F32.bytes
        return max(rows, stream) + 0.1 * min(rows, stream)

    def _product(self, t: Transform, rows: int) -> float:
        tile = self.figures.tile_rows
        return t.products * self.channels * self.outputs * self._per_weight(-(-rows // tile) * tile)

    def _tiles(self, t: Transform) -> int:
        down, across = self.dilations
        return self.images * t.tiles(self.height, down) * t.tiles(self.width, across)

    def _kept(self, t: Transform) -> int:
        """Return the number of elements of V and M for one tile."""
        return t.products * (self.channels + self.outputs)
