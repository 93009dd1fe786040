"""Where the intermediate buffers of a run lie in one block of memory."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.ir.plan import ALIGN

Item = tuple[str, int, int, int]
"""A buffer: name, bytes, and the first and last launch that touch it (inclusive)."""


def layout(buffers: Sequence[Item]) -> tuple[dict[str, int], int]:
    """Offsets (multiples of ALIGN) such that buffers alive at once never overlap, and the total bytes.

    Greedy by size, each into the smallest gap that fits between the placed buffers whose lives
    cross its own (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference",
    2020). Deterministic."""
    order = sorted(range(len(buffers)), key=lambda i: (-buffers[i][1], buffers[i][2], i))
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last; sorted by offset
    offsets: dict[str, int] = {}
    total = 0
    for i in order:
        name, size, first, last = buffers[i]
        size = -(-size // ALIGN) * ALIGN
        offset = _best_gap([p for p in placed if p[2] <= last and first <= p[3]], size)
        offsets[name] = offset
        if size:
            placed.append((offset, offset + size, first, last))
            placed.sort()
        total = max(total, offset + size)
    return offsets, total


def _best_gap(neighbours: Sequence[tuple[int, int, int, int]], size: int) -> int:
    """The start of the smallest gap of at least `size` bytes; past the last neighbour if none."""
    best: tuple[int, int] | None = None
    end = 0
    for offset, stop, _, _ in neighbours:
        gap = offset - end
        if gap >= size and (best is None or gap < best[0]):
            best = (gap, end)
        end = max(end, stop)
    return end if best is None else best[1]


def peak(buffers: Sequence[Item]) -> int:
    """The most bytes alive at one launch: no layout is smaller."""
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
