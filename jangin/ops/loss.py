"""Classification losses."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.ir.dtype import I64
from jangin.ir.expr import Buffer, Expr, cast, const, eq, select
from jangin.ir.graph import CompileError
from jangin.ops.axes import clamped
from jangin.ops.builder import Builder
from jangin.ops.elementwise import widen
from jangin.ops.index import in_range
from jangin.ops.reduce import reduce_over
from jangin.ops.values import Tensor


def nll_loss(
    b: Builder,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the negative log-likelihood of log-probabilities [N, C, ...] at the classes `target` [N, ...],
    in x's dtype.

    Each loss is multiplied by its class's weight [C], and is 0 for the class `ignore_index`. `reduction`:
    none [N, ...], sum, or the weighted mean.
    """
    if reduction not in ("none", "sum", "mean"):
        raise CompileError(f"reduction {reduction!r} is none of none, sum, mean")
    wide, classes = widen(b, x), x.shape[1]
    target = in_range(b, target, classes, from_end=False, ignored=ignore_index)
    weights = [] if weight is None else [widen(b, weight)]

    def share(bufs: Sequence[Buffer], label: Expr) -> Expr:
        """Return the weight of an element with this label, 0 for the label that is ignored."""
        own = bufs[2][clamped(label, classes)] if weights else const(1, wide.dtype)
        return own if ignore_index is None else select(eq(label, ignore_index), const(0, wide.dtype), own)

    def label(bufs: Sequence[Buffer], index: Sequence[Expr]) -> Expr:
        return cast(I64, bufs[1][tuple(index)])

    def loss(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        chosen = label(bufs, index)
        picked = bufs[0][(index[0], clamped(chosen, classes), *index[1:])]
        return -picked * share(bufs, chosen)

    inputs = [wide, target, *weights]
    each = b.compute(wide.dtype, target.shape, inputs, loss)
    if reduction == "none":
        return b.cast(each, x.dtype)
    axes = range(each.rank)
    if reduction == "mean" and weight is None and ignore_index is None:
        return b.cast(reduce_over(b, "mean", each, axes), x.dtype)
    total = b.reduce("sum", each, axes)
    if reduction == "mean":
        counts = b.compute(
            wide.dtype, target.shape, inputs, lambda bufs, *index: share(bufs, label(bufs, index))
        )
        total = b.map(lambda t, n: t / n, total, b.reduce("sum", counts, axes))
    return b.cast(total, x.dtype)


def cross_entropy_loss(
    b: Builder,
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:
    """Return the `nll_loss` of the log-softmax of scores [N, C, ...] over axis 1, and the
    log-probabilities."""
    log_prob = b.softmax(scores, 1, log=True)
    loss = nll_loss(b, log_prob, labels, weights, ignore_index=ignore_index, reduction=reduction)
    return loss, log_prob
