"""Chooses the instruction for products of words that tensor expressions write themselves (`ops.blocks`).

All instructions that are exact for the left operand's numbers compute the same function.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jangin.ir.core import Compute
from jangin.ir.dtype import I16
from jangin.ir.expr import Binary, Call, Const, Expr, Load, call
from jangin.ir.graph import Graph, Node
from jangin.ir.products import DOT4U, Product
from jangin.ir.te import Stage
from jangin.targets.target import Target

WRITTEN = DOT4U
"""The Product that `ops.blocks` writes."""


def blocks_by_target(graph: Graph, target: Target) -> Graph:
    """Return the graph with the products of `ops.blocks` made by the machine's first Product that is exact
    for them."""
    if WRITTEN in target.machine.products[:1]:
        return graph
    nodes = [_of_target(n, graph, target) if isinstance(n.attrs, Compute) else n for n in graph.nodes]
    return graph.with_nodes(nodes)


def _of_target(node: Node, graph: Graph, target: Target) -> Node:
    def made(stage: Stage) -> Stage:
        body = stage.body
        if not isinstance(body, Call) or body.product != WRITTEN:
            return stage
        largest = _largest(body.args[0], node, graph)
        fits = (p for p in target.machine.products if largest <= _most(p))
        return replace(stage, body=call(next(fits, WRITTEN).name, *body.args))

    attrs = node.of(Compute)
    stages = tuple(map(made, attrs.stages))
    return node if stages == attrs.stages else replace(node, attrs=replace(attrs, stages=stages))


def _most(product: Product) -> int:
    """Return the largest byte of a left operand for which a Product equals WRITTEN for every right operand.
    Return -1 if its words differ from WRITTEN's."""
    own, wanted = ((p.word, p.terms, p.right_limits) for p in (product, WRITTEN))
    if own != wanted:
        return -1
    exact = I16.limits[1] // (2 * -product.right.limits[0])
    return min(product.left.limits[1], exact) if product.clamps else product.left.limits[1]


def _largest(e: Expr, node: Node, graph: Graph) -> int:
    """Return an upper bound of the bytes in a word that the expression computes."""
    if isinstance(e, Const):
        return max(int(e.value).to_bytes(4, "little", signed=True))
    if isinstance(e, Binary) and e.op == "and":
        return min(_largest(e.a, node, graph), _largest(e.b, node, graph))
    if isinstance(e, Load) and e.buffer.name.startswith("x"):
        known = graph.constants.get(node.inputs[int(e.buffer.name[1:])])
        if known is not None:
            return int(known.view(np.uint8).max(initial=0))
    return 255
