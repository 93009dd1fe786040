"""Lower convolutions, matrix products and pools. Images are [N, H, W, C], and filters are [out, H, W, in]."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jangin.frontends.registry import lowers
from jangin.frontends.tflite.fixed import Multiplier
from jangin.frontends.tflite.operators import hybrid
from jangin.frontends.tflite.operators.common import (
    Call,
    Factors,
    Quantization,
    activated,
    is_rounded_up,
    limits,
    real,
    requantized,
)
from jangin.ir.dtype import F32, F64, I8, I16, I32, I64, U8
from jangin.ir.expr import Const, Expr, binary, cast, const, maximum, minimum, select
from jangin.ir.expr import call as intrinsic
from jangin.ir.graph import Array, CompileError, static_shape
from jangin.ir.simplify import simplify
from jangin.ops import conv as neutral
from jangin.ops import pool
from jangin.ops.axes import channels_first, channels_last, divide, product
from jangin.ops.builder import Builder
from jangin.ops.quantized import integer_conv, integer_matmul
from jangin.ops.values import Tensor
from jangin.ops.window import Window, same_pads

SAME, VALID = 0, 1
"""The paddings by their numbers in TFLite's schema."""


def _pads(
    call: Call, x: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[Expr]:
    """Return the pads of x before each spatial axis, then those after each. The channels of x are axis 1."""
    if call.options["padding"] == SAME:
        return same_pads(x.shape[2:], kernel, strides, dilations, call.b.symbols)
    return [const(0)] * (2 * len(kernel))


def _strides(call: Call) -> tuple[list[int], list[int]]:
    o = call.options
    return [o["stride_h"], o["stride_w"]], [o.get("dilation_h_factor", 1), o.get("dilation_w_factor", 1)]


def _filters(b: Builder, w: Tensor) -> Tensor:
    """Return filters [out, H, W, in] as [out, in, H, W]."""
    return b.transpose(w, [0, 3, 1, 2])


@lowers("CONV_2D")
def conv_2d(call: Call) -> Tensor:
    x = channels_first(call.b, call.x())
    w = _filters(call.b, call.x(1))
    return _convolved(call, x, w, divide(x.shape[1], w.shape[1], call.b.symbols))


@lowers("CONV_3D")
def conv_3d(call: Call) -> Tensor:
    """Return the convolution of x [N, D, H, W, C] and filters [D, H, W, in, out]."""
    b, o = call.b, call.options
    call.only_floats()
    x, w = channels_first(b, call.x()), b.transpose(call.x(1), [4, 3, 0, 1, 2])
    strides, dilations = ([o[name.format(d)] for d in "dhw"] for name in ("stride_{}", "dilation_{}_factor"))
    kernel, count = static_shape(w.shape[2:]), static_shape((divide(x.shape[1], w.shape[1], b.symbols),))
    if kernel is None or count is None:
        raise CompileError(f"the filters {w} and the channels of {x} must be known")
    pads = _pads(call, x, kernel, strides, dilations)
    y = neutral.conv(
        b, x, w, call.optional(2), strides=strides, dilations=dilations, pads=pads, groups=count[0]
    )
    return activated(call, channels_last(b, y))


@lowers("CONV_3D_TRANSPOSE")
def conv_3d_transpose(call: Call) -> Tensor:
    """Return a transposed convolution. Its inputs are the result's shape, filters [D, H, W, out, in], x and
    an optional bias."""
    b, o = call.b, call.options
    x, w = channels_first(b, call.x(2)), b.transpose(call.x(1), [4, 3, 0, 1, 2])
    y = _transposed(call, x, w, call.optional(3), [o[f"stride_{d}"] for d in "dhw"])
    return activated(call, channels_last(b, y))


@lowers("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(call: Call) -> Tensor:
    """Return a convolution of each channel alone. The filters are [1, H, W, C * multiplier]."""
    x = channels_first(call.b, call.x())
    w = call.b.transpose(call.x(1), [3, 0, 1, 2])
    return _convolved(call, x, w, x.shape[1])


def _convolved(call: Call, x: Tensor, w: Tensor, groups: Expr) -> Tensor:
    kernel, count = static_shape(w.shape[2:]), static_shape((groups,))
    if kernel is None or count is None:
        raise CompileError(f"the filters {w} and the channels of {x} must be known")
    strides, dilations = _strides(call)
    pads = _pads(call, x, kernel, strides, dilations)
    kwargs = {"strides": strides, "dilations": dilations, "pads": pads, "groups": count[0]}
    b = call.b
    if hybrid.is_hybrid(call, x, w):
        w = b.cast(w, I8)

        def summed(q: Tensor, zero: Tensor | None) -> Tensor:
            return channels_last(b, integer_conv(b, q, w, zero, **kwargs))  # type: ignore[arg-type]

        scales = call.given[1].scales
        y = hybrid.multiplied(call, x, [1, 2, 3], scales is not None and scales.size > 1, summed)
        bias = call.optional(2)
        return activated(call, y if bias is None else b.map(lambda v, o: v + o, y, bias))
    if not call.is_integer:
        w = _float_weights(w)
        bias = call.optional(2)
        y = neutral.conv(b, b.cast(x, F32), b.cast(w, F32), bias, **kwargs)  # type: ignore[arg-type]
        return activated(call, channels_last(b, y))
    zeros = _zero(b, call.given[0], x), _zero(b, call.given[1], w)
    if x.dtype is I16:  # i32 may not hold the sums of 16 bits, but f64 holds them exactly
        if zeros != (None, None):
            raise CompileError("16-bit activations have no zero points")
        sums = neutral.conv(b, b.cast(x, F64), b.cast(w, F64), None, **kwargs)  # type: ignore[arg-type]
        return _scaled(call, channels_last(b, sums), call.optional(2))
    sums = integer_conv(b, x, w, *zeros, **kwargs)  # type: ignore[arg-type]
    return _scaled(call, channels_last(b, sums), call.optional(2))


def _float_weights(w: Tensor) -> Tensor:
    """Return the weights of a layer of floats. Raises CompileError for integers, because LiteRT's kernels
    multiply floats only by int8, and read uint8 as int8."""
    if not w.dtype.is_float:
        raise CompileError(f"weights of {w.dtype} for floats are not supported: convert the model again")
    return w


def _zero(b: Builder, q: Quantization, x: Tensor) -> Tensor | None:
    """Return an operand's zero point, or None if it is 0. Raises CompileError if there are different ones."""
    if q.zeros is None or not q.zeros.any():
        return None
    if (q.zeros != q.zeros[0]).any():
        raise CompileError("filters with several zero points are not supported")
    return b.const(np.array(q.zero, x.dtype.numpy))


def _scaled(
    call: Call, sums: Tensor, bias: Tensor | None, once: bool = False, operands: tuple[int, int] = (0, 1)
) -> Tensor:
    """Return exact sums [..., out] of products plus the bias, in the result's quantization. `operands` are
    the positions of the two inputs that were multiplied, with the weights second."""
    first, weights = (call.given[i] for i in operands)
    b = call.b
    long = first.dtype is I16 and not once
    if first.dtype is I16 and bias is not None and bias.dtype is not I64:
        raise CompileError("16-bit activations want a bias of 64 bits: convert the model again")
    sums = b.cast(sums, I64 if first.dtype is I16 else I32)
    assert weights.scales is not None
    factors = [first.scale * float(s) / call.out.scale for s in weights.scales]
    if bias is not None and bias.dtype is I32:
        unused = _unused(call, operands[1], len(factors))
        bias, factors = _with_usual_factors(b, bias, factors, unused, once)
    if bias is not None:
        sums = b.map(lambda v, o: v + o, sums, b.cast(bias, sums.dtype))
    up, narrow, zero = once or is_rounded_up(call), sums.dtype is I32, call.out.zero
    reach = _reach(b, sums, call.x(operands[1]), bias)
    kwargs = {"once": once, "long": long, "up": up, "narrow": narrow, "reach": reach, "zero": zero}
    multipliers = Factors.of(b, factors, sums.rank - 1, sums.rank, **kwargs)  # type: ignore[arg-type]
    return requantized(call, sums, multipliers)


def _unused(call: Call, position: int, channels: int) -> Array:
    """Return whether all constant weights of each channel are 0."""
    w, q = call.b.constant_value(call.x(position)), call.given[position]
    if w is None or channels < 2 or channels != w.shape[q.axis] or (q.zeros is not None and q.zeros.any()):
        return np.zeros(channels, bool)
    return np.asarray(~np.moveaxis(w, q.axis, 0).reshape(channels, -1).any(axis=1))


def _with_usual_factors(
    b: Builder, bias: Tensor, factors: Sequence[float], unused: Array, once: bool
) -> tuple[Tensor, list[float]]:
    """Return the bias and the factors of a layer, with another pair that gives the same result for unused
    channels. Their sums are the bias.

    A model may have tiny factors and large biases there. Sums of all channels would need more than 32 bits.
    """
    known, used = b.constant_value(bias), [f for f, no in zip(factors, unused, strict=True) if not no]
    if known is None or not used or not unused.any():
        return bias, [*factors]
    biases, changed, usual = known.copy(), [*factors], float(np.median(used))
    for n in map(int, np.flatnonzero(unused)):
        result = Multiplier.of(factors[n], once).times(int(known[n]))
        other = round(result / usual)
        if abs(other) < I32.limits[1] and Multiplier.of(usual, once).times(other) == result:
            biases[n], changed[n] = other, usual
    return b.const(biases), changed


def _reach(b: Builder, sums: Tensor, weights: Tensor, bias: Tensor | None) -> float:
    """Return an upper bound of the absolute values of sums of 8-bit products with their bias. It is infinite
    if a size or the bias isn't known."""
    sizes = static_shape((*weights.shape, sums.shape[-1]))
    known = np.zeros(1) if bias is None else b.constant_value(bias)
    if sizes is None or known is None or weights.dtype not in (I8, U8):
        return math.inf
    *shape, channels = sizes
    return math.prod(shape) / max(1, channels) * 255 * 255 + float(
        np.abs(known.astype(np.float64)).max(initial=0)
    )


@lowers("FULLY_CONNECTED")
def fully_connected(call: Call) -> Tensor:
    """Return the product of rows and the transposed weights [out, in]. Integer weights of a layer of floats
    are dequantized."""
    b, x, w = call.b, call.x(), call.x(1)
    if call.options.get("weights_format", 0):
        raise CompileError("weights in a shuffled order are not supported: convert the model again")
    keeps = call.options.get("keep_num_dims", False)
    width = w.shape[1]
    rows = b.reshape(x, [divide(product(x.shape), width, b.symbols), width])
    shape = [*x.shape[:-1], w.shape[0]] if keeps else [rows.shape[0], w.shape[0]]
    turned = b.transpose(w, [1, 0])
    if call.is_integer and x.dtype is I16:
        sums = b.matmul(b.cast(rows, F64), b.cast(w, F64), transpose_b=True)
        return b.reshape(_scaled(call, sums, call.optional(2), once=True), shape)
    if call.is_integer:
        sums = integer_matmul(b, rows, turned, _zero(b, call.given[0], x), _zero(b, call.given[1], w))
        return b.reshape(_scaled(call, sums, call.optional(2), once=True), shape)
    if hybrid.is_hybrid(call, x, w):
        turned = b.cast(turned, I8)
        zeros = bool(call.options.get("asymmetric_quantize_inputs"))
        y = hybrid.multiplied(call, rows, [1], zeros, lambda q, z: integer_matmul(b, q, turned, z))
    else:
        w = _float_weights(w)
        y = b.matmul(b.cast(rows, F32), b.cast(w, F32), transpose_b=True)
    bias = call.optional(2)
    y = y if bias is None else b.map(lambda v, o: v + o, y, bias)
    return b.reshape(activated(call, y), shape)


@lowers("TRANSPOSE_CONV")
def transpose_conv(call: Call) -> Tensor:
    """Return a transposed convolution. Its inputs are the result's shape, filters [out, H, W, in], x and an
    optional bias."""
    b = call.b
    x, w = channels_first(b, call.x(2)), b.transpose(call.x(1), [3, 0, 1, 2])
    _need_image(call, x, w)
    integer = call.given[2].integer and call.out.integer
    if integer:
        zeros = _zero(b, call.given[2], x), _zero(b, call.given[1], w)
        x, w = (_whole(b, t, z) for t, z in zip((x, w), zeros, strict=True))
    bias = call.optional(3)
    if hybrid.is_hybrid(call, x, w):

        def summed(q: Tensor, zero: Tensor | None) -> Tensor:
            sums = _transposed(call, _whole(b, q, zero), b.cast(w, I32), None, _strides(call)[0])
            return channels_last(b, sums)

        real_sums = hybrid.multiplied(call, x, [1, 2, 3], True, summed)
        return activated(call, real_sums if bias is None else b.map(lambda v, o: v + o, real_sums, bias))
    w = w if integer else _float_weights(w)
    y = channels_last(b, _transposed(call, x, w, None if integer else bias, _strides(call)[0]))
    return _scaled(call, y, bias, operands=(2, 1)) if integer else activated(call, y)


def _transposed(call: Call, x: Tensor, w: Tensor, bias: Tensor | None, strides: Sequence[int]) -> Tensor:
    """Return the transposed convolution of x [N, C, ...] with w [in, out, ...]. Input 0 of the operator has
    the result's sizes."""
    kernel = static_shape(w.shape[2:])
    assert kernel is not None
    wanted = call.sizes(0)[1:-1]
    full = neutral.transposed_extents(x, kernel, strides, [1] * len(kernel))
    begins: list[Expr] = [const(0)] * len(kernel)
    if call.options["padding"] == SAME:
        begins = [maximum(f - n, const(0)) // 2 for f, n in zip(full, wanted, strict=True)]
    pads = [*begins, *(f - n - p for f, n, p in zip(full, wanted, begins, strict=True))]
    return neutral.conv_transpose(call.b, x, w, bias, strides=strides, pads=pads)


def _need_image(call: Call, x: Tensor, w: Tensor) -> None:
    """Raise CompileError unless the image has the size that a convolution of the wanted result would give."""
    image, wanted, same = x.shape[2:], call.sizes(0)[1:-1], call.options["padding"] == SAME
    inner = [const(0) if same else k - 1 for k in w.shape[2:]]
    implied = [(n - k + s - 1) // s for n, k, s in zip(wanted, inner, _strides(call)[0], strict=True)]
    apart = (simplify(a - b, call.b.symbols) for a, b in zip(image, implied, strict=True))
    if any(isinstance(d, Const) and d != const(0) for d in apart):
        shown = ["x".join(map(str, sizes)) for sizes in (wanted, map(simplify, implied), image)]
        raise CompileError(
            f"output_shape of {shown[0]} pixels needs an image of {shown[1]}, and the image has {shown[2]}: "
            "convert the model again with another output_shape"
        )


def _whole(b: Builder, x: Tensor, zero: Tensor | None) -> Tensor:
    """Return x minus its zero point, in i32."""
    x = b.cast(x, I32)
    return x if zero is None else b.map(lambda v, z: v - cast(I32, z), x, zero)


# -- pools ---------------------------------------------------------------------------------------


def pool_window(call: Call, x: Tensor) -> Window:
    o = call.options
    kernel, strides = [o["filter_height"], o["filter_width"]], [o["stride_h"], o["stride_w"]]
    if o["padding"] == SAME:
        return Window.same(call.b, x, kernel, strides=strides)
    return Window.over(call.b, x, kernel, strides=strides)


@lowers("MAX_POOL_2D")
def max_pool_2d(call: Call) -> Tensor:
    x = channels_first(call.b, call.x())
    y = channels_last(call.b, pool.max_pool(call.b, x, pool_window(call, x)))
    return _limited(call, y) if call.is_integer else activated(call, y)


def _limited(call: Call, y: Tensor) -> Tensor:
    low, high = limits(call)
    if (low, high) == call.out.limits:
        return y
    return call.b.map(lambda v: minimum(maximum(v, const(low, v.dtype)), const(high, v.dtype)), y)


@lowers("AVERAGE_POOL_2D")
def average_pool_2d(call: Call) -> Tensor:
    """Return the averages of windows. An average of integers is their sum divided by their count, with halves
    rounded away from zero."""
    b, x = call.b, channels_first(call.b, call.x())
    window = pool_window(call, x)
    if not call.is_integer:
        return activated(call, channels_last(b, pool.average_pool(b, x, window)))
    pads = static_shape(window.pads)
    if pads is None:
        raise CompileError(f"an average of windows over {x}: fix its sizes with shapes=")
    kwargs = {"kernel": window.kernel, "strides": window.strides, "dilations": window.dilations}
    whole = {**kwargs, "pads": pads, "extents": window.extents, "layout": "first"}
    sums = b.pool(b.cast(x, I32), combiner="sum", **whole)  # type: ignore[arg-type]
    most = math.prod(window.kernel)
    if any(pads):
        ones = b.expand(b.scalar(1, I32), [const(1), const(1), *x.shape[2:]])
        counts = [b.pool(ones, combiner="sum", **whole)]  # type: ignore[arg-type]
    else:
        counts = []
    mean, all_ = (mean_of_few if most <= FEW else _mean), const(most, I32)
    dtype = call.out.dtype
    assert dtype is not None
    y = b.map(lambda v, *n: cast(dtype, mean(v, *(n or [all_]))), sums, *counts)
    return _limited(call, channels_last(b, y))


FEW = 1 << 12
"""The mean of at most this many 8-bit numbers is computed by a product (see `mean_of_few`). The sum of so
many is at most 2^20, for which the product gives the same mean."""


def _mean(total: Expr, count: Expr) -> Expr:
    half = binary("div", count, const(2, I32))
    return binary("div", select(total > 0, total + half, total - half), count)


def mean_of_few(total: Expr, count: Expr) -> Expr:
    """Return the same mean as `_mean`, by a product with a number slightly above 1 / count, by less than 2 **
    -20 of it.

    f32 holds the sum exactly. If count divides a sum, the product can't be below the quotient. Any other sum
    differs from the next integer by at least 1 / count."""
    size, half = cast(F32, intrinsic("abs", total)), cast(F32, binary("div", count, const(2, I32)))
    factor = const(1 + 2.0**-21, F32) / cast(F32, count)
    mean = cast(I32, (size + half) * factor)
    return select(total < 0, const(0, I32) - mean, mean)


@lowers("L2_POOL_2D")
def l2_pool_2d(call: Call) -> Tensor:
    call.only_floats()
    x = channels_first(call.b, call.x())
    squares = pool.average_pool(call.b, call.b.map(lambda v: v * v, x), pool_window(call, x))
    return activated(call, channels_last(call.b, call.b.map(_root, squares)))


def _root(v: Expr) -> Expr:
    return intrinsic("sqrt", v)


@lowers("BATCH_MATMUL")
def batch_matmul(call: Call) -> Tensor:
    o = call.options
    if call.is_integer:
        b = call.b
        x, y = (_whole(b, call.x(i), _zero(b, call.given[i], call.x(i))) for i in (0, 1))
        if call.x().dtype is I16:  # i32 doesn't hold all sums of 16 bits, but f64 holds them exactly
            x, y = b.cast(x, F64), b.cast(y, F64)
        sums = b.matmul(x, y, transpose_a=bool(o.get("adj_x")), transpose_b=bool(o.get("adj_y")))
        return _scaled(call, sums, None)
    turned = bool(o.get("adj_x")), bool(o.get("adj_y"))
    if hybrid.is_hybrid(call, call.x(), call.x(1)):
        return _hybrid_products(call, *turned)
    call.only_floats()
    return call.b.matmul(real(call, 0), real(call, 1), transpose_a=turned[0], transpose_b=turned[1])


def _hybrid_products(call: Call, turn_x: bool, turn_y: bool) -> Tensor:
    b, x, y = call.b, call.x(), call.x(1)
    if turn_x:
        x = b.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])
    zeros = bool(call.options.get("asymmetric_quantize_inputs"))

    def sums(q: Tensor, zero: Tensor | None) -> Tensor:
        return b.matmul(_whole(b, q, zero), b.cast(y, I32), transpose_b=turn_y)

    return hybrid.multiplied(call, x, [x.rank - 1], zeros, sums)
