"""Decompress the weights of MIL programs, which are results of the operations whose names begin with
"constexpr"."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from jangin.ir.graph import Array, CompileError
from jangin.ir.sources import Sources

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
    weights: Array = lut[indices].reshape(shape)
    return weights


def _tables(a: Arrays) -> Array:
    """Return the vectors for an array of indices. Each block of the indices has its own table, and the tables
    are [*blocks, entries, length].

    A vector's elements are along the axis `vector_axis`."""
    indices, lut = a["indices"], a["lut"]
    places = np.indices(indices.shape)
    blocks = [p * n // s for p, n, s in zip(places, lut.shape, indices.shape, strict=False)]
    vectors = lut[(*blocks, indices.astype(np.int64))]
    axis = int(a["vector_axis"]) % indices.ndim if lut.shape[-1] > 1 else 0
    behind = np.moveaxis(vectors, -1, axis + 1)
    shape = [n * lut.shape[-1] if m == axis else n for m, n in enumerate(indices.shape)]
    return np.ascontiguousarray(behind).reshape(shape)


def _sparse(a: Arrays) -> Array:
    """Return an array with the values where the mask isn't 0, and 0 elsewhere. The mask has an element for
    each element of the result, or a bit if `shape` is given."""
    values, mask = a["nonzero_data"], a["mask"]
    if "shape" in a:
        shape = tuple(int(n) for n in a["shape"])
        mask = np.unpackbits(mask.view(np.uint8), bitorder="little")[: int(np.prod(shape))].reshape(shape)
    array = np.zeros(mask.shape, values.dtype)
    array[mask != 0] = values
    return array


def _sparse_tables(a: Arrays) -> Arrays:
    """Look up the indices that the mask keeps. Return the mask for the vectors' elements, and the elements
    that it keeps."""
    mask, lut = a["indices_mask"], a["lut"]
    indices = _sparse({"nonzero_data": a["indices_nonzero_data"], "mask": mask})
    if lut.shape[-1] > 1:
        mask = np.repeat(mask, lut.shape[-1], int(a["vector_axis"]))
    return {"mask": mask, "values": _tables({**a, "indices": indices})[mask != 0]}


def _sparse_blockwise(a: Arrays) -> Arrays:
    mask = a["data_mask"]
    whole = _blockwise({**a, "data": _sparse({"nonzero_data": a["nonzero_data"], "mask": mask})})
    return {"mask": mask, "values": whole[mask != 0]}


def _cast(a: Arrays) -> Array:
    if str(a.get("output_dtype", "fp32")) != "fp32":
        raise CompileError(f"a cast to {a['output_dtype']} is not supported")
    return a["source_val"].astype(np.float32)


KINDS: Mapping[str, Callable[[Arrays], Array | Arrays]] = {
    "constexpr_affine_dequantize": _affine, "constexpr_blockwise_shift_scale": _blockwise,
    "constexpr_cast": _cast, "constexpr_lut_to_dense": lambda a: _table(a) if "shape" in a else _tables(a),
    "constexpr_lut_to_sparse": _sparse_tables, "constexpr_sparse_blockwise_shift_scale": _sparse_blockwise,
    "constexpr_sparse_to_dense": _sparse,
}  # fmt: skip


def decompressed(kind: str, arrays: Arrays, source: Sources) -> list[Array]:
    """Return the results of the constexpr operation `kind`: the weights, or a mask and the weights.

    Raises CompileError if the operation is unknown, and if its arguments don't fit together."""
    if kind not in KINDS:
        raise CompileError(
            f"{source}: weights compressed by {kind} are not supported; {', '.join(KINDS)} are"
        )
    try:
        parts = KINDS[kind](arrays)
        return [np.asarray(v) for v in (parts.values() if isinstance(parts, Mapping) else [parts])]
    except (KeyError, ValueError, IndexError, TypeError, ZeroDivisionError) as error:
        raise CompileError(
            f"{source}: its parts don't fit each other: {type(error).__name__}: {error}"
        ) from None
