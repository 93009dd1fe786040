"""Normalizations: batch, instance, group, layer, root mean square, p-norm, local response.

All are computed in f32 (f64 for f64) and return x's dtype and shape. Tensors with channels have shape [N, C,
...].
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from jangin.ir.dtype import F32, F64, DType
from jangin.ir.expr import Buffer, Const, Expr, Load, call, cast, const, eq, land, select
from jangin.ir.graph import CompileError
from jangin.ir.simplify import simplify
from jangin.ir.te import reduction
from jangin.ops.axes import axis_of, divide, per_channel, product
from jangin.ops.builder import Builder
from jangin.ops.elementwise import power, widen
from jangin.ops.operands import wide
from jangin.ops.reduce import reduce_over
from jangin.ops.values import OwnGradient, Tensor
from jangin.ops.window import check_taps


def scale_shift(b: Builder, x: Tensor, scale: Tensor, shift: Tensor | None, dtype: DType) -> Tensor:
    """Return x * scale + shift with broadcasting, rounded to `dtype` at the end."""
    if shift is None:
        return b.map(lambda v, s: cast(dtype, wide(v) * cast(wide(v).dtype, s)), x, scale)

    def body(v: Expr, s: Expr, o: Expr) -> Expr:
        v = wide(v)
        return cast(dtype, v * cast(v.dtype, s) + cast(v.dtype, o))

    return b.map(body, x, scale, shift)


class Moments(NamedTuple):
    """`centred`: x less its mean. Mean and variance are over axes, kept as size 1."""

    centred: Tensor
    mean: Tensor
    variance: Tensor


def moments(b: Builder, x: Tensor, axes: Sequence[int]) -> Moments:
    """Return mean and variance of x over `axes`, in f32, or f64 for f64.

    The mean is subtracted twice: the second mean removes the first one's rounding error, which matters if
    numbers lie far from 0 and close together.
    """
    x = widen(b, x)
    mean = reduce_over(b, "mean", x, axes, True)
    near = b.map(lambda v, m: v - m, x, mean)
    rest = reduce_over(b, "mean", near, axes, True)
    centred = b.map(lambda v, m: v - m, near, rest)
    variance = reduce_over(b, "mean", b.map(lambda v: v * v, centred), axes, True)
    return Moments(centred, b.map(lambda m, r: m + r, mean, rest), variance)


def batch_norm(
    b: Builder, x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor, *, epsilon: float
) -> Tensor:
    """Return batch normalization by stored statistics: (x - mean) / sqrt(variance + epsilon) * scale + shift
    (Ioffe & Szegedy 2015).

    Each operand is [C] or broadcasts to x. The kernel is one multiplication and addition by channel. Its
    factor and offset are each rounded once, and fold if the statistics are constants.
    """
    dtype = F64 if x.dtype is F64 else F32

    def slope(s: Expr, v: Expr) -> Expr:
        return cast(F64, s) / call("sqrt", cast(F64, v) + epsilon)

    def moved(o: Expr, m: Expr, s: Expr, v: Expr) -> Expr:
        return cast(dtype, cast(F64, o) - cast(F64, m) * slope(s, v))

    factor = b.map(lambda s, v: cast(dtype, slope(s, v)), scale, variance)
    offset = b.map(moved, shift, mean, scale, variance)
    if factor.rank == 1:
        factor, offset = per_channel(b, factor, x.rank), per_channel(b, offset, x.rank)
    return scale_shift(b, x, factor, offset, x.dtype)


def batch_norm_training(
    b: Builder, x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor, *, epsilon: float,
    momentum: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return `batch_norm` by the batch's own statistics, and the new running mean and variance [C]. A running
    value is the old one times `momentum`, plus the batch's times 1 - momentum."""
    y, centre, spread = normalized_batch(b, x, scale, shift, epsilon)

    def running(old: Expr, new: Expr) -> Expr:
        return cast(old.dtype, cast(new.dtype, old) * momentum + new * (1 - momentum))

    return y, b.map(running, mean, centre), b.map(running, variance, spread)


def normalized_batch(
    b: Builder, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize each channel over all items, times `scale` [C] plus `shift` [C]. Return the result, and the
    mean and variance [C]."""
    statistics = moments(b, x, [i for i in range(x.rank) if i != 1])
    norm = b.map(lambda v, s: v * (1 / call("sqrt", s + epsilon)), statistics.centred, statistics.variance)
    y = scale_shift(b, norm, per_channel(b, scale, x.rank), per_channel(b, shift, x.rank), x.dtype)
    saved = statistics.centred, statistics.variance
    function = partial(_of_normalized_batch, saved=saved, epsilon=epsilon)
    b.own_gradients.append(OwnGradient((x, scale, shift), (y,), function, saved))
    return y, b.reshape(statistics.mean, scale.shape), b.reshape(statistics.variance, scale.shape)


def _of_normalized_batch(
    b: Builder, inputs: Sequence[Tensor], outputs: Sequence[Tensor], gs: Sequence[Tensor], *,
    saved: tuple[Tensor, Tensor], epsilon: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the gradients of `normalized_batch`. The sums of g and of g x̂ come first. One more pass makes
    scale / deviation (g - mean(g) - x̂ mean(g x̂)), the gradient of x."""
    (x, scale, shift), (centred, variance) = inputs, saved
    axes = [i for i in range(x.rank) if i != 1]
    count = cast(centred.dtype, simplify(product(x.shape[i] for i in axes), b.symbols))
    g = b.cast(gs[0], centred.dtype)
    inverse = b.map(lambda s: 1 / call("sqrt", s + epsilon), variance)
    total = b.reduce("sum", g, axes, True)
    along = b.reduce("sum", b.map(lambda v, c: v * c, g, centred), axes, True)
    slope = b.map(lambda i, s: i * cast(i.dtype, s), inverse, per_channel(b, scale, x.rank))
    bend = b.map(lambda a, i: a * i * i / count, along, inverse)
    mean = b.map(lambda t: t / count, total)
    of_input = b.map(lambda v, c, k, m, q: k * (v - m - c * q), g, centred, slope, mean, bend)
    of_scale = b.map(lambda a, i: a * i, along, inverse)
    parts = (b.cast(b.reshape(t, like.shape), like.dtype) for t, like in ((of_scale, scale), (total, shift)))
    return b.cast(of_input, x.dtype), *parts


def instance_norm(b: Builder, x: Tensor, scale: Tensor, shift: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    """Normalize each channel of each item, times `scale` [C] plus `shift` [C] (Ulyanov et al. 2016)."""
    norm = b.normalize(widen(b, x), range(2, x.rank), epsilon)
    return scale_shift(b, norm, per_channel(b, scale, x.rank), per_channel(b, shift, x.rank), x.dtype)


def layer_norm(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    shift: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
) -> Tensor:
    """Normalize over the axes from `axis` on, times `scale` plus `shift`, broadcast to x (Ba et al. 2016)."""
    axes = range(axis_of(axis, x.rank), x.rank)
    return scale_shift(b, b.normalize(widen(b, x), axes, epsilon), scale, shift, x.dtype)


def layer_statistics(b: Builder, x: Tensor, axis: int, epsilon: float, dtype: DType) -> tuple[Tensor, Tensor]:
    """Return the statistics of `layer_norm`: mean and 1 / sqrt(variance + epsilon) over the axes from `axis`
    on, kept as size 1, in `dtype`."""
    statistics = moments(b, x, range(axis_of(axis, x.rank), x.rank))
    inverse = b.map(lambda v: cast(dtype, 1 / call("sqrt", v + epsilon)), statistics.variance)
    return b.cast(statistics.mean, dtype), inverse


def rms_norm(b: Builder, x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5) -> Tensor:
    """Return x / sqrt(mean(x²) + epsilon) * scale over the axes from `axis` on (Zhang & Sennrich 2019)."""
    axes = range(axis_of(axis, x.rank), x.rank)
    return scale_shift(b, b.normalize(widen(b, x), axes, epsilon, rms=True), scale, None, x.dtype)


def normalize_groups(b: Builder, x: Tensor, groups: int, epsilon: float) -> Tensor:
    """Return [N, groups, elements] in f32 or f64: each group of neighbouring channels normalized by
    itself."""
    n, c, *rest = x.shape
    size = divide(c, const(groups), b.symbols)
    for d in rest:
        size = size * d
    return b.normalize(b.reshape(widen(b, x), (n, groups, size)), [2], epsilon)


def group_norm(
    b: Builder, x: Tensor, scale: Tensor, shift: Tensor, *, groups: int, epsilon: float = 1e-5
) -> Tensor:
    """Normalize each group of channels, times `scale` [C] plus `shift` [C] (Wu & He 2018)."""
    norm = b.reshape(normalize_groups(b, x, groups, epsilon), x.shape)
    return scale_shift(b, norm, per_channel(b, scale, x.rank), per_channel(b, shift, x.rank), x.dtype)


def lp_normalize(b: Builder, x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """Return x divided by its 1- or 2-norm along `axis`; 0 if the norm is 0. Raises CompileError for another
    p."""
    if p not in (1, 2):
        raise CompileError(f"normalizing by the p-norm knows p = 1 and 2, not {p}")
    powers = b.map(lambda v: call("abs", v) if p == 1 else v * v, widen(b, x))
    total = b.reduce("sum", powers, [axis_of(axis, x.rank)], True)
    norm = total if p == 1 else b.map(partial(call, "sqrt"), total)

    def body(v: Expr, n: Expr) -> Expr:
        zero = const(0, n.dtype)
        return cast(v.dtype, select(eq(n, zero), zero, wide(v) / n))

    return b.map(body, x, norm)


def local_response_norm(
    b: Builder, x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    """Return x / (bias + alpha / size * sum of squares over `size` neighbouring channels) ** beta (Krizhevsky
    et al. 2012)."""
    source, out = Buffer("x0", x.dtype, x.shape), Buffer("out", x.dtype, x.shape)
    before, taps = (size - 1) // 2, size
    if isinstance(x.shape[1], Const):  # neighbours beyond the number of channels don't exist
        furthest = max(int(x.shape[1].value) - 1, 0)
        before, after = min(before, furthest), min(size // 2, furthest)
        taps = before + 1 + after
    check_taps((taps,))

    def square(index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        channel = index[1] + k[0] - before
        inside = land(channel >= 0, channel < x.shape[1])
        value = wide(Load(source, (index[0], channel, *index[2:])))
        return select(inside, value * value, const(0, value.dtype))

    def finish(acc: Expr, index: tuple[Expr, ...]) -> Expr:
        return wide(Load(source, index)) / power(acc * (alpha / size) + bias, beta)

    return b.stages([reduction(out, [taps], "sum", square, finish)], [x])
