"""What the lowering of an ATen operator is given beside its arguments, and what many of them share.

An operator is declared by `frontends.registry.lowers` as "add" for all overloads of one, "sum.default" for
a single one, which goes first. Its lowering is called with the `Builder`, the `Result`, and the arguments of
the operator's schema by name: tensors as `Tensor`, types as `DType`, sizes as numbers or expressions; those
that are None are left out. It gives a `Tensor`, or a tuple of them, None for one that isn't wanted.
"""

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
"""An argument that isn't a tensor; an expression where it is a size."""
Operand = Tensor | Number


@dataclass(frozen=True)
class Result:
    """What a node gives, as PyTorch traced it: `dtype` and `shape` of the first result, `all` of them, which
    of them are `wanted`, and `common`, the type that its operands are promoted to."""

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
        """The type that operands are computed in."""
        return self.common or self.dtype


def applied(b: Builder, dtype: DType, body: Body, *operands: Operand) -> Tensor:
    """`body` of each element, operands converted to `dtype` first, 16-bit floats computed in f32."""
    tensors = [b.cast(x, dtype) for x in operands if isinstance(x, Tensor)]

    def fn(*elements: Expr) -> Expr:
        rest = iter(elements)
        return widened(body)(*(next(rest) if isinstance(x, Tensor) else _number(x, dtype) for x in operands))

    return b.map(fn, *tensors)


def _number(x: Number, dtype: DType) -> Expr:
    return cast(dtype, x) if isinstance(x, Expr) else const(x, dtype)


def scalar(b: Builder, x: Operand, dtype: DType) -> Tensor:
    """An operand as a tensor."""
    if isinstance(x, Tensor):
        return b.cast(x, dtype)
    if isinstance(x, Expr):
        return b.cast(b.reshape(b.sizes([x]), ()), dtype)
    return b.scalar(x, dtype)


def axes_given(dim: Any, rank: int) -> tuple[int, ...]:
    """Axes of a `dim` argument: none given means all of them."""
    if dim is None or dim == []:
        return tuple(range(rank))
    given = dim if isinstance(dim, (list, tuple)) else [dim]
    return tuple(d % max(rank, 1) for d in given) if rank else ()


def size(x: ExprLike) -> Expr:
    """A size as an expression."""
    return x if isinstance(x, Expr) else const(int(x))
