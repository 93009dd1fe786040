"""Decode ggml's blocks of weights: the integers and scales in their bytes (ggml-quants.c)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jangin.ir.dtype import F32, I8, I32
from jangin.ir.expr import Buffer, Expr, binary, cast, const
from jangin.ir.graph import Array, CompileError
from jangin.ir.records import dataclass
from jangin.ops import axes
from jangin.ops.blocks import Rounding, matmul_blocks
from jangin.ops.builder import Builder
from jangin.ops.folding import FOLD_LIMIT
from jangin.ops.index import in_range
from jangin.ops.values import Tensor

PLAIN = ("F32", "F16")
Bytes = Callable[[Expr], Expr]
"""A function that returns a byte of a block's integers as an i32, given the byte's position among them."""


@dataclass(frozen=True)
class Layout:
    """The layout of a block of `size` weights in `bytes` bytes.

    `integers` returns a weight's integer, given the block's bytes from `start` to `end` and the weight's
    position. `group` weights share a scale. `scales` returns each group's factor, given the blocks' bytes
    [..., bytes]. It also returns the groups' offsets if the type has them."""

    size: int
    bytes: int
    start: int
    end: int
    group: int
    integers: Callable[[Bytes, Expr], Expr]
    scales: Callable[[Array], tuple[Array, ...]]


def _shifted(value: Expr, by: Expr | int) -> Expr:
    return binary("shr", value, cast(I32, by) if isinstance(by, Expr) else const(by, I32))


def _low(value: Expr, bits: int) -> Expr:
    return binary("and", value, const((1 << bits) - 1, I32))


def _nibble(at: Bytes, k: Expr, span: int) -> Expr:
    """Return the 4-bit integer number `k`. In each `span` bytes, the low halves come before the high ones."""
    byte = k // (2 * span) * span + k % span
    return _low(_shifted(at(byte), k // span % 2 * 4), 4)


def _half(data: Array) -> Array:
    """Return 16-bit floats, given their two bytes each [..., 2], as f32 [..., 1]."""
    return np.ascontiguousarray(data).view("<f2").astype(np.float32)


def _k_scales(data: Array) -> tuple[Array, Array]:
    """Return the eight factors and offsets of a block of 256 weights. They are 6-bit integers in 12 bytes,
    multiplied by a float for each kind."""
    packed = data[..., 4:16].astype(np.uint8)
    first, second, both = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scale = np.concatenate([first & 63, (both & 15) | (first >> 6 << 4)], -1)
    offset = np.concatenate([second & 63, (both >> 4) | (second >> 6 << 4)], -1)
    return _half(data[..., :2]) * scale, -_half(data[..., 2:4]) * offset


def _signed(data: Array) -> Array:
    return data.view(np.int8).astype(np.float32)


LAYOUTS: Mapping[str, Layout] = {
    "Q4_0": Layout(32, 18, 2, 18, 32, lambda at, k: _nibble(at, k, 16) - 8, lambda d: (_half(d[..., :2]),)),
    "Q4_1": Layout(
        32, 20, 4, 20, 32, lambda at, k: _nibble(at, k, 16), lambda d: (_half(d[..., :2]), _half(d[..., 2:4]))
    ),
    "Q5_0": Layout(
        32, 22, 2, 22, 32,
        lambda at, k: _nibble(lambda i: at(i + 4), k, 16) + _low(_shifted(at(k // 8), k % 8), 1) * 16 - 16,
        lambda d: (_half(d[..., :2]),),
    ),
    "Q5_1": Layout(
        32, 24, 4, 24, 32,
        lambda at, k: _nibble(lambda i: at(i + 4), k, 16) + _low(_shifted(at(k // 8), k % 8), 1) * 16,
        lambda d: (_half(d[..., :2]), _half(d[..., 2:4])),
    ),
    "Q8_0": Layout(
        32, 34, 2, 34, 32, lambda at, k: binary("xor", at(k), const(128, I32)) - 128,
        lambda d: (_half(d[..., :2]),),
    ),
    "Q4_K": Layout(256, 144, 16, 144, 32, lambda at, k: _nibble(at, k, 32), _k_scales),
    "Q5_K": Layout(
        256, 176, 16, 176, 32,
        lambda at, k: _nibble(lambda i: at(i + 32), k, 32) + _low(_shifted(at(k % 32), k // 32), 1) * 16,
        _k_scales,
    ),
    "Q6_K": Layout(
        256, 210, 0, 192, 16,
        lambda at, k: _low(_shifted(at(k // 128 * 64 + k % 64), k // 64 % 2 * 4), 4)
        + _low(_shifted(at(k // 128 * 32 + k % 32 + 128), k // 32 % 4 * 2), 2) * 16 - 32,
        lambda d: (_half(d[..., 208:210]) * _signed(d[..., 192:208]),),
    ),
}  # fmt: skip


def product(b: Builder, x: Tensor, t: Tensor, kind: str, width: int, rounded: bool = False) -> Tensor:
    """Return x [rows, width] times the transpose of a constant's weights, which are blocks, u8 [outputs,
    bytes]. The weights stay in blocks.

    With `rounded`, x is rounded to 8 bits, as ggml does for weights of this type."""
    if kind in PLAIN:
        return b.matmul(x, b.cast(t, F32), transpose_b=True)
    layout, data = LAYOUTS[kind], b.require_constant(t, "the weights")
    kept, *scales = _columns(data, layout, kind, width)
    each = max(FOLD_LIMIT // width, 1)
    parts = [_numbers(b, kept[n : n + each], layout, width) for n in range(0, len(kept), each)]
    offsets = scales[1] if len(scales) > 1 else None
    numbers = np.concatenate(parts)
    rounding = Rounding(layout.size, halves=layout.size == layout.group) if rounded else None
    return matmul_blocks(b, x, numbers, scales[0], offsets, layout.group, rounding)


def _numbers(b: Builder, kept: Array, layout: Layout, width: int) -> Array:
    """Return the integers of the rows, i8 [rows, width], given the rows' bytes of integers."""

    def number(bufs: Sequence[Buffer], row: Expr, k: Expr) -> Expr:
        return cast(I8, _integer(bufs[0], layout, row, k))

    return b.require_constant(b.compute(I8, (len(kept), width), [b.const(kept)], number), "the weights")


def rows(b: Builder, t: Tensor, kind: str, width: int, places: Tensor) -> Tensor:
    """Return the weights' rows with the numbers `places`, as f32 [*places, width]. A run checks the
    numbers."""
    places = in_range(b, places, t.shape[0], from_end=False)
    if kind in PLAIN:
        return b.cast(b.gather(t, places, 0), F32)
    columns = _columns(b.require_constant(t, "the weights"), LAYOUTS[kind], kind, width)
    flat = b.reshape(places, [axes.product(places.shape)])
    chosen = _dequantized(b, [b.gather(b.const(c), flat, 0) for c in columns], LAYOUTS[kind], width)
    return b.reshape(chosen, [*places.shape, width])


def _columns(data: Array, layout: Layout, kind: str, width: int) -> list[Array]:
    """Return each row's bytes of integers, its groups' factors, and the groups' offsets if the type has them.
    Raises CompileError if the bytes aren't rows of blocks."""
    rows, count = data.shape[0], width // layout.size
    if width % layout.size or data.shape != (rows, count * layout.bytes):
        raise CompileError(f"{data.shape} bytes aren't rows of {width} weights of type {kind}")
    blocks = data.reshape(rows, count, layout.bytes)
    kept = np.ascontiguousarray(blocks[:, :, layout.start : layout.end])
    return [np.ascontiguousarray(a.reshape(rows, -1)) for a in (kept, *layout.scales(blocks))]


def _integer(kept: Buffer, layout: Layout, row: Expr, k: Expr) -> Expr:
    """Return weight number `k` of a row as an i32, given the rows' bytes of integers."""
    start = k // layout.size * (layout.end - layout.start)
    return layout.integers(lambda i: cast(I32, kept[row, start + i]), k % layout.size)


def _dequantized(b: Builder, parts: Sequence[Tensor], layout: Layout, width: int) -> Tensor:
    """Return the weights as f32 [rows, width]: each integer times its group's factor, plus the group's offset
    if the type has one."""

    def weight(bufs: Sequence[Buffer], row: Expr, k: Expr) -> Expr:
        group = k // layout.group
        value = cast(F32, _integer(bufs[0], layout, row, k)) * bufs[1][row, group]
        return value + bufs[2][row, group] if len(bufs) > 2 else value

    return b.compute(F32, (parts[0].shape[0], width), parts, weight)
