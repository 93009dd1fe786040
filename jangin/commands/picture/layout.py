"""Lay out the boxes of a graph and the lines between them in layers, from inputs to outputs (Sugiyama, Tagawa
& Toda 1981).

A line that crosses layers has its own place in each of them, so that it crosses no box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

GAP, ROW = 24.0, 84.0
"""`GAP` is the distance between neighbours in a layer, and `ROW` the distance between layers, in pixels. A
layer's boxes are 40 pixels high, so lines have as much space again."""
THIN = 8.0
"""The width in pixels of the place of a line that passes a layer. Neighbouring lines stay apart by it."""
SWEEPS = 6
"""The number of times that the layers are ordered, alternately down and up. Further times would remove few
crossings."""


@dataclass
class _Place:
    """The place of a box, or of a line that crosses a layer."""

    layer: int
    width: float
    above: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)
    x: float = 0.0


@dataclass(frozen=True)
class Layout:
    """The positions of a graph. `boxes` has each box's centre. `lines` has the points of each edge, including
    its ends."""

    boxes: Sequence[tuple[float, float]]
    lines: Sequence[Sequence[tuple[float, float]]]


def layout(widths: Sequence[float], edges: Sequence[tuple[int, int]]) -> Layout:
    """Lay out boxes of these widths, and return their positions. An edge (n, m) goes from box n to a later
    box m."""
    layers = _layers(len(widths), edges)
    places = [_Place(layer, width) for layer, width in zip(layers, widths, strict=True)]
    ways = [_way(places, start, end) for start, end in edges]
    rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for i, place in enumerate(places):
        rows[place.layer].append(i)
    _order(places, rows)
    _spread(places, rows)
    points = [(p.x, p.layer * ROW) for p in places]
    return Layout(points[: len(widths)], [[points[i] for i in way] for way in ways])


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return each box's layer. A box lies behind all boxes that it reads. A box that reads none lies directly
    before its first reader."""
    after: list[list[int]] = [[] for _ in range(count)]
    layers, roots = [0] * count, [True] * count
    for start, end in edges:
        after[start].append(end)
        roots[end] = False
    for i in range(count):
        for reader in after[i]:
            layers[reader] = max(layers[reader], layers[i] + 1)
    for i in range(count):
        if roots[i] and after[i]:
            layers[i] = min(layers[reader] for reader in after[i]) - 1
    return layers


def _way(places: list[_Place], start: int, end: int) -> list[int]:
    """Return the places that an edge goes through. A place for each layer that it crosses is added to
    `places`."""
    way = [start]
    for layer in range(places[start].layer + 1, places[end].layer):
        places.append(_Place(layer, THIN))
        way.append(len(places) - 1)
    way.append(end)
    for upper, lower in pairwise(way):
        places[upper].below.append(lower)
        places[lower].above.append(upper)
    return way


def _order(places: Sequence[_Place], rows: Sequence[list[int]]) -> None:
    """Order each layer so that few lines cross. Each place moves near the middle of the places that it is
    joined to."""
    at: dict[int, float] = {i: n for row in rows for n, i in enumerate(row)}
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else rows[::-1]:
            ends = {i: places[i].above if down else places[i].below for i in row}
            middle = {i: sum(at[j] for j in e) / len(e) if e else at[i] for i, e in ends.items()}
            row.sort(key=middle.__getitem__)
            at |= {i: n - len(row) / 2 for n, i in enumerate(row)}


def _spread(places: Sequence[_Place], rows: Sequence[Sequence[int]]) -> None:
    """Set horizontal positions, as near to the middle of the joined places as the neighbours allow."""
    for row in rows:
        wanted = 0.0
        for i in row:
            places[i].x = wanted + places[i].width / 2
            wanted += places[i].width + GAP
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else rows[::-1]:
            ends = [places[i].above if down else places[i].below for i in row]
            wishes = [
                sum(places[j].x for j in e) / len(e) if e else places[i].x
                for i, e in zip(row, ends, strict=True)
            ]
            for i, x in zip(row, apart(wishes, [places[i].width for i in row]), strict=True):
                places[i].x = x


def apart(wishes: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Return centres that keep their order and don't overlap, with the least sum of squared distances to the
    wishes.

    Centres that collide move as one block (pool adjacent violators, Ayer et al. 1955)."""
    offsets, total = [], 0.0
    for n, width in enumerate(widths):
        total += (widths[n - 1] + width) / 2 + GAP if n else 0.0
        offsets.append(total)
    # the sum of the members' wishes minus their offsets, and the number of members
    blocks: list[tuple[float, int]] = []
    for wish, offset in zip(wishes, offsets, strict=True):
        block = wish - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= block[0] / block[1]:
            before = blocks.pop()
            block = before[0] + block[0], before[1] + block[1]
        blocks.append(block)
    bases = [s / n for s, n in blocks for _ in range(n)]
    return [base + offset for base, offset in zip(bases, offsets, strict=True)]


def extent(found: Layout, widths: Sequence[float], height: float) -> Mapping[str, float]:
    """Return the position and size of the smallest rectangle around a layout, with a margin."""
    xs = [x + side * w / 2 for (x, _), w in zip(found.boxes, widths, strict=True) for side in (-1, 1)]
    ys = [y for _, y in found.boxes]
    left, top = min(xs, default=0.0) - GAP, min(ys, default=0.0) - height
    return {
        "x": left,
        "y": top,
        "width": max(xs, default=0.0) + GAP - left,
        "height": max(ys, default=0.0) + height - top,
    }
