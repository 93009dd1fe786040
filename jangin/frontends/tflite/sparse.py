"""Convert sparse weights to dense ones, by the schema's `SparsityParameters`, which give the positions of the
stored numbers.

The levels of a sparse tensor are its axes, followed by the axes of its blocks, in traversal order. A dense
level has all of its entries. A sparse level lists those that it has (Kjolstad et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tflite

from jangin.ir.graph import Array, CompileError

INDICES = {
    tflite.SparseIndexVector.Int32Vector: tflite.Int32Vector,
    tflite.SparseIndexVector.Uint16Vector: tflite.Uint16Vector,
    tflite.SparseIndexVector.Uint8Vector: tflite.Uint8Vector,
}


def dense(what: str, values: Array, shape: Sequence[int], given: Any) -> Array:
    """Return a dense array with the stored values at their positions, and 0 elsewhere. Raises CompileError if
    the parts don't fit together."""
    order = _ints(given.TraversalOrderAsNumpy()).tolist()
    blocks = _ints(given.BlockMapAsNumpy()).tolist()
    rank, levels = len(shape), given.DimMetadataLength()
    fits = sorted(order) == list(range(rank + len(blocks))) and levels == len(order)
    if not fits or order[:rank] != [a for a in order if a < rank] or any(not 0 <= a < rank for a in blocks):
        raise CompileError(
            f"{what} is sparse, and its axes {order} in blocks {blocks} don't fit {list(shape)}"
        )
    most, columns = math.prod(shape), np.zeros((1, 0), np.int64)
    position = np.zeros(1, np.int64)
    sizes: list[int] = []
    for level in range(levels):
        entry = given.DimMetadata(level)
        if _count(entry, position) > most:
            raise CompileError(f"{what} is sparse, and has more places than {list(shape)}")
        counts, indices, places = _entries(entry, position)
        columns = np.concatenate([np.repeat(columns, counts, 0), indices[:, None]], 1)
        position = places
        sizes.append(int(entry.DenseSize()))
    at = np.zeros((len(columns), rank), np.int64)
    at[:, order[:rank]] = columns[:, :rank]
    for level, axis in enumerate(order[rank:], rank):
        own = blocks[axis - rank]
        at[:, own] = at[:, own] * sizes[level] + columns[:, level]
    inside = (at >= 0).all() and (at < np.array(shape)).all()
    if len(at) != values.size or not inside:
        raise CompileError(
            f"{what} is sparse, and has {values.size} numbers for {len(at)} places in {list(shape)}"
        )
    whole = np.zeros(shape, values.dtype)
    whole[tuple(at.T)] = values
    return whole


def _count(entry: Any, position: Array) -> int:
    """Return the number of entries that a level has, for the entries `position` of the level before."""
    if entry.Format() == tflite.DimensionType.DENSE:
        return len(position) * max(int(entry.DenseSize()), 0)
    segments = _vector(entry.ArraySegments(), entry.ArraySegmentsType())
    return int((segments[position + 1] - segments[position]).sum())


def _entries(entry: Any, position: Array) -> tuple[Array, Array, Array]:
    """Return, for the entries `position` of the level before, how many entries each has in this level. The
    other results are their indices along the level's axis and their positions."""
    if entry.Format() == tflite.DimensionType.DENSE:
        size = int(entry.DenseSize())
        counts = np.full(len(position), size, np.int64)
        numbers = np.tile(np.arange(size), len(position))
        return counts, numbers, np.repeat(position, size) * size + numbers
    segments = _vector(entry.ArraySegments(), entry.ArraySegmentsType())
    indices = _vector(entry.ArrayIndices(), entry.ArrayIndicesType())
    starts, counts = segments[position], segments[position + 1] - segments[position]
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.repeat(starts, counts) + offsets
    return counts, indices[places], places


def _vector(table: Any, kind: int) -> Array:
    vector = INDICES[kind]()
    vector.Init(table.Bytes, table.Pos)
    return _ints(vector.ValuesAsNumpy()).astype(np.int64)


def _ints(array: Any) -> Array:
    return array if isinstance(array, np.ndarray) else np.zeros(0, np.int64)
