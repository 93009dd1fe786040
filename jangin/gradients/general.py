"""The general gradient rule, applied to a node."""

from __future__ import annotations

from jangin.gradients.stages import StageAdjoints
from jangin.gradients.step import Step
from jangin.ir.expr import Buffer
from jangin.ops.core import CORE


def by_stages(step: Step, first: bool = False) -> None:
    """Add the gradients of a node's inputs, derived from its tensor expressions. If `first` is true, the
    first of equal extremes has the whole gradient. Otherwise they share it."""
    names = [f"x{i}" for i in range(len(step.ins))]
    buffers = [Buffer(n, t.dtype, t.shape) for n, t in zip(names, step.ins, strict=True)]
    out = Buffer("out", step.out.dtype, step.out.shape)
    stages = CORE[step.node.op].te(buffers, out, step.node.attrs)
    known = {**dict(zip(names, step.ins, strict=True)), "out": step.out}
    wanted = {n for i, n in enumerate(names) if step.wants(i)}
    gradients = StageAdjoints(step.b, stages, known, wanted, first).run(step.g)
    for i, name in enumerate(names):
        if name in gradients and step.wants(i):
            step.give(gradients[name], i)
