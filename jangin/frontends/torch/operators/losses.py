"""Lower losses of ATen whose gradients aren't those of their formulas."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.frontends.registry import lowers
from jangin.frontends.torch.operators.common import Result
from jangin.ir.expr import Expr, call, maximum
from jangin.ops.builder import Builder
from jangin.ops.elementwise import widened
from jangin.ops.reduce import reduce_over
from jangin.ops.values import OwnGradient, Tensor

LEAST_LOG = -100.0
"""PyTorch's bound of logarithms, so that a loss is finite."""
LEAST_PRODUCT = 1e-12
"""PyTorch's least divisor in the gradient of a binary cross entropy."""
MEAN, SUM = 1, 2
"""PyTorch's numbers of reductions."""


def _log(x: Expr) -> Expr:
    return maximum(call("log", x), LEAST_LOG)


def _log_of_rest(x: Expr) -> Expr:
    """Return the logarithm of 1 - x."""
    return maximum(call("log1p", -x), LEAST_LOG)


@lowers("binary_cross_entropy")
def binary_cross_entropy(
    b: Builder, out: Result, self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """Return the cross entropy of probabilities. Those that are exactly 0 or 1 have finite slopes."""
    target = b.cast(target, self.dtype)
    loss = b.map(widened(lambda p, t: (t - 1.0) * _log_of_rest(p) - t * _log(p)), self, target)
    if loss.data is None:
        b.own_gradients.append(OwnGradient((self, target), (loss,), _of_binary_cross_entropy))
    if weight is not None:
        loss = b.map(lambda v, w: v * w, loss, b.cast(weight, loss.dtype))
    if reduction not in (MEAN, SUM):
        return loss
    return reduce_over(b, "mean" if reduction == MEAN else "sum", loss, range(loss.rank))


def _of_binary_cross_entropy(
    b: Builder, inputs: Sequence[Tensor], outputs: Sequence[Tensor], gs: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    probability, target = inputs

    def of_probability(g: Expr, p: Expr, t: Expr) -> Expr:
        return g * (p - t) / maximum(p * (1.0 - p), LEAST_PRODUCT)

    return (
        b.map(widened(of_probability), gs[0], probability, target),
        b.map(widened(lambda g, p: g * (_log_of_rest(p) - _log(p))), gs[0], probability),
    )
