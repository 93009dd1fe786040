"""What a graph takes for granted about its symbolic sizes: a run checks it.

Shape inference joins sizes that it can't tell apart (a symbol broadcast against another, or against
a constant). Each such pair must be equal for the code to be right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from jangin.ir.expr import Binary, Expr, const, eq, is_const, walk
from jangin.ir.graph import Graph, Node, Shape
from jangin.ir.simplify import simplify
from jangin.ops.bounds import limits
from jangin.ops.core_window import split_layout

Pair = tuple[Expr, Expr]


def constraints(graph: Graph) -> tuple[Expr, ...]:
    """Conditions on the symbols (i1 expressions) that every run must meet, without repetition."""
    rules: dict[Expr, None] = {}
    nests: set[object] = set()
    for node in graph.nodes:
        inner = node.attrs["body"] if node.op == "kernel" else graph
        for part in inner.nodes if node.op == "kernel" else (node,):
            rules.update((eq(a, b), None) for a, b in _pairs(inner, part))
            rules.update((rule, None) for rule in _sizes(inner, part))
            nest = id(part.attrs.get("body")), tuple(part.attrs.get("requires", ()))
            if part.op != "loop_nest" or nest not in nests:  # what a pass made once is one object
                rules.update((rule, None) for rule in _reads(inner, part))
                nests.add(nest)
    conditions = (simplify(rule, graph.symbols) for rule in rules)
    return tuple(dict.fromkeys(c for c in conditions if not is_const(c, True)))


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
        before, after = list(graph.shape(node.inputs[0])), list(graph.shape(node.outputs[0]))
        for d in graph.shape(node.inputs[0]):
            if d in after and not is_const(d, 0):
                before.remove(d)
                after.remove(d)
        yield math.prod(before, start=const(1)), math.prod(after, start=const(1))


def _sizes(graph: Graph, node: Node) -> Iterator[Expr]:
    """That no size is negative, as that of a window over less than itself would be."""
    return (d >= 0 for name in node.outputs for d in graph.shape(name))


def _reads(graph: Graph, node: Node) -> Iterator[Expr]:
    """That the node's accesses lie inside its inputs."""
    if node.op == "slice":
        shapes = graph.shape(node.inputs[0]), graph.shape(node.outputs[0])
        for there, n, start, step in zip(*shapes, node.attrs["starts"], node.attrs["steps"], strict=True):
            if not _clamped(start) and not _clamped(n):
                yield there >= (start + (n - 1) * step + 1 if step > 0 else start + 1)
    elif node.op in ("compute", "loop_nest"):
        for part in node.attrs["stages"] if node.op == "compute" else (node.attrs["body"],):
            yield from (there >= needed for needed, there in limits(part))
        yield from node.attrs.get("requires", ())


def _clamped(e: Expr) -> bool:
    """Whether a slice's start or size is held inside the axis already."""
    return any(isinstance(part, Binary) and part.op in ("min", "max") for part in walk(e))


def _broadcast(shape: Shape, out: Shape) -> Iterator[Pair]:
    aligned = out[len(out) - len(shape) :]
    return ((d, o) for d, o in zip(shape, aligned, strict=True) if not is_const(d, 1))
