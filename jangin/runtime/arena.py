"""The layout of a run's intermediate buffers in one block of memory, the arena."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Sequence

from jangin.ir.plan import ALIGN

Item = tuple[str, int, int, int]
"""A buffer: name, bytes, and the first and last launch that touch it (inclusive)."""

Placed = tuple[int, int, int, int]
"""A placed buffer: its offset, its end, and the first and last launch that touch it."""

RETRIES = 20
"""The most times that buffers are placed again for a smaller arena. Each time takes as long as the first, and
the search ends early at the least possible size."""
LONG_RETRIES = 60
"""`RETRIES` for buffers with long lives. The arena of a training step of ResNet-8 is 3.5 % larger than its
values after 20 retries, and 1 % larger after 60."""
LONG = 8
"""Buffers count as long-lived if they are needed for more launches than this in the mean. Those of a training
step are, because values wait for the backward pass."""


def layout(
    buffers: Sequence[Item], retries: int | None = None, align: int = ALIGN
) -> tuple[dict[str, int], int]:
    """Lay out buffers in one block, and return their offsets (multiples of `align`) and the total bytes.
    Buffers alive at once never overlap.

    Buffers are placed greedily by size. Each goes into the smallest gap that fits between the placed buffers
    whose lives cross its own. The source is Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
    Net Inference", 2020.

    If the total exceeds the most bytes alive at once, all are placed again, beginning with the buffer that
    ends highest. This is repeated up to `retries` times, and the smallest layout counts. The result is
    deterministic."""
    if retries is None:
        retries = LONG_RETRIES if _are_long(buffers) else RETRIES
    rounded = [(name, -(-size // align) * align, first, last) for name, size, first, last in buffers]
    order = sorted(rounded, key=lambda b: (-b[1], b[2]))
    least = peak(rounded)
    best = _place(order)
    placement = best
    for _ in range(retries):
        if best[1] == least:
            break
        offsets, _ = placement
        top = max(order, key=lambda b: offsets[b[0]] + b[1])
        order.remove(top)
        order.insert(0, top)
        placement = _place(order)
        best = min(best, placement, key=lambda f: f[1])
    return best


def _are_long(buffers: Sequence[Item]) -> bool:
    return sum(last - first for _, _, first, last in buffers) > LONG * len(buffers)


def _place(buffers: Sequence[Item]) -> tuple[dict[str, int], int]:
    long = _are_long(buffers)
    placed: list[Placed] = []
    alive: defaultdict[int, list[Placed]] = defaultdict(list)  # by launch, for short lives
    offsets: dict[str, int] = {}
    total = 0
    for name, size, first, last in buffers:
        if long:
            around = [p for p in placed if p[2] <= last and first <= p[3]]
        else:
            around = sorted({p for at in range(first, last + 1) for p in alive[at]})
        offset = _best_gap(around, size)
        offsets[name] = offset
        new = offset, offset + size, first, last
        if size and long:
            insort(placed, new)
        elif size:
            for at in range(first, last + 1):
                alive[at].append(new)
        total = max(total, offset + size)
    return offsets, total


def _best_gap(neighbours: Sequence[Placed], size: int) -> int:
    """Return the start of the smallest gap of at least `size` bytes. Without such a gap it is the highest end
    of a neighbour."""
    best: tuple[int, int] | None = None
    end = 0
    for offset, stop, *_ in neighbours:
        gap = offset - end
        if gap >= size and (best is None or gap < best[0]):
            best = (gap, end)
        end = max(end, stop)
    return end if best is None else best[1]


def roomy(size: int, values: int) -> int:
    """Return a size rounded up to a coarser one. Only `values` sizes (a power of two) between two powers of
    two are left."""
    step = 1 << max(0, size.bit_length() - values.bit_length())
    return -(-size // step) * step


def peak(buffers: Sequence[Item]) -> int:
    """Return the most bytes that are alive at one launch, with each buffer rounded up to `ALIGN`. No layout
    is smaller."""
    changes: dict[int, int] = {}
    for _, size, first, last in buffers:
        size = -(-size // ALIGN) * ALIGN
        changes[first] = changes.get(first, 0) + size
        changes[last + 1] = changes.get(last + 1, 0) - size
    most = now = 0
    for at in sorted(changes):
        now += changes[at]
        most = max(most, now)
    return most
