"""Kernels that came as loop nests, on devices with work-groups: each task of theirs is a work-item."""

from __future__ import annotations

import math

from jangin.ir.expr import Const
from jangin.ir.graph import CompileError
from jangin.ir.loop import Alloc, For, Func, statements, task_loops
from jangin.ir.verify_groups import verify_groups
from jangin.templates.gpu.common import power_of_two
from jangin.templates.scheduled import Recorder, Scheduled
from jangin.templates.template import Workload

THREADS = 64
"""Work-items of a group at most."""
OWN_BYTES = 256
"""Of a task's scratch buffer that is kept in registers."""


def schedule(func: Func, workload: Workload) -> Scheduled:
    """The nest with its parallel loop as blocks of threads. Where threads can't be told not to race (indices
    read from memory say where they store), and where there is no such loop, a group is one work-item."""
    rec = Recorder(func)
    rec.do("distinct")  # a nest may repeat the names of its loops, a schedule's may not
    func = rec.func
    tasks = task_loops(func.body)[1]
    if tasks is None:
        rec.do("enclose", f"{func.name}.all")
        return rec.finish("nest", {}, 1.0)
    threads = power_of_two(workload.size(tasks.extent), THREADS)
    rec.do("group_tasks", threads)
    if threads > 1 and not _free_of_races(rec.func):
        threads, rec = 1, Recorder(func)
        rec.do("group_tasks", threads)
    for s in statements(rec.func.body):
        if isinstance(s, For) and s.kind == "thread":
            _near(rec, s)
    return rec.finish("nest", {"threads": threads}, float(threads))


def _free_of_races(func: Func) -> bool:
    def fail(message: str) -> None:
        raise CompileError(message)

    try:
        verify_groups(func, fail)  # type: ignore[arg-type]
    except CompileError:
        return False
    return True


def _near(rec: Recorder, thread: For) -> None:
    """A task's small scratch buffers in registers."""
    for s in statements(thread.body):
        if isinstance(s, Alloc) and s.buffer.memory == "scratch":
            sizes = [int(d.value) for d in s.buffer.shape if isinstance(d, Const)]
            if len(sizes) == len(s.buffer.shape) and math.prod(sizes) * s.buffer.dtype.bytes <= OWN_BYTES:
                rec.do("place", s.buffer.name, "register")
