"""Fused attention: matrix product, softmax and second matrix product in one kernel, which never writes the
scores to memory.

The three kernels are merged if nothing else reads the scores or the weights. The sums are the same, in the
same order; only the time changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial

from jangin.ir.core import Kernel, Map, Softmax
from jangin.ir.dtype import BF16, F16, F32, DType
from jangin.ir.expr import Binary, Const, Load, const
from jangin.ir.graph import Graph, Node
from jangin.ir.te import Stage
from jangin.ir.traversal import free_vars
from jangin.passes.fusion.chains import Kernels, join
from jangin.passes.fusion.stages import stages
from jangin.targets.figures import FusionFigures
from jangin.targets.target import Target


def attention(graph: Graph, target: Target) -> Graph:
    """Return the fused graph with attention kernels merged."""
    return join(graph, partial(_chain, target.machine.fusion))


def _chain(figures: FusionFigures, around: Kernels, last: Node) -> tuple[Node, Node, Node] | None:
    """Return the kernels (scores, softmax, product) that end with `last`, or None if they aren't attention or
    merging them doesn't pay."""
    graph, only = around.graph, around.only
    if not any(_is_softmax(around.by_result[n]) for n in last.inputs if n in around.by_result):
        return None  # tested first, because making the expressions takes long
    product = _product(last, (F32, BF16, F16))
    norm = only(product[1].buffer.name, last) if product else None
    if product is None or norm is None or not _is_softmax(norm):
        return None
    own = [only(n, norm) for n in norm.inputs if graph.shape(n) == graph.shape(norm.outputs[0])]
    scores = own[0] if len(own) == 1 else None
    match = _product(scores, (F32,)) if scores is not None else None
    if scores is None or match is None or match[2].buffer.name in graph.constants:
        return None
    stage, left, _ = product
    rows = stage.axes[:-1]
    point = [*(const(0) if a.extent == const(1) else a.var for a in rows), stage.reduce_axes[0].var]
    heads = math.prod(int(a.extent.value) for a in rows[:-1] if isinstance(a.extent, Const))
    queries = rows[-1].extent
    few = isinstance(queries, Const) and int(queries.value) < figures.queries
    if [*left.index] != point or few or heads < figures.heads or len(match[0].axes) != len(stage.axes):
        return None
    sizes = match[0].reduce_axes[0].extent, stage.axes[-1].extent
    if figures.head and not all(isinstance(n, Const) and n.value <= figures.head for n in sizes):
        return None
    return scores, norm, last


def _product(kernel: Node, results: Collection[DType]) -> tuple[Stage, Load, Load] | None:
    """Return the stage and the operands of a kernel that is a batched f32 matrix product, or None for any
    other kernel. `results` are the types to which its sums may be rounded.

    Only the left operand depends on rows, and only the right one on columns.
    """
    parts, _, (result,) = stages(kernel)
    stage = parts[0]
    body, axes = stage.body, stage.axes
    if len(parts) > 1 or stage.combiner != "sum" or len(stage.reduce_axes) != 1 or len(axes) < 3:
        return None
    if not (isinstance(body, Binary) and body.op == "mul" and result.dtype in results and body.dtype is F32):
        return None
    left, right = body.a, body.b
    if not isinstance(left, Load) or not isinstance(right, Load):
        return None
    in_left, in_right = ({v for i in n.index for v in free_vars(i)} for n in (left, right))
    row, column = axes[-2].var, axes[-1].var
    if row in in_right or column in in_left or row not in in_left or column not in in_right:
        return None
    return (stage, left, right) if left.buffer.dtype is right.buffer.dtype is F32 else None


def _is_softmax(kernel: Node) -> bool:
    """Return whether a kernel is a softmax along the last axis, with nothing but maps before it and nothing
    after it."""
    body = kernel.of(Kernel).body
    anchors = [n for n in body.nodes if not isinstance(n.attrs, Map)]
    if len(anchors) != 1 or not isinstance(anchors[0].attrs, Softmax) or anchors[0].attrs.log:
        return False
    (result,) = anchors[0].outputs
    return result == kernel.outputs[0] and anchors[0].attrs.axis == len(body.shape(result)) - 1
