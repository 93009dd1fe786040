"""Losses by name. A loss is a single number, computed from a model's output and a target. The formulas are
PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from jangin.ir.dtype import I32, I64
from jangin.ir.expr import Const, Expr, call, cast, const, eq, maximum, select
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.simplify import simplify
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.index import in_range, take_along
from jangin.ops.values import OwnGradient, Tensor

Loss = Callable[[Builder, Tensor, Tensor], Tensor]
"""A function that returns the loss of an output for a target, as a tensor without axes."""
IGNORED = -100
"""The label of elements that the loss ignores, as in PyTorch."""


def mean(b: Builder, x: Tensor) -> Tensor:
    count = simplify(product(x.shape))
    return b.map(lambda v: v / cast(v.dtype, count), b.reduce("sum", x, range(x.rank)))


def _of_each(b: Builder, y: Tensor, target: Tensor, fn: Callable[[Expr, Expr], Expr]) -> Tensor:
    """Return the mean of `fn` over the elements of the output and the target."""
    return mean(b, b.map(lambda v, t: fn(v, cast(v.dtype, t)), *_alike(y, target), corner="shared"))


def _alike(y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    if y.shape != target.shape:
        raise CompileError(f"a target {target} for an output {y}: the shapes must be the same")
    return y, target


def mse(b: Builder, y: Tensor, target: Tensor) -> Tensor:
    return _of_each(b, y, target, lambda v, t: (v - t) * (v - t))


def l1(b: Builder, y: Tensor, target: Tensor) -> Tensor:
    return _of_each(b, y, target, lambda v, t: call("abs", v - t))


def huber(b: Builder, y: Tensor, target: Tensor, delta: float = 1.0) -> Tensor:
    """Return Huber's loss (1964). It is quadratic for differences below `delta`, and linear for larger
    ones."""

    def each(v: Expr, t: Expr) -> Expr:
        d = v - t
        size = call("abs", d)
        return select(size < delta, d * d * 0.5, (size - 0.5 * delta) * delta)

    return _of_each(b, y, target, each)


def bce_with_logits(b: Builder, y: Tensor, target: Tensor) -> Tensor:
    """Return the binary cross entropy of an output of logits."""

    def each(v: Expr, t: Expr) -> Expr:
        return v * (1.0 - t) + maximum(-v, 0) + call("log1p", call("exp", -call("abs", v)))

    return _of_each(b, y, target, each)


def kl(b: Builder, y: Tensor, target: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence of target probabilities from an output of log-probabilities,
    divided by the batch size."""

    def each(v: Expr, t: Expr) -> Expr:
        return select(t > 0, t * (call("log", t) - v), const(0, v.dtype))

    total = b.reduce("sum", b.map(lambda v, t: each(v, cast(v.dtype, t)), *_alike(y, target)), range(y.rank))
    return b.map(lambda v: v / cast(v.dtype, y.shape[0]), total)


def nll(b: Builder, y: Tensor, target: Tensor, ignored: int = IGNORED, smoothing: float = 0.0) -> Tensor:
    """Return the mean negative log-likelihood of the labels [N, ...], given log-probabilities y[N, C, ...].
    `smoothing` is the share of each label that is spread over all classes."""
    if not target.dtype.is_int or target.shape != (*y.shape[:1], *y.shape[2:]):
        raise CompileError(
            f"labels {target} for an output {y}: they must be integers, with the output's axes but the one "
            "of classes"
        )
    kept = b.map(lambda t: select(_is_ignored(t, ignored), const(0, t.dtype), t), target)
    in_range(b, target, y.shape[1], from_end=False, ignored=ignored)
    places = b.reshape(kept, (*y.shape[:1], const(1), *y.shape[2:]))
    at = b.reshape(take_along(b, y, places, 1), target.shape)
    each = b.map(lambda v: -v, at)
    if smoothing:
        total = b.reduce("sum", y, [1])
        share = cast(y.dtype, y.shape[1])
        each = b.map(lambda v, t: v * (1 - smoothing) - t * smoothing / share, each, total)
    counted = b.map(lambda v, t: select(_is_ignored(t, ignored), const(0, v.dtype), v), each, target)
    count = _kept(b, y, target, ignored)
    return b.map(lambda v, n: v / n, b.reduce("sum", counted, range(target.rank)), count)


def _is_ignored(label: Expr, ignored: int) -> Expr:
    """Return whether a label is ignored. In bytes, -100 would be the label 156."""
    return eq(cast(I64, label), ignored)


def _kept(b: Builder, y: Tensor, target: Tensor, ignored: int) -> Tensor:
    """Return the number of labels that count."""
    zero, one = const(0, y.dtype), const(1, y.dtype)
    counts = b.map(lambda t: select(_is_ignored(t, ignored), zero, one), target)
    return b.reduce("sum", counts, range(target.rank))


def cross_entropy(
    b: Builder, y: Tensor, target: Tensor, ignored: int = IGNORED, smoothing: float = 0.0
) -> Tensor:
    """Return the cross entropy of logits y[N, C, ...]: `nll` of the logarithm of their softmax."""
    if y.rank < 2:
        raise CompileError(f"the logits {y} must have an axis of batches and one of classes")
    logs = b.softmax(y, 1, log=True)
    loss = nll(b, logs, target, ignored, smoothing)
    if isinstance(y.shape[1], Const):
        function = partial(_of_cross_entropy, logs=logs, ignored=ignored, smoothing=smoothing)
        b.own_gradients.append(OwnGradient((y, target), (loss,), function, (logs,)))
    return loss


def _of_cross_entropy(
    b: Builder, inputs: Sequence[Tensor], outputs: Sequence[Tensor], gs: Sequence[Tensor], *, logs: Tensor,
    ignored: int, smoothing: float,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return the gradient of `cross_entropy`: the softmax minus a class's share of the label, times the
    label's share of the mean. It needs no sum over classes."""
    (y, target), classes = inputs, static_shape(logs.shape[1:2])
    assert classes is not None
    weight = b.map(
        lambda g, n, t: select(_is_ignored(t, ignored), const(0, g.dtype), g / n),
        gs[0], _kept(b, y, target, ignored), target,
    )  # fmt: skip
    numbers = b.const(np.arange(*classes, dtype=np.int32).reshape(*classes, *(1,) * (y.rank - 2)))

    def each(v: Expr, label: Expr, w: Expr, number: Expr) -> Expr:
        share = const(smoothing / classes[0], v.dtype)
        own = const(1 - smoothing + smoothing / classes[0], v.dtype)
        return (call("exp", v) - select(eq(cast(I32, label), number), own, share)) * w

    per_label = (*y.shape[:1], const(1), *y.shape[2:])
    return b.map(each, logs, b.reshape(target, per_label), b.reshape(weight, per_label), numbers), None


BY_NAME: Mapping[str, Loss] = {
    "cross_entropy": cross_entropy, "mse": mse, "l1": l1, "huber": huber, "nll": nll, "kl": kl,
    "bce_with_logits": bce_with_logits,
}  # fmt: skip
"""The losses that `jangin.train` takes by name."""
