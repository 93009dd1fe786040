"""The conditions on symbolic sizes that a graph relies on, and that every run checks.

Shape inference joins sizes that it can't tell apart: a symbol broadcast against another symbol, or against a
constant. The code is right only if the sizes of each such pair are equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from jangin.ir.core import Compute, Concat, Conv, Expand, Kernel, LoopNest, Map, MatMul, Pad, Reshape, Slice
from jangin.ir.expr import Binary, Const, Expr, Var, const, eq, is_const, land, lor, ne
from jangin.ir.graph import Graph, Node, Shape
from jangin.ir.simplify import Range, prove, simplify
from jangin.ir.sources import Sources
from jangin.ir.traversal import free_vars, walk
from jangin.ops.blocks import is_blocks
from jangin.ops.bounds import limits, parts
from jangin.ops.core_window import split_layout

Pair = tuple[Expr, Expr]


def constraints(graph: Graph) -> dict[Expr, Sources]:
    """Return the conditions on the symbols (i1 expressions) that every run must meet, each with the first
    node that needs it."""
    rules: dict[Expr, Sources] = {}
    nests: set[object] = set()
    for node in graph.nodes:
        is_kernel = isinstance(node.attrs, Kernel)
        inner = node.of(Kernel).body if is_kernel else graph
        for part in inner.nodes if is_kernel else (node,):
            needed = [
                *(eq(a, b) for a, b in _pairs(inner, part) if a is not b and a != b),
                *_sizes(inner, part),
            ]
            nest: object = None
            if isinstance(part.attrs, LoopNest):  # a nest that a pass made once is one object
                nest = id(part.attrs.body), part.attrs.requires
            needed += [] if nest in nests else _reads(inner, part)
            nests |= set() if nest is None else {nest}
            for rule in needed:
                rules.setdefault(rule, part.source or node.source)
    return _simplified(rules, graph)


def broadcast_sizes(graph: Graph) -> dict[Expr, Sources]:
    """Return the conditions that sizes which were broadcast against each other are equal, each with the first
    node that needs it. They hold for the sizes of the inputs.

    A shape may have been read from a result that nothing else reads. The conditions of such nodes count
    too."""
    known = {v for name in graph.inputs for d in graph.values[name].shape or () for v in free_vars(d)}
    rules: dict[Expr, Sources] = {}
    for node in graph.nodes:
        for a, b in _stretched(graph, node):
            if a != b and free_vars(rule := eq(a, b)) <= known:
                rules.setdefault(rule, node.source)
    return _simplified(rules, graph)


def _simplified(rules: Mapping[Expr, Sources], graph: Graph) -> dict[Expr, Sources]:
    """Return the conditions that don't hold for all sizes."""
    sources: dict[Expr, Sources] = {}
    for rule, source in rules.items():
        condition = simplify(rule, graph.symbols)
        if not is_const(condition, True):
            sources.setdefault(condition, source)
    return sources


def taken_for_others(graph: Graph, given: Mapping[Var, Range]) -> tuple[Var, ...]:
    """Return the symbols of the inputs that the lowered graph assumes not to be 1, though their ranges
    `given` include 1.

    If a returned symbol is 1, a result has another rank or is broadcast. For block-quantized weights, a
    single row is also multiplied in another way.
    """
    ones = [*may_be_1(given)]
    if not ones:
        return ()
    met = {*_guessed(graph), *_unread(graph), *_of_blocks(graph), *squeezed(graph, given)}
    return tuple(v for v in ones if v in met)


def squeezed(graph: Graph, given: Mapping[Var, Range]) -> tuple[Var, ...]:
    """Return the symbols of `taken_for_others` whose value 1 changes a result's rank."""
    return tuple(
        v for v in may_be_1(given) if ne(v, 1) in graph.constraints or prove(ne(v, 1), graph.symbols)
    )


def may_be_1(given: Mapping[Var, Range]) -> Iterator[Var]:
    """Return the symbols whose ranges include 1."""
    return (v for v, limits in given.items() if not prove(ne(v, 1), {v: limits}))


def _guessed(graph: Graph) -> Iterator[Expr]:
    """Yield the sizes that were assumed to equal the size they were broadcast against."""
    for node in graph.nodes:
        yield from (
            size for pair in _stretched(graph, node)
            if pair[0] != pair[1] and all(isinstance(d, (Const, Var)) for d in pair) for size in pair
        )  # fmt: skip
        for inner in node.attrs.named().values():
            if isinstance(inner, Graph):
                yield from _guessed(inner)


def _unread(graph: Graph) -> Iterator[Expr]:
    """Yield the sizes that were assumed to be equal by nodes of which only the shape was read."""
    rules = [c for c in graph.constraints if isinstance(c, Binary) and c.op == "eq"]
    read = constraints(graph) if rules else {}
    for c in rules:
        if c not in read and all(isinstance(d, (Const, Var)) for d in (c.a, c.b)):
            yield from (c.a, c.b)


def _stretched(graph: Graph, node: Node) -> Iterator[Pair]:
    """Yield the sizes of a node's operands that broadcast, each with the result's size."""
    if isinstance(node.attrs, (Map, Expand, MatMul)):
        batch = slice(0, -2 if isinstance(node.attrs, MatMul) else None)
        for name in node.inputs:
            yield from _broadcast(graph.shape(name)[batch], graph.shape(node.outputs[0])[batch])


def _of_blocks(graph: Graph) -> Iterator[Expr]:
    """Yield the sizes of the rows that block-quantized weights are multiplied with (see `ops.blocks`)."""
    for node in graph.nodes:
        if is_blocks(node, graph):
            yield from free_vars(graph.shape(node.outputs[0])[0])


def _pairs(graph: Graph, node: Node) -> Iterator[Pair]:
    """Yield the pairs of sizes that must be equal for the node."""
    attrs = node.attrs
    if isinstance(attrs, (Map, Expand)):
        for name in node.inputs:
            yield from _broadcast(graph.shape(name), graph.shape(node.outputs[0]))
    elif isinstance(attrs, Concat):
        axis, out = attrs.axis, graph.shape(node.outputs[0])
        for name in node.inputs:
            shape = graph.shape(name)
            yield from ((d, o) for i, (d, o) in enumerate(zip(shape, out, strict=True)) if i != axis)
    elif isinstance(attrs, MatMul):
        a, b = (graph.shape(n) for n in node.inputs)
        yield a[-2 if attrs.transpose_a else -1], b[-1 if attrs.transpose_b else -2]
        for shape in (a, b):
            yield from _broadcast(shape[:-2], graph.shape(node.outputs[0])[:-2])
    elif isinstance(attrs, Conv):
        channels = split_layout(graph.shape(node.inputs[0]), attrs.layout)[1]
        yield channels, graph.shape(node.inputs[1])[1] * attrs.groups
    elif isinstance(attrs, Reshape):
        before, after = list(graph.shape(node.inputs[0])), list(graph.shape(node.outputs[0]))
        for d in graph.shape(node.inputs[0]):
            if d in after and not is_const(d, 0):
                before.remove(d)
                after.remove(d)
        bits = [graph.dtype(n).bits for n in (node.inputs[0], node.outputs[0])]
        units = (const(n // math.gcd(*bits)) for n in bits)
        yield math.prod(before, start=next(units)), math.prod(after, start=next(units))


def _sizes(graph: Graph, node: Node) -> Iterator[Expr]:
    """Return the conditions that no size of the node's results is negative. A window's output size is
    negative if its input is smaller than the window."""
    return (
        d >= 0 for name in node.outputs for d in graph.shape(name) if not isinstance(d, Const) or d.value < 0
    )


def _reads(graph: Graph, node: Node) -> Iterator[Expr]:
    """Yield the conditions that the node's accesses lie inside its inputs."""
    attrs = node.attrs
    if isinstance(attrs, Slice):
        shapes = graph.shape(node.inputs[0]), graph.shape(node.outputs[0])
        for there, n, start, step in zip(*shapes, attrs.starts, attrs.steps, strict=True):
            if not _clamped(start) and not _clamped(n):
                yield there >= (start + (n - 1) * step + 1 if step > 0 else start + 1)
    elif isinstance(attrs, Pad) and attrs.mode != "constant":  # an empty axis has no element to repeat
        shape = graph.shape(node.inputs[0])
        for n, begin, end in zip(shape, attrs.pads[: len(shape)], attrs.pads[len(shape) :], strict=True):
            yield lor(n >= 1, land(begin <= 0, end <= 0))
    elif isinstance(attrs, (Compute, LoopNest)):
        for part in parts(attrs):
            yield from (there >= needed for needed, there in limits(part))
        yield from attrs.requires


def _clamped(e: Expr) -> bool:
    """Return whether a slice's start or size is clamped into the axis already."""
    return any(isinstance(part, Binary) and part.op in ("min", "max") for part in walk(e))


def _broadcast(shape: Shape, out: Shape) -> Iterator[Pair]:
    aligned = out[len(out) - len(shape) :]
    return ((d, o) for d, o in zip(shape, aligned, strict=True) if not is_const(d, 1))
