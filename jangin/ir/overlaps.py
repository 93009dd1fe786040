"""Results that a kernel writes over its operands, at a distance.

A kernel that goes through an image from its beginning to its end no longer needs the rows that it has passed.
Its result may lie over them, if the operand begins a few bytes later. The source is Blacker, Bridges and
Hadfield, "Diagonal Memory Optimisation for Machine Learning on Micro-controllers", 2020.

Accesses are compared by time: the iteration of the loops around all of them. Within one iteration nothing is
known of their order. A condition around an access is ignored, so more elements may count than are accessed.
The distance is therefore never too small.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from jangin.ir.expr import Const, Expr, Var, const
from jangin.ir.graph import Array, static_shape
from jangin.ir.loop import For, Func, loop_range
from jangin.ir.plan import Plan
from jangin.ir.races import Access, accesses, evaluated
from jangin.ir.simplify import Range, interval, simplify
from jangin.ir.traversal import buffers_loaded, free_vars, row_major, substitute

POINTS = 1 << 22
"""At most this many iterations around an access are evaluated. Their elements' numbers take 32 MiB of i64."""
ORDERED = ("serial", "parallel", "block")
"""The loops whose iterations run in order if one thread runs all tasks."""


Pair = tuple[str, str]
"""An operand and a result."""


def distances(plan: Plan, number: int) -> dict[Pair, int]:
    """Return, for each operand and result of a launch that may overlap, the fewest bytes by which the operand
    must begin behind the result."""
    launch, buffers = plan.launches[number], {b.name: b for b in plan.buffers}
    func = plan.kernels.get(launch.kernel)
    sizes = [int(e.value) for e in launch.symbols if isinstance(e, Const)]
    if func is None or launch.library or len(sizes) < len(launch.symbols):
        return {}
    roots = [buffers[a].base or a for a in launch.args]
    results = {r: p.name for r, p in zip(roots[-func.outputs :], func.results, strict=True)}
    least_distances: dict[Pair, int] = {}
    for result, param in results.items():
        for operand in dict.fromkeys(roots[: -func.outputs]):
            a, b = buffers[operand], buffers[result]
            dies = a.kind == b.kind == "arena" and a.live[1] == number == b.live[0]
            if not dies or operand in results or roots.count(result) > 1:
                continue
            names = [p.name for p, root in zip(func.params, roots, strict=True) if root == operand]
            least = distance(func, names, param, sizes)
            if least is not None:
                least_distances[operand, result] = least
    return least_distances


def distance(func: Func, operands: Collection[str], result: str, sizes: Sequence[int]) -> int | None:
    """Return the fewest bytes by which an operand must begin behind a result, so that the kernel overwrites
    only bytes that it reads no more.

    The operand may be several parameters, which begin at the same address. One thread must run all tasks, in
    order. `sizes` are the values of the kernel's symbols. Return None if no distance is known.
    """
    names = {*operands, result}
    relevant = [a for a in accesses(func.body) if a.buffer.name in names]
    if any(a.stored and a.buffer.name != result for a in relevant):
        return None
    known = {v: const(n) for (v, _), n in zip(func.symbols, sizes, strict=True)}
    used = [a for a in relevant if a.stored or a.buffer.name != result]
    around = _around(used)
    ends, begins = list[Array](), list[Array]()
    for access in used:
        elements = _elements(access, around, known)
        if elements is None:
            return None
        low, high = (n * access.buffer.dtype.bytes for n in elements)
        (ends if access.stored else begins).append(high if access.stored else low)
    if not ends or not begins:
        return None
    written = np.maximum.accumulate(np.maximum.reduce(ends))
    unread = np.minimum.accumulate(np.minimum.reduce(begins)[::-1])[::-1]
    return int((written - unread).max())


def _around(found: Sequence[Access]) -> tuple[For, ...]:
    """Return the ordered loops around all accesses."""
    shared: list[For] = []
    for loops in zip(*(a.loops for a in found), strict=False):
        if any(s is not loops[0] for s in loops) or loops[0].kind not in ORDERED:
            break
        shared.append(loops[0])
    return tuple(shared)


def _elements(access: Access, around: Sequence[For], known: Mapping[Var, Expr]) -> tuple[Array, Array] | None:
    """Return the first element of an access, and the one behind its last, for each iteration of the loops
    `around`. Return None if there are too many iterations, or if a size isn't known."""
    shape = static_shape(tuple(simplify(substitute(d, known)) for d in access.buffer.shape))
    if shape is None:
        return None
    number = simplify(substitute(row_major(access.index, tuple(map(const, shape))), known))
    loops = [s for n, s in enumerate(access.loops) if n < len(around) or s.var in free_vars(number)]
    ranges: dict[Var, Range] = {}
    counts = []
    for s in access.loops:
        extent = simplify(substitute(s.extent, known))
        most = int(extent.value) if isinstance(extent, Const) else interval(extent, ranges)[1]
        if most is None:
            return None
        ranges[s.var] = loop_range(For(s.var, const(most), s.body))
        counts += [max(most, 1)] if s in loops else []
    size, times = math.prod(shape), math.prod(counts[: len(around)])
    if math.prod(counts) > POINTS or not free_vars(number) <= {s.var for s in loops}:
        return None
    if buffers_loaded(number):
        return np.zeros(times, np.int64), np.full(times, size, np.int64)
    values = {
        s.var: np.arange(count, dtype=np.int64).reshape([-1 if n == k else 1 for k in range(len(counts))])
        for n, (s, count) in enumerate(zip(loops, counts, strict=True))
    }
    places = np.broadcast_to(evaluated(number, values), counts).reshape(times, -1)
    inside = np.clip(np.stack([places.min(1), places.max(1)]), 0, max(0, size - 1))
    return inside[0], inside[1] + 1
