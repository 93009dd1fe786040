"""Record a run as a Chrome trace, one track for each thread (the "Trace Event Format", which Perfetto reads
too).

Every kernel is called through a function that records when each piece of its work began and ended, and on
which thread."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from jangin.backends.llvm.functions import called, head
from jangin.backends.llvm.objects import compile_modules
from jangin.bench.layers import Account, Layer
from jangin.bench.report import threads_text
from jangin.ir.graph import Array
from jangin.runtime.elf import Image
from jangin.runtime.executable import Executable
from jangin.runtime.functions import KERNEL
from jangin.runtime.profile import WARM_UP
from jangin.runtime.several import SeveralExecutable, nobody
from jangin.targets import resolve

Event = dict[str, Any]

PIECES = 4096
"""The most pieces of one kernel that a trace records, so that viewers can open the file. A piece is the
consecutive tasks that a thread runs at once."""
_WORDS = 5
"""The 64-bit words recorded for a piece: its begin and end (nanoseconds), its first task, the task after its
last, and its thread's scratch."""
_CLOCK_MONOTONIC = 1
"""The number of the clock in clock_gettime(2) that never goes back (Linux's time.h)."""

_TRACED = f"""
%piece = type [{_WORDS} x i64]
declare i32 @clock_gettime(i32, ptr)
define internal i64 @now() {{
  %time = alloca [2 x i64]
  call i32 @clock_gettime(i32 {_CLOCK_MONOTONIC}, ptr %time)
  %seconds = load i64, ptr %time
  %at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %at
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %rest
  ret i64 %sum
}}
define {head(KERNEL, "jangin_traced")} {{
  %kernel = load ptr, ptr %args
  %own.at = getelementptr ptr, ptr %args, i64 1
  %own = load ptr, ptr %own.at
  %log.at = getelementptr ptr, ptr %args, i64 2
  %log = load ptr, ptr %log.at
  %start = call i64 @now()
  {called(KERNEL, "%kernel", "%own", "%sizes", "%lo", "%hi", "%scratch")}
  %end = call i64 @now()
  %n = atomicrmw add ptr %log, i64 1 monotonic
  %fits = icmp ult i64 %n, {PIECES}
  br i1 %fits, label %keep, label %out
keep:
  %first = getelementptr i64, ptr %log, i64 1
  %p0 = getelementptr %piece, ptr %first, i64 %n
  %p1 = getelementptr i64, ptr %p0, i64 1
  %p2 = getelementptr i64, ptr %p0, i64 2
  %p3 = getelementptr i64, ptr %p0, i64 3
  %p4 = getelementptr i64, ptr %p0, i64 4
  store i64 %start, ptr %p0
  store i64 %end, ptr %p1
  store i64 %lo, ptr %p2
  store i64 %hi, ptr %p3
  store ptr %scratch, ptr %p4
  br label %out
out:
  ret void
}}
"""


def trace_events(found: Account, exe: Executable, feeds: Mapping[str, Array], process: int) -> list[Event]:
    """Return the events of one run of the model in `found`, with process number `process`."""
    launches = exe.launches(feeds)
    image = Image([compile_modules([("jangin_traced", _TRACED)], resolve("cpu"))])
    traced = image.address("jangin_traced")
    stride = max(64, launches.layout.stride)
    scratch = np.empty(stride * exe.threads + 64, np.uint8)
    base = -(-scratch.__array_interface__["data"][0] // 64) * 64
    logs = np.zeros((len(launches.calls), 1 + PIECES * _WORDS), np.int64)
    calls = []
    for n, (pool, kernel, args, sizes, tasks, grain, _, _, *rounds) in enumerate(launches.calls):
        log = logs[n].__array_interface__["data"][0]
        wrapped = (ctypes.c_void_p * 3)(kernel, ctypes.addressof(args), log)
        calls.append((pool, traced, wrapped, sizes, tasks, grain, base, stride, *rounds))
    for _ in range(2 * WARM_UP + 1):
        logs[:, 0] = 0
        start = time.perf_counter_ns()
        for call in calls:
            launches.run(*call)
    events = [_named("process_name", process, 0, f"{found.model}, {threads_text(exe.threads)}")]
    events += [_named("thread_name", process, t, f"thread {t}") for t in range(exe.threads)]
    for layer, log in zip(found.layers, logs, strict=True):
        for piece in log[1:].reshape(PIECES, _WORDS)[: log[0]]:
            events.append(_piece(layer, [int(n) for n in piece], process, start, (base, stride)))
    return events


def several_events(exe: SeveralExecutable, feeds: Mapping[str, Array], process: int) -> list[Event]:
    """Return the events of one run on several devices, one track for each device. Runs before it let the
    executable settle how it divides the model."""
    ways = exe.ways(feeds)
    while ways is not None and not ways.settled:
        exe.run(feeds)
    pieces: list[tuple[int, str, float, float]] = []
    exe.record = lambda *piece: pieces.append(piece)
    start = time.perf_counter()
    exe.run(feeds)
    exe.record = nobody
    names = exe.artifact.names
    events = [_named("process_name", process, 0, f"{exe.name} on {', '.join(names)}")]
    events += [_named("thread_name", process, n, name) for n, name in enumerate(names)]
    for device, what, began, ended in pieces:
        times = {"ts": (began - start) * 1e6, "dur": (ended - began) * 1e6}
        events.append({"name": what, "cat": names[device], "ph": "X", "pid": process, "tid": device, **times})
    return events


def _named(what: str, process: int, thread: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _piece(layer: Layer, piece: list[int], process: int, start: int, workers: tuple[int, int]) -> Event:
    began, ended, low, high, scratch = piece
    return {
        "name": ", ".join(f"{s.operator} {s.name}".strip() for s in layer.sources) or layer.kernel,
        "cat": layer.template.partition(" ")[0],
        "ph": "X",
        "ts": (began - start) / 1e3,
        "dur": (ended - began) / 1e3,
        "pid": process,
        "tid": (scratch - workers[0]) // workers[1],
        "args": {
            "kernel": layer.kernel,
            "template": layer.template,
            "sources": [s._asdict() for s in layer.sources],
            "tasks": f"{low}..{high}",
            "flops": layer.flops,
            "bytes": layer.bytes,
            "kernel ms": layer.seconds * 1e3,
            "bound ms": layer.bound * 1e3,
            "bound by": layer.limit,
        },
    }
