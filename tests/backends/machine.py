"""Kernels compiled and run alone, on arrays that end where memory does."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from itertools import pairwise

import numpy as np

from jangin.backends.llvm.module import emit_kernel
from jangin.backends.llvm.objects import compile_modules
from jangin.ir.graph import Array
from jangin.ir.interpret import size
from jangin.ir.kernel import scratch_bytes, tasks
from jangin.ir.loop import Func
from jangin.runtime.elf import Image
from jangin.runtime.functions import KERNEL
from jangin.targets import NAMED, Target, resolve
from jangin.targets.x86 import V2, V3, V4

WIDE = replace(V4, cpu=V3.cpu, features=V3.features)
"""The code that AVX-512 gets, in AVX2 instructions, so that any host of level v3 runs it."""
_BY_NAME = {**NAMED, "wide": WIDE}
_CANARY = 0x5A


@cache
def runnable() -> tuple[str, ...]:
    """The targets whose code this machine runs."""
    host = resolve("host").name
    if host == V2.name:
        return (V2.name,)
    return (V2.name, V3.name, "wide") + ((V4.name,) if host.startswith(V4.name) else ())


def target(name: str) -> Target:
    return _BY_NAME[name]


class Guarded:
    """Copies of arrays that end at an unreadable page, with canaries before them."""

    def __init__(self, array: Array) -> None:
        page = mmap.PAGESIZE
        room = (array.nbytes + 64 + page - 1) // page * page
        self._map = mmap.mmap(-1, room + page)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(self._start + room), ctypes.c_size_t(page), 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
        self._offset = room - array.nbytes
        self._map[: self._offset] = bytes([_CANARY]) * self._offset
        self._map[self._offset : room] = array.tobytes()
        self._like = array

    @property
    def address(self) -> int:
        return self._start + self._offset

    def read(self) -> Array:
        """The array's contents now; an error if something was written before it."""
        assert set(self._map[: self._offset]) <= {_CANARY}, "written before the array's start"
        raw = self._map[self._offset : self._offset + self._like.nbytes]
        return np.frombuffer(raw, self._like.dtype).reshape(self._like.shape)


def run(
    func: Func, arrays: Mapping[str, Array], symbols: Mapping[str, int], on: Target, pieces: int = 2
) -> dict[str, Array]:
    """The outputs of a kernel run in `pieces` ranges of its tasks."""
    image = Image([_code(func.name, emit_kernel(func, on), on)])
    outputs = call(image.address(func.name), func, arrays, symbols, pieces)
    image.close()
    return outputs


@lru_cache(4096)
def _code(name: str, text: str, on: Target) -> bytes:
    """The tests of other languages run the same kernels."""
    return compile_modules([(name, text)], on)


def call(
    address: int, func: Func, arrays: Mapping[str, Array], symbols: Mapping[str, int], pieces: int = 2
) -> dict[str, Array]:
    """As `run`, of a kernel's code at an address."""
    kernel = KERNEL.at(address)
    held = {p.name: Guarded(arrays[p.name]) for p in func.params}
    addresses = np.array([held[p.name].address for p in func.params], np.int64)
    values = np.array([symbols[v.name] for v, _ in func.symbols] or [0], np.int64)
    scratch = np.full(size(scratch_bytes(func), symbols) + 128, 0xA5, np.uint8)
    at = (scratch.ctypes.data + 63) // 64 * 64
    count = size(tasks(func), symbols)
    cuts = sorted({0, *(count * n // pieces for n in range(pieces + 1)), count})
    for lo, hi in pairwise(cuts):
        kernel(addresses.ctypes.data, values.ctypes.data, lo, hi, at)
    assert (scratch[at - scratch.ctypes.data + size(scratch_bytes(func), symbols) :] == 0xA5).all()
    return {p.name: held[p.name].read() for p in func.results}
