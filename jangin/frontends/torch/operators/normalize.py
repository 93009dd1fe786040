"""Lower ATen's normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes

from jangin.frontends.registry import lowers
from jangin.frontends.torch.operators.common import Result
from jangin.ir.expr import Expr, call, cast
from jangin.ir.simplify import simplify
from jangin.ops import normalize as neutral
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.elementwise import widen
from jangin.ops.values import Tensor


def _ones(b: Builder, like: Tensor, count: Any) -> Tensor:
    return b.expand(b.scalar(1, like.dtype), [count])


@lowers("layer_norm", "native_layer_norm")
def layer_norm(
    b: Builder, out: Result, input: Tensor, normalized_shape: Sequence[Any], eps: float = 1e-5,
    weight: Tensor | None = None, bias: Tensor | None = None, cudnn_enable: bool = True,
) -> Any:  # fmt: skip
    """Return the input normalized over its last axes. The mean and 1 / sqrt(variance + eps) follow, computed
    only if they are read."""
    axis = input.rank - len(normalized_shape)
    y = b.normalize(widen(b, input), range(axis, input.rank), eps)
    if weight is not None:
        y = neutral.scale_shift(b, y, weight, bias, out.dtype)
    elif bias is not None:
        y = b.map(lambda v, o: v + o, y, b.cast(bias, y.dtype))
    y = b.cast(y, out.dtype)
    if len(out.all) == 1:
        return y
    if not any(out.wanted[1:]):
        return y, None, None
    centre, inverse = neutral.layer_statistics(b, input, axis, eps, out.all[1][0])
    return y, b.reshape(centre, out.all[1][1]), b.reshape(inverse, out.all[2][1])


@lowers("rms_norm", "_fused_rms_norm")
def rms_norm(
    b: Builder, out: Result, input: Tensor, normalized_shape: Sequence[Any], weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:  # fmt: skip
    """Return the input divided by its root mean square over the last axes. By default, `eps` is the machine
    epsilon of the input's type."""
    epsilon = float(ml_dtypes.finfo(input.dtype.numpy).eps) if eps is None else eps
    axes = range(input.rank - len(normalized_shape), input.rank)
    y = b.normalize(widen(b, input), axes, epsilon, rms=True)
    return b.cast(y if weight is None else neutral.scale_shift(b, y, weight, None, out.dtype), out.dtype)


@lowers("group_norm", "native_group_norm")
def group_norm(
    b: Builder, out: Result, input: Tensor, eps: float = 1e-5, weight: Tensor | None = None,
    bias: Tensor | None = None, num_groups: int = 0, group: int = 0, **given: Any,
) -> Any:  # fmt: skip
    groups = num_groups or group
    channels = input.shape[1]
    scale = weight if weight is not None else _ones(b, input, channels)
    shift = bias if bias is not None else b.expand(b.scalar(0, input.dtype), [channels])
    y = neutral.group_norm(b, input, scale, shift, groups=groups, epsilon=eps)
    if len(out.all) == 1:
        return y
    if not any(out.wanted[1:]):
        return y, None, None
    per = simplify(product(input.shape) // (input.shape[0] * groups), b.symbols)
    rows = b.reshape(input, [input.shape[0], groups, per])
    centre, inverse = neutral.layer_statistics(b, rows, 2, eps, out.all[1][0])
    return y, b.reshape(centre, out.all[1][1]), b.reshape(inverse, out.all[2][1])


@lowers("instance_norm")
def instance_norm(
    b: Builder, out: Result, input: Tensor, use_input_stats: bool, eps: float, momentum: float = 0.1,
    weight: Tensor | None = None, bias: Tensor | None = None, running_mean: Tensor | None = None,
    running_var: Tensor | None = None, cudnn_enabled: bool = True,
) -> Tensor:  # fmt: skip
    channels = input.shape[1]
    scale = weight if weight is not None else _ones(b, input, channels)
    shift = bias if bias is not None else b.expand(b.scalar(0, input.dtype), [channels])
    if use_input_stats:
        return neutral.instance_norm(b, input, scale, shift, epsilon=eps)
    assert running_mean is not None and running_var is not None
    return neutral.batch_norm(b, input, scale, shift, running_mean, running_var, epsilon=eps)


@lowers(
    "_native_batch_norm_legit_no_training", "_native_batch_norm_legit", "batch_norm", "native_batch_norm",
    "_batch_norm_no_update",
)  # fmt: skip
def batch_norm(
    b: Builder, out: Result, input: Tensor, eps: float, momentum: float = 0.1, training: bool = False,
    weight: Tensor | None = None, bias: Tensor | None = None, running_mean: Tensor | None = None,
    running_var: Tensor | None = None, **given: Any,
) -> Any:  # fmt: skip
    """Return the input normalized by the stored statistics. In training, it is normalized by the batch's own
    statistics. The mean and 1 / sqrt(variance + eps) then follow."""
    channels = input.shape[1]
    scale = weight if weight is not None else _ones(b, input, channels)
    shift = bias if bias is not None else b.expand(b.scalar(0, input.dtype), [channels])
    if not training and running_mean is not None and running_var is not None:
        y = neutral.batch_norm(b, input, scale, shift, running_mean, running_var, epsilon=eps)
        return (y, *(b.expand(b.scalar(0, d), s) for d, s in out.all[1:])) if len(out.all) > 1 else y
    y, centre, spread = neutral.normalized_batch(b, input, scale, shift, eps)
    if len(out.all) == 1:
        return b.cast(y, out.dtype)
    kinds = [d for d, _ in out.all]
    inverse = b.map(lambda v: cast(kinds[2], 1 / call("sqrt", v + eps)), spread)
    return b.cast(y, out.dtype), b.cast(centre, kinds[1]), inverse


@lowers("_native_batch_norm_legit_functional")
def batch_norm_functional(
    b: Builder, out: Result, input: Tensor, running_mean: Tensor, running_var: Tensor, training: bool,
    momentum: float, eps: float, weight: Tensor | None = None, bias: Tensor | None = None,
) -> Any:  # fmt: skip
    """Return the results of `batch_norm`, then the new running mean and variance. The variance that they are
    updated with is the unbiased one of the batch. Without training, they are unchanged."""
    if not training:
        first = Result(out.all[:3], out.wanted[:3], out.common)
        arguments = (momentum, training, weight, bias, running_mean, running_var)
        unchanged = (b.cast(t, d) for t, (d, _) in zip((running_mean, running_var), out.all[3:], strict=True))
        return *batch_norm(b, first, input, eps, *arguments), *unchanged
    channels = input.shape[1]
    scale = weight if weight is not None else _ones(b, input, channels)
    shift = bias if bias is not None else b.expand(b.scalar(0, input.dtype), [channels])
    y, centre, spread = neutral.normalized_batch(b, input, scale, shift, eps)
    inverse = b.map(lambda v: cast(out.all[2][0], 1 / call("sqrt", v + eps)), spread)
    count = simplify(product((*input.shape[:1], *input.shape[2:])), b.symbols)

    def kept(old: Expr, new: Expr) -> Expr:
        return cast(out.all[3][0], cast(new.dtype, old) * (1 - momentum) + new * momentum)

    def of_sample(old: Expr, new: Expr) -> Expr:
        n = cast(new.dtype, count)
        return kept(old, new * (n / (n - 1)))

    means, spreads = b.map(kept, running_mean, centre), b.map(of_sample, running_var, spread)
    return b.cast(y, out.dtype), b.cast(centre, out.all[1][0]), inverse, means, spreads
