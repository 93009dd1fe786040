"""Where a run's time goes: each launch timed by itself, in the order and memory of a real run."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    """`seconds`: median over the repeats, less what a call from Python takes that does nothing; `flops`
    and `bytes`: the launch's, for the sizes of the run."""

    launch: Launch
    seconds: float
    flops: int
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
    idle = _call_seconds(run, calls[0], repeats) if calls else 0.0
    return [
        LaunchTime(x, max(0.0, statistics.median(t) - idle), sizes.value(x.flops), sizes.value(x.bytes))
        for x, t in zip(plan.launches, times, strict=True)
    ]


def _call_seconds(run: Callable[..., None], call: tuple[Any, ...], repeats: int) -> float:
    """What it takes to ask the pool for no tasks."""
    nothing = (*call[:4], 0, *call[5:])
    times = []
    for _ in range(max(repeats, 5)):
        start = time.perf_counter()
        run(*nothing)
        times.append(time.perf_counter() - start)
    return statistics.median(times)
