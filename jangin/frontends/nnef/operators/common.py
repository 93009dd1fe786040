"""Helpers of the lowerings of NNEF's operations.

`frontends.registry.lowers` declares a lowering. A lowering is called as `fn(b, **arguments)`, by the
standard's names of parameters, and returns one or several Tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jangin.ir.dtype import BOOL, F32, I64, DType
from jangin.ir.expr import ExprLike
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

Operand = Tensor | float
"""An argument of tensor type: a tensor, or a literal in its place."""

DTYPES: Mapping[str, DType] = {"scalar": F32, "integer": I64, "logical": BOOL}
"""The dtype in which each of NNEF's abstract types is computed."""


def tensor(b: Builder, value: Operand) -> Tensor:
    """Return an operand as a tensor. A literal becomes a tensor without axes."""
    if isinstance(value, Tensor):
        return value
    return b.scalar(value, BOOL if isinstance(value, bool) else I64 if isinstance(value, int) else F32)


def of_rank(b: Builder, x: Tensor, rank: int) -> Tensor:
    """Return x with axes of size 1 added at its end, up to this rank. NNEF aligns shapes at their first axes
    to broadcast them."""
    return x if x.rank in (0, rank) else b.reshape(x, [*x.shape, *[1] * (rank - x.rank)])


def aligned(b: Builder, *values: Operand) -> list[Tensor]:
    """Return operands as tensors that broadcast by NNEF's rules."""
    tensors = [tensor(b, v) for v in values]
    rank = max(t.rank for t in tensors)
    return [of_rank(b, t, rank) for t in tensors]


def mapped(b: Builder, fn: Callable[..., ExprLike], *values: Operand) -> Tensor:
    """Return the elementwise map of `fn` over operands, which broadcast by NNEF's rules."""
    return b.map(fn, *aligned(b, *values))
