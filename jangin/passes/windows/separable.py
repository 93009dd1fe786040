"""Depthwise separable convolutions in one kernel, which keeps some rows of the depthwise result in the cache
at a time.

The two kernels are merged if only a pointwise convolution reads the depthwise result. This pays if the
depthwise result is much of the traffic: with strides of 1 (otherwise its input is larger), and with few
pointwise channels. Their weights are read again for every block of rows, so they must stay in the cache too.
The sums are the same.
"""

from __future__ import annotations

import math
from functools import partial

from jangin.ir.core import Compute, Conv, Kernel, MatMul, Reduce
from jangin.ir.dtype import F32
from jangin.ir.expr import Binary, Load, Select, const
from jangin.ir.graph import Graph, Node, static_shape
from jangin.ir.te import Stage
from jangin.passes.fusion.chains import Kernels, join
from jangin.passes.fusion.stages import stages
from jangin.targets.figures import FusionFigures
from jangin.targets.target import Target

TAPS = 64
"""Most taps of a window that the template slides, the same as `templates.window.LARGEST_WINDOW`. Code grows
with the taps, which are unrolled."""


def separable(graph: Graph, target: Target) -> Graph:
    """Return the fused graph with depthwise and pointwise convolutions merged."""
    return join(graph, partial(_pair, target.machine.fusion))


def _pair(figures: FusionFigures, around: Kernels, last: Node) -> tuple[Node, Node] | None:
    """Return the kernels (depthwise, pointwise) that end with `last`, or None if there are none or merging
    them doesn't pay."""
    before = (around.only(n, last) for n in last.inputs)
    if not any(kernel is not None and _may_be_depthwise(kernel) for kernel in before):
        return None  # tested first, because making the expressions takes long
    parts, _, _ = stages(last)
    factors = _factors(parts[0]) if len(parts) == 1 else None
    if factors is None:
        return None
    (pointwise,), (data, weights) = parts, factors
    if not isinstance(data, Load) or weights.buffer.name not in around.graph.constants:
        return None
    *units, k = pointwise.reduce_axes
    _, row, pixel, column = (a.var for a in pointwise.axes)
    of_pixel = [*data.index[1:]] == [row, pixel, k.var] and all(a.extent == const(1) for a in units)
    plain = {column, k.var} <= set(weights.index) <= {column, k.var, const(0)}
    sizes = static_shape((*data.buffer.shape[1:], pointwise.axes[-1].extent))
    if not of_pixel or not plain or sizes is None or sizes[0] < figures.image_rows:
        return None
    fewest, most = figures.pointwise
    if not fewest <= sizes[-1] <= most:
        return None
    first = around.only(data.buffer.name, last)
    return (first, last) if first is not None and _is_depthwise(around, first) else None


def _factors(stage: Stage) -> tuple[Load | Select, Load] | None:
    """Return the factors of an f32 sum of products over four axes: data, which may be padded, and weights.
    Return None for any other stage."""
    body = stage.body
    if stage.combiner != "sum" or len(stage.axes) != 4 or not isinstance(body, Binary) or body.op != "mul":
        return None
    if not isinstance(body.a, (Load, Select)) or not isinstance(body.b, Load):
        return None
    return (body.a, body.b) if body.dtype is stage.result.dtype is F32 else None


def _may_be_depthwise(kernel: Node) -> bool:
    """Return whether a kernel has an operator that may be a depthwise convolution."""
    return any(
        isinstance(n.attrs, (MatMul, Reduce, Compute)) or (isinstance(n.attrs, Conv) and n.attrs.groups > 1)
        for n in kernel.of(Kernel).body.nodes
    )


def _is_depthwise(around: Kernels, kernel: Node) -> bool:
    """Return whether a kernel is a small window's sum at each pixel, with constant weights for each
    channel."""
    parts, _, _ = stages(kernel)
    factors = _factors(parts[0]) if len(parts) == 1 else None
    taps = static_shape(tuple(a.extent for a in parts[0].reduce_axes))
    if factors is None or taps is None or math.prod(taps) > TAPS:
        return False
    convolutions = [n.attrs for n in kernel.of(Kernel).body.nodes if isinstance(n.attrs, Conv)]
    if any(step != 1 for conv in convolutions for step in conv.strides):
        return False
    (stage,), (data, weights) = parts, factors
    source = data.a if isinstance(data, Select) and data.b == const(0, F32) else data
    channel, over = stage.axes[-1].var, {const(0), *(a.var for a in stage.reduce_axes)}
    own = isinstance(source, Load) and source.index[-1] == channel == weights.index[0]
    return own and weights.buffer.name in around.graph.constants and over.issuperset(weights.index[1:])
