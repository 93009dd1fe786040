"""Find the bias and the bounds after an operator. Formats and integer operators fuse them with the
operator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from jangin.ir.core import Map, Reduce
from jangin.ir.dtype import F32
from jangin.ir.expr import Binary, Const, Expr, Var
from jangin.ir.graph import Graph, Node, static_shape
from jangin.ir.records import dataclass

Users = Mapping[str, Sequence[Node]]


@dataclass(frozen=True)
class Tail:
    """The maps after a value that are fused with it, and their `result`.

    The map `bias` adds a constant. The map `clamp` then bounds the sum to `low` and `high`."""

    result: str
    bias: Node | None = None
    clamp: Node | None = None
    low: float = -np.inf
    high: float = np.inf

    def bias_name(self, value: str) -> str | None:
        """Return the name of the constant that is added to a value, or None if none is."""
        return None if self.bias is None else next(n for n in self.bias.inputs if n != value)


def tail(graph: Graph, value: str, users: Users, axis: int | None = None) -> Tail:
    """Return the bias and the clamp that directly follow a value. A bias must have one number for each entry
    of `axis`. With `axis` None, only a clamp is looked for."""
    bias, after = None, _only_map(graph, value, users)
    result = value
    if axis is not None and after is not None and _adds_bias(graph, after, value, axis):
        bias, result = after, after.outputs[0]
        after = _only_map(graph, result, users)
    if after is not None and len(after.inputs) == 1:
        ends = clamped(after.of(Map).body)
        if ends is not None and ends[0] <= 0 <= ends[1]:
            return Tail(after.outputs[0], bias, after, *ends)
    return Tail(result, bias)


def mean(graph: Graph, node: Node, users: Users) -> Node | None:
    """Return the map that divides a sum by the number of its terms, which makes it a mean. Return None if
    there is none."""
    x, sums = graph.shape(node.inputs[0]), node.of(Reduce)
    after = _only_map(graph, node.outputs[0], users)
    sizes = static_shape(tuple(x[a] for a in sums.axes))
    if sums.combiner != "sum" or after is None or len(after.inputs) != 1 or sizes is None:
        return None
    body = after.of(Map).body
    divides = isinstance(body, Binary) and body.op == "div" and body.a == _x(0) and isinstance(body.b, Const)
    return after if divides and float(body.b.value) == math.prod(sizes) else None  # type: ignore[attr-defined]


def _only_map(graph: Graph, name: str, users: Users) -> Node | None:
    """Return the only reader of a value if it is a map and the value is no output, else None."""
    readers = users.get(name, ())
    if name in graph.outputs or len(readers) != 1 or not isinstance(readers[0].attrs, Map):
        return None
    return readers[0]


def _adds_bias(graph: Graph, node: Node, x: str, axis: int) -> bool:
    """Tell if a map adds a constant with one number for each entry of an axis."""
    body = node.of(Map).body
    adds = isinstance(body, Binary) and body.op == "add" and {body.a, body.b} == {_x(0), _x(1)}
    if not adds or len(node.inputs) != 2 or node.inputs.count(x) != 1:
        return False
    other = graph.constants.get(node.inputs[1 - node.inputs.index(x)])
    rank = len(graph.shape(x))
    if other is None or graph.shape(node.outputs[0]) != graph.shape(x):
        return False
    shape = (1,) * (rank - other.ndim) + other.shape
    return all(d == 1 for i, d in enumerate(shape) if i != axis % rank)


def _x(i: int) -> Var:
    return Var(f"x{i}", F32)


def clamped(body: Expr) -> tuple[float, float] | None:
    """Return (low, high) if a body only clamps x0 to constants, else None."""
    if body == _x(0):
        return -np.inf, np.inf
    if not isinstance(body, Binary) or body.op not in ("min", "max"):
        return None
    inner, end = (body.a, body.b) if isinstance(body.b, Const) else (body.b, body.a)
    limits = clamped(inner)
    if limits is None or not isinstance(end, Const):
        return None
    cut = max if body.op == "max" else min
    return cut(limits[0], float(end.value)), cut(limits[1], float(end.value))
