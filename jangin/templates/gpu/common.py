"""What the templates for work-groups share: the shape of a group, and what work should cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jangin.ir import te
from jangin.ir.expr import Const, Expr
from jangin.ir.traversal import loads
from jangin.schedule.primitives import loop_names
from jangin.targets.gpu import Gpu
from jangin.templates import cost
from jangin.templates.common import fuse_all
from jangin.templates.scheduled import Recorder
from jangin.templates.template import Workload

GROUP = 256
"""Work-items of a group at most: more seldom pay."""
BUSY = 8
"""Work-items for each that computes at one time, with which the wait for memory is hidden."""
LOAD = 8.0
"""Instructions' time that a load from a cache takes."""


def spread(rec: Recorder, loop: str, threads: int) -> None:
    """Divide a loop among a group's threads, neighbours side by side: `loop`i in `loop`o serial turns."""
    rec.do("split", loop, threads)
    rec.do("reorder", [f"{loop}i", f"{loop}o"])
    rec.do("bind_thread", f"{loop}i")


def copy_panel(rec: Recorder, panel: str, loops: Sequence[str], threads: int) -> None:
    """Copy a panel, packed over loops of these names, by all threads, with neighbours of the last loop side
    by side."""
    names = [f"{panel}_{n}" for n in loops]
    rec.do("reorder", names)
    spread(rec, fuse_all(rec, names, f"{panel}_e"), threads)


def blocks(rec: Recorder, loops: Sequence[str], name: str = "t") -> None:
    """Make nested loops, outermost first, the kernel's blocks."""
    loop = fuse_all(rec, loops, name) if len(loops) > 1 else loops[0]
    rec.do("bind_block", loop)
    rec.do("simplify")
    if loop in loop_names(rec.func):  # of no elements, nothing is left
        rec.do("divide_once", loop)


def power_of_two(size: int, most: int) -> int:
    """The least power of two that has room for `size`, up to `most`."""
    return min(most, 1 << max(0, size - 1).bit_length())


def constant(e: Expr) -> int | None:
    return int(e.value) if isinstance(e, Const) else None


def moved_bytes(workload: Workload) -> float:
    """What a kernel reads and writes, each byte once."""
    last = workload.stages[-1]
    held = sum(math.prod(workload.size(d) for d in b.shape) * b.dtype.bytes for b in workload.inputs)
    return held + cost.size(workload, last.axes) * last.out.dtype.bytes


def operations(stages: Sequence[te.Stage], workload: Workload) -> float:
    """Arithmetic, and loads, of all elements of stages."""
    total = 0.0
    for s in stages:
        points = cost.size(workload, (*s.axes, *s.reduce_axes))
        each = cost.arithmetic(s.body) + bool(s.reduce_axes) + LOAD * len(list(loads(s.body)))
        total += points * each
        if s.reduce_axes:
            total += cost.size(workload, s.axes) * (1 + cost.arithmetic(s.result))
    return total


def seconds(gpu: Gpu, work: float, moved: float, items: float) -> float:
    """Of a launch: `work` instructions of all work-items, or `moved` bytes, whichever takes longer, both
    slower where there are too few `items` to keep the device busy."""
    share = min(1.0, items / (gpu.peak * BUSY))
    computing = work / (gpu.peak * gpu.clock) / max(share, 1e-6)
    return gpu.startup + max(computing, moved / gpu.bandwidth / max(share, 1 / gpu.units / BUSY))
