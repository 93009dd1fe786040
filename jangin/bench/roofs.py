"""Measure the machine's limits for the roofline model: operations in registers, and bytes from each cache and
memory.

Williams, Waterman, Patterson: "Roofline: an insightful visual performance model" (CACM 52(4), 2009)."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from jangin.backends.llvm.objects import compile_modules
from jangin.bench.engine import Job
from jangin.bench.engines import make
from jangin.ir.records import dataclass
from jangin.runtime.elf import Image
from jangin.targets import resolve

SET_SIZES = tuple(1 << n for n in (15, 17, 19, 21, 22, 23, 24, 25, 27))
"""Bytes that all threads together read repeatedly, from the size of a first-level cache to that of memory."""
READ_BYTES = 32 << 20
"""Bytes that a thread reads for one timing. They exceed the caches of one core, and take milliseconds."""
UNROLL = 8
"""Loads of an iteration, in as many chains. Memory limits the speed then, and not the loop's counter."""
ROUNDS = 7
"""Rounds of which the best counts. The speed of hardware is reached in an undisturbed one; seven rounds take
about 0.3 s."""


@dataclass(frozen=True)
class Roofs:
    """The machine's limits with all `threads` together.

    `flops` is the operations a second of FMAs in registers. `bandwidths` has pairs (bytes of a set, bytes a
    second read from the set), by growing sets."""

    threads: int
    flops: float
    bandwidths: tuple[tuple[int, float], ...]

    def bandwidth(self, size: int) -> float:
        """Return the bytes a second at which a set of `size` bytes is read. The speed is that of the largest
        measured set that isn't larger, or of the smallest set."""
        return next((b for s, b in reversed(self.bandwidths) if s <= size), self.bandwidths[0][1])


def measure(threads: int) -> Roofs:
    """Measure operations and bytes a second with `threads` threads at once. The best of `ROUNDS` short rounds
    counts. The measurement takes about 0.3 s."""
    fma = make(Job("fma", 1))
    read = _Reader(threads)
    with ThreadPoolExecutor(threads) as pool:
        seconds = _best(pool, threads, lambda _: fma.call())
        speeds = [read.bytes(n) / _best(pool, threads, read.task(n)) for n in SET_SIZES]
    falling = [max(speeds[i:]) for i in range(len(speeds))]
    return Roofs(threads, threads * fma.work / seconds, tuple(zip(SET_SIZES, falling, strict=True)))


def _best(pool: ThreadPoolExecutor, threads: int, work: Callable[[int], Any]) -> float:
    """Run `work` on all threads at once for `ROUNDS` rounds. Return the slowest thread's seconds in the best
    round."""
    start_line = threading.Barrier(threads)

    def timed(thread: int) -> float:
        start_line.wait()
        start = time.perf_counter()
        work(thread)
        return time.perf_counter() - start

    return min(max(pool.map(timed, range(threads))) for _ in range(ROUNDS))


class _Reader:
    """Reads a set of bytes again and again. Each thread reads its own part of the set."""

    def __init__(self, threads: int) -> None:
        target = resolve("cpu")
        self._image = Image([compile_modules([("jangin_read", _read_module())], target)])
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        self._read = kind(self._image.address("jangin_read"))
        self._threads = threads
        self._data = np.ones(SET_SIZES[-1] + 64 * (threads + 1), np.uint8)
        self._first = -(-self._data.__array_interface__["data"][0] // 64) * 64

    def task(self, size: int) -> Callable[[int], None]:
        part = size // self._threads // 1024 * 1024
        times, sums = max(1, READ_BYTES // part), self._first + SET_SIZES[-1]
        return lambda t: self._read(self._first + t * part, part, times, sums + 64 * t)

    def bytes(self, size: int) -> int:
        part = size // self._threads // 1024 * 1024
        return self._threads * part * max(1, READ_BYTES // part)


def _read_module() -> str:
    """Return the module of `void jangin_read(ptr at, i64 bytes, i64 times, ptr sum)`.

    The function loads every vector `times` times and keeps the exclusive or of all. `bytes` is a multiple of
    1024."""
    width = resolve("cpu").processor.vector_bytes
    kind = f"<{width // 8} x i64>"
    lines = range(UNROLL)
    return "\n".join(
        [
            "define void @jangin_read(ptr %at, i64 %bytes, i64 %times, ptr %sum) {",
            "start:\n  br label %outer\nouter:",
            "  %t = phi i64 [ 0, %start ], [ %t1, %next ]",
            *(f"  %o{i} = phi {kind} [ zeroinitializer, %start ], [ %y{i}, %next ]" for i in lines),
            "  br label %inner\ninner:",
            "  %n = phi i64 [ 0, %outer ], [ %n1, %inner ]",
            *(f"  %x{i} = phi {kind} [ %o{i}, %outer ], [ %y{i}, %inner ]" for i in lines),
            *(
                f"  %a{i} = add i64 %n, {i * width}\n  %p{i} = getelementptr i8, ptr %at, i64 %a{i}"
                for i in lines
            ),
            *(f"  %v{i} = load {kind}, ptr %p{i}, align {width}" for i in lines),
            *(f"  %y{i} = xor {kind} %x{i}, %v{i}" for i in lines),
            f"  %n1 = add i64 %n, {UNROLL * width}",
            "  %more = icmp ult i64 %n1, %bytes\n  br i1 %more, label %inner, label %next\nnext:",
            "  %t1 = add i64 %t, 1",
            "  %again = icmp ult i64 %t1, %times\n  br i1 %again, label %outer, label %end\nend:",
            *(f"  store volatile {kind} %y{i}, ptr %sum, align {width}" for i in lines),
            "  ret void\n}\n",
        ]
    )
