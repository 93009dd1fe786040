"""Declare operators by tables, if they differ only in a function of elements. 16-bit floats are computed in
f32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeVar

from jangin.frontends.onnx.registry import Lowering, Operator
from jangin.ir.expr import Expr, ExprLike, cast
from jangin.ir.graph import CompileError
from jangin.ir.records import dataclass
from jangin.ops.builder import Builder
from jangin.ops.elementwise import Body, widened
from jangin.ops.operands import wide
from jangin.ops.values import Tensor

Attribute = Any
T = TypeVar("T")


def same_types(xs: Sequence[Tensor]) -> None:
    """Raise CompileError unless all operands have the same element type."""
    types = {x.dtype for x in xs}
    if len(types) > 1:
        shown = " and ".join(sorted(map(str, types)))
        raise CompileError(f"its operands are {shown}, but must have one type; insert a Cast")


def align(b: Builder, x: Tensor, y: Tensor, axis: int | None, broadcast: int) -> Tensor:
    """Return y, reshaped for the broadcasting of opset 6 and older: y's axes correspond to those of x from
    `axis` on."""
    if not broadcast or axis is None:
        return y
    after = x.rank - axis % x.rank - y.rank
    return b.reshape(y, (*y.shape, *[1] * after))


@dataclass(frozen=True)
class Family:
    """Operators made from a table. `registry.Operators` finds them in a module, as it finds decorated
    functions."""

    operators: tuple[Operator, ...]


def family(table: Mapping[str, Lowering], since: int = 1, domain: str = "") -> Family:
    """Return operators with existing lowerings, by name. Functions in `jangin.ops` that take ONNX's arguments
    can be lowerings."""
    return Family(tuple(Operator(domain, name, since, lower) for name, lower in table.items()))


def _made(table: Mapping[str, T], make: Callable[[T], Lowering]) -> Mapping[str, Lowering]:
    return {name: make(body) for name, body in table.items()}


def unary(table: Mapping[str, Body], since: int = 1, domain: str = "", corner: str | None = None) -> Family:
    """Return operators of one input, by name. An operator's result is `body(x, **attributes)` for each
    element x. `corner` chooses slopes for gradients (see `ir.core.Map`)."""

    def make(body: Body) -> Lowering:
        def lower(b: Builder, x: Tensor, **attrs: Attribute) -> Tensor:
            return b.map(widened(lambda v: body(v, **attrs)), x, corner=corner)

        return lower

    return family(_made(table, make), since, domain)


def binary(table: Mapping[str, Body]) -> Family:
    """Return operators of two inputs of the same type, which are broadcast, by name. An operator's result is
    `body(x, y, **attributes)` for elements x and y.

    The operators also have the attributes `axis` and `broadcast` of opset 6 and older."""

    def make(body: Body) -> Lowering:
        def lower(
            b: Builder, x: Tensor, y: Tensor, axis: int | None = None, broadcast: int = 0, **attrs: Attribute
        ) -> Tensor:
            same_types((x, y))
            return b.map(widened(lambda v, w: body(v, w, **attrs)), x, align(b, x, y, axis, broadcast))

        return lower

    return family(_made(table, make))


TOGETHER = 32
"""One expression combines at most this many inputs of an operator. Larger expressions take long to
simplify."""


def variadic(table: Mapping[str, tuple[Body, Callable[[Expr, int], ExprLike]]]) -> Family:
    """Return operators of any number of inputs of the same type, which are broadcast, by name.

    For each operator, the table has a function that combines two elements, and a second function. Its
    arguments are the combined value and the number of inputs, and it gives the result."""

    def make(body: tuple[Body, Callable[[Expr, int], ExprLike]]) -> Lowering:
        join, last = body

        def lower(b: Builder, *xs: Tensor) -> Tensor:
            same_types(xs)
            first, *rest = xs
            while len(rest) >= TOGETHER:  # a single expression would be as deep as the number of inputs
                first = b.map(lambda *vs: reduce(join, map(wide, vs)), first, *rest[: TOGETHER - 1])
                del rest[: TOGETHER - 1]
            if len(xs) == 1:
                return first
            dtype, count = xs[0].dtype, len(xs)
            return b.map(lambda *vs: cast(dtype, last(reduce(join, map(wide, vs)), count)), first, *rest)

        return lower

    return family(_made(table, make))
