"""The requirements of a kernel, which follow from its loops: rounds, tasks, sizes and scratch memory."""

from __future__ import annotations

import math

from jangin.ir.expr import Buffer, Const, Expr, Var, const, maximum
from jangin.ir.graph import CompileError
from jangin.ir.groups import ARRIVALS, launch_buffer, threads
from jangin.ir.loop import Alloc, For, Func, Let, Stmt, loop_range, sub_statements, task_loops
from jangin.ir.simplify import Range, simplify
from jangin.ir.traversal import free_vars, substitute

SCRATCH_ALIGN = 64
"""Alignment of each scratch buffer, and of the scratch memory itself, in bytes. It is a cache line, and the
widest vector register."""


def rounds(func: Func) -> Expr:
    """Return how often all the kernel's tasks run. It is the extent of the serial loop around the parallel
    one, else 1."""
    loop = task_loops(func.body)[0]
    return const(1) if loop is None else simplify(loop.extent, dict(func.symbols))


def tasks(func: Func) -> Expr:
    """Return the number of tasks: the extent of the outermost parallel or block loop, else 1."""
    s, values = func.body, dict[Var, Expr]()
    while isinstance(s, (Let, Alloc)):
        if isinstance(s, Let):
            values[s.var] = substitute(s.value, values)
        s = s.body
    loop = task_loops(s)[1]
    return const(1) if loop is None else simplify(substitute(loop.extent, values), dict(func.symbols))


def sizes(func: Func) -> tuple[tuple[Var, Range], ...]:
    """Return the integer arguments of the kernel with their ranges: the symbols, then the round's number if
    the kernel has rounds."""
    loop = task_loops(func.body)[0]
    return func.symbols if loop is None else (*func.symbols, (loop.var, loop_range(loop)))


def scratch_bytes(func: Func, *, groups: bool = False) -> Expr:
    """Return the bytes of scratch memory that a worker needs, as an expression of the symbols.

    With `groups`, work-groups are the workers. Their shared memory isn't counted, and each work-item has its
    own part. Raises CompileError, which names the kernel, if the size depends on anything but symbols."""
    memory = ("scratch",) if groups else ("scratch", "shared", "launch")

    def need(s: Stmt, lanes: int) -> Expr:
        if isinstance(s, For) and s.kind == "vector" and isinstance(s.extent, Const):
            lanes *= max(1, int(s.extent.value))
        if groups and isinstance(s, For) and s.kind == "thread":
            lanes *= threads(func)
        most: Expr = const(0)
        for sub in sub_statements(s):
            most = simplify(maximum(most, need(sub, lanes)), dict(func.symbols))
        if isinstance(s, Alloc) and s.buffer.memory in memory:
            return simplify(most + buffer_bytes(func, s.buffer) * lanes, dict(func.symbols))
        return most

    counts = 0 if groups or launch_buffer(func) is None else ARRIVALS
    return simplify(need(func.body, 1) + counts, dict(func.symbols))


def launch_bytes(func: Func) -> Expr:
    """Return the bytes of memory that all groups of a launch share, and of the counts before it."""
    buffer = launch_buffer(func)
    return const(0) if buffer is None else simplify(buffer_bytes(func, buffer) + ARRIVALS, dict(func.symbols))


def buffer_bytes(func: Func, buffer: Buffer) -> Expr:
    """Return the bytes of a scratch buffer, rounded up to SCRATCH_ALIGN."""
    elements = math.prod(buffer.shape, start=const(1))
    if not free_vars(elements) <= {v for v, _ in func.symbols}:
        raise CompileError(
            f"{func.name}: scratch buffer {buffer.name} has shape {list(buffer.shape)}; "
            "it may depend on size symbols only"
        )
    rounded = (elements * buffer.dtype.bytes + (SCRATCH_ALIGN - 1)) // SCRATCH_ALIGN * SCRATCH_ALIGN
    return simplify(rounded, dict(func.symbols))
