"""Recognize GELU in a model that computes it by several operators. LiteRT has no operator for the error
function alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from jangin.ir.core import Map
from jangin.ir.dtype import F32
from jangin.ir.expr import Binary, Call, Const, Expr, Var
from jangin.ir.graph import Graph, Node
from jangin.ops import activation

X = Var("x0", F32)
CLOSE = 1e-6
"""The relative error at which a constant counts as sqrt(1/2) or 1/2. It is some ten roundings of f32, in
which files store constants."""


def gelus(graph: Graph) -> Graph:
    """Return the graph with each x / 2 * (erf(x / sqrt(2)) + 1) replaced by one map. The order of its factors
    doesn't matter. Nodes whose results nothing reads any more are removed."""
    finder = _Finder(graph)
    maps: dict[str, Node] = {}
    for node in graph.nodes:
        if isinstance(node.attrs, Map) and node.attrs.body == Call("erf", (X,)):
            last = finder.whole(node)
            if last is not None:
                maps[last[0].name] = replace(last[0], inputs=(last[1],), attrs=Map(activation.gelu(X)))
    if not maps:
        return graph
    needed, kept = set(graph.outputs), list[Node]()
    for node in reversed([maps.get(n.name, n) for n in graph.nodes]):
        if needed.intersection(node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    return graph.with_nodes(kept[::-1])


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.users, self.makers = graph, graph.consumers(), graph.producers()

    def whole(self, erf: Node) -> tuple[Node, str] | None:
        """Return the last node of the GELU that contains the error function `erf`, and the name of GELU's
        argument. Return None if it isn't part of one."""
        x, scale = self.scaled(erf.inputs[0])
        after = self.reader(erf.outputs[0])
        one = None if after is None else self.parts(after)
        if one is None or one[0] != "add" or {one[1], one[2]} != {erf.outputs[0], 1.0}:
            return None
        factor, times = 1.0, False
        while after is not None and math.isclose(scale, math.sqrt(0.5), rel_tol=CLOSE):
            value = after.outputs[0]
            after = self.reader(value)
            match None if after is None else self.parts(after):
                case ("div", a, float(b)) if a == value and b:
                    factor /= b
                case ("mul", float(b), a) | ("mul", a, float(b)) if a == value:
                    factor *= b
                case ("mul", str(a), str(b)) if not times and value in (a, b):
                    other = b if a == value else a
                    source, more = (x, 1.0) if other == x else self.scaled(other)
                    if source != x:
                        return None
                    factor, times = factor * more, True
                case _:
                    return None
            if times and after is not None and math.isclose(factor, 0.5, rel_tol=CLOSE):
                return after, x
        return None

    def reader(self, value: str) -> Node | None:
        """Return the map that reads a value, or None unless it is the only reader."""
        readers = self.users.get(value, [])
        alone = len(readers) == 1 and value not in self.graph.outputs
        return readers[0] if alone and isinstance(readers[0].attrs, Map) else None

    def scaled(self, value: str) -> tuple[str, float]:
        """Return a value's name and a factor. Their product is `value`."""
        node = self.makers.get(value)
        match None if node is None else self.parts(node):
            case ("mul", str(a), float(b)) | ("mul", float(b), str(a)):
                return a, b
            case ("div", str(a), float(b)) if b:
                return a, 1 / b
        return value, 1.0

    def parts(self, node: Node) -> tuple[str, str | float, str | float] | None:
        """Return the operation of a map and its two operands, or None for other nodes. An operand is a
        value's name or a number."""
        body = node.attrs.body if isinstance(node.attrs, Map) else None
        if not isinstance(body, Binary):
            return None
        a, b = (self.part(e, node.inputs) for e in (body.a, body.b))
        return None if a is None or b is None else (body.op, a, b)

    def part(self, e: Expr, inputs: Sequence[str]) -> str | float | None:
        if isinstance(e, Const):
            return float(e.value)
        if not isinstance(e, Var):
            return None
        name = inputs[int(e.name.removeprefix("x"))]
        held = self.graph.constants.get(name)
        return name if held is None or held.size != 1 else float(held.reshape(()))
