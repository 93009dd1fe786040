"""Compressed weights of MIL programs (constexpr operations) as what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from jangin.ir.graph import Array, CompileError

Arrays = Mapping[str, Array]


def _affine(a: Arrays) -> Array:
    data, scale = a["quantized_data"], a["scale"]
    axis = int(a["axis"]) if "axis" in a else 0
    shape = [-1 if n == axis % data.ndim else 1 for n in range(data.ndim)]
    spread = [t.reshape(shape) if t.ndim else t for t in (scale, a["zero_point"])]
    wide = data.astype(np.float32) - spread[1].astype(np.float32)
    return (wide * spread[0].astype(np.float32)).astype(scale.dtype)


def _blockwise(a: Arrays) -> Array:
    data, scale = a["data"], a["scale"]
    offset = a.get("offset")

    def spread(t: Array) -> Array:
        for axis, size in enumerate(data.shape):
            t = np.repeat(t, size // t.shape[axis], axis)
        return t.astype(np.float32)

    wide = data.astype(np.float32) - (0 if offset is None else spread(offset))
    return (wide * spread(scale)).astype(scale.dtype)


def _table(a: Arrays) -> Array:
    shape, lut, packed = tuple(int(n) for n in a["shape"]), a["lut"], a["indices"]
    bits = max(int(lut.size - 1).bit_length(), 1)
    flags = np.unpackbits(packed.view(np.uint8), bitorder="little")
    indices = (flags[: int(np.prod(shape)) * bits].reshape(-1, bits) << np.arange(bits)).sum(1)
    found: Array = lut[indices].reshape(shape)
    return found


def _tables(a: Arrays) -> Array:
    """Of each block of the indices its own table, [*blocks, entries, 1]."""
    indices, lut = a["indices"], a["lut"]
    if lut.shape[-1] != 1:
        raise CompileError("tables of vectors are not supported")
    places = np.indices(indices.shape)
    blocks = [p * n // s for p, n, s in zip(places, lut.shape, indices.shape, strict=False)]
    return np.asarray(lut[(*blocks, indices.astype(np.int64), 0)])


def _sparse(a: Arrays) -> Array:
    values, shape = a["nonzero_data"], tuple(int(n) for n in a["shape"])
    mask = np.unpackbits(a["mask"].view(np.uint8), bitorder="little")[: int(np.prod(shape))].astype(bool)
    found = np.zeros(mask.size, values.dtype)
    found[mask] = values
    return found.reshape(shape)


def _cast(a: Arrays) -> Array:
    return a["source_val"].astype(np.float32)


KINDS: Mapping[str, Callable[[Arrays], Array]] = {
    "constexpr_affine_dequantize": _affine, "constexpr_blockwise_shift_scale": _blockwise,
    "constexpr_cast": _cast, "constexpr_lut_to_dense": lambda a: _table(a) if "shape" in a else _tables(a),
    "constexpr_sparse_to_dense": _sparse,
}  # fmt: skip


def decompressed(kind: str, arrays: Arrays, source: str) -> Array:
    """CompileError for another way of compressing, and for parts that don't fit."""
    if kind not in KINDS:
        raise CompileError(
            f"{source}: weights compressed by {kind} are not supported; {', '.join(KINDS)} are"
        )
    try:
        return np.asarray(KINDS[kind](arrays))
    except (KeyError, ValueError, IndexError, TypeError, ZeroDivisionError) as error:
        raise CompileError(f"{source}: its parts don't fit: {type(error).__name__}: {error}") from None
