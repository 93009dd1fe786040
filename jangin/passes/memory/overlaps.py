"""Results over operands: a plan whose arena is small because kernels write over what they have read.

A result may lie over an operand that no later kernel reads, at the distance that `ir.overlaps` finds. The
kernel's tasks then run in order, on the caller's thread. This is for machines whose memory is scarce.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from jangin.ir.overlaps import Pair, distances
from jangin.ir.plan import ZERO, Launch, Plan, aligned

TRIES = 120
"""Orders in which buffers are placed. A hundred buffers take some 0.2 s."""


class Item(NamedTuple):
    """A buffer: its bytes, and the first and the last launch that touch it."""

    name: str
    size: int
    first: int
    last: int


def overlapped(plan: Plan) -> Plan:
    """Return the plan with results over operands, if its arena becomes smaller. Otherwise return it
    unchanged, as well as a plan of unknown sizes."""
    arena = [b for b in plan.buffers if b.kind == "arena"]
    if any(b.offset is None for b in arena):
        return plan
    least_distances: dict[Pair, int] = {}
    for n in range(len(plan.launches)):
        least_distances |= distances(plan, n)
    sizes = {b.name: b.bytes or 0 for b in arena}
    items = [Item(b.name, aligned(sizes[b.name]), *b.live) for b in arena]
    offsets, total = placed(items, {pair: aligned(d) for pair, d in least_distances.items()})
    if total >= max((aligned((b.offset or 0) + sizes[b.name]) for b in arena), default=0):
        return plan
    buffers = tuple(replace(b, offset=offsets.get(b.name, b.offset)) for b in plan.buffers)

    def meet(pair: Pair) -> bool:
        a, b = pair
        return offsets[a] < offsets[b] + sizes[b] and offsets[b] < offsets[a] + sizes[a]

    over = {result for operand, result in filter(meet, least_distances)}
    roots = {b.name: b.base or b.name for b in buffers}
    launches = tuple(
        replace(x, grain=ZERO) if any(roots[r] in over for r in _results(plan, x)) else x
        for x in plan.launches
    )
    return replace(plan, buffers=buffers, launches=launches)


def _results(plan: Plan, launch: Launch) -> Sequence[str]:
    func = plan.kernels.get(launch.kernel)
    return () if func is None else launch.args[-func.outputs :]


def placed(items: Sequence[Item], over: Mapping[Pair, int]) -> tuple[dict[str, int], int]:
    """Return the buffers' offsets, and the bytes of the smallest arena that was found.

    `over` has the distances. Buffers are placed one by one, each at the place that makes the arena least
    larger. The orders are by size, by time, and others that begin with the buffers at the ends. The result is
    deterministic."""
    near = {
        item: [o for o in items if o is not item and o.first <= item.last and item.first <= o.last]
        for item in items
    }
    by_size = sorted(items, key=lambda i: (-i.size, i.first))
    by_time = sorted(items, key=lambda i: i.first), sorted(items, key=lambda i: -i.last)
    best = min((_placed(order, near, over) for order in (by_size, *by_time)), key=lambda found: found[1])
    order, chance = by_size, random.Random(0)
    for n in range(TRIES if len(items) > 1 else 0):
        offsets, total = best
        if n % 2:  # a buffer at an end of the arena comes among the first
            ends = [i for i in order if offsets[i.name] + i.size == total or not offsets[i.name]]
            moved = chance.choice(ends)
            order.remove(moved)
            order.insert(chance.randrange(max(1, len(order) // 4)), moved)
        else:
            a, b = chance.sample(range(len(order)), 2)
            order[a], order[b] = order[b], order[a]
        best = min(best, _placed(order, near, over), key=lambda found: found[1])
    return best


def _placed(
    order: Sequence[Item], near: Mapping[Item, Sequence[Item]], over: Mapping[Pair, int]
) -> tuple[dict[str, int], int]:
    starts: dict[str, int] = {}
    low = high = 0
    for item in order:
        bans = [_banned(item, o, starts[o.name], over) for o in near[item] if o.name in starts]
        places = {low, high - item.size, *(n for ban in bans for n in ban)}
        free = [x for x in places if not any(a < x < b for a, b in bans)]
        x = min(free, key=lambda x: (max(high, x + item.size) - min(low, x), abs(x)))
        starts[item.name] = x
        low, high = min(low, x), max(high, x + item.size)
    return {name: x - low for name, x in starts.items()}, high - low


def _banned(item: Item, other: Item, at: int, over: Mapping[Pair, int]) -> tuple[int, int]:
    """Return the places between which an item may not begin, because another one lies at `at`."""
    below, above = item.size, other.size
    if (other.name, item.name) in over:
        below = min(below, over[other.name, item.name])
    if (item.name, other.name) in over:
        above = min(above, over[item.name, other.name])
    return at - below, at + above
