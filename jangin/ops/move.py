"""Moves elements: cutting, padding, repeating, reordering; also ranges and triangles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jangin.ir.dtype import F64, I64
from jangin.ir.expr import (
    Buffer,
    Const,
    Expr,
    call,
    cast,
    const,
    eq,
    is_const,
    land,
    maximum,
    minimum,
    ne,
    select,
)
from jangin.ir.graph import MAX_SIZE, CompileError, static_shape
from jangin.ir.simplify import Ranges, prove, simplify
from jangin.ops.axes import axes_of, axis_of, ceil_div, clamped, divide, integers, product
from jangin.ops.builder import FAR, Builder
from jangin.ops.folding import FOLD_LIMIT
from jangin.ops.index import in_range
from jangin.ops.values import DATA_LIMIT, Tensor

UNBOUNDED = (1 << 31) - 1
"""Slice bounds from here on mean the end of the axis. Exporters write the largest i32 or i64."""


def _bound(v: Expr, dim: Expr, low: int, high: Expr, symbols: Ranges) -> Expr:
    """Return a slice bound counted from the front and clamped into [low, high]."""
    if isinstance(v, Const) and not isinstance(dim, Const):
        if int(v.value) >= UNBOUNDED:
            return high
        if int(v.value) <= -UNBOUNDED:
            return const(low)
    v = simplify(v, symbols)
    at = v if prove(v >= 0, symbols) else v + dim if prove(v < 0, symbols) else select(v < 0, v + dim, v)
    return simplify(minimum(maximum(at, low), high), symbols)


def _cut(start: Expr, end: Expr, step: int, dim: Expr, symbols: Ranges) -> tuple[Expr, Expr]:
    """Return (first position, number of entries) of a NumPy slice of an axis of `dim` entries."""
    if step > 0:
        first, last = _bound(start, dim, 0, dim, symbols), _bound(end, dim, 0, dim, symbols)
        count = ceil_div(last - first, step)
    else:
        first = _bound(start, dim, -1, dim - 1, symbols)
        last = _bound(end, dim, -1, dim - 1, symbols)
        count = ceil_div(first - last, -step)
    return first, simplify(maximum(simplify(count, symbols), 0), symbols)


def slice_axes(
    b: Builder,
    x: Tensor,
    starts: Sequence[Expr],
    ends: Sequence[Expr],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> Tensor:
    """Return x[start:end:step] as in NumPy, for some `axes` (None: the first ones) and `steps` (None: 1).

    Starts and ends may be expressions of sizes; negative ones count from the end. Raises CompileError for a
    step of 0.
    """
    at = axes_of(range(len(starts)) if axes is None else axes, x.rank)
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(at) == len(steps):
        raise CompileError(f"a slice of {x}: starts, ends, axes and steps differ in length")
    if 0 in steps:
        raise CompileError(f"a slice of {x}: a step is 0")
    first: list[Expr] = [const(0)] * x.rank
    dims, by = list(x.shape), [1] * x.rank
    for axis, start, end, step in zip(at, starts, ends, steps, strict=True):
        first[axis], dims[axis] = _cut(start, end, step, x.shape[axis], b.symbols)
        by[axis] = step
    return b.slice(x, first, dims, by)


MODES = ("constant", "edge", "reflect", "wrap")
"""Modes of padding, named as in numpy.pad."""


def pad_with(b: Builder, x: Tensor, pads: Sequence[Expr], mode: str, value: Tensor | None) -> Tensor:
    """Pad every axis of x by `pads`, begins then ends (negative ones crop), in a mode of MODES. `value` (for
    constant mode) may be known only at run time."""
    if len(pads) != 2 * x.rank:
        raise CompileError(f"padding {x}: there must be {2 * x.rank} pads, two an axis, not {len(pads)}")
    if mode not in MODES:
        raise CompileError(f"padding {x}: mode {mode!r} is none of {', '.join(MODES)}")
    fill = b.constant_value(value)
    if mode != "constant" or value is None:
        return b.pad(x, pads, mode)
    if fill is not None:
        return b.pad(x, pads, mode, fill.reshape(()).item())
    pads = [simplify(p, b.symbols) for p in pads]
    begins, ends = pads[: x.rank], pads[x.rank :]
    shape = [simplify(d + p + q, b.symbols) for d, p, q in zip(x.shape, begins, ends, strict=True)]

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        inside: Expr | bool = True
        place = []
        for i, p, d in zip(index, begins, x.shape, strict=True):
            place.append(i - p)
            inside = land(inside, land(i - p >= 0, i - p < d))
        return select(inside, bufs[0][tuple(place)], bufs[1][()])

    return b.compute(x.dtype, shape, [x, b.reshape(value, ())], at)


def reverse_sequence(
    b: Builder, x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0
) -> Tensor:
    """Return x with the first `lengths[n]` entries along `time_axis` of each item n of `batch_axis`
    reversed."""
    batch, time = axis_of(batch_axis, x.rank), axis_of(time_axis, x.rank)
    lengths = in_range(b, lengths, x.shape[time] + 1, from_end=False)

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        t = index[time]
        length = cast(I64, bufs[1][index[batch]])
        turned = clamped(select(t < length, length - 1 - t, t), x.shape[time])
        return bufs[0][tuple(turned if i == time else e for i, e in enumerate(index))]

    return b.compute(x.dtype, x.shape, [x, lengths], at)


def reshape_to(b: Builder, x: Tensor, dims: Sequence[Expr], keep_zero: bool) -> Tensor:
    """Reshape x. In `dims`, -1 stands for the remaining size, and 0 for x's own size unless `keep_zero`."""
    out: list[Expr] = []
    unknown = [i for i, d in enumerate(dims) if is_const(d, -1)]
    for i, d in enumerate(dims):
        if is_const(d, 0) and not keep_zero:
            if i >= x.rank:
                raise CompileError(f"reshaping {x}: entry {i} of the shape is 0, but there is no axis {i}")
            d = x.shape[i]
        out.append(d)
    if len(unknown) > 1:
        raise CompileError(f"reshaping {x} to [{', '.join(map(str, dims))}]: only one -1 is allowed")
    if unknown:
        rest = product(d for i, d in enumerate(out) if i != unknown[0])
        out[unknown[0]] = divide(product(x.shape), rest, b.symbols)
    return b.reshape(x, out)


def split_into(b: Builder, x: Tensor, axis: int, sizes: Sequence[Expr]) -> tuple[Tensor, ...]:
    """Cut x into parts of `sizes` along `axis`. Raises CompileError if the sizes don't add up."""
    total = simplify(sum(sizes, const(0)) - x.shape[axis], b.symbols)
    if static_shape((total,)) not in (None, (0,)):
        raise CompileError(
            f"a split of {x} along axis {axis}: the parts {list(map(str, sizes))} don't add up"
        )
    x = b.reshape(x, [sum(sizes, const(0)) if i == axis else d for i, d in enumerate(x.shape)])
    return parts_of(b, x, axis, sizes)


def parts_of(b: Builder, x: Tensor, axis: int, sizes: Sequence[Expr]) -> tuple[Tensor, ...]:
    """Return neighbouring parts of x, of these `sizes`, from the start of `axis` on. The sizes must fit the
    axis."""
    parts: list[Tensor] = []
    start: Expr = const(0)
    for n in sizes:
        starts = [start if i == axis else const(0) for i in range(x.rank)]
        dims = [n if i == axis else d for i, d in enumerate(x.shape)]
        parts.append(b.slice(x, starts, dims, [1] * x.rank))
        start = start + n
    return tuple(parts)


def equal_sizes(b: Builder, x: Tensor, axis: int, count: int) -> list[Expr]:
    """Return the sizes of `count` parts along `axis`. The last is smaller, perhaps 0, if the axis doesn't
    divide evenly."""
    dim = x.shape[axis]
    each = divide(dim + count - 1, const(count), b.symbols)
    if simplify(each * count - dim, b.symbols) == const(0):
        return [each] * count
    last = simplify(maximum(dim - each * (count - 1), 0), b.symbols)
    return [each] * (count - 1) + [last]


def repeat(b: Builder, x: Tensor, counts: Sequence[Expr]) -> Tensor:
    """Return `x` repeated `counts` times along every axis. An axis longer than 1 is expanded through a new
    axis before it, so that inner loops stay contiguous."""
    if len(counts) != x.rank:
        raise CompileError(f"repeating {x}: there must be {x.rank} repeats, one an axis, not {len(counts)}")
    inner: list[Expr] = []
    outer: list[Expr] = []
    for d, n in zip(x.shape, counts, strict=True):
        split_axis = not is_const(n, 1) and not is_const(d, 1)
        inner += [const(1), d] if split_axis else [d]
        outer += [n, d] if split_axis else [n if is_const(d, 1) else d]
    wide = b.expand(b.reshape(x, inner), outer)
    return b.reshape(wide, [product(pair) for pair in zip(x.shape, counts, strict=True)])


def _blocks(x: Tensor) -> tuple[Expr, Expr, Expr, Expr]:
    if x.rank != 4:
        raise CompileError(f"{x} must have rank 4 (N, C, H, W) to move depth and space")
    n, c, h, w = x.shape
    return n, c, h, w


def depth_to_space(b: Builder, x: Tensor, block: int, *, depth_last: bool = True) -> Tensor:
    """Rearrange [N, C, H, W] to [N, C / block², H * block, W * block] (pixel shuffle: Shi et al. 2016). The
    channels are [block, block, depth], or [depth, block, block] unless `depth_last`."""
    n, c, h, w = _blocks(x)
    depth, s = divide(c, const(block * block), b.symbols), block
    if depth_last:
        y = b.transpose(b.reshape(x, [n, s, s, depth, h, w]), [0, 3, 4, 1, 5, 2])
    else:
        y = b.transpose(b.reshape(x, [n, depth, s, s, h, w]), [0, 1, 4, 2, 5, 3])
    return b.reshape(y, [n, depth, h * s, w * s])


def space_to_depth(b: Builder, x: Tensor, block: int, *, depth_last: bool = True) -> Tensor:
    """Return the inverse of `depth_to_space`."""
    n, c, h, w = _blocks(x)
    s = block
    rows, cols = divide(h, const(s), b.symbols), divide(w, const(s), b.symbols)
    y = b.reshape(x, [n, c, rows, s, cols, s])
    y = b.transpose(y, [0, 3, 5, 1, 2, 4] if depth_last else [0, 1, 3, 5, 2, 4])
    return b.reshape(y, [n, c * (s * s), rows, cols])


def reorg(b: Builder, x: Tensor, block: int) -> Tensor:
    """Return Darknet's reorg_cpu (src/blas.c) of an image [N, C, H, W]. It is `space_to_depth` of the image
    reread as fewer channels of a larger image. Raises CompileError if sizes aren't multiples."""
    sizes = static_shape(x.shape[1:])
    if sizes is None or block < 1 or sizes[0] % block**2 or sizes[1] % block or sizes[2] % block:
        raise CompileError(
            f"reorg of {x} by {block}: its sizes must be known, the channels a multiple of {block**2}, and "
            f"rows and columns multiples of {block}"
        )
    c, h, w = sizes
    seen = b.reshape(x, [x.shape[0], c // block**2, h * block, w * block])
    return b.reshape(space_to_depth(b, seen, block), [x.shape[0], c * block**2, h // block, w // block])


def arange(b: Builder, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    """Return start + i * delta up to `limit`, which is excluded, in start's dtype. All three have one
    element.

    The count is bound at run time if the bounds are neither constants nor expressions of sizes. Raises
    CompileError for a step of 0, and for bounds of NaN.
    """
    values = [b.constant_value(t) for t in (start, limit, delta)]
    if all(v is not None for v in values):
        exact = np.int64 if start.dtype.is_int else np.float64
        first, last, step = (v.reshape(()).astype(exact) for v in values if v is not None)
        with np.errstate(all="ignore"):
            length = np.ceil((last - first) / step) if step else np.nan
        if not length <= FAR:
            raise CompileError(
                f"a range from {first} to {last} by steps of {step} has no length, or too long"
            )
        count = int(max(length, 0))
        if count > FOLD_LIMIT:
            low, by = (const(v.item(), F64 if exact is np.float64 else I64) for v in (first, step))
            return b.compute(
                start.dtype, [const(count)], [], lambda _, i: cast(start.dtype, low + cast(low.dtype, i) * by)
            )
        return b.const((first + np.arange(count) * step).astype(start.dtype.numpy))
    if start.data is None or limit.data is None or delta.data is None:
        return _computed_range(b, *(b.reshape(t, []) for t in (start, limit, delta)))
    (step_by,) = integers(b, delta, "a range's step")
    if not step_by:
        raise CompileError("a range by steps of 0 has no length")
    low, high = start.data.item(), limit.data.item()
    span = ceil_div(high - low, step_by) if step_by > 0 else ceil_div(low - high, -step_by)
    n = simplify(maximum(span, 0), b.symbols)
    count_known = static_shape((n,))
    if count_known is not None and count_known[0] <= DATA_LIMIT and start.dtype is I64:
        return b.sizes([simplify(low + i * step_by, b.symbols) for i in range(count_known[0])])
    return b.compute(start.dtype, [n], [], lambda _, i: cast(start.dtype, low + i * step_by))


def _computed_range(b: Builder, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    def length(first: Expr, last: Expr, step: Expr) -> Expr:
        """Return the number of entries. A step of 0 and NaN bounds give -1, which no size may be."""
        span = call("ceil", (cast(F64, last) - cast(F64, first)) / cast(F64, step))
        count = select(span < 0, const(0, F64), minimum(span, 2.0 * MAX_SIZE))
        return select(land(ne(step, 0), eq(span, span)), cast(I64, count), const(-1))

    (n,) = b.bind(b.map(length, start, limit, delta))
    return b.compute(
        start.dtype, [n], [start, delta], lambda bufs, i: bufs[0][()] + cast(start.dtype, i) * bufs[1][()]
    )


def triangle(b: Builder, x: Tensor, k: Tensor | None, upper: bool) -> Tensor:
    """Return the upper or lower triangle of the last two axes, from diagonal `k`; zero elsewhere."""
    if x.rank < 2:
        raise CompileError(f"a triangle of {x}: the rank must be 2 or more")
    diagonal = b.sizes([0]) if k is None else b.reshape(k, [1])
    fixed = None if diagonal.data is None else diagonal.data.item()
    inputs = [x] if fixed is not None else [x, diagonal]

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        offset = index[-1] - index[-2]
        shift = cast(I64, bufs[1][0]) if fixed is None else fixed
        return select(offset >= shift if upper else offset <= shift, bufs[0][index], const(0, x.dtype))

    return b.compute(x.dtype, x.shape, inputs, at)
