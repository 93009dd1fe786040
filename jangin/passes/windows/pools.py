"""Splits pools of large windows into one pool an axis.

The maximum of a window is the maximum of its rows' maxima. Its mean is the mean of its rows' means, because
each row has equally many taps. A window of 13 x 13 then takes 26 operations instead of 169. Maxima keep their
bits. Sums are taken in another order, of shorter partial sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from jangin.ir.core import Pool
from jangin.ir.expr import Const, Expr
from jangin.ir.graph import Graph, Node
from jangin.ops.core_window import split_layout
from jangin.ops.editor import Editor

GAIN = 1.6
"""A pool is split if its operations become fewer by this factor. Less isn't worth it, because values between
two axes go through memory."""


def windows(graph: Graph) -> Graph:
    """Return the graph with large pools as one pool for each axis."""
    orders = {n.name: _order(n, n.attrs, graph) for n in graph.nodes if isinstance(n.attrs, Pool)}
    if not any(orders.values()):
        return graph
    run = Editor(graph.symbols, graph.values, graph.constants)
    for node in graph.nodes:
        if isinstance(node.attrs, Pool) and orders[node.name]:
            _by_axes(run, node, node.attrs, orders[node.name])
        else:
            run.emit(node)
    return run.rewritten(graph)


def _order(node: Node, attrs: Pool, graph: Graph) -> Sequence[int]:
    """Return the order in which to take a window's axes: first the axes that shrink the operand most. It is
    empty if the window is best taken at once."""
    dtype = graph.dtype(node.inputs[0])
    # otherwise partial sums would be rounded
    exact = dtype.wide is dtype if attrs.combiner == "sum" else True
    if not exact or (attrs.average and not dtype.is_float):
        return ()
    _, _, spatial = split_layout(graph.shape(node.inputs[0]), attrs.layout)
    read = [_ratio(n, m, s) for n, m, s in zip(spatial, attrs.extents, attrs.strides, strict=True)]
    pads = attrs.pads[: len(read)], attrs.pads[len(read) :]
    steps = enumerate(zip(attrs.kernel, attrs.strides, *pads, strict=True))
    axes = sorted((i for i, step in steps if step != (1, 1, 0, 0)), key=lambda i: -read[i])
    each = (attrs.kernel[i] * math.prod(read[j] for j in axes[n + 1 :]) for n, i in enumerate(axes))
    return axes if len(axes) > 1 and math.prod(attrs.kernel) >= GAIN * sum(each) else ()


def _ratio(size: Expr, extent: Expr, stride: int) -> float:
    """Return how many of the operand's elements there are along an axis for each window."""
    if isinstance(size, Const) and isinstance(extent, Const) and extent.value:
        return float(size.value / extent.value)
    return float(stride)


def _by_axes(run: Editor, node: Node, attrs: Pool, order: Sequence[int]) -> None:
    x, rank = node.inputs[0], len(attrs.kernel)
    for axis in order:
        _, _, spatial = split_layout(run.shape(x), attrs.layout)

        def own(values: Sequence[int], neutral: int, axis: int = axis) -> tuple[int, ...]:
            return tuple(v if i % rank == axis else neutral for i, v in enumerate(values))

        part = replace(
            attrs, kernel=own(attrs.kernel, 1), strides=own(attrs.strides, 1),
            dilations=own(attrs.dilations, 1), pads=own(attrs.pads, 0),
            extents=tuple(attrs.extents[i] if i == axis else n for i, n in enumerate(spatial)),
        )  # fmt: skip
        if axis == order[-1]:
            run.emit(replace(node, inputs=(x,), attrs=part))
        else:
            x = run.add(part, [x], f"{node.name}.axis{axis}", node.source)
