"""Linear quantization, and products of quantized tensors: exact integer sums, then one rescaling.

A quantized x stands for (x - zero) * scale. Scale and zero point are single, by index of one axis, or by
block along one axis.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jangin.ir.dtype import (
    F4E2M1,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F32,
    F64,
    I2,
    I4,
    I8,
    I16,
    I32,
    U2,
    U4,
    U8,
    U16,
    DType,
)
from jangin.ir.expr import Const, Expr, ExprLike, call, cast, const, eq, maximum, minimum, select
from jangin.ir.graph import CompileError
from jangin.ir.te import identity
from jangin.ops.axes import axis_of
from jangin.ops.builder import Builder
from jangin.ops.conv import conv
from jangin.ops.elementwise import convert
from jangin.ops.linear import matmul
from jangin.ops.operands import wide
from jangin.ops.reduce import reduce_over
from jangin.ops.values import Tensor
from jangin.ops.window import Sizes

QUANTIZED = (I8, U8, I16, U16, I4, U4, I2, U2, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F4E2M1)
"""The types that `quantize` produces."""


def _spread(b: Builder, t: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """Return a scale or zero point, shaped to broadcast against `x`. There is one in all, one for each index
    of `axis`, or one for each block along it."""
    if t.rank == 0 or (t.rank == 1 and t.shape[0] == const(1)):
        return b.reshape(t, ())
    axis = axis_of(axis, x.rank)
    if t.rank == 1:
        if t.shape[0] != x.shape[axis] and x.rank == 1 and not block:
            raise CompileError(f"{t} can't be spread along axis {axis} of {x}")
        sizes = t.shape[0], x.shape[axis]
        if not block and all(isinstance(d, Const) for d in sizes) and sizes[0] != sizes[1]:
            raise CompileError(
                f"'{t.name}' has {sizes[0]} entries for the {sizes[1]} of axis {axis} of {x}: give it "
                "one for all, or one for each"
            )
        if not block:
            return b.reshape(t, [t.shape[0] if i == axis else 1 for i in range(x.rank)])
    if not block or t.rank != x.rank:
        raise CompileError(f"{t} fits {x} neither whole, nor by axis {axis}, nor by blocks of {block}")
    count = (x.shape[axis] + (block - 1)) // block
    if isinstance(count, Const) and isinstance(t.shape[axis], Const) and t.shape[axis] != count:
        raise CompileError(f"{t} doesn't fit {x}: axis {axis} has {count} blocks of {block}")
    shape = [*t.shape[:axis], x.shape[axis], *t.shape[axis + 1 :]]
    return b.compute(
        t.dtype,
        shape,
        [t],
        lambda bufs, *index: bufs[0][(*index[:axis], index[axis] // block, *index[axis + 1 :])],
    )


def checked_scale(b: Builder, scale: Tensor, *, divides: bool = False, zero: bool = False) -> None:
    """Raise CompileError if a constant scale is NaN or infinite, or 0 unless `zero` allows it. If x is
    divided by it (`divides`), it may not be negative either."""
    known = b.constant_value(scale)
    if known is None:
        return
    known = np.asarray(known, np.float64)
    wrong = ~np.isfinite(known) | ((known == 0) & (not zero)) | ((known < 0) & divides)
    if wrong.any():
        at = np.unravel_index(int(wrong.argmax()), known.shape)
        where = f" at {list(map(int, at))}" if known.ndim else ""
        bound = "above 0" if divides else "finite" if zero else "finite and not 0"
        raise CompileError(
            f"the scale '{scale.name}' is {known[at]:g}{where}, and scales are {bound}: quantize the model "
            "again, with a scale of 1 for what is always 0"
        )


def saturated(x: Expr, dtype: DType) -> Expr:
    """Return a float that is already whole as an integer of `dtype`, saturated at the type's limits."""
    low, high = (const(identity(c, dtype).value, x.dtype) for c in ("max", "min"))
    return cast(dtype, minimum(maximum(x, low), high))


def _offset(v: Expr, zeros: Sequence[Expr]) -> Expr:
    for z in zeros:
        v = v + cast(v.dtype, z)
    return v


def quantize(
    b: Builder, x: Tensor, scale: Tensor, zero: Tensor | None = None, *, dtype: DType, axis: int = 1,
    block: int = 0, divided: DType | None = None, saturate: bool = True,
) -> Tensor:  # fmt: skip
    """Return saturate(round(x / scale) + zero) in `dtype`, one of QUANTIZED, rounding half to even.

    8-bit and 4-bit floats round once, at the end, and overflow without `saturate`. `divided`: the quotient's
    dtype, by default the scale's.
    """
    if dtype not in QUANTIZED:
        raise CompileError(
            f"quantizing to {dtype} isn't supported; these are: {', '.join(map(str, QUANTIZED))}"
        )
    checked_scale(b, scale, divides=True)
    divided = divided or scale.dtype
    work = F64 if divided is F64 else F32
    parameters = [_spread(b, t, x, axis, block) for t in (scale, zero) if t is not None]

    def body(v: Expr, s: Expr, *z: Expr) -> Expr:
        ratio = cast(work, v) / cast(work, s)
        if divided.bits == 16:
            ratio = cast(work, cast(divided, ratio))
        if dtype.is_float:
            return convert(_offset(ratio, z), dtype, saturate)
        return saturated(_offset(call("round", ratio), z), dtype)

    return b.map(body, x, *parameters)


def dequantize(
    b: Builder, x: Tensor, scale: Tensor, zero: Tensor | None = None, *, dtype: DType | None = None,
    axis: int = 1, block: int = 0,
) -> Tensor:  # fmt: skip
    """Return (x - zero) * scale, in the scale's dtype unless `dtype` is given. A scale of 0 is allowed for
    blocks, and for i32 (a bias scale is a product of two scales)."""
    checked_scale(b, scale, zero=bool(block) or x.dtype is I32)
    parameters = [_spread(b, t, x, axis, block) for t in (scale, zero) if t is not None]

    def body(v: Expr, s: Expr, *z: Expr) -> Expr:
        step = wide(s)
        v = cast(step.dtype, v)
        for offset in z:
            v = v - cast(step.dtype, offset)
        return cast(dtype or scale.dtype, v * step)

    return b.map(body, x, *parameters)


def dynamic_quantize(b: Builder, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return x quantized to u8, with the scale (x's dtype) and zero point (u8) of its range, which is widened
    to include 0.

    The zero point is 255 if the computation gives NaN: for an infinite minimum, or a range whose 255th part
    underflows to 0.
    """
    low, high = (reduce_over(b, c, x, range(x.rank)) for c in ("min", "max"))

    def step(bottom: Expr, top: Expr) -> Expr:
        size = maximum(top, 0) - minimum(bottom, 0)
        return select(eq(size, 0), const(1, F32), size / 255)

    scale = b.map(step, low, high)

    def origin(bottom: Expr, s: Expr) -> Expr:
        place = -minimum(bottom, 0) / s
        return select(call("isnan", place), const(255, U8), saturated(call("round", place), U8))

    zero = b.map(origin, low, scale)
    y = b.map(lambda v, s, z: saturated(_offset(call("round", v / s), [z]), U8), x, scale, zero)
    return y, scale, zero


def requantize(b: Builder, sums: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Return round(sums * scale) + zero, saturated to zero's dtype, rounding half to even. It converts a
    product's exact sums to the result's quantization. `scale` (f32) and `zero` broadcast against `sums`."""

    def body(v: Expr, s: Expr, z: Expr) -> Expr:
        return saturated(call("round", cast(F32, v) * s) + cast(F32, z), zero.dtype)

    return b.map(body, sums, scale, zero)


# -- products ------------------------------------------------------------------------------------


def _centred(b: Builder, x: Tensor, zero: Tensor | None) -> Tensor:
    """Return x - zero as i16, or as i32 if x has more than 8 bits. A constant without zero point stays
    unchanged."""
    value, dtype = b.constant_value(zero), I16 if x.dtype.bits <= 8 else I32
    if zero is None or (value is not None and not value.any()):
        return b.cast(x, dtype) if dtype is I16 and b.constant_value(x) is None else x
    return b.map(lambda v, z: cast(dtype, v) - cast(dtype, z), x, zero)


def leading(b: Builder, t: Tensor, rank: int) -> Tensor:
    """Return a vector reshaped to broadcast along the first of `rank` axes. A tensor of another rank than 1
    is returned unchanged."""
    return b.reshape(t, [*t.shape, *[1] * (rank - 1)]) if t.rank == 1 else t


def integer_conv(
    b: Builder, x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None, *,
    strides: Sizes = (), dilations: Sizes = (), pads: Sequence[ExprLike] = (), groups: int = 1,
) -> Tensor:  # fmt: skip
    """Return the exact i32 sums of `conv` of x - x_zero and w - w_zero. `w_zero` is single, or one a filter.
    Padding counts as x's zero point, so it is 0 after centring."""
    left = _centred(b, x, x_zero)
    right = _centred(b, w, None if w_zero is None else leading(b, w_zero, w.rank))
    return conv(b, left, right, strides=strides, dilations=dilations, pads=pads, groups=groups, dtype=I32)


def integer_matmul(
    b: Builder, x: Tensor, y: Tensor, x_zero: Tensor | None = None, y_zero: Tensor | None = None
) -> Tensor:
    """Return the exact i32 sums of `matmul` of x - x_zero and y - y_zero.

    x_zero is single, one a row, or broadcasts to x; y_zero likewise to y. A single x_zero that is known at
    run time is multiplied by the column sums of a constant y. x then stays bytes, for machines with byte
    products.
    """
    right = _centred(b, y, y_zero)
    known = b.constant_value(right)
    small = (
        x_zero is not None and b.constant_value(x_zero) is None and all(d == const(1) for d in x_zero.shape)
    )
    if x_zero is None or known is None or not small or min(x.rank, y.rank) < 2:
        left = _centred(b, x, None if x_zero is None else leading(b, x_zero, 2))
        return matmul(b, left, right, dtype=I32)
    columns = b.const(known.sum(-2, dtype=np.int32, keepdims=True))
    sums = matmul(b, _centred(b, x, None), right, dtype=I32)
    zero = b.reshape(x_zero, ())
    return b.map(lambda v, z, column: v - cast(I32, z) * column, sums, zero, columns)
