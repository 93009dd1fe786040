"""Products with weights of few bits that stay in their blocks: a factor, and perhaps an offset, for so many
neighbouring weights of a row. Nothing makes floats of all of them (see `templates.weight_blocks`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jangin.ir.core import Compute
from jangin.ir.dtype import F32, I32
from jangin.ir.expr import Buffer, Expr, binary, cast, const
from jangin.ir.graph import Array, CompileError, Graph, Node
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

NIBBLES = 8
"""Numbers of 4 bits in a word."""


def matmul_blocks(
    b: Builder, x: Tensor, numbers: Array, factors: Array, offsets: Array | None, block: int
) -> Tensor:
    """x [..., inputs] times the transposed weights `numbers * factors + offsets`, f32 [..., outputs], summed
    in f32. numbers: integers of 8 bits [outputs, inputs], kept in 4 where they fit; factors and offsets: f32
    [outputs, blocks], kept as f16 where that is the same, each for `block` neighbouring weights of a row (the
    last for those left over). CompileError where these shapes don't fit."""
    rows, width = numbers.shape
    wanted = (rows, -(-width // block))
    if any(s is not None and s.shape != wanted for s in (factors, offsets)):
        raise CompileError(
            f"factors [{', '.join(map(str, factors.shape))}] don't fit weights [{rows}, {width}] in blocks "
            f"of {block}: there should be [{', '.join(map(str, wanted))}]"
        )
    low, high = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    small = high - low < 16
    if small and low:
        moved = factors * np.float32(low)
        offsets = moved if offsets is None else offsets + moved
    scales = [factors] if offsets is None else [factors, offsets]
    kept = _words((numbers.astype(np.int16) - low).astype(np.uint8)) if small else numbers

    def number(at: Buffer, n: Expr, k: Expr) -> Expr:
        if not small:
            return cast(F32, at[n, k])
        moved = binary("shr", at[n, k // NIBBLES], cast(I32, k % NIBBLES * 4))
        return cast(F32, binary("and", moved, const(15, I32)))

    def term(bufs: Sequence[Buffer], index: Sequence[Expr], k: Sequence[Expr]) -> Expr:
        n, (at,) = index[-1], k
        weight = number(bufs[1], n, at) * cast(F32, bufs[2][n, at // block])
        if len(scales) > 1:
            weight = weight + cast(F32, bufs[3][n, at // block])
        return cast(F32, bufs[0][(*index[:-1], at)]) * weight

    flat = b.reshape(x, [product(x.shape[:-1]), width])
    given = [flat, b.const(np.ascontiguousarray(kept)), *(b.const(_smallest(a)) for a in scales)]
    y = b.reduction(F32, (flat.shape[0], rows), [width], "sum", given, term)
    return b.reshape(y, [*x.shape[:-1], rows])


def is_blocks(node: Node, graph: Graph) -> bool:
    """Whether a node is such a product."""
    if not isinstance(node.attrs, Compute) or len(node.inputs) < 3:
        return False
    numbers, *scales = (graph.constants.get(n) for n in node.inputs[1:])
    last = node.attrs.stages[-1]
    whole = numbers is not None and numbers.dtype.kind in "iu" and all(s is not None for s in scales)
    return whole and last.combiner == "sum" and len(last.reduce_axes) == 1


def _words(numbers: Array) -> Array:
    """Eight numbers of 4 bits each as an i32, the first in the lowest bits."""
    rows, width = numbers.shape
    even = np.zeros((rows, -(-width // NIBBLES) * NIBBLES), np.uint8)
    even[:, :width] = numbers
    return np.ascontiguousarray(even[:, ::2] | even[:, 1::2] << 4).view("<i4")


def _smallest(floats: Array) -> Array:
    """The same numbers as f16 where it has them, else as f32."""
    with np.errstate(over="ignore"):
        half = floats.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), floats) else floats.astype(np.float32)
