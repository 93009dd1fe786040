"""Lower StableHLO's operators in their general forms: slices at positions, and windows over any axes.
Integers aren't rescaled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jangin.frontends.registry import lowers
from jangin.frontends.tflite.operators.common import Call
from jangin.frontends.tflite.operators.parts import padded
from jangin.ir.dtype import BOOL, I64
from jangin.ir.expr import Buffer, Expr, const, land, maximum, minimum, select
from jangin.ir.expr import call as intrinsic
from jangin.ir.graph import CompileError
from jangin.ir.te import COMBINERS
from jangin.ops import index
from jangin.ops.axes import product
from jangin.ops.scatter import scatter_nd
from jangin.ops.values import Tensor

REDUCTIONS = {
    "ADD": "sum", "MUL": "prod", "MULTIPLY": "prod", "MAXIMUM": "max", "MINIMUM": "min",
    "AND": "all", "LOGICAL_AND": "all", "OR": "any", "LOGICAL_OR": "any",
}  # fmt: skip
"""The reduction that a sub-graph of one operator computes, by the operator's name without the prefix
STABLEHLO_."""
SCATTERED = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
FUNCTIONS = ("", "sum", "prod", "min", "max", "all", "any")
"""The reductions of REDUCE_WINDOW, in the order of the schema's numbers."""


def _reduction(call: Call) -> str:
    """Return the reduction by which the operator's sub-graph combines two numbers. It is "" if the sub-graph
    returns the second number. Raises CompileError for other sub-graphs."""
    body: Sequence[str] = call.options["body"]
    names = [name.removeprefix("STABLEHLO_") for name in body]
    if len(names) > 1 or not {*names} <= REDUCTIONS.keys():
        raise CompileError(f"a reduction by {', '.join(body)} is not supported; one operator of these is: "
                           f"{', '.join(REDUCTIONS)}")  # fmt: skip
    return REDUCTIONS[names[0]] if names else ""


def _split(index: Sequence[Expr], windows: Sequence[int]) -> tuple[list[Expr], list[Expr]]:
    """Split an index into a part inside a slice and a part among the slices. The first part has the entries
    of the axes in `windows`."""
    return [index[i] for i in windows], [v for i, v in enumerate(index) if i not in windows]


def _place(
    positions: Buffer, axis: int, vector: int, inner: Sequence[Expr | None], outer: Sequence[Expr],
    mapped: Sequence[int],
) -> tuple[Expr | None, Expr]:  # fmt: skip
    """Return the start of a slice along an axis (None for 0), and the element's offset from it.

    `vector` is the axis of `positions` that has a position's coordinates. `mapped` are the axes to which the
    coordinates belong."""
    offset = inner[axis]
    offset = const(0) if offset is None else offset
    if axis not in mapped:
        return None, offset
    return positions[(*outer[:vector], const(mapped.index(axis)), *outer[vector:])], offset


def _along(rank: int, inner: Sequence[Expr], gone: Sequence[int]) -> list[Expr | None]:
    """Return an index inside a slice with an entry for each axis of the tensor. The entry is None for the
    axes `gone`, which the slice doesn't have."""
    rest = iter(inner)
    return [None if i in gone else next(rest) for i in range(rank)]


def _numbered(at: Tensor, vector: int) -> None:
    """Raise CompileError if positions have no axis for their coordinates. LiteRT crashes at such
    positions."""
    if not 0 <= vector < at.rank:
        raise CompileError(f"index_vector_dim must be an axis of the positions {at}, not {vector}")


@lowers("STABLEHLO_GATHER")
def gather(call: Call) -> Tensor:
    """Return slices of given sizes at positions. A slice that would reach outside of x is moved inside."""
    b, o, x, at = call.b, call.options, call.x(), call.b.cast(call.x(1), I64)
    windows, gone, vector = o["offset_dims"], o["collapsed_slice_dims"], o["index_vector_dim"]
    kept = iter([n for i, n in enumerate(o["slice_sizes"]) if i not in gone])
    outside = iter([d for i, d in enumerate(at.shape) if i != vector])
    _numbered(at, vector)
    count = at.rank - 1 + x.rank - len(gone)
    shape = [const(next(kept)) if i in windows else next(outside) for i in range(count)]

    def element(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        inner, outer = _split(index, windows)
        coords = []
        for axis, (d, n) in enumerate(zip(x.shape, o["slice_sizes"], strict=True)):
            start, offset = _place(
                bufs[1], axis, vector, _along(x.rank, inner, gone), outer, o["start_index_map"]
            )
            coords.append(offset if start is None else maximum(minimum(start, d - n), 0) + offset)
        return bufs[0][tuple(coords)]

    return b.compute(x.dtype, shape, [x, at], element)


@lowers("STABLEHLO_SCATTER")
def scatter(call: Call) -> Tensor:
    """Return x with slices combined into it at positions. Elements that would be outside of x are left
    out."""
    b, o, x, updates = call.b, call.options, call.x(), call.x(2)
    at, kind = b.cast(call.x(1), I64), _reduction(call)
    windows, gone, vector = o["update_window_dims"], o["inserted_window_dims"], o["index_vector_dim"]
    if kind and kind not in SCATTERED:
        raise CompileError(f"slices joined by '{kind}' are not supported")
    _numbered(at, vector)
    total = product(x.shape)

    def target(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        inner, outer = _split(index, windows)
        inside: Expr = const(True, BOOL)
        flat: Expr = const(0)
        for axis, d in enumerate(x.shape):
            start, offset = _place(
                bufs[0], axis, vector, _along(x.rank, inner, gone), outer, o["scatter_dims_to_operand_dims"]
            )
            place = offset if start is None else start + offset
            inside, flat = land(inside, land(place >= 0, place < d)), flat * d + place
        return select(inside, flat, total)

    count = product(updates.shape)
    places = b.reshape(b.compute(I64, updates.shape, [at], target), [count, 1])
    flat = b.concat([b.reshape(x, [total]), b.expand(b.scalar(0, x.dtype), [const(1)])], 0)
    joined = scatter_nd(b, flat, places, b.reshape(updates, [count]), reduction=SCATTERED.get(kind, "none"))
    return b.reshape(b.slice(joined, [0], [total], [1]), x.shape)


@lowers("STABLEHLO_REDUCE_WINDOW")
def stablehlo_reduce_window(call: Call) -> Tensor:
    """Return the reductions of windows. The inputs are x and the initial value. The padding around x and
    between its elements has this value too."""
    o, padding = call.options, call.options["padding"]
    if min(o["base_dilations"], default=1) < 1:
        raise CompileError(f"base_dilations {o['base_dilations']} of {call.x()} must be at least 1")
    pads = zip(padding[0::2], padding[1::2], (d - 1 for d in o["base_dilations"]), strict=True)
    x = padded(call, list(pads), 1)
    return _windows(
        call, x, _reduction(call), o["window_dimensions"], o["window_strides"], o["window_dilations"]
    )


@lowers("REDUCE_WINDOW")
def reduce_window(call: Call) -> Tensor:
    """Return the reductions of windows. The inputs are x, the initial value, and the windows' sizes, strides
    and dilations."""
    kind = FUNCTIONS[call.options["reduce_function"]]
    return _windows(call, call.x(), kind, *(call.integers(i) for i in (2, 3, 4)))


def _windows(
    call: Call, x: Tensor, kind: str, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Tensor:
    """Return the initial value combined with each window of x by the reduction `kind`. Raises CompileError if
    this isn't supported."""
    b = call.b
    if kind in ("all", "any"):
        if x.dtype is not BOOL:
            raise CompileError(f"windows are reduced by '{kind}' for truth values only, not for {x}")
        kind = {"all": "min", "any": "max"}[kind]
    if kind not in COMBINERS:
        raise CompileError("the reduction of windows is not known from the file, which is not supported")
    if min(*sizes, *strides, *dilations) < 1:
        raise CompileError(
            f"windows of sizes {sizes}, strides {strides} and dilations {dilations}: all must be 1 or more"
        )
    reach = [(n - 1) * d + 1 for n, d in zip(sizes, dilations, strict=True)]
    shape = [maximum((d - r) // s + 1, 0) for d, r, s in zip(x.shape, reach, strides, strict=True)]

    def element(bufs: Sequence[Buffer], index: Sequence[Expr], k: Sequence[Expr]) -> Expr:
        steps = zip(index, strides, k, dilations, strict=True)
        return bufs[0][tuple(i * s + n * d for i, s, n, d in steps)]

    reduced = b.reduction(x.dtype, shape, [const(n) for n in sizes], kind, [x], element)
    return b.map(COMBINERS[kind], reduced, b.reshape(call.x(1), []))


COMBINED = ("sum", "mean", "sqrtn")
"""The combiners of EMBEDDING_LOOKUP_SPARSE, in the order of their numbers in the schema. A combiner makes one
row of all rows that belong to one position of the result."""


@lowers("EMBEDDING_LOOKUP_SPARSE")
def embedding_lookup_sparse(call: Call) -> Tensor:
    """Return sums of rows of a table, each multiplied by its weight, at positions [n, axes] in a tensor of
    given sizes. The rows' indices and the weights are [n].

    Rows whose positions differ only along the last axis are summed. For "mean" the sum is divided by the sum
    of the weights. For "sqrtn" it is divided by the square root of the sum of squared weights."""
    b, (rows, at, weights, table) = call.b, (call.x(i) for i in (0, 1, 3, 4))
    kind, sizes = COMBINED[call.options["combiner"]], call.sizes(2)[:-1]
    count, size = rows.shape[0], product(table.shape[1:])
    flat = b.reshape(table, [table.shape[0], size])
    terms = b.map(
        lambda v, w: v * w, index.gather(b, flat, rows, from_end=False), b.reshape(weights, [count, 1])
    )
    whole = b.cast(at, I64)

    def place(bufs: Sequence[Buffer], i: Expr) -> Expr:
        position: Expr = const(0)
        for axis, d in enumerate(sizes):
            position = position * d + bufs[0][i, axis]
        return position

    places = b.reshape(b.compute(I64, [count], [whole], place), [count, 1])
    total = product(sizes)

    def summed(values: Tensor) -> Tensor:
        zeros = b.expand(b.scalar(0, values.dtype), [total, *values.shape[1:]])
        return scatter_nd(b, zeros, places, values, reduction="add")

    sums = summed(terms)
    if kind != "sum":
        squares = kind == "sqrtn"
        parts = b.map(lambda w: w * w, weights) if squares else weights
        ones = b.expand(b.const(np.array(1, np.float32)), [count])
        share, there = (b.reshape(summed(t), [total, 1]) for t in (parts, ones))

        def divided(v: Expr, s: Expr, n: Expr) -> Expr:
            return select(n > 0, v / (intrinsic("sqrt", s) if squares else s), 0.0)

        sums = b.map(divided, sums, share, there)
    return b.reshape(sums, [*sizes, *table.shape[1:]])
