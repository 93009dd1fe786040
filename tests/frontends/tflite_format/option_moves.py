"""The cases of `options.py` whose operators move elements, make new ones, or look them up."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from files import Tensor
from option_kinds import ACTIVATIONS, TYPES, Case, Kind, kinds, numbers, tensor

MASKS = ("BeginMask", "EndMask", "EllipsisMask", "NewAxisMask", "ShrinkAxisMask")
SLICES: list[Any] = [
    ([0, 1, 0], [2, 3, 4], [1, 1, 2], [2, 2, 2], (0, 0, 0, 0, 0)),
    ([0, 1, 0], [2, 3, 4], [1, 1, 2], [2, 3, 2], (2, 2, 0, 0, 0)),
    ([1, 2, 3], [0, 0, 0], [1, -1, -2], [2, 2], (0, 0, 0, 0, 1)),
    ([0, 0, 1], [0, 0, 3], [1, 1, 1], [2, 3, 2], (0, 0, 2, 0, 0)),
    ([0, 1], [0, 3], [1, 1], [2, 3, 2], (0, 0, 1, 0, 0)),
    ([0, 0, 0], [0, 2, 0], [1, 1, 1], [1, 2, 3, 4], (4, 4, 0, 1, 0)),
    ([0, 0, 1, 0], [2, 0, 3, 4], [1, 1, 1, 2], [2, 1, 2, 2], (0, 0, 0, 2, 0)),
    ([0, 0, 1], [0, 0, 2], [1, 1, 1], [2, 3], (0, 0, 2, 0, 4)),
    ([0, 0, 0], [0, 0, 0], [1, 1, 1], [2, 3, 4, 1], (0, 0, 1, 2, 0)),
]


def gathered(dtype: str, quantized: bool) -> Iterator[tuple[str, Case]]:
    """Yield cases of operators that gather elements by index."""
    each = Kind(dtype, quantized)
    y, made = each.y, each.made
    shape = [2, 3, 4]
    x = tensor(shape, dtype, quantized)
    for axis, batch in ((0, 0), (1, 0), (1, 1), (2, 1), (-1, 0), (2, 2)):
        at = numbers(*[1, 0, 1, 0][: 2 if batch < 1 else 4], shape=[2] if batch < 1 else [2, 2])
        if batch == 2:
            at = numbers(*[i % 4 for i in range(12)], shape=[2, 3, 2])
        k = 2
        out = [*shape[: axis % 3], *([k] if batch < 3 else []), *shape[axis % 3 + 1 :]]
        yield made("GATHER", [x, at, y(*out)], 1, "GatherOptions", "", Axis=axis, BatchDims=batch)
    yield made("GATHER", [x, numbers(1, 0, dtype="int64"), y(2, 3, 4)], 1, "GatherOptions", "int64", Axis=0)
    yield made("GATHER", [x, numbers(1, 0, dtype="int16"), y(2, 3, 4)], 1, "GatherOptions", "int16", Axis=0)
    for kind in ("int32", "int64", "int16"):
        yield made("GATHER_ND", [x, numbers(1, 2, 0, 0, shape=[2, 2], dtype=kind), y(2, 4)], 1, label=kind)


def shaped(dtype: str, quantized: bool) -> Iterator[tuple[str, Case]]:
    """Yield cases of operators that move elements without changing them."""
    each = Kind(dtype, quantized)
    y, made = each.y, each.made
    shape = [2, 3, 4]
    x = tensor(shape, dtype, quantized)
    yield made("TRANSPOSE", [x, numbers(2, 0, 1), y(4, 2, 3)], 1)
    yield made("RESHAPE", [x, numbers(4, -1), y(4, 6)], 1, "ReshapeOptions", NewShape=[4, 6])
    yield made("RESHAPE", [x, y(4, 6)], 1, "ReshapeOptions", "option", NewShape=[4, 6])
    yield made(
        "SQUEEZE", [tensor([1, 3, 1], dtype, quantized), y(3, 1)], 1, "SqueezeOptions", SqueezeDims=[0]
    )
    yield made("EXPAND_DIMS", [x, numbers(1, shape=[]), y(2, 1, 3, 4)], 1)
    yield made("TILE", [x, numbers(1, 2, 3), y(2, 6, 12)], 1)
    yield made("BROADCAST_TO", [tensor([3, 1], dtype, quantized), numbers(2, 3, 4), y(2, 3, 4)], 1)
    yield made("REVERSE_V2", [x, numbers(1), y(*shape)], 1)
    yield made(
        "REVERSE_SEQUENCE",
        [x, numbers(1, 3), y(*shape)],
        1,
        "ReverseSequenceOptions",
        SeqDim=1,
        BatchDim=0,
    )
    yield made("SLICE", [x, numbers(0, 1, 1), numbers(2, 2, -1), y(2, 2, 3)], 1)
    yield made("SPLIT", [numbers(2, shape=[]), x, y(2, 3, 2), y(2, 3, 2)], 2, "SplitOptions", NumSplits=2)
    yield made(
        "SPLIT_V",
        [x, numbers(1, -1), numbers(1, shape=[]), y(2, 1, 4), y(2, 2, 4)],
        2,
        "SplitVOptions",
        NumSplits=2,
    )
    for axis in (0, 1, -1):
        out = [2, 3, 4]
        out.insert(axis if axis >= 0 else 3, 2)
        yield made("PACK", [x, x, y(*out)], 1, "PackOptions", Axis=axis, ValuesCount=2)
    for act, factor in product(ACTIVATIONS, (1, 1.6) if quantized else (1,)):
        z = tensor(shape, dtype, quantized, factor)
        yield made(
            "CONCATENATION",
            [x, z, y(2, 3, 8)],
            1,
            "ConcatenationOptions",
            f"{factor}",
            Axis=-1,
            FusedActivationFunction=act,
        )


def filled(dtype: str, quantized: bool) -> Iterator[tuple[str, Case]]:
    """Yield cases of operators that join, pad or select elements."""
    each = Kind(dtype, quantized)
    y, made = each.y, each.made
    shape = [2, 3, 4]
    x = tensor(shape, dtype, quantized)
    pads = numbers(0, 0, 1, 0, 0, 2, shape=[3, 2])
    yield made("PAD", [x, pads, y(2, 4, 6)], 1)
    yield made(
        "PAD", [x, numbers(0, 0, 1, 0, 0, 2, shape=[3, 2], dtype="int64"), y(2, 4, 6)], 1, label="int64"
    )
    value = tensor([], dtype, quantized, data=1)
    yield made("PADV2", [x, pads, value, y(2, 4, 6)], 1)
    for mode in (0, 1):
        yield made("MIRROR_PAD", [x, pads, y(2, 4, 6)], 1, "MirrorPadOptions", Mode=mode)
    yield made("TOPK_V2", [x, numbers(2, shape=[]), y(2, 3, 2), Tensor([2, 3, 2], "int32")], 2)
    yield made("TOPK_V2", [x, numbers(2, shape=[]), y(2, 3, 2), Tensor([2, 3, 2], "int16")], 2, label="int16")
    yield made("FILL", [numbers(2, 3), tensor([], dtype, quantized), y(2, 3)], 1)
    for axis in (0, -1):
        ends = [tensor([], dtype, quantized, data=1), tensor([], dtype, quantized, data=0)]
        out = (4, 3) if axis == 0 else (3, 4)
        yield made(
            "ONE_HOT",
            [numbers(2, 0, 1), numbers(4, shape=[]), *ends, y(*out)],
            1,
            "OneHotOptions",
            Axis=axis,
        )
    yield made(
        "SCATTER_ND",
        [numbers(2, 0, shape=[2, 1]), tensor([2, 4], dtype, quantized), numbers(3, 4), y(3, 4)],
        1,
    )
    for name in ("SELECT", "SELECT_V2"):
        yield made(name, [Tensor(shape, "bool"), x, x, y(*shape)], 1)
    yield made("SELECT", [Tensor([2], "bool"), x, x, y(*shape)], 1, label="rows")
    yield made(
        "SELECT_V2",
        [Tensor([3, 1], "bool"), x, tensor([4], dtype, quantized), y(*shape)],
        1,
        label="broadcast",
    )


def images(dtype: str, quantized: bool) -> Iterator[tuple[str, Case]]:
    """Yield cases of operators between batches and space, and of operators that resize images."""
    each = Kind(dtype, quantized)
    y, made = each.y, each.made
    batch = tensor([1, 4, 4, 2], dtype, quantized)
    yield made(
        "SPACE_TO_BATCH_ND", [batch, numbers(2, 2), numbers(0, 0, 2, 0, shape=[2, 2]), y(4, 2, 3, 2)], 1
    )
    yield made(
        "BATCH_TO_SPACE_ND",
        [
            tensor([4, 2, 2, 2], dtype, quantized),
            numbers(2, 2),
            numbers(0, 0, 1, 0, shape=[2, 2]),
            y(1, 4, 3, 2),
        ],
        1,
    )
    for aligned, half, size in product((False, True), (False, True), ((7, 3), (2, 9))):
        o = {"AlignCorners": aligned, "HalfPixelCenters": half}
        for name, table in (
            ("RESIZE_BILINEAR", "ResizeBilinearOptions"),
            ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions"),
        ):
            yield made(name, [batch, numbers(*size), y(1, *size, 2)], 1, table, f"{size}", **o)


def looked_up(dtype: str, quantized: bool) -> Iterator[tuple[str, Case]]:
    """Yield cases of operators that look elements up, count them or replace single ones."""
    each = Kind(dtype, quantized)
    y, made = each.y, each.made
    shape = [2, 3, 4]
    x = tensor(shape, dtype, quantized)
    for out in ("int32", "int64"):
        yield made(
            "UNIQUE",
            [tensor([6], dtype, quantized), tensor([0], dtype, quantized), Tensor([6], out)],
            2,
            "UniqueOptions",
            IdxOutType=2 if out == "int32" else 4,
        )
    yield made(
        "DYNAMIC_UPDATE_SLICE", [x, tensor([1, 2, 2], dtype, quantized), numbers(0, 1, 5), y(*shape)], 1
    )
    yield made(
        "EMBEDDING_LOOKUP",
        [numbers(1, 0, 1), tensor([2, 4], dtype, quantized, data=np.arange(8).reshape(2, 4)), y(3, 4)],
        1,
    )
    yield made(
        "EMBEDDING_LOOKUP",
        [
            numbers(1, 0, 1),
            tensor([2, 4], dtype, quantized, data=np.arange(8).reshape(2, 4)),
            Tensor([3, 4]),
        ],
        1,
        label="to floats",
    )


def built(dtype: str, quantized: bool) -> Iterator[tuple[str, Case]]:
    """Yield cases of operators that make matrices and ranges, cast, or slice."""
    each = Kind(dtype, quantized)
    y, made = each.y, each.made
    shape = [2, 3, 4]
    x = tensor(shape, dtype, quantized)
    yield made("SEGMENT_SUM", [x, numbers(0, 0), y(1, 3, 4)], 1)
    for part in ("SUM", "PROD", "MAX", "MIN"):
        yield made(f"UNSORTED_SEGMENT_{part}", [x, numbers(1, 0), numbers(2, shape=[]), y(2, 3, 4)], 1)
    yield made("MATRIX_DIAG", [x, y(2, 3, 4, 4)], 1)
    yield made("MATRIX_SET_DIAG", [x, tensor([2, 3], dtype, quantized), y(*shape)], 1)
    yield made(
        "RANGE",
        [
            tensor([], dtype, quantized, data=1),
            tensor([], dtype, quantized, data=9),
            tensor([], dtype, quantized, data=3),
            y(3),
        ],
        1,
    )
    yield made(
        "SPARSE_TO_DENSE",
        [
            numbers(1, 4),
            numbers(6),
            tensor([2], dtype, quantized),
            tensor([], dtype, quantized, data=0),
            y(6),
        ],
        1,
    )
    for other in TYPES:
        yield made("CAST", [x, Tensor(shape, other)], 1, "CastOptions", other)
    for other in ("int8", "uint8", "int16", "int32"):
        yield made("QUANTIZE", [x, tensor(shape, other)], 1, label=other)
    for masks in SLICES:
        yield made(
            "STRIDED_SLICE",
            [x, *(numbers(*v) for v in masks[:3]), y(*masks[3])],
            1,
            "StridedSliceOptions",
            f"{masks[:3]}",
            **dict(zip(MASKS, masks[4], strict=True)),
        )


PARTS = (gathered, shaped, filled, images, looked_up, built)


def moves() -> Iterator[tuple[str, Case]]:
    """Yield all cases, type by type."""
    for dtype, quantized in kinds():
        for part in PARTS:
            yield from part(dtype, quantized)
