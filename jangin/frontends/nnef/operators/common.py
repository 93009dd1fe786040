"""What NNEF's operations share.

One is declared by `frontends.registry.lowers`; its lowering is called as `fn(b, **arguments)`, by the names
that the standard gives its parameters, and gives a Tensor, or several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jangin.ir.dtype import BOOL, F32, I64, DType
from jangin.ir.expr import ExprLike
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

Operand = Tensor | float
"""An argument of tensor type: a tensor, or a literal in its place."""

DTYPES: Mapping[str, DType] = {"scalar": F32, "integer": I64, "logical": BOOL}
"""What NNEF's abstract types of numbers are computed in."""


def tensor(b: Builder, value: Operand) -> Tensor:
    """An operand as a tensor; a literal is one of no axes."""
    if isinstance(value, Tensor):
        return value
    return b.scalar(value, BOOL if isinstance(value, bool) else I64 if isinstance(value, int) else F32)


def of_rank(b: Builder, x: Tensor, rank: int) -> Tensor:
    """x with axes of size 1 at its end: NNEF aligns the shapes that it broadcasts at their first axes."""
    return x if x.rank in (0, rank) else b.reshape(x, [*x.shape, *[1] * (rank - x.rank)])


def aligned(b: Builder, *values: Operand) -> list[Tensor]:
    """Operands as tensors that broadcast as NNEF has it."""
    found = [tensor(b, v) for v in values]
    rank = max(t.rank for t in found)
    return [of_rank(b, t, rank) for t in found]


def mapped(b: Builder, fn: Callable[..., ExprLike], *values: Operand) -> Tensor:
    """`Builder.map` of operands that broadcast as NNEF has it."""
    return b.map(fn, *aligned(b, *values))
