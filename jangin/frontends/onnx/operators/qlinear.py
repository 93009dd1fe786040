"""Lower ONNX Runtime's operators on quantized tensors (com.microsoft). Most of them dequantize, compute in
f32 and quantize the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jangin.frontends.onnx.operators.families import family
from jangin.frontends.onnx.operators.quantize import qlinear_conv
from jangin.frontends.onnx.operators.recurrent import lstm_layer
from jangin.frontends.onnx.operators.window import average_pool_, global_average_pool
from jangin.frontends.onnx.registry import Lowering, op
from jangin.frontends.onnx.types import LEVEL_OF_INT8
from jangin.ir.dtype import F32, I32, I64, DType
from jangin.ir.expr import Buffer, Expr, cast, select
from jangin.ir.expr import binary as operation
from jangin.ir.graph import Array, CompileError, static_shape
from jangin.ops.activation import ACTIVATIONS
from jangin.ops.axes import axes_of, axis_of, channels_first, channels_last
from jangin.ops.blocks import Rounding, matmul_blocks
from jangin.ops.builder import Builder
from jangin.ops.levels import TensorLevels
from jangin.ops.linear import matmul
from jangin.ops.quantized import (
    checked_scale,
    dequantize,
    dynamic_quantize,
    integer_matmul,
    quantize,
    requantize,
)
from jangin.ops.recurrent import Layer
from jangin.ops.reduce import reduce_over
from jangin.ops.values import Tensor

DOMAIN = "com.microsoft"
FEW_ROWS = 4
"""Up to this many rows are multiplied by DequantizeLinear's weights in their blocks. More rows are multiplied
by dequantized weights.

Measured on AVX2, the products in blocks took 0.7 times as long as those by dequantized weights for 4 rows.
They took 1.8 times as long for 8 rows, and 1.4 times for 64."""


def _real(b: Builder, x: Tensor, scale: Tensor, zero: Tensor | None, axis: int = 1) -> Tensor:
    return dequantize(b, x, scale, zero, dtype=F32, axis=axis)


def _quantized(b: Builder, y: Tensor, scale: Tensor, zero: Tensor | None, dtype: DType) -> Tensor:
    return quantize(b, y, scale, zero, dtype=dtype if zero is None else zero.dtype)


def _in_layout(b: Builder, x: Tensor, last: int, fn: Callable[[Tensor], Tensor]) -> Tensor:
    """Return `fn` of a tensor. `fn` is given the channels first. With `last`, the tensor and the result have
    the channels last."""
    return channels_last(b, fn(channels_first(b, x))) if last else fn(x)


# -- one or two tensors --------------------------------------------------------------------------


def _binary(body: Callable[[Expr, Expr], Expr]) -> Lowering:
    def lower(
        b: Builder, x: Tensor, x_scale: Tensor, x_zero: Tensor | None, y: Tensor, y_scale: Tensor,
        y_zero: Tensor | None, scale: Tensor, zero: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        out = b.map(body, _real(b, x, x_scale, x_zero), _real(b, y, y_scale, y_zero))
        return _quantized(b, out, scale, zero, x.dtype)

    return lower


def _unary(make: Callable[..., Tensor]) -> Lowering:
    """Return a lowering that applies `make(b, x, **attributes)` to a dequantized tensor, and quantizes the
    result."""

    def lower(
        b: Builder, x: Tensor, x_scale: Tensor, x_zero: Tensor | None, scale: Tensor,
        zero: Tensor | None = None, **attrs: Any,
    ) -> Tensor:  # fmt: skip
        return _quantized(b, make(b, _real(b, x, x_scale, x_zero), **attrs), scale, zero, x.dtype)

    return lower


def _elementwise(name: str) -> Lowering:
    def lower(b: Builder, x: Tensor, **parameters: float) -> Tensor:
        return b.map(lambda v: ACTIVATIONS[name](v, **parameters), x)

    return lower


def _softmax(b: Builder, x: Tensor, axis: int = -1) -> Tensor:
    """Return softmax along the last axis, for which all versions of Softmax agree. Raises CompileError for
    another axis."""
    if axis_of(axis, x.rank) != x.rank - 1:
        raise CompileError(f"QLinearSoftmax along axis {axis} of {x} is not supported: only the last axis is")
    return b.softmax(x, x.rank - 1)


def _average(b: Builder, x: Tensor, channels_last: int = 0, **window: Any) -> Tensor:
    return _in_layout(b, x, channels_last, lambda t: average_pool_(b, t, **window))


def _global_average(b: Builder, x: Tensor, channels_last: int = 0) -> Tensor:
    return _in_layout(b, x, channels_last, lambda t: global_average_pool(b, t))


def _mean(b: Builder, x: Tensor, axes: Sequence[int] = (), keepdims: int = 1) -> Tensor:
    return reduce_over(b, "mean", x, axes_of(axes, x.rank) if axes else range(x.rank), bool(keepdims))


SIMPLE = family(
    {
        "QLinearAdd": _binary(lambda x, y: x + y),
        "QLinearMul": _binary(lambda x, y: x * y),
        "QLinearSigmoid": _unary(_elementwise("sigmoid")),
        "QLinearLeakyRelu": _unary(_elementwise("leaky_relu")),
        "QLinearSoftmax": _unary(_softmax),
        "QLinearAveragePool": _unary(_average),
        "QLinearGlobalAveragePool": _unary(_global_average),
        "QLinearReduceMean": _unary(_mean),
    },
    domain=DOMAIN,
)


@op("QLinearConcat", domain=DOMAIN)
def qlinear_concat(b: Builder, scale: Tensor, zero: Tensor, *inputs: Tensor, axis: int) -> Tensor:
    """Return quantized tensors concatenated along an axis. `inputs` has each tensor followed by its scale and
    zero point."""
    parts = [_real(b, *part) for part in zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)]
    return _quantized(b, b.concat(parts, axis), scale, zero, zero.dtype)


@op("QLinearWhere", domain=DOMAIN)
def qlinear_where(
    b: Builder, condition: Tensor, x: Tensor, x_scale: Tensor, x_zero: Tensor, y: Tensor, y_scale: Tensor,
    y_zero: Tensor, scale: Tensor, zero: Tensor,
) -> Tensor:  # fmt: skip
    chosen = b.map(select, condition, _real(b, x, x_scale, x_zero), _real(b, y, y_scale, y_zero))
    return _quantized(b, chosen, scale, zero, x.dtype)


@op("QLinearConv", domain=DOMAIN)
def qlinear_conv_any(
    b: Builder, x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor, w_zero: Tensor,
    y_scale: Tensor, y_zero: Tensor, bias: Tensor | None = None, *, channels_last: int = 0, **window: Any,
) -> Tensor:  # fmt: skip
    """Return the standard's QLinearConv. With `channels_last`, the input and the result have the channels
    last."""
    rest = (x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias)
    return _in_layout(b, x, channels_last, lambda t: qlinear_conv(b, t, *rest, **window))


# -- matrix products -----------------------------------------------------------------------------


@op("QGemm", domain=DOMAIN)
def qgemm(
    b: Builder, x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor, w_zero: Tensor,
    bias: Tensor | None = None, y_scale: Tensor | None = None, y_zero: Tensor | None = None,
    *, alpha: float = 1.0, transA: int = 0, transB: int = 0,
) -> Tensor:  # fmt: skip
    """Return alpha * x' w' + bias, quantized, or in f32 if no scale of the result is given.

    The sums are exact integers, which are rescaled once. The scale is by column if the weights' scale is. The
    bias is in units of alpha times both scales."""
    left, right = (b.transpose(t, (1, 0)) if turned else t for t, turned in ((x, transA), (w, transB)))
    sums = integer_matmul(b, left, right, x_zero, w_zero)
    if bias is not None:
        sums = b.map(lambda v, c: v + c, sums, bias)
    scales = [t for t in (x_scale, w_scale, y_scale) if t is not None]
    for t in scales:
        checked_scale(b, t, divides=t is y_scale)
    scale = b.map(lambda s, t, *of: alpha * s * t / of[0] if of else alpha * s * t, *scales)
    if y_scale is None:
        return b.map(lambda v, s: cast(F32, v) * s, sums, scale)
    return requantize(b, sums, scale, b.scalar(0, x.dtype) if y_zero is None else y_zero)


@op("MatMulIntegerToFloat", domain=DOMAIN)
def matmul_integer_to_float(
    b: Builder, x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, x_zero: Tensor | None = None,
    w_zero: Tensor | None = None, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the product of integers in f32. The sums are exact integers, which are rescaled once. The scale
    is by column if the weights' scale is."""
    for scale in (x_scale, w_scale):
        checked_scale(b, scale)
    sums = integer_matmul(b, x, w, x_zero, w_zero)
    y = b.map(lambda v, s, t: cast(F32, v) * (s * t), sums, x_scale, w_scale)
    return y if bias is None else b.map(lambda v, c: v + c, y, bias)


@op("DynamicQuantizeMatMul", domain=DOMAIN)
def dynamic_quantize_matmul(
    b: Builder, x: Tensor, w: Tensor, w_scale: Tensor, w_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the product of x and w in f32. x is first quantized by the range of its elements."""
    q, scale, zero = dynamic_quantize(b, x)
    return matmul_integer_to_float(b, q, w, scale, w_scale, zero, w_zero, bias)


def _unpacked(b: Builder, packed: Tensor, bits: int) -> Tensor:
    """Return the integers in the bytes along the last axis as i32. Each has `bits` bits, and the lowest bits
    of a byte are its first integer."""
    each = 8 // bits

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        word = cast(I32, bufs[0][(*index[:-1], index[-1] // each)])
        moved = operation("shr", word, cast(I32, (index[-1] % each) * bits))
        return operation("and", moved, (1 << bits) - 1)

    return b.compute(I32, (*packed.shape[:-1], packed.shape[-1] * each), [packed], at)


@op("MatMulNBits", domain=DOMAIN)
def matmul_nbits(
    b: Builder, x: Tensor, w: Tensor, scales: Tensor, zeros: Tensor | None = None,
    groups: Tensor | None = None, bias: Tensor | None = None, *, K: int, N: int, bits: int = 4,
    block_size: int, accuracy_level: int = 0, weight_prepacked: int = 0,
) -> Tensor:  # fmt: skip
    """Return x times blockwise quantized weights of 2, 4 or 8 bits, [N, blocks, bytes].

    Each block of a row has a scale and a zero point, which is the middle of the integers by default. With
    `groups`, each of a row's weights names its block. With `accuracy_level` 4, x is rounded to int8 block by
    block if the weights are constant and have no groups."""
    if bits not in (2, 4, 8):
        raise CompileError(f"weights of {bits} bits instead of 2, 4 or 8 are not supported")
    if weight_prepacked:
        raise CompileError("weights in a processor's own order (weight_prepacked) are not supported")
    _check_blocks(w, scales, zeros, N, K, bits, block_size)
    checked_scale(b, scales, zero=True)
    known = [b.constant_value(t) for t in (w, scales, zeros) if t is not None]
    if groups is None and x.dtype.wide is F32 and all(k is not None for k in known):
        wide = b.cast(x, F32)
        y = _in_blocks(b, wide, [k for k in known if k is not None], N, K, bits, block_size, accuracy_level)
        y = b.cast(y, x.dtype)
        return y if bias is None else b.map(lambda v, c: v + c, y, bias)
    blocks = -(-K // block_size)
    values = b.reshape(_unpacked(b, w, bits), (N, blocks * block_size))
    steps = b.reshape(scales, (N, blocks))
    inputs = [values, steps]
    if zeros is not None:
        packed = zeros.dtype.is_int
        zeros = b.reshape(zeros, (N, -(-blocks * bits // 8) if packed else blocks))
        inputs.append(_unpacked(b, zeros, bits) if packed else zeros)
    if groups is not None:
        inputs.append(groups)

    def weight(bufs: Sequence[Buffer], n: Expr, k: Expr) -> Expr:
        block = cast(I64, bufs[-1][k]) if groups is not None else k // block_size
        zero = float(1 << (bits - 1)) if zeros is None else cast(F32, bufs[2][n, block])
        return cast(x.dtype, (cast(F32, bufs[0][n, k]) - zero) * cast(F32, bufs[1][n, block]))

    matrix = b.compute(x.dtype, (N, K), inputs, weight)
    y = matmul(b, x, b.transpose(matrix, (1, 0)))
    return y if bias is None else b.map(lambda v, c: v + c, y, bias)


def _check_blocks(
    w: Tensor, scales: Tensor, zeros: Tensor | None, rows: int, width: int, bits: int, block: int
) -> None:
    """Raise CompileError if the number of the weights, scales or zero points doesn't fit the blocks."""
    if block < 1 or block * bits % 8:
        raise CompileError(f"blocks of {block} weights of {bits} bits are not supported")
    blocks = -(-width // block)
    wanted = {"the weights": (w, rows * blocks * (block * bits // 8)), "the scales": (scales, rows * blocks)}
    if zeros is not None:
        each = -(-blocks * bits // 8) if zeros.dtype.is_int else blocks
        wanted["the zero points"] = (zeros, rows * each)
    for what, (t, count) in wanted.items():
        sizes = static_shape(t.shape)
        if sizes is not None and math.prod(sizes) != count:
            raise CompileError(
                f"{what} {t} don't fit {rows} rows of {width} weights of {bits} bits in blocks of {block}: "
                f"there should be {count} of them"
            )


def _in_blocks(
    b: Builder, x: Tensor, parts: Sequence[Array], rows: int, width: int, bits: int, block: int, level: int
) -> Tensor:
    """Return the product of x and constant weights [rows, width], in their blocks. `parts` are the weights'
    bytes, the scales and optionally the zero points. `level` is the accuracy level."""
    blocks = -(-width // block)

    def numbers(packed: Array, count: int) -> Array:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        unpacked = packed.reshape(rows, -1, 1) >> shifts & np.uint8((1 << bits) - 1)
        return np.ascontiguousarray(unpacked.reshape(rows, -1)[:, :count])

    packed, scales, *zeros = parts
    factors = scales.reshape(rows, blocks).astype(np.float32)
    zero = np.full(factors.shape, 1 << (bits - 1), np.float32)
    if zeros:
        whole = zeros[0].dtype.kind == "u"
        zero = (numbers(zeros[0], blocks) if whole else zeros[0].reshape(rows, blocks)).astype(np.float32)
    kept, middle = numbers(packed, width), 1 << (bits - 1)
    if level == LEVEL_OF_INT8 and (zero == middle).all():  # no block has an offset
        return matmul_blocks(b, x, (kept - middle).view(np.int8), factors, None, block, Rounding(block))
    return matmul_blocks(b, x, kept, factors, -factors * zero, block, _rounding(level, block))


@op("MatMulBlocks", domain="jangin")
def matmul_of_blocks(
    b: Builder, x: Tensor, w: Tensor, scale: Tensor, zero: Tensor | None = None, bias: Tensor | None = None,
    *, turned: bool, block_size: int, accuracy_level: int = 0,
) -> Tensor:  # fmt: skip
    """Return x times constant blockwise quantized weights [K, N], or [N, K] if `turned`.

    Every `block_size` neighbours along K share a scale and a zero point. `frontends.onnx.blocked` makes this
    operator. The weights are dequantized at compile time if x isn't rounded and has more than `FEW_ROWS`
    rows. `accuracy_level` means the same as in MatMulNBits."""
    checked_scale(b, scale, zero=True)
    known = (b.constant_value(t) for t in (w, scale, zero) if t is not None)
    numbers, scales, *zeros = (np.ascontiguousarray(a if turned else a.T) for a in known if a is not None)
    factors, rows = scales.astype(np.float32), static_shape(x.shape[:-1])
    rounding = _rounding(accuracy_level, block_size)
    if rounding is None and rows is not None and math.prod(rows) > FEW_ROWS:
        each = [
            np.repeat(a, block_size, 1)[:, : numbers.shape[1]].astype(np.float32) for a in (factors, *zeros)
        ]
        real = b.const((numbers.astype(np.float32) - sum(each[1:])) * each[0])
        y = b.matmul(b.cast(x, F32), real, transpose_b=True)
    else:
        offsets = -factors * zeros[0].astype(np.float32) if zeros and zeros[0].any() else None
        whole = numbers.astype(np.int8 if w.dtype.kind == "i" else np.uint8)
        y = matmul_blocks(b, b.cast(x, F32), whole, factors, offsets, block_size, rounding)
    y = b.cast(y, x.dtype)
    return y if bias is None else b.map(lambda v, c: v + c, y, bias)


def _rounding(level: int, block: int) -> Rounding | None:
    """Return how activations are rounded at an accuracy level, or None if they aren't."""
    return Rounding(block) if level == LEVEL_OF_INT8 else None


@op("DynamicQuantizeLSTM", domain=DOMAIN)
def dynamic_quantize_lstm(
    b: Builder, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None, lengths: Tensor | None,
    initial_h: Tensor | None, initial_c: Tensor | None, peepholes: Tensor | None, w_scale: Tensor,
    w_zero: Tensor, r_scale: Tensor, r_zero: Tensor, **settings: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the results of an LSTM with integer weights [directions, inputs, 4 * hidden].

    There is a scale and a zero point for each direction or for each column. The inputs are rounded to 8 bits
    by the range of all of them, and the states of each step by their range. These ranges cover the whole
    batch, as in ONNX Runtime on one thread. On several threads, ONNX Runtime has a range for each thread's
    part of the batch. `clip` doesn't bound the cell from which h is computed."""
    for t in (w, r):
        if t.rank != 3:
            raise CompileError(f"weights {t} must have rank 3")
    for scale in (w_scale, r_scale):
        checked_scale(b, scale)
    scales, zeros = (w_scale, r_scale), (w_zero, r_zero)
    known = [b.constant_value(z) for z in zeros]
    zero_points = zeros if any(z is None or z.any() for z in known) else ()
    w, r = (b.transpose(t, (0, 2, 1)) for t in (w, r))
    layer = Layer(x, w, r, bias, lengths, levels=TensorLevels(), scales=scales, zeros=zero_points)
    return lstm_layer(b, layer, {"h": initial_h, "c": initial_c}, peepholes, settings, clipped=2)
