"""Where a run's time goes: each launch timed by itself, in the order and memory of a real run."""

from __future__ import annotations

import ctypes
import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jangin.ir.plan import Launch, Plan
from jangin.runtime.elf import Image

if TYPE_CHECKING:
    from jangin.runtime.executable import _Context, _Layout

_POOL_RUN = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
    ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64,
)  # fmt: skip
_WARM_UP = 2


@dataclass(frozen=True)
class LaunchTime:
    """`seconds`: median over the repeats (a call from Python adds about a microsecond); `bytes`: of
    the operands and the result, each counted once."""

    launch: Launch
    seconds: float
    bytes: int


def time_launches(
    plan: Plan, image: Image, pool: int | None, sizes: _Layout, context: _Context, repeats: int
) -> list[LaunchTime]:
    """Run the plan launch by launch, `repeats` times after a warm-up."""
    run = _POOL_RUN(image.address("jangin_pool_run"))
    index = {b.name: i for i, b in enumerate(plan.buffers)}
    calls = []
    for launch in plan.launches:
        args = (ctypes.c_void_p * len(launch.args))(*(context.table[index[n]] for n in launch.args))
        symbols = (ctypes.c_int64 * max(1, len(launch.symbols)))(*(sizes.value(s) for s in launch.symbols))
        own = pool if launch.grain else None
        kernel, tasks = image.address(launch.kernel), sizes.value(launch.tasks)
        calls.append(
            (own, kernel, args, symbols, tasks, max(1, launch.grain), context.scratch_at, sizes.stride)
        )
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats + _WARM_UP):
        for n, call in enumerate(calls):
            start = time.perf_counter()
            run(*call)
            if turn >= _WARM_UP:
                times[n].append(time.perf_counter() - start)
    width = {b.name: b.dtype.bytes for b in plan.buffers}
    moved = [sum(math.prod(sizes.shapes[n]) * width[n] for n in set(c.args)) for c in plan.launches]
    return [
        LaunchTime(launch, statistics.median(t), size)
        for launch, t, size in zip(plan.launches, times, moved, strict=True)
    ]
