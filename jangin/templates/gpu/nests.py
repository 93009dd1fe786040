"""Kernels that came as loop nests, on devices with work-groups.

Each lane of a task's vectors is a work-item. If the lanes can't be separated, each task is one.
"""

from __future__ import annotations

import math

from jangin.ir.expr import Const
from jangin.ir.graph import CompileError
from jangin.ir.loop import Alloc, For, Func, statements, task_loops
from jangin.ir.verify_groups import verify_groups
from jangin.schedule.checks import ScheduleError
from jangin.templates.gpu.common import power_of_two
from jangin.templates.scheduled import Recorder, Scheduled
from jangin.templates.template import Workload

THREADS = 64
"""Most work-items of a group. AMD's GPUs run 64 together and NVIDIA's 32, so groups of this size fill
them."""
OWN_BYTES = 256
"""Most bytes of a task's scratch buffer that is kept in registers: the 64 values of
`targets.gpu.REGISTERS`."""


def schedule(func: Func, workload: Workload) -> Scheduled:
    """Schedule a loop nest with its parallel loop as blocks of threads.

    A group is one work-item if there is no parallel loop, or the threads may race. Races can't be excluded if
    stores have indices that are read from memory.
    """
    named = Recorder(func)
    named.do("distinct")  # a nest may repeat the names of its loops, but a schedule may not
    if task_loops(func.body)[1] is None:
        named.do("enclose", f"{func.name}.all")
        return named.finish("nest", {}, 1.0)
    ways = ((True, THREADS), (False, THREADS), (False, 1))
    rec, threads = next(
        grouped for way in ways if (grouped := _grouped(named.copy(), workload, *way)) is not None
    )
    for s in statements(rec.func.body):
        if isinstance(s, For) and s.kind == "thread":
            _near(rec, s)
    return rec.finish("nest", {"threads": threads}, float(threads))


def _grouped(rec: Recorder, workload: Workload, lanes: bool, most: int) -> tuple[Recorder, int] | None:
    """Return the nest with its tasks, or their lanes, in groups of at most `most` threads, and the size of
    the groups.

    `lanes`: make each lane of a task's vectors a thread. Return None if the lanes can't be separated, or the
    threads may race.
    """
    try:
        if lanes:
            rec.do("lanes_to_tasks")
    except ScheduleError:
        return None
    tasks = task_loops(rec.func.body)[1]
    assert tasks is not None
    threads = power_of_two(workload.size(tasks.extent), most)
    rec.do("group_tasks", threads)
    return (rec, threads) if threads == 1 or _free_of_races(rec.func) else None


def _free_of_races(func: Func) -> bool:
    def fail(message: str) -> None:
        raise CompileError(message)

    try:
        verify_groups(func, fail)  # type: ignore[arg-type]
    except CompileError:
        return False
    return True


def _near(rec: Recorder, thread: For) -> None:
    """Keep a task's small scratch buffers in registers."""
    for s in statements(thread.body):
        if isinstance(s, Alloc) and s.buffer.memory == "scratch":
            sizes = [int(d.value) for d in s.buffer.shape if isinstance(d, Const)]
            if len(sizes) == len(s.buffer.shape) and math.prod(sizes) * s.buffer.dtype.bytes <= OWN_BYTES:
                rec.do("place", s.buffer.name, "register")
