"""Compile kernels and run them alone, on arrays that end at the end of accessible memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from itertools import pairwise

import numpy as np
from guarded import Memory

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
"""The code for AVX-512, in AVX2 instructions, so that any host of level v3 runs it."""
_BY_NAME = {**NAMED, "wide": WIDE}


@cache
def runnable() -> tuple[str, ...]:
    """Return the targets whose code this machine runs."""
    host = resolve("host").name
    if host == V2.name:
        return (V2.name,)
    return (V2.name, V3.name, "wide") + ((V4.name,) if host.startswith(V4.name) else ())


def target(name: str) -> Target:
    return _BY_NAME[name]


def run(
    func: Func, arrays: Mapping[str, Array], symbols: Mapping[str, int], on: Target, pieces: int = 2
) -> dict[str, Array]:
    """Return the outputs of a kernel, run in `pieces` ranges of its tasks."""
    image = Image([_code(func.name, emit_kernel(func, on), on)])
    return call(image.address(func.name), func, arrays, symbols, pieces)


@lru_cache(4096)
def _code(name: str, text: str, on: Target) -> bytes:
    """Compile a kernel's text. Tests of other languages replace this function to run the same kernels."""
    return compile_modules([(name, text)], on)


def call(
    address: int, func: Func, arrays: Mapping[str, Array], symbols: Mapping[str, int], pieces: int = 2
) -> dict[str, Array]:
    """Run a kernel's code at an address, as `run` does."""
    kernel, memory = KERNEL.at(address), Memory(pages=True)
    held = {p.name: memory.copy(arrays[p.name]) for p in func.params}
    addresses = np.array([held[p.name].ctypes.data for p in func.params], np.int64)
    values = np.array([symbols[v.name] for v, _ in func.symbols] or [0], np.int64)
    scratch = memory.aligned((size(scratch_bytes(func), symbols),), np.dtype(np.uint8))
    count = size(tasks(func), symbols)
    cuts = sorted({0, *(count * n // pieces for n in range(pieces + 1)), count})
    for lo, hi in pairwise(cuts):
        kernel(addresses.ctypes.data, values.ctypes.data, lo, hi, scratch.ctypes.data)
    assert not (faults := memory.faults()), faults
    return {p.name: held[p.name].copy() for p in func.results}
