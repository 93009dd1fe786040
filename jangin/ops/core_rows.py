"""Depthwise convolutions of bytes by products of words; a word packs a column's bytes of four rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jangin.ir.core import Conv
from jangin.ir.dtype import I32, DType
from jangin.ir.expr import Buffer, Expr, Load, binary, cast, const, land, maximum, minimum, select
from jangin.ir.te import Stage, reduction
from jangin.ops.operands import TRUE, multiplied

ROWS = 4
"""Rows that a word packs, one byte each: a word of 32 bits has four bytes."""
_BITS = tuple(int(np.uint32(255 << 8 * n).astype(np.int32)) for n in range(ROWS))
"""The mask of each byte of a word."""


def is_of_rows(data: DType, attrs: Conv) -> bool:
    """Return whether a convolution of this data packs rows of it into words to multiply them with weight
    words."""
    return attrs.dot is not None and attrs.dot.terms_of_word == ROWS and data is attrs.dot.left


def conv_of_rows(x: Buffer, w: Buffer, out: Buffer, attrs: Conv) -> tuple[Stage, ...]:
    """Return the stage of the convolution, channels last, on two spatial axes.

    Rows outside the image are read at its border and multiplied by 0. Padding rows that no window has are
    treated alike, so the code is the same for every row.
    """
    size, begin, end = x.shape[1:3], attrs.pads[:2], attrs.pads[2:]

    def place(i: int, at: Expr, tap: Expr) -> Expr:
        return at * attrs.strides[i] + tap * attrs.dilations[i] - begin[i]

    def inside(i: int, at: Expr) -> Expr:
        first = at >= 0 if begin[i] > 0 else TRUE
        return land(first, at < size[i]) if end[i] > 0 else first

    def term(index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        (n, row, pixel, c), (words, tap, none) = index, k
        column = place(1, pixel, tap)
        rows = [place(0, row, words * ROWS + r) for r in range(min(ROWS, attrs.kernel[0]))]
        values: list[Expr] = []
        for r, y in enumerate(rows):
            value: Expr = Load(x, (n, _held(y, begin[0], end[0], size[0]), column, c))
            if attrs.kernel[0] > ROWS:
                value = select(words * ROWS + r < attrs.kernel[0], value, const(0, x.dtype))
            values.append(value)
        bits = [select(inside(0, y), const(b, I32), const(0, I32)) for y, b in zip(rows, _BITS, strict=False)]
        weights: Expr = Load(w, (c, none, words, tap))
        if begin[0] > 0 or end[0] > 0:
            weights = binary("and", weights, _either(bits))
        product = multiplied(word_of_bytes(values), weights, out.dtype, attrs.dot)
        return select(inside(1, column), product, const(0, I32))

    return (reduction(out, [*w.shape[2:], w.shape[1]], "sum", term),)


def word_of_bytes(values: Sequence[Expr]) -> Expr:
    """Pack bytes into a word, the first in the low bits."""
    return _either(
        [binary("shl", cast(I32, v), const(8 * n, I32)) if n else cast(I32, v) for n, v in enumerate(values)]
    )


def _either(parts: Sequence[Expr]) -> Expr:
    total = parts[0]
    for part in parts[1:]:
        total = binary("or", total, part)
    return total


def _held(at: Expr, begin: int, end: int, size: Expr) -> Expr:
    """Return a position clamped into an axis; `begin` and `end` say how far windows go beyond either end."""
    at = maximum(at, const(0)) if begin > 0 else at
    return minimum(at, size - 1) if end > 0 else at
