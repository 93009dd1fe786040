"""Attention in one kernel: where a softmax of a matrix product is itself multiplied, and nothing else
reads either, the three kernels become one, which never writes the scores to memory.

The sums are those of the three kernels, in the same order: only the time changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jangin.ir.dtype import F32
from jangin.ir.expr import Binary, Const, Load, const, free_vars
from jangin.ir.graph import Graph, Node
from jangin.passes.stages import is_opaque, stages
from jangin.te import Stage

HEADS = 4
"""Fewer products than these can't keep several threads busy, as each is one thread's."""
QUERIES = 8
"""For fewer rows the scores are no traffic to speak of."""


def attention(graph: Graph) -> Graph:
    """The fused graph with such kernels merged."""
    kernels = {n.outputs[0]: n for n in graph.nodes if n.op == "kernel" and not is_opaque(n)}
    users = graph.consumers()
    merged: dict[str, Node] = {}
    gone: set[str] = set()
    for last in kernels.values():
        chain = _chain(graph, last, kernels, users)
        if chain:
            merged[last.outputs[0]] = _merge(graph, chain)
            gone |= {n.outputs[0] for n in chain[:-1]}
    nodes = [merged.get(n.outputs[0], n) for n in graph.nodes if n.outputs[0] not in gone]
    return graph.with_nodes(nodes) if merged else graph


def _chain(
    graph: Graph, last: Node, kernels: Mapping[str, Node], users: Mapping[str, Sequence[Node]]
) -> tuple[Node, Node, Node] | None:
    """(scores, softmax, product) that end with the kernel `last`."""

    def only(name: str, reader: Node) -> Node | None:
        alone = name not in graph.outputs and [n.outputs for n in users.get(name, ())] == [reader.outputs]
        return kernels.get(name) if alone else None

    product = _product(last)
    norm = only(product[1].buffer.name, last) if product else None
    if product is None or norm is None or not _is_softmax(norm):
        return None
    own = [only(n, norm) for n in norm.inputs if graph.shape(n) == graph.shape(norm.outputs[0])]
    scores = own[0] if len(own) == 1 else None
    found = _product(scores) if scores is not None else None
    if scores is None or found is None or found[2].buffer.name in graph.constants:
        return None
    stage, left, _ = product
    rows = stage.axes[:-1]
    point = [*(const(0) if a.extent == const(1) else a.var for a in rows), stage.reduce_axes[0].var]
    heads = math.prod(int(a.extent.value) for a in rows[:-1] if isinstance(a.extent, Const))
    queries = rows[-1].extent
    few = isinstance(queries, Const) and int(queries.value) < QUERIES
    if [*left.index] != point or few or heads < HEADS or len(found[0].axes) != len(stage.axes):
        return None
    return scores, norm, last


def _product(kernel: Node) -> tuple[Stage, Load, Load] | None:
    """The stage and operands of a kernel that is a batch of f32 products: rows only in the left one,
    columns only in the right one."""
    parts, _, result = stages(kernel)
    stage = parts[0]
    body, axes = stage.body, stage.axes
    if len(parts) > 1 or stage.combiner != "sum" or len(stage.reduce_axes) != 1 or len(axes) < 3:
        return None
    if not (isinstance(body, Binary) and body.op == "mul" and result.dtype is body.dtype is F32):
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
    """Whether a kernel is a softmax along the last axis, of maps at most, and ends with it."""
    body: Graph = kernel.attrs["body"]
    anchors = [n for n in body.nodes if n.op != "map"]
    if len(anchors) != 1 or anchors[0].op != "softmax" or anchors[0].attrs["log"]:
        return False
    (norm,) = anchors
    result = norm.outputs[0]
    return result == kernel.outputs[0] and norm.attrs["axis"] == len(body.shape(result)) - 1


def _merge(graph: Graph, chain: Sequence[Node]) -> Node:
    bodies: list[Graph] = [n.attrs["body"] for n in chain]
    inner = {n.outputs[0] for n in chain[:-1]}
    inputs = tuple(dict.fromkeys(i for n in chain for i in n.inputs if i not in inner))
    last = chain[-1]
    nodes = tuple(n for b in bodies for n in b.nodes)
    constants = {k: v for b in bodies for k, v in b.constants.items()}
    values = {k: v for b in bodies for k, v in b.values.items()}
    body = Graph(last.name, inputs, last.outputs, nodes, constants, values, graph.symbols)
    source = "; ".join(dict.fromkeys(s for n in chain for s in n.source.split("; ") if s))
    return Node("kernel", last.name, inputs, last.outputs, {"body": body}, source)
