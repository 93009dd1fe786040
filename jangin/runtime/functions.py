"""The functions that compiled code exports, and their calling conventions, on which back ends and devices
agree."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

from jangin.ir.records import dataclass


@dataclass(frozen=True)
class Function:
    """A C function. `result` is its result's type, and `params` its parameters, "TYPE NAME, TYPE NAME...".
    Types are LLVM's: void, i32, i64 and ptr."""

    name: str
    result: str
    params: str

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(p.split()[0] for p in self.params.split(", "))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(p.split()[1] for p in self.params.split(", "))

    def at(self, address: int) -> Callable[..., Any]:
        """Return the function at an address, callable from Python. A call releases the interpreter's lock."""
        return ctypes.CFUNCTYPE(_CTYPES[self.result], *(_CTYPES[t] for t in self.types))(address)

    def prepared(self, address: int, *given: int, locked: bool = False) -> Callable[[], Any]:
        """Return a function that calls the C function with the same arguments each time. ctypes converts them
        only once, because converting takes most of a call's time.

        If `locked`, the call keeps the interpreter's lock, which functions that read Python's objects
        need."""
        kind = ctypes.PYFUNCTYPE if locked else ctypes.CFUNCTYPE
        call = kind(_CTYPES[self.result])(address)
        words = [_CTYPES[t].from_param(value) for t, value in zip(self.types, given, strict=True)]
        return partial(call, *words)


_CTYPES: dict[str, Any] = {
    "void": None, "i32": ctypes.c_int32, "i64": ctypes.c_int64, "ptr": ctypes.c_void_p,
}  # fmt: skip

KERNEL = Function("kernel", "void", "ptr args, ptr sizes, i64 lo, i64 hi, ptr scratch")
"""A kernel, which is exported under its own name. It runs its tasks t with lo <= t < hi. A kernel without
tasks runs when lo is 0.

`args` has its buffers' addresses, in the order of its parameters. `sizes` has its symbols' values (i64), then
the round's number if it has rounds. `scratch` is the worker's own memory, at a multiple of 64 bytes."""

ENTRY = Function("jangin_entry", "i32", "ptr bufs, ptr symbols, ptr pool, ptr scratch, i64 stride")
"""Runs a whole plan. Returns 0, or the number, from 1 on, of the first of `plan.checks` that fails.

`bufs` has the addresses of `plan.buffers`, aliases included. `symbols` has the values (i64) of
`plan.symbols`. `stride` is the bytes of scratch memory of each worker."""

POOL_CREATE = Function("jangin_pool_create", "ptr", "i32 asked, i32 processors")
"""Makes a thread pool of `asked` threads, the caller included. Returns null if `asked` is 1, or if the system
gives no threads or memory. Callers and workers together keep at most `processors` processors busy, unless
there are more callers."""

POOL_DESTROY = Function("jangin_pool_destroy", "void", "ptr pool")
"""Ends the pool's threads. Nothing may be running on them."""

POOL_ENTER = Function("jangin_pool_enter", "void", "ptr pool")
"""Counts a caller of the pool, among which its workers are divided. A null pool counts nothing."""

POOL_LEAVE = Function("jangin_pool_leave", "void", "ptr pool")
"""Ends what POOL_ENTER began."""

_HAND_OUT = "ptr pool, ptr task, ptr args, ptr sizes, i64 tasks, i64 grain, ptr scratch, i64 stride"

POOL_RUN = Function("jangin_pool_run", "void", _HAND_OUT)
"""Runs all tasks of the kernel `task`. Threads take at least `grain` tasks at a time. With grain 0, or
without a pool, the caller runs all tasks."""

POOL_ROUNDS = Function("jangin_pool_rounds", "void", f"{_HAND_OUT}, i64 rounds, ptr round.at")
"""Does what POOL_RUN does `rounds` times. The round's number is stored at `round.at` before each round."""

POOL_TEAM = Function(
    "jangin_pool_team",
    "i32",
    "ptr parallel, ptr number, i32 threads, ptr entry, ptr bufs, ptr symbols, ptr scratch, i64 stride",
)
"""Runs a whole plan on `threads` threads of an OpenMP library, and returns what `entry` returns (see ENTRY).

`parallel` is the address of GOMP_parallel, which every such library on Linux has, and `number` the address
of omp_get_thread_num. Older files lack this function."""

FLOW = Function("jangin_flow", "i32", "ptr ops")
"""Runs the operations of a script (`runtime.script`). Returns 0, or the number of the failure."""

TAKE = Function("jangin_take_objects", "i32", "ptr table, ptr wanted")
"""Checks that objects are as wanted. If all are, it returns 1, else 0. It stores the addresses of arrays in a
table of pointers, and the numbers of floats and complex numbers where they are wanted.

`wanted` is made by `runtime.arrays.wanted`, with the address of the tuple of objects in its first word. The
function reads Python's objects, so the interpreter's lock must be held. Files of version 7 and before may
lack it."""

CALL = Function("jangin_call_objects", "ptr", "ptr self, ptr args, i64 count, ptr names")
"""A function that Python calls, of the kind METH_FASTCALL | METH_KEYWORDS. It runs a plan on arguments that
`TAKE` would take, and calls a general function on others. `runtime.calls` describes what it reads. Older
files lack it."""
