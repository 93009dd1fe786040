"""Depthwise separable convolution in one kernel, for a block of image rows at a time.

The depthwise result stays in the cache, where the pointwise convolution reads it.

    parallel block of rows { depthwise rows, as in `window`; tiles of their pixels, as in `contraction` }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jangin.ir import te
from jangin.ir.expr import Const, const
from jangin.templates import cost, window
from jangin.templates.common import fuse_all, lanes_for
from jangin.templates.contraction import Contraction
from jangin.templates.micro import UNROLL
from jangin.templates.roles import Roles, packing_positions, roles
from jangin.templates.scheduled import Params, Recorder, Scheduled
from jangin.templates.template import Template, Workload
from jangin.templates.window import Window

SHARED = ("r0", "r1")
"""The loops over images and over blocks of rows."""
WAYS = 2
"""Candidates of each of the two convolutions that are combined, because tuning tries all combinations."""
BLOCKS = 4
"""Sizes of a block of rows that are tried, because tuning tries each with all combinations of candidates."""


def match(workload: Workload) -> Separable | None:
    """Return the template for a separable convolution, or None for other kernels.

    The first of its two stages must be a depthwise convolution, and the second a product over the channels of
    each of its pixels.
    """
    if len(workload.stages) != 2:
        return None
    first, last = (te.rename_axes(s, chr(97 + n)) for n, s in enumerate(workload.stages))
    depthwise = window.match(replace(workload, stages=(first,)))
    role = roles(last)
    if depthwise is None or role is None or role.groups > 1 or packing_positions(role) is None:
        return None
    if depthwise.narrow:
        return None
    alike = len(first.axes) == len(last.axes) == 4 and all(
        a.extent == b.extent for a, b in zip(first.axes[:3], last.axes, strict=False)
    )
    static = all(isinstance(a.extent, Const) for a in (*first.axes[1:], last.axes[-1]))
    of_pixel = [*role.left.index[1:]] == [*(a.var for a in last.axes[1:3]), last.reduce_axes[-1].var]
    local = role.left.buffer.name == first.out.name and role.right.buffer.name in workload.constants
    return Separable(workload, depthwise, role) if alike and static and of_pixel and local else None


class Separable(Template):
    name = "separable"

    def __init__(self, workload: Workload, depthwise: Window, role: Roles) -> None:
        self.workload, self.depthwise, self.role = workload, depthwise, role
        self.lanes = lanes_for(workload)
        self.traffic = cost.traffic(workload)
        self.images, self.height, self.width, self.channels = (
            workload.size(a.extent) for a in workload.stages[0].axes
        )

    def space(self) -> Sequence[Params]:
        """Return parameters for blocks of a few rows, with the best candidates of both convolutions."""
        choices: list[Params] = []
        windows = sorted(self.depthwise.space(), key=self.depthwise.row_cycles)[:WAYS]
        for rows in self._blocks():
            product = self._product(rows)
            for mr, nv in product.tiles()[:WAYS]:
                tile = {"mr": mr, "nv": nv, "row_tiles": -(-product.rows // mr)}
                panels = {"panels": -(-product.columns // (nv * self.lanes)), "unroll": UNROLL}
                for inside in (0, 1)[: panels["panels"]]:
                    choices += [
                        {"rows": rows, **w, **tile, **panels, "panels_inside": inside} for w in windows
                    ]
        return choices

    def _blocks(self) -> list[int]:
        """Return the numbers of image rows in a block to try.

        They divide the image's rows, and their channels fit half the L2 cache. If blocks are few, their
        number is even, so that two threads end together.
        """
        fit = max(1, self.workload.processor.l2 // 2 // (4 * self.width * self.channels))
        rows = [n for n in range(1, min(fit, self.height) + 1) if self.height % n == 0]
        even = [n for n in rows if self.height // n > cost.HANDED_OUT or self.height // n % 2 == 0]
        return (even or rows)[:BLOCKS]

    def _product(self, rows: int) -> Contraction:
        """Return the pointwise convolution of `rows` image rows, as a product."""
        stage = te.rename_axes(self.workload.stages[1], "b")
        image, row, pixel, column = stage.axes
        stage = replace(stage, axes=(image, replace(row, extent=const(rows)), pixel, column))
        names = (row.var.name, pixel.var.name)[rows == 1 :]
        role = replace(self.role, batch=(), rows=names)
        return Contraction(replace(self.workload, stages=(stage,)), role, self.lanes)

    def estimate(self, params: Params) -> float:
        """Return the estimated seconds: the rows' windows, overlapped with the data traffic, then the tiles.
        Each block reads each panel from the cache."""
        t, rows, panels = self.workload.processor, params["rows"], params["panels"]
        product = self._product(rows)
        tile = product.tile_cycles(params["mr"], params["nv"])
        panel = 4 * params["nv"] * self.lanes * self.channels
        near = t.rate(panels * panel)
        first = cost.overlapped(tile, panel / near)
        again = first if params["panels_inside"] and panels * panel > t.l1 / 2 else tile
        block = panels * (first + (params["row_tiles"] - 1) * again)
        held = 4 * rows * self.width * self.channels
        if held > t.l1 / 2:
            block += cost.EXPOSED * held / t.l2_rate * (1 if params["panels_inside"] else panels)
        blocks = self.height // rows  # these are all blocks if an image comes alone
        windows = cost.overlapped(self.depthwise.rows * self.depthwise.row_cycles(params), self.traffic)
        return cost.launch(windows + self.images * blocks * block, blocks) / t.clock

    def schedule(self, params: Params) -> Scheduled:
        p, rows = self.workload, params["rows"]
        rec = Recorder(te.lower(p.name, p.stages, p.inputs, p.symbols))
        rec.do("merge", len(SHARED), SHARED, rows)
        self.depthwise.arrange(rec, params)
        self._product(rows).arrange(rec, params)
        rec.do("parallelize", fuse_all(rec, SHARED, "t"))
        rec.do("simplify")
        rec.do("hoist_guards")
        work = float(rows * self.width * self.channels * self._product(1).columns) / self.lanes
        return rec.finish(self.name, params, work)
