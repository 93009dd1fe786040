"""The functions that compiled code exports, and how they are called: what back ends and devices agree on."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

from jangin.ir.records import dataclass


@dataclass(frozen=True)
class Function:
    """A C function: its result's type, and its parameters, "TYPE NAME, TYPE NAME..."; types are LLVM's:
    void, i32, i64 and ptr."""

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
        """The function at an address, callable from Python, which lets go of the interpreter's lock."""
        return ctypes.CFUNCTYPE(_CTYPES[self.result], *(_CTYPES[t] for t in self.types))(address)

    def prepared(self, address: int, *given: int, locked: bool = False) -> Callable[[], Any]:
        """A call with the same arguments each time, which ctypes converts only now: most of a call's time.
        `locked`: it keeps the interpreter's lock, as what reads Python's objects must."""
        kind = ctypes.PYFUNCTYPE if locked else ctypes.CFUNCTYPE
        call = kind(_CTYPES[self.result])(address)
        words = [_CTYPES[t].from_param(value) for t, value in zip(self.types, given, strict=True)]
        return partial(call, *words)


_CTYPES: dict[str, Any] = {
    "void": None, "i32": ctypes.c_int32, "i64": ctypes.c_int64, "ptr": ctypes.c_void_p,
}  # fmt: skip

KERNEL = Function("kernel", "void", "ptr args, ptr sizes, i64 lo, i64 hi, ptr scratch")
"""Each kernel, under its own name: runs its tasks lo <= t < hi. `args`: its buffers' addresses, in the order
of its parameters; `sizes`: its symbols' values (i64), then the round's number where it has rounds;
`scratch`: a worker's own memory, at a multiple of 64 bytes. A kernel without tasks runs when lo is 0."""

ENTRY = Function("jangin_entry", "i32", "ptr bufs, ptr symbols, ptr pool, ptr scratch, i64 stride")
"""Runs a whole plan and gives 0, or the number, from 1 on, of the first of `plan.checks` that fails. `bufs`:
the addresses of `plan.buffers`, aliases too; `symbols`: the values (i64) of `plan.symbols`; `stride`: bytes
of scratch memory that each worker has."""

POOL_CREATE = Function("jangin_pool_create", "ptr", "i32 asked")
"""A thread pool of so many threads, the caller's among them; null for one thread, or where there is none."""

POOL_DESTROY = Function("jangin_pool_destroy", "void", "ptr pool")
"""Ends the pool's threads. Nothing may be running on them."""

_HAND_OUT = "ptr pool, ptr task, ptr args, ptr sizes, i64 tasks, i64 grain, ptr scratch, i64 stride"

POOL_RUN = Function("jangin_pool_run", "void", _HAND_OUT)
"""Runs all tasks of the kernel `task`, shared among threads in units of at least `grain`; grain 0, or no
pool, runs them on the caller."""

POOL_ROUNDS = Function("jangin_pool_rounds", "void", f"{_HAND_OUT}, i64 rounds, ptr round.at")
"""As POOL_RUN, `rounds` times over, with the round's number stored at `round.at` before each."""

FLOW = Function("jangin_flow", "i32", "ptr ops")
"""Runs the operations of a script (`runtime.script`); gives 0, or the number of the failure it met."""

TAKE = Function("jangin_take", "i32", "ptr table, ptr wanted")
"""Puts the addresses of arrays in a table of pointers and gives 1, if all of them are what is wanted; else 0.
`wanted`: what `runtime.arrays.wanted` makes, with the address of the tuple of arrays in its first word. It
reads Python's objects, so that the interpreter's lock must be held."""
