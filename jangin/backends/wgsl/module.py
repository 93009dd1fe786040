"""Write a kernel in Loop IR as a compute shader."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from jangin.backends.clike.narrow import narrowed
from jangin.backends.clike.tidy import tidy
from jangin.backends.wgsl.longs import FITS
from jangin.backends.wgsl.placed import placed
from jangin.backends.wgsl.prelude import texts
from jangin.backends.wgsl.rows import LANES, RowWriter, in_rows
from jangin.backends.wgsl.trees import Kernel
from jangin.backends.wgsl.writer import STORED
from jangin.ir.dtype import DType
from jangin.ir.expr import Buffer, Const
from jangin.ir.graph import CompileError
from jangin.ir.groups import grouped, per_thread, shared_layout, threads
from jangin.ir.kernel import rounds, sizes
from jangin.ir.loop import Alloc, Func, statements
from jangin.ir.simplify import interval
from jangin.runtime.devices.wgsl import READING, Shader
from jangin.targets.target import Target

SHARED = 16 << 10
"""The bytes that the work-items of a group may share on every device, by WebGPU's standard."""


def shader(func: Func, target: Target, name: str = "") -> Shader:
    """Return a kernel as a shader, optionally under another name. Raises CompileError, which names the
    kernel, if WGSL can't express it."""
    _require_sizes(func)
    buffers = {
        shared_layout(func)[0][s.buffer.name]: s.buffer
        for s in statements(func.body)
        if isinstance(s, Alloc) and s.buffer.memory == "shared"
    }
    rooms = {at: _elements(b) for at, b in buffers.items()}
    room = sum(rooms[at] * max(4, b.dtype.bytes) for at, b in buffers.items())
    if room > SHARED:
        raise CompileError(f"{func.name}: its groups share {room} bytes, of which every device has {SHARED}")
    items = threads(func) if grouped(func) else 1
    known = [(_end(low, 0), _end(high, FITS[1])) for _, (low, high) in sizes(func)]
    writer = RowWriter(target, func.name, known, items, rooms)
    Kernel(per_thread(in_rows(narrowed(func, target, LANES))), writer).run()
    lines = placed(tidy([*writer.arrays, *writer.lines], (), lambda _: ""))
    accesses = {m: _called(used, m, lines) for m, used in sorted(writer.accesses.items())}
    stored = any(used & READING and used - READING for used in accesses.values())
    if not stored:
        lines = [line.replace(STORED, "") for line in lines]
    in_rounds = str(rounds(func)) != "1"
    if in_rounds:
        last = f"s{len(sizes(func)) - 1}"
        lines = [f"  for (var {last} = u.first; {last} < u.first + u.rounds; {last}++) {{", *lines, "  }"]
    return Shader(
        name or func.name, len(func.params), len(sizes(func)), items, room, in_rounds,
        {m: "".join(sorted(used)) for m, used in accesses.items()},
        [*writer.shareds.values()], texts(writer.helpers), lines,
        [replace(t, stored=stored) for t in writer.trees.values()],
    )  # fmt: skip


def _called(letters: Collection[str], memory: str, lines: Sequence[str]) -> set[str]:
    """Return the letters of the functions for a buffer's words that a body calls."""
    return {x for x in letters if any(re.search(rf"\b{x}{memory}\(", line) for line in lines)}


def source(func: Func, target: Target) -> str:
    """Return a kernel as a complete shader, for people to read."""
    return shader(func, target, re.sub(r"\W", "_", func.name)).text()


def _end(end: object, otherwise: int) -> int:
    return int(end.value) if isinstance(end, Const) and abs(end.value) <= FITS[1] else otherwise


def _elements(buffer: Buffer) -> int:
    return math.prod(int(d.value) for d in buffer.shape if isinstance(d, Const))


def _require_sizes(func: Func) -> None:
    """Raise CompileError for a buffer with more bytes than 32 bits can count, even for the smallest values of
    its symbols."""
    for p in func.params:
        least = math.prod(interval(d, dict(func.symbols))[0] or 0 for d in p.shape) * _bytes(p.dtype)
        if least > FITS[1]:
            raise CompileError(
                f"{func.name}: {p.name} {p.dtype}[{', '.join(map(str, p.shape))}] takes {least} bytes, and "
                f"WGSL counts up to {FITS[1]}: make it smaller, or compile the model for another device"
            )


def _bytes(dtype: DType) -> int:
    return max(1, dtype.bytes)
