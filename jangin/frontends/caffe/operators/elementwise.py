"""Lower layers that work element by element, with a blob of their own, or along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import numpy as np

from jangin.frontends.caffe.operators.common import Layer
from jangin.frontends.registry import Lowering, Table, lowers
from jangin.ir.dtype import F32, I64
from jangin.ir.expr import Expr, add, call, cast, const, maximum, mul, select
from jangin.ir.graph import CompileError
from jangin.ops import activation
from jangin.ops.axes import axis_of, per_channel, product
from jangin.ops.builder import Builder
from jangin.ops.elementwise import power
from jangin.ops.index import gather
from jangin.ops.normalize import moments
from jangin.ops.reduce import arg_extreme, reduce_over
from jangin.ops.select import top_k
from jangin.ops.values import Tensor


def _function(body: Callable[[Expr], Expr]) -> Lowering:
    return lambda layer: layer.b.map(body, layer.x())


FUNCTIONS = Table({
    "AbsVal": _function(lambda v: call("abs", v)), "BNLL": _function(activation.softplus),
    "Mish": _function(activation.mish), "ReLU6": _function(lambda v: activation.clip(v, 0.0, 6.0)),
    "Sigmoid": _function(activation.sigmoid),
    "TanH": _function(activation.tanh),
})  # fmt: skip


@lowers("Dropout", "Split")
def same(layer: Layer) -> list[Tensor]:
    """Return the bottom once for each top. Dropout does nothing in inference, and Split only copies."""
    layer.number("dropout_param.dropout_ratio")
    layer.flag("dropout_param.scale_train", True)
    return [layer.x()] * layer.tops


def _rectified(v: Expr, slope: float) -> Expr:
    """Return ReLU, leaky only if there is a slope, because 0 times an infinite number is NaN."""
    return activation.leaky_relu(v, slope) if slope else activation.relu(v)


@lowers("ReLU")
def relu(layer: Layer) -> Tensor:
    slope = layer.number("relu_param.negative_slope")
    return layer.b.map(lambda v: _rectified(v, slope), layer.x())


@lowers("CReLU")
def crelu(layer: Layer) -> Tensor:
    """Return the ReLU of x and of -x, concatenated (Shang et al. 2016). It is leaky if there is a slope."""
    b, x, p = layer.b, layer.x(), "crelu_param."
    slope, axis = (
        layer.number(p + "negative_slope"),
        layer.whole(p + "axis", layer.whole(p + "concat_axis", 1)),
    )
    parts = [b.map(lambda v, s=s: _rectified(v * s, slope), x) for s in (1.0, -1.0)]
    return b.concat(parts, axis_of(axis, x.rank))


@lowers("Clip")
def clip(layer: Layer) -> Tensor:
    ends = [layer.all(f"clip_param.{n}") for n in ("min", "max")]
    if not all(ends):
        raise CompileError("clip_param must have min and max")
    low, high = (layer.number(f"clip_param.{n}") for n in ("min", "max"))
    return layer.b.map(lambda v: activation.clip(v, low, high), layer.x())


@lowers("Swish")
def swish(layer: Layer) -> Tensor:
    beta = layer.number("swish_param.beta", 1)
    return layer.b.map(lambda v: activation.swish(v, beta), layer.x())


@lowers("BN")
def bn(layer: Layer) -> Tensor:
    """Normalize by factors and offsets for each channel. SegNet's contain the statistics. PSPNet's are
    followed by statistics, by which x is normalized first."""
    b, x, p = layer.b, layer.x(), "bn_param."
    mode, epsilon = (
        layer.choice(p + "bn_mode", ("LEARN", "INFERENCE"), "LEARN"),
        layer.number(p + "eps", 1e-5),
    )
    layer.number(p + "var_eps"), layer.number(p + "momentum"), layer.flag(p + "frozen", False)
    factor, offset, *statistics = (
        layer.constant(n, "factors").astype(np.float64).reshape(-1) for n in range(max(len(layer.blobs), 2))
    )
    if len(statistics) >= 2:
        mean, variance = statistics[:2]
        factor = factor / np.sqrt(variance + epsilon)
        offset = offset - mean * factor
    elif mode == "LEARN":
        raise CompileError("bn_mode: LEARN takes the statistics of the batch at hand: INFERENCE is supported")
    pair = [per_channel(b, b.const(a.astype(np.float32)), x.rank) for a in (factor, offset)]
    return b.map(lambda v, f, o: v * f + o, x, *pair)


@lowers("ELU")
def elu(layer: Layer) -> Tensor:
    alpha = layer.number("elu_param.alpha", 1)
    return layer.b.map(lambda v: activation.elu(v, alpha), layer.x())


@lowers("PReLU")
def prelu(layer: Layer) -> Tensor:
    b, x, slope = layer.b, layer.x(), layer.blob(0, "slopes")
    layer.flag("prelu_param.channel_shared", False)
    spread = per_channel(b, b.reshape(slope, [product(slope.shape)]), x.rank)
    return b.map(lambda v, s: activation.leaky_relu(v, s), x, spread)


@lowers("Power")
def power_(layer: Layer) -> Tensor:
    exponent, scale, shift = (
        layer.number(f"power_param.{n}", d) for n, d in (("power", 1), ("scale", 1), ("shift", 0))
    )

    def body(v: Expr) -> Expr:
        inner = activation.affine(v, scale, shift)
        return inner if exponent == 1 else power(inner, exponent)

    return layer.b.map(body, layer.x())


@lowers("Exp")
def exp(layer: Layer) -> Tensor:
    base, scale, shift = (
        layer.number(f"exp_param.{n}", d) for n, d in (("base", -1), ("scale", 1), ("shift", 0))
    )
    factor = 1.0 if base == -1 else math.log(base)
    return layer.b.map(lambda v: call("exp", activation.affine(v, scale * factor, shift * factor)), layer.x())


@lowers("Log")
def log(layer: Layer) -> Tensor:
    base, scale, shift = (
        layer.number(f"log_param.{n}", d) for n, d in (("base", -1), ("scale", 1), ("shift", 0))
    )
    factor = 1.0 if base == -1 else 1 / math.log(base)
    return layer.b.map(lambda v: call("log", activation.affine(v, scale, shift)) * factor, layer.x())


@lowers("Threshold")
def threshold(layer: Layer) -> Tensor:
    limit = layer.number("threshold_param.threshold")
    return layer.b.map(lambda v: cast(F32, v > limit), layer.x())


@lowers("Eltwise")
def eltwise(layer: Layer) -> Tensor:
    b = layer.b
    kind = layer.choice("eltwise_param.operation", ("PROD", "SUM", "MAX"), "SUM")
    factors = [float(v) for v in layer.all("eltwise_param.coeff")]
    layer.flag("eltwise_param.stable_prod_grad", True)
    if factors and (kind != "SUM" or len(factors) != len(layer.inputs)):
        raise CompileError(f"{len(factors)} coefficients don't fit {len(layer.inputs)} bottoms of a {kind}")
    parts = [b.map(lambda v, f=f: v * f, x) if f != 1 else x
             for x, f in zip(layer.inputs, factors or [1.0] * len(layer.inputs), strict=True)]  # fmt: skip
    if any(x.rank != parts[0].rank for x in parts):
        raise CompileError(f"its bottoms {', '.join(map(str, parts))} must have the same shape")
    combine = {"PROD": mul, "SUM": add, "MAX": maximum}[kind]
    return reduce(lambda x, y: b.map(combine, x, y), parts)


@lowers("BatchNorm")
def batch_norm(layer: Layer) -> Tensor:
    """Normalize by the mean and variance of training. Both blobs are divided by the number in the third
    blob."""
    b, x = layer.b, layer.x()
    epsilon = layer.number("batch_norm_param.eps", 1e-5)
    if not layer.flag("batch_norm_param.use_global_stats", True):
        raise CompileError("use_global_stats: false, of the batch at hand, is only for training")
    mean, variance, total = (layer.constant(n, "statistics").astype(np.float64).reshape(-1) for n in range(3))
    share = 0.0 if total[0] == 0 else 1 / total[0]
    factor = 1 / np.sqrt(variance * share + epsilon)
    pair = [per_channel(b, b.const(a.astype(np.float32)), x.rank) for a in (factor, -mean * share * factor)]
    return b.map(lambda v, f, o: v * f + o, x, *pair)


def _spread(b: Builder, t: Tensor, x: Tensor, axis: int) -> Tensor:
    """Reshape a blob or bottom, whose axes are those of x from `axis` on, so that it broadcasts with x."""
    if axis + t.rank > x.rank:
        raise CompileError(f"{t} reaches beyond the axes of {x}")
    return b.reshape(t, [*t.shape, *[1] * (x.rank - axis - t.rank)])


@lowers("Scale")
def scale(layer: Layer) -> Tensor:
    b, x = layer.b, layer.x()
    axis = layer.axis("scale_param.axis", 1)
    layer.whole("scale_param.num_axes", 1)
    learned = len(layer.inputs) == 1
    y = b.map(lambda v, f: v * f, x, _spread(b, layer.blob(0, "factors") if learned else layer.x(1), x, axis))
    if layer.flag("scale_param.bias_term", False):
        y = b.map(lambda v, o: v + o, y, _spread(b, layer.blob(int(learned), "offsets"), x, axis))
    return y


@lowers("Bias")
def bias(layer: Layer) -> Tensor:
    b, x = layer.b, layer.x()
    axis = layer.axis("bias_param.axis", 1)
    layer.whole("bias_param.num_axes", 1)
    offset = layer.blob(0, "offsets") if len(layer.inputs) == 1 else layer.x(1)
    return b.map(lambda v, o: v + o, x, _spread(b, offset, x, axis))


@lowers("Axpy")
def axpy(layer: Layer) -> Tensor:
    """Return factor * x + y, where the first bottom has a factor for each channel."""
    b = layer.b
    factor, x, y = (layer.x(n) for n in range(3))
    spread = b.reshape(factor, [*factor.shape[:2], *[1] * (x.rank - 2)])
    return b.map(lambda f, v, w: f * v + w, spread, x, y)


@lowers("MVN")
def mvn(layer: Layer) -> Tensor:
    """Subtract the mean, and divide by the standard deviation plus epsilon."""
    b, x = layer.b, layer.x()
    axes = list(range(1 if layer.flag("mvn_param.across_channels", False) else 2, x.rank))
    epsilon = layer.number("mvn_param.eps", 1e-9)
    stats = moments(b, x, axes)
    if not layer.flag("mvn_param.normalize_variance", True):
        return stats.centred
    return b.map(lambda v, s: v / (call("sqrt", s) + epsilon), stats.centred, stats.variance)


@lowers("Normalize")
def normalize(layer: Layer) -> Tensor:
    """Divide by the 2-norm of each position's channels, or of all elements of an image. Multiply by learned
    factors."""
    b, x = layer.b, layer.x()
    axes = range(1, x.rank) if layer.flag("norm_param.across_spatial", True) else [1]
    epsilon = layer.number("norm_param.eps", 1e-10)
    layer.flag("norm_param.channel_shared", True)
    factor = layer.blob(0, "factors")
    total = b.reduce("sum", b.map(lambda v: v * v, x), list(axes), True)
    spread = per_channel(b, b.reshape(factor, [product(factor.shape)]), x.rank)
    return b.map(lambda v, t, f: v / call("sqrt", t + epsilon) * f, x, total, spread)


@lowers("Softmax")
def softmax(layer: Layer) -> Tensor:
    return layer.b.softmax(layer.x(), layer.axis("softmax_param.axis", 1))


REDUCTIONS = {"": "", "SUM": "sum", "ASUM": "l1_norm", "SUMSQ": "sum_of_squares", "MEAN": "mean"}


@lowers("Reduction")
def reduction(layer: Layer) -> Tensor:
    """Reduce all axes from `axis` on to one number each, and multiply it by `coeff`."""
    b, x = layer.b, layer.x()
    kind = layer.choice("reduction_param.operation", list(REDUCTIONS), "SUM")
    axes = list(range(layer.axis("reduction_param.axis", 0), x.rank))
    factor = layer.number("reduction_param.coeff", 1)
    y = reduce_over(b, REDUCTIONS[kind], x, axes)
    return y if factor == 1 else b.map(lambda v: v * factor, y)


def _best(b: Builder, x: Tensor, count: int, axis: int) -> tuple[Tensor, Tensor]:
    """Return the largest elements along an axis and their positions. The last of equal elements is first."""
    if count == 1:
        return b.reduce("max", x, [axis], True), arg_extreme(b, x, axis, "max", last=True, keepdims=True)
    end = x.shape[axis] - 1
    starts = [end if i == axis else const(0) for i in range(x.rank)]
    backwards = b.slice(x, starts, x.shape, [-1 if i == axis else 1 for i in range(x.rank)])
    best, where = top_k(b, backwards, const(count), axis=axis)
    return best, b.map(lambda at: end - at, where)


@lowers("ArgMax")
def arg_max(layer: Layer) -> Tensor:
    """Return the positions of the largest elements as floats. The last of equal elements is first, as Caffe
    sorts pairs of a value and its position. With `out_max_val`, their values are added, or replace the
    positions if an axis is given."""
    b, x = layer.b, layer.x()
    count, values = layer.whole("argmax_param.top_k", 1), layer.flag("argmax_param.out_max_val", False)
    along = layer.all("argmax_param.axis")
    rows = x if along else b.reshape(x, [x.shape[0], product(x.shape[1:])])
    axis = layer.axis("argmax_param.axis", 0) if along else 1
    best, where = _best(b, rows, count, axis)
    places = b.cast(where, F32)
    if along:
        return best if values else places
    parts = [b.reshape(t, [x.shape[0], 1, count]) for t in ((places, best) if values else (places,))]
    return b.concat(parts, 1) if values else parts[0]


@lowers("Embed")
def embed(layer: Layer) -> Tensor:
    b, table = layer.b, layer.blob(0, "table")
    indices = b.map(lambda v: cast(I64, select(v < 0, v - 0.5, v + 0.5)), layer.x())
    rows, width = layer.whole("embed_param.input_dim"), layer.whole("embed_param.num_output")
    y = gather(b, b.reshape(table, [rows, width]), indices, from_end=False)
    if layer.flag("embed_param.bias_term", True):
        y = b.map(lambda v, o: v + o, y, b.reshape(layer.blob(1, "biases"), [width]))
    return y
