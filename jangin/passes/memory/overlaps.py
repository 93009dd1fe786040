"""Results over operands: a plan whose arena is small because kernels write over what they have read.

A result may lie over an operand that no later kernel reads, at the distance that `ir.overlaps` finds. The
kernel's tasks then run in order, on the caller's thread. This is for machines whose memory is scarce.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from jangin.ir.overlaps import Pair, distances
from jangin.ir.plan import ZERO, Launch, Plan, aligned

TRIES = 120
"""Orders in which buffers are placed. A hundred buffers take some 0.2 s."""


FULLEST = 4
"""Launches with the most bytes from which buffers are placed outward. The arena is at least as large as the
fullest launch, so the best order begins at one of the fullest."""


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
    over = all_distances(plan)
    sizes = {b.name: b.bytes or 0 for b in arena}
    items = [Item(b.name, aligned(sizes[b.name]), *b.live) for b in arena]
    offsets, total = placed(items, over)
    if total >= max((aligned((b.offset or 0) + sizes[b.name]) for b in arena), default=0):
        return plan
    buffers = tuple(replace(b, offset=offsets.get(b.name, b.offset)) for b in plan.buffers)

    def meet(pair: Pair) -> bool:
        a, b = pair
        return offsets[a] < offsets[b] + sizes[b] and offsets[b] < offsets[a] + sizes[a]

    moved = {result for operand, result in filter(meet, over)}
    roots = {b.name: b.base or b.name for b in buffers}
    launches = tuple(
        replace(x, grain=ZERO) if any(roots[r] in moved for r in _results(plan, x)) else x
        for x in plan.launches
    )
    return replace(plan, buffers=buffers, launches=launches)


def all_distances(plan: Plan) -> dict[Pair, int]:
    """Return the distances of all results over operands, in whole alignments."""
    every: dict[Pair, int] = {}
    for n in range(len(plan.launches)):
        every |= distances(plan, n)
    return {pair: aligned(d) for pair, d in every.items()}


def bytes_between(plan: Plan, over: Mapping[Pair, int], first: int, last: int) -> int:
    """Return the bytes of the arena that the launches from `first` to `last` would need alone. For `over` see
    `placed`. The plan's sizes must be known."""
    items = [
        Item(b.name, aligned(b.bytes or 0), max(first, b.live[0]), min(last, b.live[1]))
        for b in plan.buffers
        if b.kind == "arena" and b.live[0] <= last and first <= b.live[1]
    ]
    return placed(items, over)[1]


def _results(plan: Plan, launch: Launch) -> Sequence[str]:
    func = plan.kernels.get(launch.kernel)
    return () if func is None else launch.args[-func.outputs :]


def placed(items: Sequence[Item], over: Mapping[Pair, int]) -> tuple[dict[str, int], int]:
    """Return the buffers' offsets, and the bytes of the smallest arena that was found.

    `over` has the distances. Buffers are placed one by one, each at the place that makes the arena least
    larger. The first order is by size, by time, or from one of the fullest launches outward. It is changed
    step by step, as long as the arena doesn't become larger. The result is deterministic."""
    near = {
        item: [o for o in items if o is not item and o.first <= item.last and item.first <= o.last]
        for item in items
    }
    by_size = sorted(items, key=lambda i: (-i.size, i.first))
    by_time = sorted(items, key=lambda i: i.first), sorted(items, key=lambda i: -i.last)
    starts = ((_placed(order, near, over), order) for order in (by_size, *by_time, *_outward(items)))
    best, order = min(starts, key=lambda found: found[0][1])
    chance = random.Random(0)
    for n in range(TRIES if len(items) > 1 else 0):
        (offsets, total), other = best, [*order]
        if n % 2:  # a buffer at an end of the arena comes among the first
            ends = [i for i in order if offsets[i.name] + i.size == total or not offsets[i.name]]
            moved = chance.choice(ends)
            other.remove(moved)
            other.insert(chance.randrange(max(1, len(order) // 4)), moved)
        else:
            a, b = chance.sample(range(len(order)), 2)
            other[a], other[b] = other[b], other[a]
        attempt = _placed(other, near, over)
        if attempt[1] <= total:
            best, order = attempt, other
    return best


def _outward(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Yield the buffers from each of the fullest launches outward. Launches that need less memory then fit in
    what these need."""
    last = max((i.last for i in items), default=-1)
    held = [sum(i.size for i in items if i.first <= n <= i.last) for n in range(last + 1)]
    for n in sorted(range(last + 1), key=lambda n: -held[n])[:FULLEST]:
        yield sorted(items, key=lambda i: (max(i.first - n, n - i.last, 0), -i.size))


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
