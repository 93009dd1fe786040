"""Patch-wise execution: the first layers of a network, computed part by part.

The first layers of a network for images have the largest values, and a part of their result needs only a
part of the image. Each patch of the result is computed from the image on, before the next patch begins. Only
one patch of each value between lives at a time. Rows at patches' borders are computed twice. The source is
Lin et al., "MCUNetV2: Memory-Efficient Patch-based Inference for Tiny Deep Learning", 2021.

The pass comes before `fuse`. The patches of the result are operands of a concatenation, which is made in
place, and slices of the image are views.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from jangin.ir.core import Concat, CoreAttributes, Slice
from jangin.ir.expr import const
from jangin.ir.graph import Graph, Node, static_shape
from jangin.ir.records import dataclass
from jangin.ops.editor import Editor
from jangin.passes.windows.boxes import Box, Sizes, hull, needed, sizes_of, terms, whole

Part = tuple[Node, CoreAttributes, tuple[Box, ...]]
"""A node, its attributes in a patch, and the boxes of its operands."""


@dataclass(frozen=True)
class Region:
    """The nodes before a value, in order. No other node reads their results."""

    value: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Split:
    """A region whose result is computed in `count` parts along `axis`."""

    region: Region
    axis: int
    count: int


def region(graph: Graph, value: str) -> Region | str:
    """Return the nodes before a value. Return the reason if they can't be computed apart from the others."""
    makers, users = graph.producers(), graph.consumers()
    members: dict[str, Node] = {}
    waiting = [value]
    while waiting:
        name = waiting.pop()
        if name in makers and name not in members:
            node = members[name] = makers[name]
            waiting.extend(node.inputs)
            if len(node.outputs) > 1 or node.attrs.lasting:
                return f"{node.source or node.name} ({node.op}) has more results than one value"
    for name in members:
        outside = [u for u in users.get(name, ()) if u.outputs[0] not in members]
        if name != value and (outside or name in graph.outputs):
            reader = f"{outside[0].source or outside[0].name} reads" if outside else "the caller gets"
            return f"{reader} the whole of a value before it"
    return Region(value, tuple(n for n in graph.nodes if n.outputs[0] in members))


def ranges(split: Split, graph: Graph) -> list[Box]:
    """Return the patches of the region's result. All but the last have the same size."""
    shape = static_shape(graph.shape(split.region.value)) or ()
    size = shape[split.axis]
    each = -(-size // split.count)
    spans = ((low, min(low + each, size)) for low in range(0, size, each))
    return [tuple(span if d == split.axis else s for d, s in enumerate(whole(shape))) for span in spans]


def parts(graph: Graph, found: Region, box: Box) -> list[Part] | Node:
    """Return the region's nodes that make the part `box` of its result, in order. Return the node at fault
    if there is no part of it."""
    boxes: dict[str, Box] = {found.value: box}
    computed: list[Part] = []
    for node in reversed(found.nodes):
        own = boxes.get(node.outputs[0])
        if own is None:
            continue
        need = needed(node, graph, own)
        if need is None:
            return node
        for name, other in zip(node.inputs, need.boxes, strict=True):
            boxes[name] = hull(boxes[name], other) if name in boxes else other
        computed.append((node, need.attrs, need.boxes))
    return computed[::-1]


@dataclass(frozen=True)
class Cost:
    """The price of a split. `extra` is the additional operations, as a share of the region's. `shares` has
    the largest part of each value that lives at a time."""

    extra: float
    shares: Mapping[str, float]


def cost(graph: Graph, split: Split) -> Cost | Node:
    """Return what a split costs, or the node of which no part can be computed."""
    nodes = split.region.nodes
    sizes = {n.outputs[0]: math.prod(static_shape(graph.shape(n.outputs[0])) or ()) for n in nodes}
    each = {n.outputs[0]: terms(n, graph) for n in nodes}
    most, work = dict.fromkeys(sizes, 0), 0
    for box in ranges(split, graph):
        computed = parts(graph, split.region, box)
        if isinstance(computed, Node):
            return computed
        for name, own in _results(split.region.value, box, computed).items():
            count = math.prod(sizes_of(own))
            most[name] = max(most[name], count)
            work += count * each[name]
    extra = work / max(1, operations(graph, nodes)) - 1
    return Cost(extra, {name: most[name] / max(1, sizes[name]) for name in sizes})


def operations(graph: Graph, nodes: Iterable[Node]) -> int:
    """Return how many operations nodes of known sizes take."""
    return sum(math.prod(static_shape(graph.shape(n.outputs[0])) or ()) * terms(n, graph) for n in nodes)


def _results(value: str, box: Box, made: Sequence[Part]) -> dict[str, Box]:
    """Return the box of each node's result: all that its readers need."""
    results = {value: box}
    for node, _, boxes in reversed(made):
        for name, own in zip(node.inputs, boxes, strict=True):
            results[name] = hull(results[name], own) if name in results else own
    return {node.outputs[0]: results[node.outputs[0]] for node, _, _ in made}


def splits(graph: Graph, found: Region, most: int, extra: float) -> Iterator[tuple[Split, Cost | Node]]:
    """Yield the splits of a region into 2 to `most` parts along an axis, with their costs. The last split of
    an axis is the first with more than the share `extra` of additional operations. Its cost is a node if
    one has no parts along this axis."""
    for axis, size in enumerate(static_shape(graph.shape(found.value)) or ()):
        counts = dict.fromkeys(-(-size // -(-size // n)) for n in range(2, min(most, size) + 1))
        for count in counts:
            split = Split(found, axis, count)
            price = cost(graph, split)
            yield split, price
            if isinstance(price, Node) or price.extra > extra:
                break


def patched(graph: Graph, split: Split) -> Graph:
    """Return the graph with a region in parts, one after another. Raises ValueError if a node has no
    parts."""
    run = Editor(graph.symbols, graph.values, graph.constants)
    inside = {n.outputs[0] for n in split.region.nodes}
    value = split.region.value
    for node in graph.nodes:
        if node.outputs[0] == value:
            pieces = [_patch(run, graph, split, n, box) for n, box in enumerate(ranges(split, graph))]
            run.emit(Node(node.name, tuple(pieces), (value,), Concat(split.axis), node.source))
        elif node.outputs[0] not in inside:
            run.emit(node)
    return run.rewritten(graph)


def _patch(run: Editor, graph: Graph, split: Split, number: int, box: Box) -> str:
    """Emit the nodes of a patch, and return its name."""
    computed = parts(graph, split.region, box)
    if isinstance(computed, Node):
        raise ValueError(
            f"{computed.source or computed.name} can't be computed in patches, a defect of Jangin: report it"
        )
    results = _results(split.region.value, box, computed)
    names: dict[str, str] = {}
    for node, attrs, boxes in computed:
        inputs = []
        for name, own in zip(node.inputs, boxes, strict=True):
            inputs.append(_piece(run, graph, names.get(name, name), results.get(name), name, own))
        out = node.outputs[0]
        names[out] = run.add(
            attrs, inputs, f"{out}.patch{number}", node.source,
            known=(graph.dtype(out), tuple(map(const, sizes_of(results[out])))),
        )  # fmt: skip
    return names[split.region.value]


def _piece(run: Editor, graph: Graph, current: str, has: Box | None, name: str, box: Box) -> str:
    """Return the part `box` of the value `name`, of which `current` has the part `has`, or all if None."""
    sizes: Sizes = static_shape(graph.shape(name)) or ()
    has = whole(sizes) if has is None else has
    if has == box:
        return current
    starts = [low - first for (low, _), (first, _) in zip(box, has, strict=True)]
    if name in graph.constants:
        cut = tuple(slice(low, high) for low, high in box)
        return run.constant(graph.constants[name][cut], f"{name}.part")
    attrs = Slice(tuple(map(const, starts)), (1,) * len(box), tuple(map(const, sizes_of(box))))
    return run.add(attrs, (current,), f"{current}.part")


__all__ = ["Cost", "Region", "Split", "cost", "operations", "parts", "patched", "ranges", "region", "splits"]
