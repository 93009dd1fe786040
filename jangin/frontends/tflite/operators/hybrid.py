"""Hybrid layers: floats times weights of 8 bits. Each row (or image) is quantized by its own range as it
comes, so that sums are exact integers (LiteRT's `SymmetricQuantizeFloats`, and its counterpart)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jangin.frontends.tflite.operators.common import Call, Quantization
from jangin.frontends.tflite.operators.elementwise import rounded
from jangin.ir.dtype import F32, F64, I8
from jangin.ir.expr import Expr, cast, const, eq, maximum, minimum, select
from jangin.ir.expr import call as intrinsic
from jangin.ir.graph import CompileError
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

Sums = Callable[[Tensor, Tensor | None], Tensor]
"""Exact sums of quantized rows, less their zero points (None: they have none), times the weights."""


def is_hybrid(call: Call, x: Tensor, w: Tensor) -> bool:
    return x.dtype is F32 and w.dtype is I8 and call.given[1].scales is not None


def symmetric(b: Builder, x: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """x in i8 from -127 to 127, and by row (all of `axes`) the scale."""
    size = b.reduce("max", b.map(lambda v: intrinsic("abs", v), x), axes, True)
    scale = b.map(lambda s: select(eq(s, 0), const(1.0, F32), s / 127), size)

    def body(v: Expr, s: Expr) -> Expr:
        inverse = select(eq(s, 0), const(0.0, F32), 127 / s)
        return cast(I8, minimum(maximum(rounded(v * inverse), -127.0), 127.0))

    return b.map(body, x, size), scale


def asymmetric(b: Builder, x: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """x in i8, and by row the scale and the zero point: of the two that the ends of its range ask for that
    with the smaller error."""
    low, high = (b.reduce(c, x, axes, True) for c in ("min", "max"))

    def step(bottom: Expr, top: Expr) -> Expr:
        return (cast(F64, maximum(top, 0)) - cast(F64, minimum(bottom, 0))) / 255

    exact = b.map(step, low, high)

    def origin(bottom: Expr, top: Expr, s: Expr) -> Expr:
        ends = cast(F64, minimum(bottom, 0)) / s, cast(F64, maximum(top, 0)) / s
        nearer = 128 - ends[0] < 127 + ends[1]
        place = rounded(cast(F32, select(nearer, -128 - ends[0], 127 - ends[1])))
        inside = minimum(maximum(place, -128.0), 127.0)
        return cast(I8, select(eq(s, 0), const(0.0, F32), inside))

    zero = b.map(origin, low, high, exact)
    scale = b.map(lambda s: select(eq(s, 0), const(1.0, F32), cast(F32, s)), exact)

    def body(v: Expr, s: Expr, z: Expr) -> Expr:
        moved = rounded(cast(F32, z) + v * (1 / s))
        return cast(I8, minimum(maximum(moved, -128.0), 127.0))

    return b.map(body, x, scale, zero), scale, zero


def multiplied(call: Call, x: Tensor, axes: Sequence[int], zeros: bool, sums: Sums) -> Tensor:
    """The product of x, quantized along `axes`, and the weights, as floats: its last axis goes by filter."""
    b = call.b
    if zeros:
        quantized, scale, zero = asymmetric(b, x, axes)
        total = sums(quantized, zero)
    else:
        quantized, scale = symmetric(b, x, axes)
        total = sums(quantized, None)
    return b.map(lambda v, s, f: cast(F32, v) * (s * f), total, scale, _filters(b, call.given[1]))


def _filters(b: Builder, q: Quantization) -> Tensor:
    assert q.scales is not None
    if q.zeros is not None and q.zeros.any():
        raise CompileError("weights of 8 bits with zero points, for floats, are not supported")
    return b.const(q.scales.astype(np.float32))
