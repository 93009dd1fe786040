"""Lower ONNX's normalizations, and ONNX Runtime's normalizations that are fused with an addition."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.frontends.onnx.operators.families import family
from jangin.frontends.onnx.registry import op
from jangin.frontends.onnx.types import element_type
from jangin.ops.axes import axes_of, per_channel
from jangin.ops.builder import Builder
from jangin.ops.elementwise import widen, widened
from jangin.ops.normalize import (
    batch_norm,
    batch_norm_training,
    group_norm,
    instance_norm,
    layer_norm,
    layer_statistics,
    local_response_norm,
    lp_normalize,
    normalize_groups,
    rms_norm,
    scale_shift,
)
from jangin.ops.values import Tensor

AS_THEY_ARE = family(
    {"InstanceNormalization": instance_norm, "LpNormalization": lp_normalize, "LRN": local_response_norm}
)
"""Operators whose attributes are the parameters of functions in `jangin.ops`."""


@op("BatchNormalization")
def batch_normalization(
    b: Builder, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, *,
    epsilon: float = 1e-5, momentum: float = 0.9, spatial: int = 1, is_test: int = 1,
) -> tuple[Tensor, None, None, None, None]:  # fmt: skip
    """Return x normalized by stored statistics. In opset 8 and older, they are for each element if `spatial`
    is 0. The outputs for training aren't computed."""
    return batch_norm(b, x, scale, bias, mean, variance, epsilon=epsilon), None, None, None, None


@op("BatchNormalization", since=14)
def batch_normalization_14(
    b: Builder, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, *,
    epsilon: float = 1e-5, momentum: float = 0.9, training_mode: int = 0,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    if training_mode:
        return batch_norm_training(b, x, scale, bias, mean, variance, epsilon=epsilon, momentum=momentum)
    return batch_norm(b, x, scale, bias, mean, variance, epsilon=epsilon), None, None


@op("LayerNormalization")
def layer_normalization(
    b: Builder, x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int = -1,
    epsilon: float = 1e-5, stash_type: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return x normalized over the axes from `axis` on. The other results are the mean and the inverse
    standard deviation, in the type `stash_type`."""
    y = layer_norm(b, x, scale, bias, axis=axis, epsilon=epsilon)
    return y, *layer_statistics(b, x, axis, epsilon, element_type(stash_type))


@op("RMSNormalization")
def rms_normalization(
    b: Builder, x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    return rms_norm(b, x, scale, axis=axis, epsilon=epsilon)


@op("SimplifiedLayerNormalization")
@op("SimplifiedLayerNormalization", domain="com.microsoft")
def simplified_layer_normalization(
    b: Builder, x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Tensor, None]:
    """Return RMSNormalization. ONNX Runtime has this name for it."""
    return rms_norm(b, x, scale, axis=axis, epsilon=epsilon), None


def _skip(b: Builder, x: Tensor, skip: Tensor, bias: Tensor | None) -> Tensor:
    extra = (skip,) if bias is None else (skip, bias)
    return b.map(widened(lambda *vs: sum(vs[1:], start=vs[0])), x, *extra)


@op("SkipLayerNormalization", domain="com.microsoft")
def skip_layer_normalization(
    b: Builder, x: Tensor, skip: Tensor, gamma: Tensor, beta: Tensor | None = None,
    bias: Tensor | None = None, *, epsilon: float = 1e-12,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return LayerNormalization of x + skip + bias over the last axis. The sum itself is the fourth
    result."""
    total = _skip(b, x, skip, bias)
    return *layer_normalization(b, total, gamma, beta, epsilon=epsilon), total


@op("SkipSimplifiedLayerNormalization", domain="com.microsoft")
def skip_simplified_layer_normalization(
    b: Builder, x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None, *, epsilon: float = 1e-12
) -> tuple[Tensor, None, None, Tensor]:
    """Return RMSNormalization of x + skip + bias over the last axis. The sum itself is the fourth result."""
    total = _skip(b, x, skip, bias)
    return rms_norm(b, total, gamma, epsilon=epsilon), None, None, total


@op("GroupNormalization", since=21)
def group_normalization(
    b: Builder, x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Tensor:  # fmt: skip
    return group_norm(b, x, scale, bias, groups=num_groups, epsilon=epsilon)


@op("GroupNormalization", since=18)
def group_normalization_18(
    b: Builder, x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5
) -> Tensor:
    """Return x normalized by groups as in opset 21, but with a scale and a bias for each group instead of
    each channel."""
    norm = normalize_groups(b, x, num_groups, epsilon)
    scaled = scale_shift(b, norm, per_channel(b, scale, 3), per_channel(b, bias, 3), x.dtype)
    return b.reshape(scaled, x.shape)


@op("MeanVarianceNormalization")
def mean_variance_normalization(b: Builder, x: Tensor, *, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    """Return (x - mean) / deviation. The standard adds 1e-9 to the standard deviation. Here its square is
    added to the variance, which avoids a division by 0 too."""
    norm = b.normalize(widen(b, x), axes_of(axes, x.rank), 1e-18)
    return b.cast(norm, x.dtype)
