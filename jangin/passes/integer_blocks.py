"""Which instruction multiplies words of bytes where tensor expressions say so themselves (`ops.blocks`): all
that are exact for the numbers that the left operand has are the same function."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jangin.ir.core import Compute
from jangin.ir.dtype import I16
from jangin.ir.expr import Binary, Call, Const, Expr, Load, call
from jangin.ir.graph import Graph, Node
from jangin.ir.te import Stage
from jangin.ir.words import CLAMPED
from jangin.targets.target import Target

WRITTEN = "dot4u"
"""What products of words are written as."""
MOST = {"dot4": 127, **dict.fromkeys(CLAMPED, I16.limits[1] // (2 * 128))}
"""The largest number of a left operand's bytes for which others of DOTS give the same, whatever the right
one's are."""


def blocks_by_target(graph: Graph, target: Target) -> Graph:
    """The graph with such products made by the first of the machine's `dots` that is exact."""
    if WRITTEN in target.dots[:1]:
        return graph
    nodes = [_of_target(n, graph, target) if isinstance(n.attrs, Compute) else n for n in graph.nodes]
    return graph.with_nodes(nodes)


def _of_target(node: Node, graph: Graph, target: Target) -> Node:
    def made(stage: Stage) -> Stage:
        body = stage.body
        if not isinstance(body, Call) or body.fn != WRITTEN:
            return stage
        largest = _largest(body.args[0], node, graph)
        fits = (d for d in target.dots if d == WRITTEN or largest <= MOST.get(d, -1))
        return replace(stage, body=call(next(fits, WRITTEN), *body.args))

    attrs = node.of(Compute)
    stages = tuple(map(made, attrs.stages))
    return node if stages == attrs.stages else replace(node, attrs=replace(attrs, stages=stages))


def _largest(e: Expr, node: Node, graph: Graph) -> int:
    """No byte of a word is larger."""
    if isinstance(e, Const):
        return max(int(e.value).to_bytes(4, "little", signed=True))
    if isinstance(e, Binary) and e.op == "and":
        return min(_largest(e.a, node, graph), _largest(e.b, node, graph))
    if isinstance(e, Load) and e.buffer.name.startswith("x"):
        known = graph.constants.get(node.inputs[int(e.buffer.name[1:])])
        if known is not None:
            return int(known.view(np.uint8).max(initial=0))
    return 255
