"""What a graph takes for granted about its symbolic sizes: a run checks it.

Shape inference joins sizes that it can't tell apart (a symbol broadcast against another, or against
a constant). Each such pair must be equal for the code to be right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from jangin.ir.expr import Expr, const, eq, is_const
from jangin.ir.graph import Graph, Node, Shape
from jangin.ir.simplify import simplify
from jangin.ops.bounds import limits
from jangin.ops.core import split_layout

Pair = tuple[Expr, Expr]


def constraints(graph: Graph) -> tuple[Expr, ...]:
    """Conditions on the symbols (i1 expressions) that every run must meet, without repetition."""
    found: dict[Expr, None] = {}
    for node in graph.nodes:
        inner = node.attrs["body"] if node.op == "kernel" else graph
        for part in inner.nodes if node.op == "kernel" else (node,):
            for rule in (*(eq(a, b) for a, b in _pairs(inner, part)), *_reads(part)):
                cond = simplify(rule, graph.symbols)
                if not is_const(cond):
                    found[cond] = None
    return tuple(found)


def _pairs(graph: Graph, node: Node) -> Iterator[Pair]:
    """Sizes that have to be equal for the node."""
    if node.op in ("map", "expand"):
        for name in node.inputs:
            yield from _broadcast(graph.shape(name), graph.shape(node.outputs[0]))
    elif node.op == "concat":
        axis, out = node.attrs["axis"], graph.shape(node.outputs[0])
        for name in node.inputs:
            shape = graph.shape(name)
            yield from ((d, o) for i, (d, o) in enumerate(zip(shape, out, strict=True)) if i != axis)
    elif node.op == "matmul":
        a, b = (graph.shape(n) for n in node.inputs)
        yield a[-2 if node.attrs["transpose_a"] else -1], b[-1 if node.attrs["transpose_b"] else -2]
        for shape in (a, b):
            yield from _broadcast(shape[:-2], graph.shape(node.outputs[0])[:-2])
    elif node.op == "conv":
        channels = split_layout(graph.shape(node.inputs[0]), node.attrs["layout"])[1]
        yield channels, graph.shape(node.inputs[1])[1] * node.attrs["groups"]
    elif node.op == "reshape":
        sizes = [math.prod(graph.shape(n), start=const(1)) for n in (node.inputs[0], node.outputs[0])]
        yield sizes[0], sizes[1]


def _reads(node: Node) -> Iterator[Expr]:
    """That the node's accesses lie inside its inputs."""
    if node.op in ("compute", "loop_nest"):
        for part in node.attrs["stages"] if node.op == "compute" else (node.attrs["body"],):
            yield from (there >= needed for needed, there in limits(part))


def _broadcast(shape: Shape, out: Shape) -> Iterator[Pair]:
    aligned = out[len(out) - len(shape) :]
    return ((d, o) for d, o in zip(shape, aligned, strict=True) if not is_const(d, 1))
