"""Lower hybrid layers, which multiply floats by 8-bit weights. Each row or image of the floats is quantized
during the run, by the range of its elements (`ops.levels`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jangin.frontends.tflite.operators.common import Call, Quantization
from jangin.ir.dtype import F32, I4, I8
from jangin.ir.graph import Array, CompileError
from jangin.ops.levels import RowLevels, Sums
from jangin.ops.values import Tensor


def is_hybrid(call: Call, x: Tensor, w: Tensor) -> bool:
    return x.dtype is F32 and w.dtype in (I4, I8) and call.given[1].scales is not None


def multiplied(call: Call, x: Tensor, axes: Sequence[int], zeros: bool, sums: Sums) -> Tensor:
    """Return the product of x and the weights as floats. x is quantized by its range along `axes`, and `sums`
    computes the sums of integers. The last axis of the product has the filters."""
    return RowLevels(asymmetric=zeros).multiplied(
        call.b, x, axes, sums, call.b.const(scales_of(call.given[1]))
    )


def scales_of(q: Quantization) -> Array:
    """Return the scales of weights in f32. Raises CompileError if the weights have zero points other than
    0."""
    assert q.scales is not None
    if q.zeros is not None and q.zeros.any():
        raise CompileError("weights of 8 bits with zero points, for floats, are not supported")
    scales: Array = q.scales.astype(np.float32)
    return scales
