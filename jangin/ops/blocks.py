"""Matrix products with block-quantized weights of few bits, which stay in their blocks.

Each block of neighbouring weights in a row has a factor, and perhaps an offset. No kernel expands all weights
to floats (see `templates.weight_blocks`). The activations stay f32, or are rounded to 8 bits (`Rounding`).
With rounding, a block's sum of products is an exact integer, made by products of four bytes a word. Only the
blocks' results are added in f32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jangin.ir.core import Compute, Reshape
from jangin.ir.dtype import F16, F32, I8, I32
from jangin.ir.expr import Buffer, Expr, binary, call, cast, const, select
from jangin.ir.graph import Array, CompileError, Graph, Node
from jangin.ir.products import DOT4U
from jangin.ir.records import dataclass
from jangin.ir.te import reduction
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.quantized import saturated
from jangin.ops.values import Tensor

NIBBLES, BYTES = 8, 4
"""Numbers of 4 bits, and numbers of 8 bits, in a word of 32 bits: 32 / 4 and 32 / 8."""
LOW_NIBBLES = 0x0F0F0F0F
"""The mask of the lower half of each byte of a word. One operation thus takes four numbers of 4 bits out of a
word."""
ONES = 0x01010101
"""A word whose four bytes are 1. A product of bytes with it gives the sum of the other word's bytes."""
LARGEST_BLOCK = 1 << 15
"""Most weights of a block whose products are summed in i32. An i32 holds the sum of this many products of two
8-bit numbers (2 ** 15 * 2 ** 16)."""


@dataclass(frozen=True)
class Rounding:
    """How activations are quantized: each `block` of neighbours has one scale, its largest magnitude / 127.

    Values are rounded half to even to -127 to 127. With `halves`, the scale and scale times sum are f16, as
    in ggml's Q8_0 and Q8_1. Otherwise they are f32, as in ggml's Q8_K and in ONNX Runtime.
    """

    block: int
    halves: bool = False

    def factor(self, value: Expr) -> Expr:
        return cast(F32, cast(F16, value)) if self.halves else value


def matmul_blocks(
    b: Builder, x: Tensor, numbers: Array, factors: Array, offsets: Array | None, block: int,
    rounding: Rounding | None = None,
) -> Tensor:  # fmt: skip
    """Return x [..., inputs] times the transposed weights `numbers * factors + offsets`: f32 [..., outputs],
    summed in f32.

    numbers: 8-bit integers [outputs, inputs], stored in 4 bits if they fit. factors and offsets: f32
    [outputs, blocks], stored as f16 if nothing is lost. Each belongs to `block` neighbouring weights of a
    row; a row's last block may be shorter. `rounding`: how x is quantized, in blocks of a multiple of
    `block`. Raises CompileError if the shapes don't fit.
    """
    rows, width = numbers.shape
    wanted = (rows, -(-width // block))
    if any(s is not None and s.shape != wanted for s in (factors, offsets)):
        raise CompileError(
            f"factors [{', '.join(map(str, factors.shape))}] don't fit weights [{rows}, {width}] in blocks "
            f"of {block}: there should be [{', '.join(map(str, wanted))}]"
        )
    if rounding is not None and block <= LARGEST_BLOCK:
        return _of_whole(b, x, numbers, factors, offsets, block, rounding)
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
    operands = [flat, b.const(np.ascontiguousarray(kept)), *(b.const(_smallest(a)) for a in scales)]
    y = b.reduction(F32, (flat.shape[0], rows), [width], "sum", operands, term)
    return b.reshape(y, [*x.shape[:-1], rows])


def _of_whole(
    b: Builder, x: Tensor, numbers: Array, factors: Array, offsets: Array | None, block: int,
    rounding: Rounding,
) -> Tensor:  # fmt: skip
    """Return the product of quantized x and the weights.

    Each block's stored numbers, shifted to begin at 0, times x are summed in i32. The sum of x in each block
    undoes the shift, and is multiplied by the offsets.
    """
    rows, width = numbers.shape
    low, high = min(0, int(numbers.min(initial=0))), int(numbers.max(initial=0))
    each = NIBBLES if high - low < 16 else BYTES
    blocks, long = factors.shape[1], -(-block // each) * each
    if offsets is not None and low:
        offsets, moved = offsets + factors * np.float32(low), 0
    else:
        moved = low
    stored = np.zeros((rows, blocks * block), np.uint8)
    stored[:, :width] = numbers.astype(np.int16) - low
    stored = np.pad(stored.reshape(rows, blocks, block), [(0, 0), (0, 0), (0, long - block)])
    kept = _halved(stored) if each == NIBBLES else stored.reshape(rows, -1).view("<i4")
    words, scales = _rounded(b, x, rounding, blocks, block, long)
    count, apart = long // BYTES, rounding.block // block
    operands = [words, b.const(np.ascontiguousarray(kept)), b.const(_smallest(factors)), scales]
    if offsets is not None or moved:
        operands.append(_sums(b, words, scales, rounding, (blocks, count, apart), moved))
    operands += [] if offsets is None else [b.const(_smallest(offsets))]
    bufs = [Buffer(f"x{i}", t.dtype, t.shape) for i, t in enumerate(map(b.materialize, operands))]

    def four(index: Sequence[Expr], k: Sequence[Expr]) -> Expr:
        (m, n, at), (w,) = index, k
        word = at * count + w
        weights = bufs[1][n, word]
        if each == NIBBLES:
            half = binary("shr", bufs[1][n, word // 2], cast(I32, word % 2 * 4))
            weights = binary("and", half, const(LOW_NIBBLES, I32))
        return call(DOT4U.name, weights, bufs[0][m, word])

    def term(index: Sequence[Expr], k: Sequence[Expr]) -> Expr:
        (m, n), (at,) = index, k
        whole = dots.out[m, n, at] + bufs[4][m, at] if moved else dots.out[m, n, at]
        value = cast(F32, whole) * (cast(F32, bufs[2][n, at]) * rounding.factor(bufs[3][m, at // apart]))
        return value if offsets is None else value + cast(F32, bufs[5][n, at]) * bufs[4][m, at]

    outer = (words.shape[0], const(rows))
    dots = reduction(Buffer("dots", I32, (*outer, const(blocks))), [count], "sum", four)
    y = b.stages([dots, reduction(Buffer("out", F32, outer), [blocks], "sum", term)], operands)
    return b.reshape(y, [*x.shape[:-1], rows])


def _rounded(
    b: Builder, x: Tensor, rounding: Rounding, blocks: int, block: int, long: int
) -> tuple[Tensor, Tensor]:
    """Quantize x [..., width]: return words of four numbers [rows, words], and the f32 factors of its blocks.
    Each block is padded with 0 to `long` numbers."""
    flat = b.reshape(x, [product(x.shape[:-1]), x.shape[-1]])
    whole = -(-blocks * block // rounding.block)
    over = whole * rounding.block - int(str(x.shape[-1]))
    parts = b.reshape(b.pad(flat, [0, 0, 0, over]), [flat.shape[0], whole, rounding.block])
    largest = b.reduce("max", b.map(lambda v: call("abs", v), parts), (2,), keepdims=True)
    factors = b.map(lambda v: v / 127, largest)

    def number(v: Expr, factor: Expr) -> Expr:
        return saturated(call("round", v * select(factor > 0, 1 / factor, const(0.0, F32))), I8)

    numbers = b.reshape(b.map(number, parts, factors), [flat.shape[0], blocks, block])
    numbers = b.pad(numbers, [0, 0, 0, 0, 0, long - block])
    words = b.node(Reshape((flat.shape[0], const(blocks * long // BYTES)), I32), [numbers])
    return words, b.reshape(factors, [flat.shape[0], whole])


def _sums(
    b: Builder, words: Tensor, scales: Tensor, rounding: Rounding, sizes: tuple[int, int, int], moved: int
) -> Tensor:
    """Return the sum of the quantized numbers of each block.

    The result is i32, times `moved`, unless `moved` is 0; then it is f32, times the block's factor. `sizes`:
    blocks, words of a block, and blocks that share a factor.
    """
    blocks, count, apart = sizes

    def one(bufs: Sequence[Buffer], index: Sequence[Expr], k: Sequence[Expr]) -> Expr:
        return call(DOT4U.name, const(ONES, I32), bufs[0][index[0], index[1] * count + k[0]])

    sums = b.reduction(I32, (words.shape[0], blocks), [count], "sum", [words], one)
    if moved:
        return b.map(lambda v: v * moved, sums)

    def scaled(bufs: Sequence[Buffer], m: Expr, at: Expr) -> Expr:
        return rounding.factor(cast(F32, bufs[0][m, at]) * bufs[1][m, at // apart])

    return b.compute(F32, sums.shape, [sums, scales], scaled)


def is_blocks(node: Node, graph: Graph) -> bool:
    """Return whether a node is a product with block-quantized weights."""
    if not isinstance(node.attrs, Compute) or len(node.inputs) < 3:
        return False
    numbers, scale = (graph.constants.get(n) for n in node.inputs[1:3])
    last = node.attrs.stages[-1]
    whole = numbers is not None and numbers.dtype.kind in "iu" and scale is not None
    return whole and last.combiner == "sum" and len(last.reduce_axes) == 1


def _halved(numbers: Array) -> Array:
    """Return the 4-bit numbers of each row packed into i32, eight in each. The first four are in the lower
    halves of its bytes, the others in the upper halves."""
    pairs = numbers.reshape(len(numbers), -1, 2, BYTES)
    return np.ascontiguousarray(pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(len(numbers), -1).view("<i4")


def _words(numbers: Array) -> Array:
    """Return the 4-bit numbers of each row packed into i32, eight in each, the first in the lowest bits. The
    last i32 of a row is filled up with 0."""
    rows, width = numbers.shape
    even = np.zeros((rows, -(-width // NIBBLES) * NIBBLES), np.uint8)
    even[:, :width] = numbers
    return np.ascontiguousarray(even[:, ::2] | even[:, 1::2] << 4).view("<i4")


def _smallest(floats: Array) -> Array:
    """Return the same numbers as f16 if f16 represents all of them, else as f32."""
    with np.errstate(over="ignore"):
        half = floats.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), floats) else floats.astype(np.float32)
