"""Lower operators that move, join and cut tensors, and operators that create tensors. Most keep quantized
integers unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jangin.frontends.registry import lowers
from jangin.frontends.tflite.operators.common import Call, Factors, Quantization, requantized
from jangin.ir.dtype import F32, F64, I4, I8, I16, I32, I64, U8
from jangin.ir.expr import Buffer, Expr, cast, const, land, maximum, minimum, select
from jangin.ir.graph import CompileError
from jangin.ops import index, move
from jangin.ops.axes import axis_of, channels_first, channels_last, divide
from jangin.ops.scatter import scatter_nd
from jangin.ops.select import non_zero, top_k
from jangin.ops.values import Tensor


@lowers("RESHAPE")
def reshape(call: Call) -> Tensor:
    shape = call.optional(1)
    if shape is not None and shape.rank == 1:
        sizes = call.b.require_sizes(shape, "the sizes of RESHAPE", low=-1)
    else:
        sizes = [const(n) for n in call.options.get("new_shape", [])]
    return move.reshape_to(call.b, call.x(), sizes, True)


@lowers("DENSIFY")
def densify(call: Call) -> Tensor:
    """Return x. The importer has already converted sparse weights to dense ones."""
    return call.x()


@lowers("EXPAND_DIMS")
def expand_dims(call: Call) -> Tensor:
    x = call.x()
    at = axis_of(call.integers(1)[0], x.rank + 1)
    return call.b.reshape(x, [*x.shape[:at], 1, *x.shape[at:]])


@lowers("SQUEEZE")
def squeeze(call: Call) -> Tensor:
    x = call.x()
    dims = [d % x.rank for d in call.options.get("squeeze_dims", [])]
    gone = dims or [i for i, d in enumerate(x.shape) if d == const(1)]
    return call.b.reshape(x, [d for i, d in enumerate(x.shape) if i not in gone])


@lowers("TRANSPOSE")
def transpose(call: Call) -> Tensor:
    return call.b.transpose(call.x(), [d % call.x().rank for d in call.integers(1)])


@lowers("SHAPE")
def shape(call: Call) -> Tensor:
    return call.b.sizes(call.x().shape, call.out.dtype or I32)


@lowers("RANK")
def rank(call: Call) -> Tensor:
    return call.b.const(np.array(call.x().rank, np.int32))


def _alike(q: Quantization, other: Quantization) -> bool:
    return not q.integer or (q.scale, q.zero) == (other.scale, other.zero)


def _into(call: Call, i: int, x: Tensor) -> Tensor:
    """Return x, which is input number `i`, rescaled to the result's quantization if it has another one."""
    if _alike(call.given[i], call.out):
        return x
    zero = call.given[i].zero
    centred = call.b.map(lambda v: cast(I32, v) - zero, x)
    return requantized(call, centred, Factors.of(call.b, [call.given[i].scale / call.out.scale]), 0)


@lowers("CONCATENATION")
def concatenation(call: Call) -> Tensor:
    """Return the inputs concatenated along an axis. Only 8-bit inputs are rescaled to the result's
    quantization, as in the reference kernel."""
    parts = [call.x(i) for i in range(len(call.inputs))]
    if call.out.dtype is not I16:
        parts = [_into(call, i, x) for i, x in enumerate(parts)]
    return call.b.concat(parts, axis_of(call.options["axis"], parts[0].rank))


@lowers("PACK")
def pack(call: Call) -> Tensor:
    parts = [call.x(i) for i in range(len(call.inputs))]
    at = axis_of(call.options["axis"], parts[0].rank + 1)
    rows = [call.b.reshape(p, [*p.shape[:at], 1, *p.shape[at:]]) for p in parts]
    return call.b.concat(rows, at)


@lowers("UNPACK")
def unpack(call: Call) -> tuple[Tensor, ...]:
    x = call.x()
    at = axis_of(call.options["axis"], x.rank)
    parts = move.split_into(call.b, x, at, [const(1)] * call.options["num"])
    return tuple(call.b.reshape(p, [d for i, d in enumerate(x.shape) if i != at]) for p in parts)


@lowers("SPLIT")
def split(call: Call) -> tuple[Tensor, ...]:
    """Return x, the second input, split into equal parts along an axis, the first input."""
    x = call.x(1)
    at, count = axis_of(call.integers(0)[0], x.rank), call.options["num_splits"]
    return move.split_into(call.b, x, at, move.equal_sizes(call.b, x, at, count))


@lowers("SPLIT_V")
def split_v(call: Call) -> tuple[Tensor, ...]:
    """Return x split into parts of given sizes along an axis. The inputs are x, the sizes and the axis. A
    size of -1 means all other entries."""
    x, sizes = call.x(), call.integers(1)
    at = axis_of(call.integers(2)[0], x.rank)
    parts: list[Expr] = [const(n) for n in sizes]
    if -1 in sizes:
        parts[sizes.index(-1)] = x.shape[at] - (sum(sizes) + 1)
    return move.split_into(call.b, x, at, parts)


@lowers("SLICE")
def slice_(call: Call) -> Tensor:
    """Return x from the starts on, in the given sizes. A size of -1 means all entries from the start on."""
    x, starts, sizes = call.x(), call.sizes(1), call.sizes(2)
    counts = [d - s if n == const(-1) else n for d, s, n in zip(x.shape, starts, sizes, strict=True)]
    return call.b.slice(x, starts, counts, [1] * x.rank)


@lowers("STRIDED_SLICE")
def strided_slice(call: Call) -> Tensor:
    """Return a slice of x as in NumPy. Bit masks tell which bounds are left out, and which entries are single
    indices that remove their axis."""
    b, x, o = call.b, call.x(), call.options
    begins, ends, steps = call.sizes(1), call.sizes(2), call.integers(3)
    axes, gone, new = _sliced(o, len(begins), x.rank)
    starts, stops = [], []
    far = const((1 << 31) - 1)
    for i in axes:
        begin, end, step = begins[i], ends[i], steps[i]
        starts.append((const(0) if step > 0 else far) if o["begin_mask"] >> i & 1 else begin)
        stops.append((far if step > 0 else const(-(1 << 31))) if o["end_mask"] >> i & 1 else end)
        if axes[i] in gone:
            starts[-1], stops[-1] = begin, (far if begin == const(-1) else begin + 1)
    cut = move.slice_axes(b, x, starts, stops, [*axes.values()], [steps[i] for i in axes])
    shape: list[Expr] = []
    for i in range(x.rank + 1):
        shape += [const(1)] * new.count(i)
        shape += [cut.shape[i]] if i < x.rank and i not in gone else []
    return b.reshape(cut, shape)


def _sliced(o: Mapping[str, Any], count: int, rank: int) -> tuple[dict[int, int], set[int], list[int]]:
    """Return the axis for each entry of the bounds, the axes that an index removes, and the axes before which
    new ones are inserted.

    An ellipsis stands for all axes without another entry. Raises CompileError if there are several."""
    masks = [o.get(f"{name}_mask", 0) for name in ("ellipsis", "new_axis", "shrink_axis")]
    ellipses = [i for i in range(count) if masks[0] >> i & 1]
    if len(ellipses) > 1:
        raise CompileError(f"its slice has {len(ellipses)} ellipses, and may have one")
    new_count = sum(masks[1] >> i & 1 for i in range(count) if i not in ellipses)
    rest = rank - (count - new_count - len(ellipses))
    axis, axes, gone, new = 0, dict[int, int](), set[int](), list[int]()
    for i in range(count):
        if i in ellipses:
            axis += rest
        elif masks[1] >> i & 1:
            new.append(axis)
        else:
            axes[i] = axis
            gone |= {axis} if masks[2] >> i & 1 else set()
            axis += 1
    if rest < 0:
        raise CompileError(f"its slice has bounds of {rank - rest} axes, and its input {rank}")
    return axes, gone, new


@lowers("PAD", "PADV2")
def pad(call: Call) -> Tensor:
    """Return x padded with a constant. By default it is 0, or the zero point if x is quantized."""
    pads, value = call.integers(1), call.optional(2)
    begins, ends = pads[0::2], pads[1::2]
    fill: float = call.given[0].zero if call.given[0].integer else 0
    if value is not None:
        fill = call.b.require_constant(value, "the value of PADV2").reshape(()).item()
    return call.b.pad(call.x(), [*begins, *ends], "constant", fill)


@lowers("MIRROR_PAD")
def mirror_pad(call: Call) -> Tensor:
    b, x, pads = call.b, call.x(), call.integers(1)
    begins, ends = pads[0::2], pads[1::2]
    if call.options["mode"] == 0:
        return b.pad(x, [*begins, *ends], "reflect")

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        """Return the element mirrored at the border; the border's element is repeated."""
        places = []
        for i, d, before in zip(index, x.shape, begins, strict=True):
            place = select(i < before, before - 1 - i, i - before)
            places.append(select(place < d, place, 2 * d - 1 - place))
        return bufs[0][tuple(places)]

    shape = [p + d + q for p, d, q in zip(begins, x.shape, ends, strict=True)]
    return b.compute(x.dtype, shape, [x], at)


@lowers("TILE")
def tile(call: Call) -> Tensor:
    return move.repeat(call.b, call.x(), call.sizes(1))


@lowers("BROADCAST_TO")
def broadcast_to(call: Call) -> Tensor:
    return call.b.expand(call.x(), call.sizes(1))


@lowers("REVERSE_V2")
def reverse(call: Call) -> Tensor:
    x = call.x()
    turned = {a % x.rank for a in call.integers(1)}
    starts = [d - 1 if i in turned else const(0) for i, d in enumerate(x.shape)]
    return call.b.slice(x, starts, x.shape, [-1 if i in turned else 1 for i in range(x.rank)])


@lowers("FILL")
def fill(call: Call) -> Tensor:
    return call.b.expand(call.x(1), call.sizes(0))


@lowers("ZEROS_LIKE")
def zeros_like(call: Call) -> Tensor:
    return call.b.expand(call.b.scalar(0, call.x().dtype), call.x().shape)


@lowers("RANGE")
def range_(call: Call) -> Tensor:
    return move.arange(call.b, call.x(0), call.x(1), call.x(2))


@lowers("GATHER")
def gather(call: Call) -> Tensor:
    """Return slices of x at indices. The first `batch_dims` axes of x and of the indices are the same."""
    b, x, places = call.b, call.x(), call.x(1)
    axis = axis_of(call.options.get("axis", 0), x.rank)
    batch = call.options.get("batch_dims", 0)
    batch += places.rank if batch < 0 else 0
    if not batch:
        return index.gather(b, x, places, axis=axis, from_end=False)
    if not 0 <= batch <= min(axis, places.rank):
        raise CompileError(f"batch_dims {batch} doesn't fit axis {axis} and indices {places}")
    places = index.in_range(b, places, x.shape[axis], from_end=False)

    def at(bufs: Sequence[Buffer], *out: Expr) -> Expr:
        inner = out[axis : axis + places.rank - batch]
        place = maximum(minimum(cast(I64, bufs[1][(*out[:batch], *inner)]), x.shape[axis] - 1), 0)
        return bufs[0][(*out[:axis], place, *out[axis + places.rank - batch :])]

    shape = [*x.shape[:axis], *places.shape[batch:], *x.shape[axis + 1 :]]
    return b.compute(x.dtype, shape, [x, places], at)


@lowers("GATHER_ND")
def gather_nd(call: Call) -> Tensor:
    return index.gather_nd(call.b, call.x(), call.x(1), from_end=False)


@lowers("EMBEDDING_LOOKUP")
def embedding_lookup(call: Call) -> Tensor:
    """Return the rows of a table, the second input, at indices. A quantized table may give floats."""
    b, q, table = call.b, call.given[1], call.x(1)
    rows = index.gather(b, table, call.x(0), axis=0, from_end=False)
    if call.out.dtype is table.dtype:
        return rows
    if q.dtype not in (I4, I8, U8) or call.out.dtype is not F32 or q.scales is None or q.axis:
        raise CompileError(f"a table of {table.dtype} for {call.out.dtype} is not supported")
    if q.zeros is not None and q.zeros.any():
        raise CompileError("a table with zero points is not supported")
    if q.scales.size == 1:  # LiteRT applies a single scale in f64
        return b.map(lambda v: cast(F32, cast(F64, v) * q.scale), rows)
    scales = b.gather(b.const(q.scales.astype(np.float32)), call.x(0), 0)
    apart = b.reshape(scales, [*scales.shape, *[1] * (rows.rank - scales.rank)])
    return b.map(lambda v, s: cast(F32, v) * s, rows, apart)


@lowers("SCATTER_ND")
def scatter(call: Call) -> Tensor:
    """Return zeros to which updates are added. The inputs are index tuples, updates and the shape. Updates of
    the same position are summed."""
    zeros = call.b.expand(call.b.scalar(0, call.x(1).dtype), call.sizes(2))
    return scatter_nd(call.b, zeros, call.x(0), call.x(1), reduction="add", from_end=False)


@lowers("ONE_HOT")
def one_hot(call: Call) -> Tensor:
    """Return one-hot encodings. The inputs are indices, the depth, and the values for on and for off."""
    values = call.b.concat([call.b.reshape(call.x(i), [1]) for i in (3, 2)], 0)
    (depth,) = call.sizes(1)
    return index.one_hot(call.b, call.x(), depth, values, axis=call.options["axis"])


@lowers("TOPK_V2")
def topk(call: Call) -> tuple[Tensor, Tensor]:
    values, at = top_k(call.b, call.x(), call.sizes(1)[0])
    return values, call.b.cast(at, call.gives[1].dtype or I32)


@lowers("WHERE")
def where(call: Call) -> Tensor:
    return call.b.transpose(non_zero(call.b, call.x()), [1, 0])


@lowers("DEPTH_TO_SPACE")
def depth_to_space(call: Call) -> Tensor:
    x = channels_first(call.b, call.x())
    return channels_last(call.b, move.depth_to_space(call.b, x, call.options["block_size"]))


@lowers("SPACE_TO_DEPTH")
def space_to_depth(call: Call) -> Tensor:
    x = channels_first(call.b, call.x())
    return channels_last(call.b, move.space_to_depth(call.b, x, call.options["block_size"]))


@lowers("SPACE_TO_BATCH_ND")
def space_to_batch(call: Call) -> Tensor:
    """Return x padded, with blocks of its spatial axes moved to the batch."""
    b, x, blocks, pads = call.b, call.x(), call.integers(1), call.integers(2)
    count = len(blocks)
    rest = x.rank - 1 - count
    fill = call.given[0].zero if call.given[0].integer else 0
    x = b.pad(x, [0, *pads[0::2], *[0] * rest, 0, *pads[1::2], *[0] * rest], "constant", fill)
    split_shape: list[Expr] = [x.shape[0]]
    for d, n in zip(x.shape[1 : 1 + count], blocks, strict=True):
        split_shape += [_exact(d, n, call), const(n)]
    y = b.reshape(x, [*split_shape, *x.shape[1 + count :]])
    order = [*range(2, 2 + 2 * count, 2), 0, *range(1, 1 + 2 * count, 2), *range(1 + 2 * count, y.rank)]
    y = b.transpose(y, order)
    batch = x.shape[0] * int(np.prod(blocks))
    return b.reshape(y, [batch, *(split_shape[1::2]), *x.shape[1 + count :]])


def _exact(d: Expr, n: int, call: Call) -> Expr:
    return divide(d, const(n), call.b.symbols)


@lowers("BATCH_TO_SPACE_ND")
def batch_to_space(call: Call) -> Tensor:
    """Return blocks moved from the batch back to the spatial axes, then cropped. This is the inverse of
    `space_to_batch`."""
    b, x, blocks, crops = call.b, call.x(), call.integers(1), call.integers(2)
    count = len(blocks)
    batch = _exact(x.shape[0], int(np.prod(blocks)), call)
    y = b.reshape(x, [*blocks, batch, *x.shape[1:]])
    order = [count]
    for i in range(count):
        order += [count + 1 + i, i]
    y = b.transpose(y, [*order, *range(2 * count + 1, y.rank)])
    sizes = [d * n for d, n in zip(x.shape[1 : 1 + count], blocks, strict=True)]
    y = b.reshape(y, [batch, *sizes, *x.shape[1 + count :]])
    starts = [0, *crops[0::2], *[0] * (y.rank - 1 - count)]
    kept = [d - p - q for d, p, q in zip(sizes, crops[0::2], crops[1::2], strict=True)]
    return b.slice(y, starts, [batch, *kept, *x.shape[1 + count :]], [1] * y.rank)


@lowers("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(call: Call) -> Tensor:
    """Return x with `update` written at the start that input 2 has. A start that is too large is reduced so
    that the update fits."""
    b, x, update = call.b, call.x(), call.x(1)
    starts = b.cast(call.x(2), I64)

    def at(bufs: Sequence[Buffer], *place: Expr) -> Expr:
        inside: Expr | bool = True
        source = []
        for n, (i, d, u) in enumerate(zip(place, x.shape, update.shape, strict=True)):
            first = minimum(maximum(bufs[2][n], 0), d - u)
            offset = i - first
            inside = land(inside, land(offset >= 0, offset < u))
            source.append(maximum(minimum(offset, u - 1), 0))
        return select(inside, bufs[1][tuple(source)], bufs[0][place])

    return b.compute(x.dtype, x.shape, [x, update, starts], at)
