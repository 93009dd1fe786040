"""Depthwise convolution and pooling, channels last.

A thread makes some pixels of a row for neighbouring channels. The windows of its pixels share their loads.

    block { thread { acc = 0; taps { acc += data * weights, for each pixel } store each pixel } }
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jangin.ir import te
from jangin.templates import cost, window
from jangin.templates.common import fuse_all, lanes_for
from jangin.templates.gpu.common import GROUP, LOAD, constant, moved_bytes, seconds
from jangin.templates.scheduled import Params, Recorder, Scheduled
from jangin.templates.template import Template, Workload

PIXELS = (1, 2, 4, 8)
"""Pixels of a thread, to try."""
MOST = 32
"""Most accumulators of a thread. Half of `targets.gpu.REGISTERS` is left for operands and addresses."""
THREADS = (128, 64)
"""Work-items of a group, to try. The first is preferred in doubt."""


def match(workload: Workload) -> Window | None:
    """Return the template for a sliding window over channels-last data, or None for other kernels and rows of
    one pixel."""
    image = window.Image(workload) if window.fits(workload) else None
    return Window(image) if image is not None and image.size > 1 else None


class Window(Template):
    """See `templates.template.Template`. `image`: the window's axes and sizes."""

    name = "window"

    def __init__(self, image: window.Image) -> None:
        self.image, self.stage, self.workload = image, image.stage, image.workload
        self.gpu = self.workload.gpu
        lanes, channels = lanes_for(self.workload), constant(self.stage.axes[-1].extent)
        self.lanes = lanes if channels is not None and channels % lanes == 0 else 1
        self.count, self.moved = cost.size(self.workload, self.stage.axes), moved_bytes(self.workload)

    def space(self) -> Sequence[Params]:
        most = min(self.image.size, MOST // self.lanes)
        threads = [n for n in THREADS if n <= self.gpu.group] or [min(GROUP, self.gpu.group)]
        return [{"pixels": n, "threads": t} for n in PIXELS if n <= most for t in threads]

    def estimate(self, params: Params) -> float:
        """Return the estimated seconds: each tap's arithmetic and the loads that a thread's pixels share, or
        the data traffic if that takes longer."""
        image, pixels = self.image, params["pixels"]
        reach = min(pixels * image.across, (pixels - 1) * image.stride + image.across)
        loads = image.count / image.across * (reach + image.weighted * image.across) / pixels
        each = image.count * image.work + image.final + LOAD * loads
        whole = math.ceil(image.size / pixels) * pixels / image.size
        work = self.count * whole * each / (1 + (self.lanes - 1) / 2)
        return seconds(self.gpu, work, self.moved, self.count / (self.lanes * pixels))

    def schedule(self, params: Params) -> Scheduled:
        p, x, c = self.workload, self.image.row, self.image.column
        rec = Recorder(te.lower(p.name, p.stages, p.inputs, p.symbols))
        weights = window.weights_of(self.stage, p)
        if weights is not None:
            window.pack_weights(rec, weights, self.lanes)
        rec.do("split", x, params["pixels"])
        outer = [a.var.name for a in self.stage.axes if a.var.name not in (x, c)]
        tile = [f"{x}i"]
        if self.lanes > 1:
            rec.do("split", c, self.lanes)
            tile, c = [f"{x}i", f"{c}i"], f"{c}o"
        outer += [f"{x}o", c]
        rec.do("reorder", [*outer, *tile])
        rec.do("privatize", f"{self.stage.out.name}.acc", tile, () if weights is None else (weights.name,))
        rec.do("unroll", self.image.taps[-1])
        for part in ("", "_z", "_w"):
            rec.do("unroll", f"{x}i{part}")
            if self.lanes > 1:
                rec.do("vectorize", f"{tile[-1]}{part}")
        loop = fuse_all(rec, outer, "e")
        rec.do("split", loop, params["threads"])
        rec.do("bind_block", f"{loop}o")
        rec.do("bind_thread", f"{loop}i")
        own = params["threads"] * params["pixels"] * self.lanes
        return rec.finish(self.name, params, self.image.count * self.image.work * own)
