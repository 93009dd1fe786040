"""Cuts a kernel whose tasks are several nests into one kernel for each nest."""

from __future__ import annotations

import math
from dataclasses import replace

from jangin.backends.walk.index import constant_shape
from jangin.ir.expr import Buffer
from jangin.ir.loop import OWN, Alloc, Block, Func, Stmt, statements, task_loops
from jangin.targets.target import Target

TILE = 8
"""A nest has a register tile if a local array fills at least one part in `TILE` of the registers. Smaller
arrays leave enough registers for hoisted constants."""


def parts(func: Func, target: Target) -> list[Func]:
    """Return the kernels that a task runs one after another.

    A task may be several nests over common scratch memory, each with a register tile. It is then cut into one
    kernel for each nest. Otherwise values that LLVM hoists out of one nest's loops (constants, a bias) would
    take registers from the other's. Any other kernel stays whole.
    """
    rounds, split = task_loops(func.body)
    if split is None or rounds is not None or split is not func.body or split.kind == "block":
        return [func]
    scratch: list[Buffer] = []
    task = split.body
    while isinstance(task, Alloc) and task.buffer.memory == "scratch":
        scratch.append(task.buffer)
        task = task.body
    if not scratch or not isinstance(task, Block) or not all(_has_tile(n, target) for n in task.body):
        return [func]
    loop = split

    def part(n: int, nest: Stmt) -> Func:
        for buffer in reversed(scratch):
            nest = Alloc(buffer, nest)
        return replace(func, name=f"{func.name}.{n}", body=replace(loop, body=nest))

    return [part(n, nest) for n, nest in enumerate(task.body)]


def _has_tile(s: Stmt, target: Target) -> bool:
    locals_ = [n.buffer for n in statements(s) if isinstance(n, Alloc) and n.buffer.memory in OWN]
    sizes = [math.prod(constant_shape(b) or (0,)) * b.dtype.bytes for b in locals_]
    return max(sizes, default=0) >= target.machine.registers * target.machine.vector_bytes // TILE
