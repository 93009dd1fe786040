"""Prefetch hints for data that a kernel will soon read. They change no result, so they need no proof."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from jangin.ir.expr import Const, Expr, Load, Var, const, minimum
from jangin.ir.loop import For, Func, Prefetch, Stmt, Store, block, expressions, statements, sub_statements
from jangin.ir.simplify import Range, interval, linear, simplify
from jangin.ir.traversal import free_vars, loads, row_major, substitute
from jangin.schedule.checks import ScheduleError, bound_inside
from jangin.schedule.primitives import at_loop, find, ranges_at

LINE = 64
"""Bytes of a cache line, on every CPU that we compile for."""


def prefetch_panels(func: Func, loop: str, tiles: str, panels: str, buffer: str, count: int) -> Func:
    """Prefetch the next panel of `buffer` while the current one is in use.

    `count` iterations of `tiles` read one panel again and again in `loop`, or a copy made before it. The next
    panel is that of the next iteration of `panels`, and begins at the end of this one. Each iteration of
    `loop` prefetches its share; later tiles prefetch later parts. The last panel may be shorter than others.
    """
    own, around = find(func, tiles), find(func, panels)
    path = _path(own.body, loop)
    reads = _reads(find(func, loop), buffer) or _reads(around, buffer)
    ranges = ranges_at(func, loop)
    most = [interval(p.extent, ranges)[1] for p in path or ()]
    if path is None or not reads or None in most:
        raise ScheduleError(f"{func.name}: {buffer} is not read in {loop} inside {tiles}, in bounded loops")
    inner: dict[Var, Expr] = dict.fromkeys(bound_inside(around.body), const(0))
    first = [substitute(i, {**inner, Var(panels): Var(panels) + 1}) for i in reads[0].index]
    size = _step(reads[0], Var(panels), dict(func.symbols))
    iterations = math.prod(n for n in most if n is not None)
    width = LINE // reads[0].dtype.bytes
    needed = math.ceil(size / width / iterations)
    each = math.ceil(needed / count)
    step: Expr = minimum(own.var, math.ceil(needed / each) - 1)
    for p, extent in zip(path, most, strict=True):
        step = step * (extent or 1) + p.var
    hints = [
        Prefetch(reads[0].buffer, (*first[:-1], first[-1] + (step * each + n) * width)) for n in range(each)
    ]
    return at_loop(func, loop, lambda s: replace(s, body=block(*hints, s.body)))


def prefetch_tile(func: Func, tiles: str, row: str, width: int) -> Func:
    """Prefetch, at the top of each iteration of `tiles`, the memory that the write-back of the tile touches.

    In each row of the tile these are `width` elements of the result, and of operands that differ from row to
    row. Operands inside the sums aren't prefetched. `row`: the loop over a tile's rows in the write-back.
    """
    rows = find(func, row)
    final = [s for s in statements(rows) if isinstance(s, Store)]
    inner: dict[Var, Expr] = dict.fromkeys(bound_inside(rows.body), const(0))
    var = Var(f"{row}p")
    accesses = {(n.buffer, n.index) for s in final for e in expressions(s) for n in loads(e)}
    accesses |= {(s.buffer, s.index) for s in final}
    hints: list[Stmt] = []
    for buffer, index in sorted(accesses, key=lambda a: a[0].name):
        if buffer.memory == "register" or not any(rows.var in free_vars(i) for i in index):
            continue
        if any(True for i in index for _ in loads(i)):
            continue
        at = tuple(substitute(i, {**inner, rows.var: var}) for i in index)
        step = LINE // buffer.dtype.bytes
        hints += [Prefetch(buffer, (*at[:-1], at[-1] + n)) for n in range(0, width, step)]
    if not hints:
        return func
    each = For(var, rows.extent, block(*hints), "unroll")
    return at_loop(func, tiles, lambda s: replace(s, body=block(each, s.body)))


def prefetch_ahead(func: Func, loop: str, buffer: str, distance: int) -> Func:
    """Prefetch `distance` bytes ahead in the innermost loop inside `loop` that reads `buffer` sequentially.
    Processors prefetch by themselves, but not beyond a page."""
    around = [find(func, loop)]
    while inner := [f for f in _loops(around[-1].body) if f.kind == "serial" and _reads(f, buffer)]:
        around.append(inner[0])
    own = around[-1]
    reads = _reads(own, buffer)
    if not reads:
        raise ScheduleError(f"{func.name}: {buffer} is not read in {loop}")
    first = [substitute(i, dict.fromkeys(bound_inside(own.body), const(0))) for i in reads[0].index]
    width, step = LINE // reads[0].dtype.bytes, _step(reads[0], own.var, dict(func.symbols))
    ahead = distance // reads[0].dtype.bytes
    hints = [Prefetch(reads[0].buffer, (*first[:-1], first[-1] + (ahead + n))) for n in range(0, step, width)]
    return at_loop(func, own.var.name, lambda s: replace(s, body=block(*hints, s.body)))


def _reads(loop: For, buffer: str) -> list[Load]:
    """Return the loads of a buffer in a loop, each once."""
    every = (n for s in statements(loop) for e in expressions(s) for n in loads(e))
    return list(dict.fromkeys(n for n in every if n.buffer.name == buffer))


def _step(load: Load, var: Var, symbols: Mapping[Var, Range]) -> int:
    """Return the distance, in elements, between the loads of consecutive iterations of `var`. Raises
    ScheduleError if it isn't constant."""
    parts = linear(simplify(row_major(load.index, load.buffer.shape), symbols), var)
    step = None if parts is None else simplify(parts[0])
    if not isinstance(step, Const):
        raise ScheduleError(f"{load.buffer.name} is not read at even steps of {var}")
    return int(step.value)


def _loops(s: Stmt) -> list[For]:
    """Return the outermost loops in a statement."""
    return [s] if isinstance(s, For) else [f for sub in sub_statements(s) for f in _loops(sub)]


def _path(s: Stmt, loop: str) -> list[For] | None:
    """Return the loops from `s` down to `loop`, which comes last, or None if `s` doesn't contain `loop`."""
    if isinstance(s, For) and s.var.name == loop:
        return [s]
    for sub in sub_statements(s):
        below = _path(sub, loop)
        if below is not None:
            return [s, *below] if isinstance(s, For) else below
    return None
