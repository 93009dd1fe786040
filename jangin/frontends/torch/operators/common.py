"""Helpers of the lowerings of ATen's operators.

`frontends.registry.lowers` declares a lowering, as "add" for all overloads or as "sum.default" for one. A
lowering for one overload takes precedence.

A lowering is called with the `Builder`, the `Result` and the operator's arguments by their names in its
schema. Tensors are given as `Tensor`, types as `DType`, and sizes as numbers or expressions. Arguments that
are None are left out. The lowering returns a `Tensor`, or a tuple in which unwanted results may be None."""

from __future__ import annotations

from typing import Any

from jangin.ir.dtype import DType
from jangin.ir.expr import Expr, ExprLike, cast, const
from jangin.ir.graph import Shape
from jangin.ir.records import dataclass
from jangin.ops.builder import Builder
from jangin.ops.elementwise import Body, widened
from jangin.ops.values import Tensor

Number = bool | int | float | Expr
"""An argument that isn't a tensor. A size may be an expression."""
Operand = Tensor | Number


@dataclass(frozen=True)
class Result:
    """The results of a node, as PyTorch traced them.

    `all` has the types and shapes of all results, and `wanted` tells for each if it is read. `common` is the
    type to which operands are converted, or None. `dtype` and `shape` are those of the first result."""

    all: tuple[tuple[DType, Shape], ...]
    wanted: tuple[bool, ...]
    common: DType | None

    @property
    def dtype(self) -> DType:
        return self.all[0][0]

    @property
    def shape(self) -> Shape:
        return self.all[0][1]

    @property
    def operands(self) -> DType:
        """The type in which the operator is computed: `common`, or else the first result's type."""
        return self.common or self.dtype


def applied(b: Builder, dtype: DType, body: Body, *operands: Operand, corner: str | None = None) -> Tensor:
    """Return `body` applied to each element of the operands. Tensors are converted to `dtype` first. 16-bit
    floats are computed in f32. `corner` chooses slopes for gradients (see `ir.core.Map`)."""
    tensors = [b.cast(x, dtype) for x in operands if isinstance(x, Tensor)]

    def fn(*elements: Expr) -> Expr:
        rest = iter(elements)
        return widened(body)(*(next(rest) if isinstance(x, Tensor) else _number(x, dtype) for x in operands))

    return b.map(fn, *tensors, corner=corner)


def _number(x: Number, dtype: DType) -> Expr:
    return cast(dtype, x) if isinstance(x, Expr) else const(x, dtype)


def scalar(b: Builder, x: Operand, dtype: DType) -> Tensor:
    """Return an operand as a tensor of type `dtype`. A number or a size becomes a tensor without axes."""
    if isinstance(x, Tensor):
        return b.cast(x, dtype)
    if isinstance(x, Expr):
        return b.cast(b.reshape(b.sizes([x]), ()), dtype)
    return b.scalar(x, dtype)


def axes_given(dim: Any, rank: int) -> tuple[int, ...]:
    """Return the axes, counted from 0, that the argument `dim` means. None or an empty list means all
    axes."""
    if dim is None or dim == []:
        return tuple(range(rank))
    dims = dim if isinstance(dim, (list, tuple)) else [dim]
    return tuple(d % max(rank, 1) for d in dims) if rank else ()


def size(x: ExprLike) -> Expr:
    """Return a size, which may be a number, as an expression."""
    return x if isinstance(x, Expr) else const(int(x))
