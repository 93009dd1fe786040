"""Kernels of one injective stage: maps, copies, gathers. Bound by memory, so: whole vectors of the
innermost axes as one loop, and the rest as tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jangin import te
from jangin.ir.expr import Buffer, Const, Var, walk
from jangin.ir.loop import Func
from jangin.ir.simplify import Range
from jangin.schedule import primitives
from jangin.schedule.normalize import simplify_func
from jangin.targets.target import Target
from jangin.templates.common import fuse_all, lanes_for, messy, vectorize
from jangin.templates.scheduled import Recorder, Scheduled

TASK_ELEMENTS = 8192


def schedule(
    name: str, stage: te.Stage, inputs: Sequence[Buffer], symbols: Mapping[Var, Range], target: Target
) -> Scheduled:
    """The stage by vectors: the innermost axes that every access runs through evenly are one loop."""
    rec = Recorder(te.lower(name, [stage], inputs, symbols))
    axes = [a.var.name for a in stage.axes]
    weight = float(sum(1 for _ in walk(stage.body)))
    if not axes:
        return Scheduled("elementwise", simplify_func(rec.func), (), cost=weight)
    inner = _fuse_suffix(rec, axes, symbols)
    outer = axes[: len(axes) - inner[1]]
    loop = inner[0]
    lanes = lanes_for(rec.func, target)
    extent = primitives.find(rec.func, loop).extent
    if outer:
        task = fuse_all(rec, outer, "t")
        vectorize(rec, loop, extent, lanes)
        cost = weight * (float(extent.value) if isinstance(extent, Const) else 256.0)
    else:
        task, loop = f"{loop}o", f"{loop}i"
        small = isinstance(extent, Const) and int(extent.value) <= TASK_ELEMENTS
        rec.do(
            "split",
            task[:-1],
            int(extent.value) if small and isinstance(extent, Const) else TASK_ELEMENTS,
            "bound",
        )
        vectorize(rec, loop, primitives.find(rec.func, loop).extent, lanes)
        cost = weight * TASK_ELEMENTS
    rec.do("parallelize", task)
    return Scheduled("elementwise", simplify_func(rec.func), tuple(rec.steps), cost=cost / lanes)


def _fuse_suffix(rec: Recorder, axes: Sequence[str], symbols: Mapping[Var, Range]) -> tuple[str, int]:
    """(name of the fused inner loop, how many axes it covers)."""
    loop, count = axes[-1], 1
    for axis in reversed(axes[:-1]):
        trial: Func = primitives.fuse(rec.func, axis, loop, f"v{count}")
        if messy(trial, Var(f"v{count}"), primitives.ranges_at(trial, f"v{count}")):
            break
        rec.do("fuse", axis, loop, f"v{count}")
        loop, count = f"v{count}", count + 1
    return loop, count
