"""Computes only those parts of products that are read.

A classifier reads the last layer's first token alone, and a language model predicts from its last token. The
other tokens are needed up to the last attention only. Slices therefore move before the nodes whose results
they cut, up to the products' operands. The remaining sums don't change.

Slices move only if a product becomes smaller by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from jangin.ir.core import (
    CoreAttributes,
    Expand,
    Map,
    MatMul,
    Normalize,
    Reduce,
    Reshape,
    Slice,
    Softmax,
    Transpose,
)
from jangin.ir.expr import Expr, const, is_const
from jangin.ir.graph import Graph, Node, Shape, static_shape
from jangin.ir.simplify import simplify
from jangin.ops.editor import Editor

Interval = tuple[Expr, Expr] | None
"""The first index and the size of the read part of an axis, or None for all of the axis."""
Region = tuple[Interval, ...]
"""The read part of a value, axis by axis."""
GAIN = 2
"""A product is made in part if the whole has at least so many times as many elements. A smaller gain may be
lost by sizes that suit the registers less."""


def needed(graph: Graph, kept: Collection[str] = ()) -> Graph:
    """Return the graph in which products compute only the elements that are read. The values `kept` and the
    graph's results are computed whole."""
    run = _Needed(graph, kept)
    return run.run() if run.gaining else graph


class _Needed(Editor):
    """One rewriting of a graph.

    - `made`: by value, the part that some node reads.
    - `gaining`: the values of which only this part is computed.
    - `parts`: by such a value, the new value that has only this part.
    """

    def __init__(self, graph: Graph, kept: Collection[str]) -> None:
        super().__init__(graph.symbols, graph.values, graph.constants)
        self.graph = graph
        self.made: dict[str, Region] = {n: self.whole(n) for n in (*graph.outputs, *kept)}
        for node in reversed(graph.nodes):
            self._demand(node)
        self.gaining: set[str] = set()
        for node in graph.nodes:
            if self._gains(node):
                self.gaining.add(node.outputs[0])
        self.parts: dict[str, str] = {}

    def run(self) -> Graph:
        """Return the graph in which each value of `gaining` is replaced by its part."""
        for node in self.graph.nodes:
            out = node.outputs[0]
            if out not in self.made:  # nothing reads it
                continue
            cut = isinstance(node.attrs, Slice) and node.inputs[0] in self.gaining
            if out not in self.gaining and not cut:
                self.emit(node)
                continue
            region = self.made[out]
            _, regions = READS[type(node.attrs)](self, node, region)
            inputs = [self._part(n, r, node) for n, r in zip(node.inputs, regions, strict=True)]
            if out not in self.gaining:  # a slice whose readers read all of it
                self.emit(replace(node, inputs=tuple(inputs), attrs=Reshape(self.shape(out))))
            elif isinstance(node.attrs, Slice):
                self.parts[out] = inputs[0]
            else:
                attrs = node.of(CoreAttributes)
                if isinstance(attrs, Reshape | Expand):
                    attrs = replace(attrs, shape=_sizes(region, self.shape(out)))
                self.parts[out] = self.add(attrs, inputs, f"{out}.part", node.source)
        return self.rewritten(self.graph)

    def whole(self, name: str) -> Region:
        return (None,) * len(self.shape(name))

    def _demand(self, node: Node) -> None:
        """Enlarge the parts that are read of a node's operands, so that they contain what this node reads."""
        reads, out = READS.get(type(node.attrs)), node.outputs[0]
        if reads is None:
            self.made |= {n: self.whole(n) for n in (*node.outputs, *node.inputs) if n in self.values}
        elif out in self.made:
            self.made[out], regions = reads(self, node, self.made[out])
            for name, region in zip(node.inputs, regions, strict=True):
                before = self.made.get(name, region)
                pairs = zip(before, region, self.shape(name), strict=True)
                self.made[name] = tuple(self._hull(a, b, d) for a, b, d in pairs)

    def _hull(self, a: Interval, b: Interval, size: Expr) -> Interval:
        """Return the smallest interval that contains two intervals. Return None if it is all of the axis, or
        if it isn't known."""
        if a is None or b is None or self.same(a[1], size):
            return None
        if a == b:
            return a
        starts, ends = [x[0] for x in (a, b)], [simplify(x[0] + x[1], self.symbols) for x in (a, b)]
        known = static_shape((*starts, *ends))
        if known is None:
            return None
        first, end = min(known), max(known)
        return None if is_const(size, end - first) else (const(first), const(end - first))

    def same(self, a: Expr, b: Expr) -> bool:
        """Return whether two sizes are known to be equal."""
        return is_const(simplify(a - b, self.symbols), 0)

    def _gains(self, node: Node) -> bool:
        """Return whether only a part of a node's result is computed. This makes a product smaller: the node
        itself, or one before it."""
        out = node.outputs[0]
        region = self.made.get(out)
        if region is None or not any(region) or type(node.attrs) not in READS:
            return False
        if not self.gaining.isdisjoint(node.inputs):
            return True
        if not isinstance(node.attrs, MatMul):
            return False
        pairs = [(i, d) for i, d in zip(region, self.shape(out), strict=True) if i is not None]
        part, every = (static_shape(sizes) for sizes in zip(*((i[1], d) for i, d in pairs), strict=True))
        return part is not None and (every is None or GAIN * math.prod(part) <= math.prod(every))

    def _part(self, name: str, region: Region, node: Node) -> str:
        """Return the name of the part `region` of a value. The part is cut out of the part that is
        computed."""
        computed = self.made[name] if name in self.gaining else self.whole(name)
        x = self.parts.get(name, name)
        if computed == region:
            return x
        pairs = zip(region, computed, strict=True)
        starts = [const(0) if i is None else i[0] if m is None else i[0] - m[0] for i, m in pairs]
        cut = Slice(
            tuple(simplify(s, self.symbols) for s in starts), (1,) * len(region),
            _sizes(region, self.shape(name)),
        )  # fmt: skip
        return self.add(cut, [x], f"{name}.cut", node.source)


def _sizes(region: Region, shape: Shape) -> Shape:
    """Return the shape of a part of a value."""
    return tuple(d if i is None else i[1] for i, d in zip(region, shape, strict=True))


Reads = tuple[Region, Sequence[Region]]
"""The part of its result that a node makes, which has what is asked for, and what it reads of its
operands."""


def _without(region: Region, axes: Collection[int]) -> Region:
    return tuple(None if d in axes else i for d, i in enumerate(region))


def _broadcast(run: _Needed, node: Node, asked: Region) -> Reads:
    """Return the reads of a node whose operands are broadcast to its result."""
    return _of_axes(run, [run.shape(n) for n in node.inputs], run.shape(node.outputs[0]), asked)


def _of_axes(run: _Needed, operands: Sequence[Shape], shape: Shape, asked: Region) -> Reads:
    """Return the reads of operands that are broadcast to `shape`. An axis is computed whole if it isn't known
    whether an operand has it or broadcasts along it."""
    made = asked
    for own in operands:
        for d, size in enumerate(own, len(shape) - len(own)):
            if not is_const(size, 1) and not run.same(size, shape[d]):
                made = _without(made, [d])
    return made, [
        tuple(None if is_const(size, 1) else made[d] for d, size in enumerate(own, len(shape) - len(own)))
        for own in operands
    ]


def _by_rows(run: _Needed, node: Node, asked: Region) -> Reads:
    """Return the reads of a softmax or a normalization, which reads its axes whole."""
    attrs = node.attrs
    axes = (attrs.axis,) if isinstance(attrs, Softmax) else attrs.axes if isinstance(attrs, Normalize) else ()
    made = _without(asked, axes)
    return made, [made]


def _of_reduce(run: _Needed, node: Node, asked: Region) -> Reads:
    own = node.of(Reduce)
    rest = iter(_without(asked, own.axes) if own.keepdims else asked)
    read = []
    for axis in range(len(run.shape(node.inputs[0]))):
        interval = next(rest) if own.keepdims or axis not in own.axes else None
        read.append(None if axis in own.axes else interval)
    return asked, [tuple(read)]


def _of_transpose(run: _Needed, node: Node, asked: Region) -> Reads:
    perm = node.of(Transpose).perm
    return asked, [tuple(asked[perm.index(d)] for d in range(len(perm)))]


def _of_reshape(run: _Needed, node: Node, asked: Region) -> Reads:
    """Return the reads of a reshape. A part of an axis may be computed if the axis consists of elements of a
    single axis of the operand.

    Axes of size 1 and all axes of empty values are computed whole. The axis behind them begins at the same
    element, so the operand's axis wouldn't be unique.
    """
    (x,), out = node.inputs, node.outputs[0]
    own, shape = run.shape(x), run.shape(out)
    made, read = list(asked), list(run.whole(x))
    whole = node.of(Reshape).dtype is not None or any(is_const(size, 0) for size in shape)
    for d, interval in enumerate(asked):
        before = math.prod(shape[:d], start=const(1))
        begins = [i for i in range(len(own)) if run.same(math.prod(own[:i], start=const(1)), before)]
        part = None
        if begins and interval is not None and not whole and not is_const(shape[d], 1):
            part = _scaled(run, interval, shape[d + 1 :], own[begins[-1] + 1 :])
        if part is None:
            made[d] = None
        else:
            read[begins[-1]] = part
    return tuple(made), [tuple(read)]


def _scaled(run: _Needed, interval: tuple[Expr, Expr], behind: Shape, behind_read: Shape) -> Interval:
    """Return the interval of an operand's axis that has the same elements as `interval`, or None if it has
    others too. `behind` and `behind_read` are the sizes of the axes behind the two."""
    if run.same(math.prod(behind, start=const(1)), math.prod(behind_read, start=const(1))):
        return interval
    bounds, unit, unit_read = (static_shape(sizes) for sizes in (interval, behind, behind_read))
    if bounds is None or unit is None or unit_read is None:
        return None
    start, count = (n * math.prod(unit) for n in bounds)
    each = math.prod(unit_read)
    return None if start % each or count % each else (const(start // each), const(count // each))


def _of_slice(run: _Needed, node: Node, asked: Region) -> Reads:
    (x,), cut = node.inputs, node.of(Slice)
    if any(s != 1 for s in cut.steps):
        return run.whole(node.outputs[0]), [run.whole(x)]
    read = []
    for interval, start, size, whole in zip(asked, cut.starts, cut.shape, run.shape(x), strict=True):
        first, count = (const(0), size) if interval is None else interval
        all_of_it = interval is None and run.same(size, whole)
        read.append(None if all_of_it else (simplify(start + first, run.symbols), count))
    return asked, [tuple(read)]


def _of_matmul(run: _Needed, node: Node, asked: Region) -> Reads:
    """Return the reads of a matrix product. Parts of its rows and of its batch may be computed."""
    own, shapes = node.of(MatMul), [run.shape(n) for n in node.inputs]
    if min(map(len, shapes)) < 2:
        return run.whole(node.outputs[0]), [run.whole(n) for n in node.inputs]
    *batch, rows, _ = asked
    around = run.shape(node.outputs[0])[:-2]
    made, (left, right) = _of_axes(run, [s[:-2] for s in shapes], around, tuple(batch))
    return (*made, rows, None), [
        (*left, *((None, rows) if own.transpose_a else (rows, None))), (*right, None, None)
    ]  # fmt: skip


READS: Mapping[type, Callable[[_Needed, Node, Region], Reads]] = {
    Expand: _broadcast,
    Map: _broadcast,
    MatMul: _of_matmul,
    Normalize: _by_rows,
    Reduce: _of_reduce,
    Reshape: _of_reshape,
    Slice: _of_slice,
    Softmax: _by_rows,
    Transpose: _of_transpose,
}
"""The reads of each operator. Others make and read all of their values."""
