"""How an NNEF operation is declared: one decorated function that lowers it to core operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, TypeVar

from jangin.ir.dtype import BOOL, F32, I64, DType
from jangin.ir.expr import ExprLike
from jangin.ops.builder import Builder, Tensor

Lowering = Callable[..., Any]
F = TypeVar("F", bound=Lowering)
Operand = Tensor | float
"""An argument of tensor type: a tensor, or a literal in its place."""

DTYPES: Mapping[str, DType] = {"scalar": F32, "integer": I64, "logical": BOOL}
"""What NNEF's abstract types of numbers are computed in."""


def nnef(*names: str) -> Callable[[F], F]:
    """Declare the decorated function as the lowering of operations: `fn(b, **arguments)`, by the names that
    the standard gives its parameters; it gives a Tensor, or several."""

    def mark(fn: F) -> F:
        fn.__dict__["operations"] = names
        return fn

    return mark


class Table(dict[str, Lowering]):
    """Lowerings of operations that differ by a detail."""


def operations(modules: Iterable[ModuleType]) -> Mapping[str, Lowering]:
    """Every lowering that is declared in the modules, by its operation's name."""
    found: dict[str, Lowering] = {}
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, Table):
                found |= value
            found |= dict.fromkeys(getattr(value, "operations", ()), value)
    return found


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
