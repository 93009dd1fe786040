"""The thread pool's compiled functions, with kernels that count their tasks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
from plans import kernel

from jangin.backends.llvm.objects import compile_modules
from jangin.backends.llvm.pool import pool_module
from jangin.runtime.elf import Image
from jangin.targets.x86 import V2

_DELAY = """
  %mixed = mul i64 %i, 2654435761
  %few = and i64 %mixed, {mask}
  br label %delay
delay:
  %d = phi i64 [ 0, %body ], [ %d1, %delay ]
  call void asm sideeffect "", ""()
  %d1 = add i64 %d, 1
  %again = icmp sle i64 %d1, %few
  br i1 %again, label %delay, label %counted
counted:
  %c = atomicrmw add ptr %y.i, i32 1 monotonic
  %slot = load i64, ptr %scratch
  %own = atomicrmw add ptr %scratch, i64 1 monotonic
"""


def counting(name: str, mask: int) -> tuple[str, str]:
    """Return a kernel that counts each task in y, after a delay that differs by task, and in the worker's
    scratch memory."""
    made, text = kernel(name, _DELAY.format(mask=mask))
    return made, text.replace("%next, %body", "%next, %counted")


class Pool:
    """The pool's functions, as ctypes calls them (without the interpreter's lock)."""

    def __init__(self, text: str = "") -> None:
        modules = [("pool", text or pool_module(V2)), counting("quick", 15), counting("slow", 4095)]
        self.image = Image([compile_modules(modules, V2)])
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        kinds = [pointer] * 4 + [integer] * 2 + [pointer, integer]
        self.run = self._function("run", None, *kinds)
        self._create = self._function("create", pointer, ctypes.c_int32, ctypes.c_int32)
        self.destroy, self.enter, self.leave = (
            self._function(name, None, pointer) for name in ("destroy", "enter", "leave")
        )
        self.quick, self.slow = (self.image.address(n) for n in ("quick", "slow"))

    def _function(self, name: str, result: type | None, *params: type) -> Callable[..., int | None]:
        return ctypes.CFUNCTYPE(result, *params)(self.image.address(f"jangin_pool_{name}"))

    def create(self, threads: int, processors: int = 0) -> int | None:
        """Return a new pool, by default for as many processors as threads."""
        return self._create(threads, processors or threads)


def job(
    pool: Pool,
    made: int | None,
    tasks: int,
    grain: int,
    threads: int,
    *,
    slow: bool = False,
    scratch: np.ndarray | None = None,
) -> np.ndarray:
    """Run one job and check that each task ran once. Returns the number of tasks of each worker. `scratch`
    is the memory in which they are counted, 8 words for each thread."""
    counts = np.zeros(max(1, tasks), np.int32)
    args = np.array([0, counts.ctypes.data], np.uint64)
    scratch = np.zeros((max(1, threads), 8), np.int64) if scratch is None else scratch
    scratch[:] = 0
    pool.run(
        made, pool.slow if slow else pool.quick, args.ctypes.data, None, tasks, grain, scratch.ctypes.data, 64
    )
    done = counts.copy()
    assert (done[:tasks] == 1).all(), f"{tasks} tasks, grain {grain}: {np.flatnonzero(done != 1)[:5]}"
    assert scratch[:, 0].sum() == tasks and not scratch[:, 1:].any()
    return scratch[:, 0].copy()
