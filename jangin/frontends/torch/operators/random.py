"""Lower ATen's random operators. In a graph that is trained, each step draws other numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jangin.frontends.registry import Table, lowers
from jangin.frontends.torch.operators.common import Result
from jangin.ir.graph import CompileError
from jangin.ops.builder import Builder
from jangin.ops.dropout import Shape, chosen, dropout, normal, uniform
from jangin.ops.values import Tensor


@lowers("native_dropout")
def native_dropout(
    b: Builder, out: Result, input: Tensor, p: float, train: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the input with random elements set to 0, and a mask of those that are kept. In inference, all
    are kept.

    Raises CompileError if elements are to be dropped in a graph that isn't trained, unless all of them are
    dropped."""
    if train and p == 1:
        return b.map(lambda v: v * 0, input), b.expand(b.scalar(False, out.all[1][0]), out.all[1][1])
    if train and p and b.trained:
        return dropout(b, input, p)
    if train and p:
        raise CompileError(f"dropout of {p} in training: export the model in eval mode")
    return input, b.expand(b.scalar(True, out.all[1][0]), out.all[1][1])


@lowers("bernoulli.p")
def bernoulli(b: Builder, out: Result, self: Tensor, p: float = 0.5, generator: Any = None) -> Tensor:
    """Return ones with probability `p`, and zeros. The contents of `self` don't matter."""
    _needs_training(b, "bernoulli")
    return b.cast(chosen(b, out.shape, p), out.dtype)


def _numbers(name: str, draw: Callable[[Builder, Shape], Tensor]) -> Any:
    def lower(b: Builder, out: Result, **given: Any) -> Tensor:
        _needs_training(b, name)
        return b.cast(draw(b, out.shape), out.dtype)

    return lower


def _needs_training(b: Builder, name: str) -> None:
    if not b.trained:
        raise CompileError(f"{name} draws other numbers in each run: export the model in eval mode")


NUMBERS = Table({
    "rand": _numbers("rand", uniform), "rand_like": _numbers("rand_like", uniform),
    "randn": _numbers("randn", normal), "randn_like": _numbers("randn_like", normal),
})  # fmt: skip
"""Lowerings of operators that return random numbers of a distribution."""
