"""Value ranges of a graph's integers, derived from the operators that make them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from jangin.ir.core import Concat, Expand, Map, Pad, Pool, Reshape, Slice, Transpose
from jangin.ir.dtype import DType
from jangin.ir.expr import Binary, Cast, Const, Expr, Var
from jangin.ir.graph import Array, Node

MOVES = (Transpose, Reshape, Slice, Expand, Pad, Concat)
"""Operators whose results hold only their operands' numbers and 0."""


class Numbers:
    """Ranges of a graph's values, whose types `dtype` gives."""

    def __init__(
        self, constants: Mapping[str, Array], producers: Mapping[str, Node], dtype: Callable[[str], DType]
    ) -> None:
        self.constants, self.producers, self.dtype = constants, producers, dtype

    def reach(self, name: str) -> int:
        """Return a bound on the magnitude of a value's numbers."""
        return max(map(abs, self.range(name)))

    def range(self, name: str) -> tuple[int, int]:
        """Return the smallest and the largest number that a value may have."""
        if name in self.constants:
            numbers = self.constants[name]
            return (int(numbers.min()), int(numbers.max())) if numbers.size else (0, 0)
        node = self.producers.get(name)
        if node is not None and _moves(node.attrs):
            low, high = zip(*map(self.range, node.inputs), strict=True)
            border = [0] if isinstance(node.attrs, Pad) else []
            return min([*low, *border]), max([*high, *border])
        if node is None or not isinstance(node.attrs, Map):
            return self.dtype(name).limits
        return _range(
            node.attrs.body, [self.range(n) if self.dtype(n).is_int else (0, 0) for n in node.inputs]
        )


def _moves(attrs: object) -> bool:
    """Return whether an operator's result holds only its operand's numbers and 0."""
    if isinstance(attrs, Pool):  # every window has a number of the operand if no window is all padding
        inside = all(p < k for p, k in zip(attrs.pads, 2 * attrs.kernel, strict=True))
        return attrs.combiner == "max" and inside
    return isinstance(attrs, MOVES) and not getattr(attrs, "value", 0)


def _range(e: Expr, operands: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the range of an integer expression of operands with these ranges."""
    if isinstance(e, Const):
        return int(e.value), int(e.value)
    if isinstance(e, Var):
        return operands[int(e.name[1:])]
    most = e.dtype.limits
    if isinstance(e, Cast) and e.a.dtype.is_int:
        span = _range(e.a, operands)
    elif isinstance(e, Cast) and all(map(math.isfinite, ends := _clamped(e.a))):
        span = math.floor(ends[0]), math.ceil(ends[1])
    elif isinstance(e, Binary) and e.op in ("min", "max"):
        pick, first, second = {"min": min, "max": max}[e.op], _range(e.a, operands), _range(e.b, operands)
        span = pick(first[0], second[0]), pick(first[1], second[1])
    elif isinstance(e, Binary) and e.op in ("add", "sub"):
        (a, b), (c, d) = _range(e.a, operands), _range(e.b, operands)
        span = (a + c, b + d) if e.op == "add" else (a - d, b - c)
    else:
        return most
    return span if most[0] <= span[0] and span[1] <= most[1] else most


def _clamped(e: Expr) -> tuple[float, float]:
    """Return the range of a float expression, as far as constants clamp it."""
    if isinstance(e, Const):
        return float(e.value), float(e.value)
    if not isinstance(e, Binary) or e.op not in ("min", "max"):
        return -math.inf, math.inf
    pick, ends = {"min": min, "max": max}[e.op], (_clamped(e.a), _clamped(e.b))
    return pick(ends[0][0], ends[1][0]), pick(ends[0][1], ends[1][1])
