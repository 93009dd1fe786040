"""The part of each operand that a part of an operator's result needs.

A part is a box: a range along every axis. `needed` also gives the attributes with which the operator computes
just this part. The numbers are the same, because each element of the part has the same operands in the same
order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from jangin.ir.core import (
    Concat,
    Conv,
    CoreAttributes,
    Expand,
    Gather,
    Map,
    MatMul,
    Normalize,
    Pad,
    Pool,
    Reduce,
    Reshape,
    Slice,
    Softmax,
    Transpose,
)
from jangin.ir.expr import Expr, const
from jangin.ir.graph import Graph, Node, static_shape

Span = tuple[int, int]
"""The first place along an axis, and the one behind the last."""
Box = tuple[Span, ...]
Sizes = tuple[int, ...]


class Needed(NamedTuple):
    """The boxes of an operator's operands, and its attributes for these operands."""

    attrs: CoreAttributes
    boxes: tuple[Box, ...]


def whole(sizes: Sequence[int]) -> Box:
    """Return the box of a whole value."""
    return tuple((0, n) for n in sizes)


def sizes_of(box: Box) -> Sizes:
    """Return a box's sizes."""
    return tuple(high - low for low, high in box)


def hull(a: Box, b: Box) -> Box:
    """Return the smallest box around two boxes."""
    return tuple((min(p[0], q[0]), max(p[1], q[1])) for p, q in zip(a, b, strict=True))


def needed(node: Node, graph: Graph, box: Box) -> Needed | None:
    """Return which parts of a node's operands are needed to compute the part `box` of its result. Return None
    if the same operator can't compute the part. This is so for unknown operators, for symbolic sizes, and for
    parts that lie in padding alone."""
    rule = RULES.get(type(node.attrs))
    shapes = [static_shape(graph.shape(n)) for n in node.inputs if n]
    if rule is None or len(shapes) < len(node.inputs) or None in shapes:
        return None
    return rule(node.attrs, [s for s in shapes if s is not None], box)


def _shape(sizes: Sequence[int]) -> tuple[Expr, ...]:
    return tuple(map(const, sizes))


def _numbers(given: Sequence[Expr]) -> Sizes | None:
    return static_shape(tuple(given))


def _broadcast(shape: Sizes, box: Box) -> Box:
    """Return the box of an operand that is broadcast to a result."""
    own = box[len(box) - len(shape) :]
    return tuple((0, 1) if n == 1 else span for n, span in zip(shape, own, strict=True))


def _is_whole(box: Box, axis: int, size: int) -> bool:
    return box[axis] == (0, size)


def _map(attrs: Map, shapes: Sequence[Sizes], box: Box) -> Needed:
    return Needed(attrs, tuple(_broadcast(s, box) for s in shapes))


def _expand(attrs: Expand, shapes: Sequence[Sizes], box: Box) -> Needed:
    return Needed(Expand(_shape(sizes_of(box))), (_broadcast(shapes[0], box),))


def _transpose(attrs: Transpose, shapes: Sequence[Sizes], box: Box) -> Needed:
    return Needed(attrs, (tuple(box[attrs.perm.index(axis)] for axis in range(len(box))),))


def _slice(attrs: Slice, shapes: Sequence[Sizes], box: Box) -> Needed | None:
    starts = _numbers(attrs.starts)
    if starts is None:
        return None
    spans, begins = [], []
    for start, step, (low, high) in zip(starts, attrs.steps, box, strict=True):
        first, last = start + low * step, start + (high - 1) * step
        spans.append((min(first, last), max(first, last) + 1))
        begins.append(const(first - min(first, last)))
    return Needed(Slice(tuple(begins), attrs.steps, _shape(sizes_of(box))), (tuple(spans),))


def _concat(attrs: Concat, shapes: Sequence[Sizes], box: Box) -> Needed | None:
    axis = attrs.axis
    if not _is_whole(box, axis, sum(s[axis] for s in shapes)):
        return None
    boxes = (tuple((0, s[d]) if d == axis else span for d, span in enumerate(box)) for s in shapes)
    return Needed(attrs, tuple(boxes))


def _pad(attrs: Pad, shapes: Sequence[Sizes], box: Box) -> Needed | None:
    (shape,), rank, pads = shapes, len(box), _numbers(attrs.pads)
    if pads is None:
        return None
    spans: list[Span] = []
    more: list[Span] = []
    for axis, (low, high) in enumerate(box):
        begin, end = pads[axis], pads[axis + rank]
        if attrs.mode != "constant" and (begin or end):
            if not _is_whole(box, axis, shape[axis] + begin + end):
                return None
            spans.append((0, shape[axis]))
            more.append((begin, end))
            continue
        inside = max(0, low - begin), min(shape[axis], high - begin)
        if inside[0] >= inside[1]:
            return None
        spans.append(inside)
        more.append((inside[0] - (low - begin), high - begin - inside[1]))
    both = (*(begin for begin, _ in more), *(end for _, end in more))
    return Needed(replace(attrs, pads=_shape(both)), (tuple(spans),))


def _gather(attrs: Gather, shapes: Sequence[Sizes], box: Box) -> Needed:
    (data, places), axis = shapes, attrs.axis
    behind = axis + len(places)
    return Needed(attrs, ((*box[:axis], (0, data[axis]), *box[behind:]), box[axis:behind]))


def _reduce(attrs: Reduce, shapes: Sequence[Sizes], box: Box) -> Needed:
    (shape,), kept = shapes, iter(box)
    spans = []
    for axis, size in enumerate(shape):
        if axis in attrs.axes:
            spans.append((0, size))
            if attrs.keepdims:
                next(kept)
        else:
            spans.append(next(kept))
    return Needed(attrs, (tuple(spans),))


def _rows(axes: Sequence[int], attrs: CoreAttributes, shapes: Sequence[Sizes], box: Box) -> Needed | None:
    """Return the parts of the operands that a function such as softmax needs, which reads all elements along
    `axes`. Return None if the result's part cuts one of these axes."""
    if not all(_is_whole(box, axis, shapes[0][axis]) for axis in axes):
        return None
    return Needed(attrs, (box,))


def _matmul(attrs: MatMul, shapes: Sequence[Sizes], box: Box) -> Needed | None:
    if min(map(len, (*shapes, box))) < 2:
        return None
    *batch, rows, columns = box
    terms = (0, shapes[0][-2 if attrs.transpose_a else -1])
    first = (terms, rows) if attrs.transpose_a else (rows, terms)
    second = (columns, terms) if attrs.transpose_b else (terms, columns)
    around = [_broadcast(s[:-2], tuple(batch)) for s in shapes]
    return Needed(attrs, ((*around[0], *first), (*around[1], *second)))


def _windows(attrs: Conv | Pool, shape: Sizes, box: Box) -> tuple[dict[int, Span], Sizes] | None:
    """Return the spans of a window's operand along its spatial axes, and the window's pads there."""
    rank = len(attrs.kernel)
    first = 1 if attrs.layout == "last" else 2
    spans, begins, ends = {}, [], []
    for n in range(rank):
        (low, high), size = box[first + n], shape[first + n]
        begin, end = attrs.pads[n], attrs.pads[n + rank]
        start = low * attrs.strides[n] - begin
        stop = (high - 1) * attrs.strides[n] + (attrs.kernel[n] - 1) * attrs.dilations[n] + 1 - begin
        inside = max(0, start), min(size, stop)
        if inside[0] >= inside[1]:
            return None
        spans[first + n] = inside
        begins.append(inside[0] - start)
        ends.append(min(stop - inside[1], max(0, end)))
    return spans, (*begins, *ends)


def _conv(attrs: Conv, shapes: Sequence[Sizes], box: Box) -> Needed | None:
    channels = len(box) - 1 if attrs.layout == "last" else 1
    cut = _windows(attrs, shapes[0], box)
    if cut is None or not _is_whole(box, channels, shapes[1][0]):
        return None
    spans, pads = cut
    image = (span if d != channels else (0, shapes[0][d]) for d, span in enumerate(box))
    boxes = tuple(spans.get(d, span) for d, span in enumerate(image))
    return Needed(replace(attrs, pads=pads), (boxes, *map(whole, shapes[1:])))


def _pool(attrs: Pool, shapes: Sequence[Sizes], box: Box) -> Needed | None:
    cut = _windows(attrs, shapes[0], box)
    if cut is None:
        return None
    spans, pads = cut
    extents = tuple(const(box[d][1] - box[d][0]) for d in spans)
    return Needed(
        replace(attrs, pads=pads, extents=extents), (tuple(spans.get(d, s) for d, s in enumerate(box)),)
    )


def _reshape(attrs: Reshape, shapes: Sequence[Sizes], box: Box) -> Needed | None:
    """Return the part of the operand that a reshape needs. An axis of the result may be cut only if the
    operand has the same axis, with as many elements behind it."""
    (shape,), result = shapes, static_shape(attrs.shape)
    if result is None:
        return None
    spans = dict(enumerate(whole(shape)))
    for axis, span in enumerate(box):
        if _is_whole(box, axis, result[axis]):
            continue
        before = math.prod(result[:axis])
        same = (d for d, n in enumerate(shape) if n == result[axis] and math.prod(shape[:d]) == before)
        own = next(same, None)
        if own is None or (attrs.dtype is not None and len(shape) - 1 == own):
            return None
        spans[own] = span
    return Needed(replace(attrs, shape=_shape(sizes_of(box))), (tuple(spans[d] for d in range(len(shape))),))


Rule = Callable[..., Needed | None]
RULES: Mapping[type, Rule] = {
    Map: _map,
    Expand: _expand,
    Transpose: _transpose,
    Slice: _slice,
    Concat: _concat,
    Pad: _pad,
    Gather: _gather,
    Reduce: _reduce,
    Softmax: lambda attrs, shapes, box: _rows((attrs.axis,), attrs, shapes, box),
    Normalize: lambda attrs, shapes, box: _rows(attrs.axes, attrs, shapes, box),
    MatMul: _matmul,
    Conv: _conv,
    Pool: _pool,
    Reshape: _reshape,
}
"""The operators of which a part can be computed alone."""


def terms(node: Node, graph: Graph) -> int:
    """Return how many elements each element of a node's result is computed from."""
    attrs = node.attrs
    shapes = [static_shape(graph.shape(n)) or () for n in node.inputs if n]
    if isinstance(attrs, Conv):
        return math.prod(shapes[1][1:])
    if isinstance(attrs, MatMul):
        return shapes[0][-2 if attrs.transpose_a else -1]
    if isinstance(attrs, Pool):
        return math.prod(attrs.kernel)
    if isinstance(attrs, Reduce):
        return math.prod(shapes[0][axis] for axis in attrs.axes)
    return 1


__all__ = ["Box", "Needed", "Sizes", "hull", "needed", "sizes_of", "terms", "whole"]
