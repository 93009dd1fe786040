"""Normalizations: by batch, instance, layer, group, root mean square, norm, neighbouring channels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from jangin.frontends.onnx.registry import op
from jangin.ir.dtype import F32, F64, DType
from jangin.ir.expr import Buffer, Expr, Load, call, cast, const, eq, land, select
from jangin.ir.graph import CompileError
from jangin.ir.te import Stage, reduction
from jangin.ops.axes import axes_of, axis_of, divide, element_type
from jangin.ops.builder import Builder, Tensor
from jangin.ops.elementwise import power, widen, widened
from jangin.ops.operands import wide
from jangin.ops.reduce import reduce_over


def per_channel(b: Builder, t: Tensor, rank: int, axis: int = 1) -> Tensor:
    """A vector over channels, shaped to broadcast against a tensor of `rank` with channels at `axis`."""
    return b.reshape(t, (*t.shape, *[1] * max(rank - axis - 1, 0))) if t.rank == 1 else t


def _scaled(b: Builder, x: Tensor, scale: Tensor, bias: Tensor | None, dtype: DType) -> Tensor:
    """x * scale + bias in `dtype`."""
    if bias is None:
        return b.map(lambda v, s: cast(dtype, wide(v) * cast(wide(v).dtype, s)), x, scale)

    def body(v: Expr, s: Expr, o: Expr) -> Expr:
        v = wide(v)
        return cast(dtype, v * cast(v.dtype, s) + cast(v.dtype, o))

    return b.map(body, x, scale, bias)


def _affine(
    b: Builder, x: Tensor, scale: Tensor, bias: Tensor, average: Tensor, variance: Tensor, epsilon: float
) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias as one multiplication and addition by
    channel, whose operands, each rounded once, fold where the statistics are constants."""
    dtype = F64 if x.dtype is F64 else F32

    def slope(s: Expr, v: Expr) -> Expr:
        return cast(F64, s) / call("sqrt", cast(F64, v) + epsilon)

    def shift(o: Expr, m: Expr, s: Expr, v: Expr) -> Expr:
        return cast(dtype, cast(F64, o) - cast(F64, m) * slope(s, v))

    factor = b.map(lambda s, v: cast(dtype, slope(s, v)), scale, variance)
    offset = b.map(shift, bias, average, scale, variance)
    if factor.rank == 1:
        factor, offset = per_channel(b, factor, x.rank), per_channel(b, offset, x.rank)
    return _scaled(b, x, factor, offset, x.dtype)


@op("BatchNormalization")
def batch_normalization(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    average: Tensor,
    variance: Tensor,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    is_test: int = 1,
) -> tuple[Tensor, None, None, None, None]:
    """By stored statistics; those of opset 13 and older are by element where `spatial` is 0. The
    older training outputs aren't given."""
    return _affine(b, x, scale, bias, average, variance, epsilon), None, None, None, None


@op("BatchNormalization", since=14)
def batch_normalization_14(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    average: Tensor,
    variance: Tensor,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """By stored statistics, or in training mode by the batch's, giving the running ones too."""
    if not training_mode:
        return _affine(b, x, scale, bias, average, variance, epsilon), None, None
    axes = [i for i in range(x.rank) if i != 1]
    wide_x = widen(b, x)
    centre = reduce_over(b, "mean", wide_x, axes, True)
    spread = reduce_over(b, "mean", b.map(lambda v, m: (v - m) * (v - m), wide_x, centre), axes, True)
    centre, spread = b.reshape(centre, scale.shape), b.reshape(spread, scale.shape)

    def running(old: Expr, new: Expr) -> Expr:
        return cast(old.dtype, cast(new.dtype, old) * momentum + new * (1 - momentum))

    y = _affine(b, x, scale, bias, centre, spread, epsilon)
    return y, b.map(running, average, centre), b.map(running, variance, spread)


@op("InstanceNormalization")
def instance_normalization(
    b: Builder, x: Tensor, scale: Tensor, bias: Tensor, epsilon: float = 1e-5
) -> Tensor:
    """Each channel of each item by its own statistics."""
    norm = b.normalize(widen(b, x), range(2, x.rank), epsilon)
    return _scaled(b, norm, per_channel(b, scale, x.rank), per_channel(b, bias, x.rank), x.dtype)


def layer_statistics(
    b: Builder, x: Tensor, axes: Sequence[int], epsilon: float, dtype: DType
) -> tuple[Tensor, Tensor]:
    """Mean and 1 / sqrt(variance + epsilon) over axes, kept as size 1."""
    x = widen(b, x)
    centre = reduce_over(b, "mean", x, axes, True)
    spread = reduce_over(b, "mean", b.map(lambda v, m: (v - m) * (v - m), x, centre), axes, True)
    inverse = b.map(lambda v: cast(dtype, 1 / call("sqrt", v + epsilon)), spread)
    return b.cast(centre, dtype), inverse


@op("LayerNormalization")
def layer_normalization(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Over the axes from `axis` on (Ba et al. 2016); gives also mean and inverse deviation."""
    axes = range(axis_of(axis, x.rank), x.rank)
    y = _scaled(b, b.normalize(widen(b, x), axes, epsilon), scale, bias, x.dtype)
    return y, *layer_statistics(b, x, axes, epsilon, element_type(stash_type))


def _rms(b: Builder, x: Tensor, scale: Tensor, axis: int, epsilon: float) -> Tensor:
    axes = range(axis_of(axis, x.rank), x.rank)
    return _scaled(b, b.normalize(widen(b, x), axes, epsilon, rms=True), scale, None, x.dtype)


@op("RMSNormalization")
def rms_normalization(
    b: Builder, x: Tensor, scale: Tensor, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    """x / sqrt(mean(x²) + epsilon) * scale over the axes from `axis` on (Zhang & Sennrich 2019)."""
    return _rms(b, x, scale, axis, epsilon)


@op("SimplifiedLayerNormalization")
@op("SimplifiedLayerNormalization", domain="com.microsoft")
def simplified_layer_normalization(
    b: Builder, x: Tensor, scale: Tensor, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Tensor, None]:
    """ONNX Runtime's name for RMSNormalization."""
    return _rms(b, x, scale, axis, epsilon), None


def _skip(b: Builder, x: Tensor, skip: Tensor, bias: Tensor | None) -> Tensor:
    extra = (skip,) if bias is None else (skip, bias)
    return b.map(widened(lambda *vs: sum(vs[1:], start=vs[0])), x, *extra)


@op("SkipLayerNormalization", domain="com.microsoft")
def skip_layer_normalization(
    b: Builder,
    x: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    epsilon: float = 1e-12,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LayerNormalization of x + skip + bias over the last axis; the sum is the fourth output."""
    total = _skip(b, x, skip, bias)
    return *layer_normalization(b, total, gamma, beta, epsilon=epsilon), total


@op("SkipSimplifiedLayerNormalization", domain="com.microsoft")
def skip_simplified_layer_normalization(
    b: Builder, x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None, epsilon: float = 1e-12
) -> tuple[Tensor, None, None, Tensor]:
    """RMSNormalization of x + skip + bias over the last axis; the sum is the fourth output."""
    total = _skip(b, x, skip, bias)
    return _rms(b, total, gamma, -1, epsilon), None, None, total


def _grouped(b: Builder, x: Tensor, groups: int, epsilon: float) -> Tensor:
    """[N, groups, elements], each row by its own statistics."""
    n, c, *rest = x.shape
    size = divide(c, const(groups), b.symbols)
    for d in rest:
        size = size * d
    return b.normalize(b.reshape(widen(b, x), (n, groups, size)), [2], epsilon)


@op("GroupNormalization", since=21)
def group_normalization(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Tensor:
    """Groups of channels by their own statistics, then scaled by channel (Wu & He 2018)."""
    norm = b.reshape(_grouped(b, x, num_groups, epsilon), x.shape)
    return _scaled(b, norm, per_channel(b, scale, x.rank), per_channel(b, bias, x.rank), x.dtype)


@op("GroupNormalization", since=18)
def group_normalization_18(
    b: Builder, x: Tensor, scale: Tensor, bias: Tensor, num_groups: int, epsilon: float = 1e-5
) -> Tensor:
    """As opset 21's, but scaled by group."""
    norm = _grouped(b, x, num_groups, epsilon)
    return b.reshape(_scaled(b, norm, per_channel(b, scale, 3), per_channel(b, bias, 3), x.dtype), x.shape)


@op("LpNormalization")
def lp_normalization(b: Builder, x: Tensor, axis: int = -1, p: int = 2) -> Tensor:
    """x over its 1- or 2-norm along `axis`; 0 where the norm is."""
    if p not in (1, 2):
        raise CompileError(f"LpNormalization knows p = 1 and 2, not {p}")
    powers = b.map(lambda v: call("abs", v) if p == 1 else v * v, widen(b, x))
    total = b.reduce("sum", powers, [axis_of(axis, x.rank)], True)
    norm = total if p == 1 else b.map(partial(call, "sqrt"), total)

    def body(v: Expr, n: Expr) -> Expr:
        zero = const(0, n.dtype)
        return cast(v.dtype, select(eq(n, zero), zero, wide(v) / n))

    return b.map(body, x, norm)


@op("MeanVarianceNormalization")
def mean_variance_normalization(b: Builder, x: Tensor, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    """(x - mean) / deviation; the standard's 1e-9 beside the deviation is its square beside the variance."""
    norm = b.normalize(widen(b, x), axes_of(axes, x.rank), 1e-18)
    return b.cast(norm, x.dtype)


@op("LRN")
def lrn(
    b: Builder, x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    """x / (bias + alpha / size * sum of squares over `size` neighbouring channels) ** beta
    (Krizhevsky et al. 2012)."""
    source, out = Buffer("x0", x.dtype, x.shape), Buffer("out", x.dtype, x.shape)
    before = (size - 1) // 2

    def square(index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        channel = index[1] + k[0] - before
        inside = land(channel >= 0, channel < x.shape[1])
        value = wide(Load(source, (index[0], channel, *index[2:])))
        return select(inside, value * value, const(0, value.dtype))

    def finish(acc: Expr, index: tuple[Expr, ...]) -> Expr:
        return wide(Load(source, index)) / power(acc * (alpha / size) + bias, beta)

    stage: Stage = reduction(out, [size], "sum", square, finish)
    return b.stages([stage], [x])
