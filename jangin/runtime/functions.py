"""The functions that compiled code exports, and how they are called: what back ends and devices agree on."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from jangin.ir.graph import Array
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

    def prepared(self, address: int, *given: int) -> Callable[[], Any]:
        """A call with the same arguments each time, which ctypes then needn't convert: half its time."""
        call = ctypes.CFUNCTYPE(_CTYPES[self.result])(address)
        words = [_CTYPES[t](value) for t, value in zip(self.types, given, strict=True)]
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


_word = ctypes.c_size_t.from_address
_HEAD = object.__basicsize__
"""Bytes that each of Python's objects begins with, before its own fields."""


def _general(array: Array) -> int:
    at: int = array.__array_interface__["data"][0]
    return at


def _first_field(array: Array) -> int:
    """NumPy's C interface fixes that an array's object begins with this address. Ten times as fast."""
    return _word(id(array) + _HEAD).value


_probe = np.empty(2)[1:]
address = _first_field if _first_field(_probe) == _general(_probe) else _general
"""Where an array's memory begins."""
