"""Copies and maps whose reads and writes are contiguous along different axes.

Tiles are transposed in shared memory, so that neighbouring threads both read and write neighbours.

    `block of tiles { thread { copy a part of a tile } thread { store a part of it along the other axis } }`

Source: Ruetsch and Micikevicius, "Optimizing matrix transpose in CUDA" (2009).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jangin.templates import cost
from jangin.templates.gpu.common import GROUP, blocks, moved_bytes, operations, seconds, spread
from jangin.templates.scheduled import Params, Scheduled
from jangin.templates.template import Template, Workload
from jangin.templates.transpose import Axes, merged

TILE = (32, 16)
"""Rows and columns of a tile, to try. Neighbouring threads access whole rows together."""
LEAST = 8
"""Fewest rows and columns of a transposition for which this template pays. With fewer, a direct copy already
reads or writes whole sectors of 32 bytes."""
ROOM = 1
"""Elements of padding after a tile's rows, so that a column's elements lie in different banks."""


def match(workload: Workload) -> Transpose | None:
    """Return the template for a map that reads one buffer contiguously along another axis than it writes.
    Return None for other kernels, and for fewer than `LEAST` rows or columns."""
    axes = merged(workload)
    return Transpose(workload, axes) if axes and min(axes.rows, axes.columns) >= LEAST else None


class Transpose(Template):
    name = "transpose"

    def __init__(self, workload: Workload, axes: Axes) -> None:
        (self.stage,) = workload.stages
        self.workload, self.gpu, self.axes = workload, workload.gpu, axes
        self.read = next(b for b in workload.inputs if b.name == axes.buffer)
        self.count = cost.size(workload, self.stage.axes)
        self.work, self.moved = operations([self.stage], workload), moved_bytes(workload)

    def space(self) -> Sequence[Params]:
        fit = [n for n in TILE if n * (n + ROOM) * self.read.dtype.bytes <= self.gpu.shared]
        threads = min(GROUP, self.gpu.group)
        return [{"tile": n, "threads": threads} for n in fit]

    def estimate(self, params: Params) -> float:
        """Return the estimated seconds, as in `elements`, for whole tiles that pass through shared memory."""
        tile, axes = params["tile"], self.axes
        whole = math.prod(math.ceil(n / tile) * tile / n for n in (axes.rows, axes.columns))
        return seconds(self.gpu, 1.25 * whole * self.work, self.moved * whole, self.count)

    def schedule(self, params: Params) -> Scheduled:
        axes, rec, tile = self.axes, self.axes.rec.copy(), params["tile"]
        rec.do("reorder", [*axes.outer, axes.along, axes.last])
        for loop, name in ((axes.along, "r"), (axes.last, "c")):
            rec.do("rename", loop, name)
            rec.do("split", name, tile)
        rec.do("reorder", [*axes.outer, "ro", "co", "ri", "ci"])
        rec.do("guard_loads", self.read.name)
        rec.do("pack", "co", self.read.name, ["ci", "ri"], "turned", "shared")
        rec.do("stretch", "turned", ROOM)
        for row, column, name in (("turned_ci", "turned_ri", "x"), ("ri", "ci", "y")):
            rec.do("fuse", row, column, name)
            spread(rec, name, params["threads"])
        blocks(rec, [*axes.outer, "ro", "co"])
        return rec.finish(self.name, params, self.work / max(1, self.count) * tile * tile)
