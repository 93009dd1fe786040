"""Helpers of the templates for work-groups: the shape of a group, and estimates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jangin.ir import te
from jangin.ir.expr import Const, Expr
from jangin.ir.groups import ARRIVALS
from jangin.ir.simplify import simplify
from jangin.ir.traversal import loads
from jangin.schedule.primitives import find, loop_names
from jangin.targets.gpu import Gpu
from jangin.templates import cost
from jangin.templates.common import fuse_all
from jangin.templates.scheduled import Recorder
from jangin.templates.template import Workload

GROUP = 256
"""Most work-items of a group. Larger groups rarely pay."""
BANKS = 16
"""Bytes of padding behind each row of a panel that is stored column by column. At most two neighbours then
meet in a memory bank, and rows still begin at multiples of the widest load."""
BUSY = 8
"""Work-items for each lane of the device that are needed to hide the latency of memory. It is an estimate
that only orders candidates, which tuning measures."""
LEAST = 2
"""Panels of a share at least, so that a panel's copy goes on beside the products of another."""
UNFILLED = 1.4
"""The time of a launch with fewer groups than units, as a multiple.

Each unit should have several groups, so that some work while others wait at barriers. The CUDA C++ Best
Practices Guide says so under thread and block heuristics, without a figure. By the estimate, sharing a tile
of ResNet-50 takes up to 1.4 times as long as not sharing it."""
ARRIVE = 1500.0
"""Cycles for a group's arrival: a fence, an atomic operation in the level 2 cache, and its answer. The
latencies of Jia et al. add up to about as many ("Dissecting the NVIDIA Volta GPU architecture", 2018)."""
L2_BYTES = 40.0
"""Bytes that a unit gets from the level 2 cache each cycle. An A100 has 5,120 for 108 units (A100
architecture whitepaper)."""
LOAD = 8.0
"""The time of a load from a cache, in instructions. It is an estimate that only orders candidates, which
tuning measures."""


def spread(rec: Recorder, loop: str, threads: int) -> None:
    """Divide a loop among a group's threads so that neighbours are contiguous. Thread `loop`i makes the
    iterations `loop`o."""
    rec.do("split", loop, threads)
    rec.do("reorder", [f"{loop}i", f"{loop}o"])
    rec.do("bind_thread", f"{loop}i")


def copy_panel(rec: Recorder, panel: str, loops: Sequence[str], threads: int) -> None:
    """Let all threads copy a panel that was packed over the loops `loops`. Neighbours are contiguous along
    the last one."""
    names = [f"{panel}_{n}" for n in loops]
    rec.do("reorder", names)
    spread(rec, fuse_all(rec, names, f"{panel}_e"), threads)


def spread_over_banks(rec: Recorder, panel: str, element: int) -> None:
    """Pad the rows of a panel of three axes, the last two of which become one. `element`: bytes of an
    element."""
    rec.do("join_axes", panel, 2, 1)
    rec.do("stretch", panel, BANKS // element)


def blocks(rec: Recorder, loops: Sequence[str], name: str = "t") -> str:
    """Make nested loops, outermost first, the kernel's blocks. Return the loop's name."""
    loop = fuse_all(rec, loops, name) if len(loops) > 1 else loops[0]
    rec.do("bind_block", loop)
    rec.do("simplify")
    if loop in loop_names(rec.func):  # a kernel of no elements has no loop left
        rec.do("divide_once", loop)
    return loop


def power_of_two(size: int, most: int) -> int:
    """Return the least power of two that is at least `size`, or `most` if that power is greater."""
    return min(most, 1 << max(0, size - 1).bit_length())


def constant(e: Expr) -> int | None:
    return int(e.value) if isinstance(e, Const) else None


def moved_bytes(workload: Workload) -> float:
    """Return the number of bytes that a kernel's inputs and its last stage's result hold, each counted
    once."""
    last = workload.stages[-1]
    held = sum(math.prod(workload.size(d) for d in b.shape) * b.dtype.bytes for b in workload.inputs)
    return held + cost.size(workload, last.axes) * last.out.dtype.bytes


def operations(stages: Sequence[te.Stage], workload: Workload) -> float:
    """Return the number of instructions for all elements of the stages. A load counts as `LOAD` of them."""
    total = 0.0
    for s in stages:
        points = cost.size(workload, (*s.axes, *s.reduce_axes))
        each = cost.arithmetic(s.body) + bool(s.reduce_axes) + LOAD * len(list(loads(s.body)))
        total += points * each
        if s.reduce_axes:
            total += cost.size(workload, s.axes) * (1 + cost.arithmetic(s.result))
    return total


def seconds(gpu: Gpu, work: float, moved: float, items: float) -> float:
    """Return the seconds of a launch with `work` instructions of all work-items and `moved` bytes.

    The longer of the two counts. Both are slower if there are too few `items` to keep the device busy.
    """
    share = min(1.0, items / (gpu.peak * BUSY))
    computing = work / (gpu.peak * gpu.clock) / max(share, 1e-6)
    return gpu.startup + max(computing, moved / gpu.bandwidth / max(share, 1 / gpu.units / BUSY))


def split_terms(rec: Recorder, loops: Sequence[str], panel: int, acc: str, share: int = 0) -> str:
    """Fuse the loops over a product's terms, and split them into panels of `panel` terms. With `share`, so
    many panels are a share first. Return the name of the loop that is split into panels. Positions after the
    last term count as 0 in the sums `acc`."""
    k = fuse_all(rec, loops, "k")
    extent = constant(simplify(find(rec.func, k).extent, dict(rec.func.symbols)))
    whole = panel * max(1, share)
    if share:
        rec.do("split", k, whole)
        k = f"{k}i"
    rec.do("split", k, panel)
    if extent is None or extent % whole:
        rec.do("pad_terms", acc)
    return k


def shared_out(rec: Recorder, tasks: str, k: str, acc: str) -> None:
    """Let groups make the shares of a product's terms (see `split_terms`). `tasks` is the loop over tiles."""
    rec.do("share", tasks, f"{k[:-1]}o", acc)
    rec.do("simplify")


def shares(gpu: Gpu, tiles: int, panels: int) -> Sequence[int]:
    """Return the numbers of panels in a share that are worth trying, fewest groups first, if groups of a
    launch may meet. Tiles that fill the device aren't shared. Otherwise there are groups for all units, half
    as many more, or twice as many, and a share has at least `LEAST` panels."""
    if not gpu.meets or tiles >= gpu.units or tiles > ARRIVALS // 4:
        return ()
    most = panels // LEAST
    counts = (-(-gpu.units // tiles), gpu.units * 3 // 2 // tiles, 2 * gpu.units // tiles)
    return sorted({-(-panels // min(n, most)) for n in counts if min(n, most) > 1}, reverse=True)


def unfilled(gpu: Gpu, groups: int) -> float:
    """Return how many times as long a launch takes if it has too few groups for the device's units."""
    return UNFILLED if gpu.meets and groups < gpu.units else 1.0


def met(tile: int, count: int) -> float:
    """Return the cycles that a tile takes longer if `count` groups make its sums, `tile` bytes each."""
    return ARRIVE + tile * (1 + count) / L2_BYTES if count > 1 else 0.0
