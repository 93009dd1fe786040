"""Lower operators that place elements by indices, lengths or bounds, such as segments, diagonals, buckets and
boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jangin.frontends.registry import Table, lowers
from jangin.frontends.tflite.operators.common import Call, undefined
from jangin.ir.core import Reshape
from jangin.ir.dtype import BOOL, F32, I32, I64, U8
from jangin.ir.expr import Buffer, Expr, binary, cast, const, eq, land, maximum, minimum, select
from jangin.ir.te import identity
from jangin.ops import move
from jangin.ops import select as chosen
from jangin.ops.builder import Builder
from jangin.ops.elementwise import bitcast
from jangin.ops.reduce import arg_extreme
from jangin.ops.scatter import scatter_nd
from jangin.ops.suppress import softly_chosen
from jangin.ops.values import Tensor


@lowers("REVERSE_SEQUENCE")
def reverse_sequence(call: Call) -> Tensor:
    axes = {"batch_axis": call.options["batch_dim"], "time_axis": call.options["seq_dim"]}
    return move.reverse_sequence(call.b, call.x(), call.x(1), **axes)


@lowers("SPARSE_TO_DENSE")
def sparse_to_dense(call: Call) -> Tensor:
    """Return a dense tensor. The inputs are indices, the shape, values and the value of all other elements.
    The indices are one number, a vector or rows. There may be one value for all indices."""
    b, at, shape = call.b, call.x(), call.sizes(1)
    tuples = at if at.rank == 2 else b.reshape(at, [at.shape[0] if at.rank else const(1), const(1)])
    values = b.expand(call.x(2), [tuples.shape[0]])
    return scatter_nd(b, b.expand(call.x(3), shape), tuples, values, from_end=False)


def _segments(reduction: str, neutral: str) -> Callable[..., Tensor]:
    """Return a lowering that reduces slices by their segment's number. The number of segments must be known.

    Slices with a negative number are left out. An empty segment has the reduction's neutral element, which is
    the lowest or the highest finite number for extrema."""

    def lower(call: Call, given: Expr | None = None) -> Tensor:
        b, x, numbers = call.b, call.x(), call.x(1)
        count = call.sizes(2)[0] if given is None else given
        first = b.const(np.nan_to_num(np.array(identity(neutral, x.dtype).value, x.dtype.numpy)))
        zeros = b.expand(first, [count + 1, *x.shape[numbers.rank :]])
        places = b.map(lambda v: select(v < 0, count, cast(I64, v)), numbers)
        joined = scatter_nd(b, zeros, b.reshape(places, [*numbers.shape, 1]), x, reduction=reduction)
        return b.slice(joined, [0] * joined.rank, [count, *joined.shape[1:]], [1] * joined.rank)

    return lower


SEGMENTS = Table({
    "UNSORTED_SEGMENT_SUM": _segments("add", "sum"), "UNSORTED_SEGMENT_PROD": _segments("mul", "prod"),
    "UNSORTED_SEGMENT_MAX": _segments("max", "max"), "UNSORTED_SEGMENT_MIN": _segments("min", "min"),
})  # fmt: skip


@lowers("SEGMENT_SUM")
def segment_sum(call: Call) -> Tensor:
    """Return sums of neighbouring slices with the same segment number. The numbers [n] are ascending. They
    must be constant, because the last one determines the number of segments."""
    numbers = call.b.require_constant(call.x(1), "segments' numbers")
    count = int(numbers.max()) + 1 if numbers.size else 0
    return _segments("add", "sum")(call, const(count))


@lowers("MATRIX_DIAG")
def matrix_diag(call: Call) -> Tensor:
    """Return matrices with x [..., n] as their diagonals, and 0 elsewhere."""
    x = call.x()
    zero = const(0, x.dtype)

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        return select(eq(index[-2], index[-1]), bufs[0][index[:-1]], zero)

    return call.b.compute(x.dtype, [*x.shape, x.shape[-1]], [x], at)


@lowers("MATRIX_SET_DIAG")
def matrix_set_diag(call: Call) -> Tensor:
    """Return matrices [..., m, n] with their diagonals replaced by the second input [..., min(m, n)]."""
    x, diagonal = call.x(), call.x(1)
    last = diagonal.shape[-1] - 1

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        place = minimum(index[-1], last)
        return select(eq(index[-2], index[-1]), bufs[1][(*index[:-2], place)], bufs[0][index])

    return call.b.compute(x.dtype, x.shape, [x, diagonal], at)


@lowers("BUCKETIZE")
def bucketize(call: Call) -> Tensor:
    """Return the number of boundaries, which are ascending, that each element isn't below."""
    b, x = call.b, call.x()
    bounds = np.array(call.options["boundaries"], np.float32)
    apart = b.reshape(x, [*x.shape, 1])
    reached = b.map(lambda v, bound: cast(I32, cast(F32, v) >= bound), apart, b.const(bounds))
    return b.reduce("sum", reached, [x.rank])


@lowers("UNIQUE")
def unique(call: Call) -> tuple[Tensor, Tensor]:
    """Return the distinct elements in the order of their first appearance, and the position of each element
    of x among them."""
    values, _, which, _ = chosen.unique(call.b, call.x(), ascending=False)
    return values, call.b.cast(which, call.gives[1].dtype or I32)


@lowers("BROADCAST_ARGS")
def broadcast_args(call: Call) -> Tensor:
    """Return the shape to which two shapes broadcast."""
    b = call.b
    rank = max(int(b.require_sizes(b.sizes(call.x(i).shape), "ranks")[0].value) for i in (0, 1))  # type: ignore[attr-defined]
    shapes = []
    for i in (0, 1):
        x = call.x(i)
        ones = b.expand(b.scalar(1, x.dtype), [const(rank) - x.shape[0]])
        shapes.append(b.concat([ones, x], 0))
    return b.map(lambda v, w: select(eq(v, 1), w, v), *shapes)


@lowers("RIGHT_SHIFT")
def right_shift(call: Call) -> Tensor:
    """Return x shifted right. Distances are clamped to 0 and the type's number of bits minus 1."""
    x, by = call.x(), call.x(1)
    if not x.dtype.is_int:
        raise undefined(x.dtype)
    most = const(x.dtype.bits - 1, x.dtype)
    return call.b.map(lambda v, n: binary("shr", v, minimum(maximum(n, const(0, n.dtype)), most)), x, by)


@lowers("BITCAST")
def bit_cast(call: Call) -> Tensor:
    """Return the bytes of x as another type. If the types' sizes differ, the last axis has the parts of each
    larger element."""
    b, x, dtype = call.b, call.x(), call.out.dtype
    assert dtype is not None
    if x.dtype.bits == dtype.bits:
        return bitcast(b, x, dtype)
    times = const(max(x.dtype.bits, dtype.bits) // min(x.dtype.bits, dtype.bits))
    shape = (*x.shape, times) if x.dtype.bits > dtype.bits else x.shape[:-1]
    return b.node(Reshape(shape, dtype), [x])


@lowers("NON_MAX_SUPPRESSION_V4")
def suppressed(call: Call) -> tuple[Tensor, Tensor]:
    """Return the positions of the boxes that non-maximum suppression keeps, followed by zeros, and their
    number.

    The inputs are boxes [n, 4] (corners), scores [n], the largest number of boxes, the overlap threshold and
    the lowest score."""
    at, there = _suppressed(call)
    return call.b.cast(at, I32), _count(call.b, there)


@lowers("NON_MAX_SUPPRESSION_V5")
def softly_suppressed(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results of version 4 and the scores of the kept boxes, as the second result. A sixth input,
    sigma, lowers the scores of overlapping boxes, unless it is 0."""
    b, scores = call.b, call.x(1)
    if float(b.require_constant(call.x(5), "the sigma of soft suppression").reshape(-1)[0]):
        positions, scores = softly_chosen(
            b, call.x(), scores,
            limit=call.x(2), overlap=call.x(3), floor=call.x(4), sigma=call.x(5),
        )  # fmt: skip
        at, there = _filled(call, positions)
        places = b.compute(I64, at.shape, [], lambda _, i: minimum(i, positions.shape[0] - 1))
        kept = b.gather(scores, places, 0)
    else:
        at, there = _suppressed(call)
        kept = b.gather(scores, at, 0)
    return b.cast(at, I32), b.map(lambda v, f: select(f, v, 0.0), kept, there), _count(b, there)


def _suppressed(call: Call) -> tuple[Tensor, Tensor]:
    """Return the positions of the kept boxes, and whether each position has a box. A box is dropped if its
    overlap with a better one is at least the threshold."""
    b, boxes, scores = call.b, call.x(), call.x(1)
    n = boxes.shape[0]
    bits = b.map(lambda v: v - 1, bitcast(b, call.x(3), I32))
    below = b.map(lambda v, w: select(v > 0, w, -1.0), call.x(3), bitcast(b, bits, F32))
    positions = chosen.chosen_boxes(
        b, b.reshape(boxes, [1, n, 4]), b.reshape(scores, [1, 1, n]),
        limit=call.x(2), overlap=below, floor=call.x(4),
    )  # fmt: skip
    return _filled(call, b.reshape(positions, [n]))


def _filled(call: Call, found: Tensor) -> tuple[Tensor, Tensor]:
    """Return as many positions as requested, with 0 after the last box, and whether each position has a
    box."""
    b, (most,), n = call.b, call.sizes(2), found.shape[0]
    at = b.compute(I64, [most], [found], lambda bufs, i: select(i < n, bufs[0][minimum(i, n - 1)], -1))
    return b.map(lambda v: maximum(v, 0), at), b.map(lambda v: v >= 0, at)


def _count(b: Builder, there: Tensor) -> Tensor:
    return b.reduce("sum", b.cast(there, I32), [0])


@lowers("HASHTABLE_LOOKUP")
def table_lookup(call: Call) -> tuple[Tensor, Tensor]:
    """Return the rows for wanted keys [n], or 0 for unknown keys, and whether each key is known (uint8). The
    inputs are the wanted keys, the table's keys [m] and its rows."""
    b, wanted, keys, values = call.b, call.x(), call.x(1), call.x(2)
    same = b.map(lambda w, k: cast(I64, eq(w, k)), b.reshape(wanted, [wanted.shape[0], 1]), keys)
    there = b.reduce("max", same, [1])
    rows = b.gather(values, arg_extreme(b, same, 1, "max"), 0)
    flags = b.reshape(there, [there.shape[0], *[1] * (values.rank - 1)])
    return b.map(lambda v, f: select(f > 0, v, const(0, v.dtype)), rows, flags), b.cast(there, U8)


@lowers("DILATE")
def dilate(call: Call) -> Tensor:
    """Return x with a fill value between its elements. The inputs are x, the distance between its elements
    along each axis, and the fill value."""
    return padded(call, [(0, 0, d - 1) for d in call.integers(1)], 2)


@lowers("STABLEHLO_PAD")
def pad(call: Call) -> Tensor:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    return padded(call, list(zip(*(call.options[n] for n in names), strict=True)), 1)


def padded(call: Call, pads: Sequence[tuple[int, int, int]], value: int) -> Tensor:
    """Return x with the given numbers of elements added before, after and between its elements along each
    axis. Negative numbers crop. The added elements are the input number `value`."""
    b, x = call.b, call.x()
    shape = [
        maximum(d + (d - 1) * inner + low + high, 0)
        for d, (low, high, inner) in zip(x.shape, pads, strict=True)
    ]

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        inside: Expr = const(True, BOOL)
        places = []
        for i, d, (low, _, inner) in zip(index, x.shape, pads, strict=True):
            place = (i - low) // (inner + 1)
            inside = land(inside, land(eq((i - low) % (inner + 1), 0), land(place >= 0, place < d)))
            places.append(minimum(maximum(place, 0), maximum(d - 1, 0)))
        return select(inside, bufs[0][tuple(places)], bufs[1][()])

    return b.compute(x.dtype, shape, [x, b.reshape(call.x(value), [])], at)
