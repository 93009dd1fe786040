"""Runs the kernels of `accesses` on this machine, in another process, because a wrong kernel may crash."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from accesses import PAGE, Case, numbers

from jangin.ir.dtype import BOOL, U8
from jangin.ir.graph import Array
from jangin.runtime.functions import KERNEL

_SCRATCH = 4096


def run(cases: Sequence[Case], address: Callable[[str], int]) -> list[Array]:
    """Run each kernel, at the address of its name, and return what each wrote. The error for a crash names
    the kernel."""
    blanks = [c.blank() for c in cases]
    ends = np.cumsum([8, *(b.nbytes for b in blanks)])
    # it holds the number of finished kernels, then what each wrote
    with mmap.mmap(-1, int(ends[-1])) as shared:
        child = os.fork()
        if child == 0:
            _run_all(cases, address, blanks, shared)
        _, status = os.waitpid(child, 0)
        (done,) = struct.unpack_from("<q", shared)
        if status:
            number = os.WTERMSIG(status)
            why = signal.Signals(number).name if number else "an exception"
            raise AssertionError(f"{cases[done].name}: {why} ended the process that ran it")
        results = np.frombuffer(shared[:], np.uint8)
    return [results[a:b] for a, b in pairwise(ends)]


def _run_all(
    cases: Sequence[Case], address: Callable[[str], int], blanks: Sequence[Array], shared: mmap.mmap
) -> None:
    status, at = 1, 8
    try:
        held = {dtype: _pages(numbers(dtype)) for dtype in (U8, BOOL)}
        pages = {dtype: ctypes.addressof(ctypes.c_char.from_buffer(m)) for dtype, m in held.items()}
        scratch = ctypes.create_string_buffer(2 * _SCRATCH)
        aligned = -(-ctypes.addressof(scratch) // _SCRATCH) * _SCRATCH
        for n, (case, out) in enumerate(zip(cases, blanks, strict=True)):
            table, plain = case.places(), numbers(case.other)
            starts = {"table": table.ctypes.data, "plain": plain.ctypes.data, "out": out.ctypes.data}
            starts["pages"] = pages[BOOL if case.memory is BOOL else U8]
            kernel = KERNEL.at(address(case.name))
            for count, places in case.calls():
                args = np.array([starts[name] + offset for name, offset in places], np.int64)
                kernel(args.ctypes.data, np.array([count]).ctypes.data, 0, 1, aligned)
            shared[at : at + out.nbytes] = out.tobytes()
            at += out.nbytes
            struct.pack_into("<q", shared, 0, n + 1)
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)


def _pages(data: Array) -> mmap.mmap:
    """Copy data into pages, of which the first and then every second can't be read."""
    held = mmap.mmap(-1, data.nbytes)
    held[:] = data.tobytes()
    start = ctypes.addressof(ctypes.c_char.from_buffer(held))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for at in range(0, data.nbytes, 2 * PAGE):
        if protect(ctypes.c_void_p(start + at), ctypes.c_size_t(PAGE), 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    return held
