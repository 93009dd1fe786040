"""ONNX operators that read at run-time positions: GridSample, RoiAlign, MaxRoiPool, DeformConv.

Positions are clamped as floats before they become indices, NaN included, so that no input can
reach outside a buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product as combinations
from typing import Any

from jangin.frontends.onnx.operators.conv import Convolution
from jangin.frontends.onnx.registry import op
from jangin.ir.dtype import BOOL, F32, I64
from jangin.ir.expr import (
    Buffer,
    Expr,
    Load,
    Var,
    call,
    cast,
    const,
    land,
    maximum,
    minimum,
    ne,
    select,
)
from jangin.ir.graph import CompileError
from jangin.ir.loop import Alloc, Let, Stmt, Store, block
from jangin.ir.simplify import simplify
from jangin.ops.axes import clamped, divide, product
from jangin.ops.builder import Builder, Tensor
from jangin.ops.conv import add_bias
from jangin.ops.index import index_vars, nest
from jangin.ops.operands import wide
from jangin.ops.resize import cubic, triangle

Read = Callable[[Sequence[Expr]], Expr]
ZERO = (const(0),)
MAX_SAMPLES = 1 << 12
"""Most bilinear samples along one side of a RoiAlign bin."""


def index_of(x: Expr, size: Expr) -> Expr:
    """A whole float as an index into an axis of `size`, clamped; NaN gives 0."""
    top = cast(x.dtype, size - 1)
    return cast(I64, select(x >= 0, select(x <= top, x, top), const(0, x.dtype)))


def tapped(read: Read, at: Sequence[Expr], taps: range, kernel: Callable[[Expr], Expr]) -> Expr:
    """A weighted sum of `read(floats)` over the taps around `at` on every axis."""
    axes = []
    for x in at:
        floor = call("floor", x)
        part = x - floor
        axes.append([(floor + float(t), kernel(float(t) - part)) for t in taps])
    total: Expr | None = None
    for picked in combinations(*axes):
        factor = reduce(lambda v, w: v * w, (w for _, w in picked))
        term = read([p for p, _ in picked]) * factor
        total = term if total is None else total + term
    assert total is not None
    return total


# -- GridSample ----------------------------------------------------------------------------------


def _reflected(x: Expr, low: Expr, high: Expr) -> Expr:
    """x folded back at both borders until it lies between them."""
    span = high - low
    away = call("abs", x - low)
    rest = away - call("floor", away / (span * 2.0)) * (span * 2.0)
    return low + minimum(rest, span * 2.0 - rest)


@op("GridSample", since=16)
def grid_sample(
    b: Builder, x: Tensor, grid: Tensor, *, mode: str = "linear", padding_mode: str = "zeros",
    align_corners: int = 0,
) -> Tensor:  # fmt: skip
    """The grid's last axis holds a position in [-1, 1] for each spatial axis, the last axis first."""
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    taps = {"nearest": range(1), "linear": range(2), "cubic": range(-1, 3)}
    if mode not in taps or padding_mode not in ("zeros", "border", "reflection"):
        raise CompileError(f"GridSample with mode {mode!r} and padding {padding_mode!r} is not supported")
    rank, sizes = x.rank - 2, x.shape[2:]
    dtype = wide(const(0, grid.dtype)).dtype

    def borders(axis: int) -> tuple[Expr, Expr]:
        edge = 0.0 if align_corners else 0.5
        return const(-edge, dtype), cast(dtype, sizes[axis] - 1) + edge

    def moved(p: Expr, axis: int) -> Expr:
        if padding_mode == "border":
            return minimum(maximum(p, 0.0), cast(dtype, sizes[axis] - 1))
        return _reflected(p, *borders(axis)) if padding_mode == "reflection" else p

    def position(g: Expr, axis: int) -> Expr:
        """In input elements. Cubic samples are moved inside one by one, the others with the centre."""
        size = cast(dtype, sizes[axis])
        p = (g + 1.0) * 0.5 * (size - 1.0) if align_corners else ((g + 1.0) * size - 1.0) * 0.5
        if mode == "cubic":
            return p
        return moved(call("round", p) if mode == "nearest" else p, axis)

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        def read(places: Sequence[Expr]) -> Expr:
            inside: Expr = const(True, BOOL)
            source = []
            for axis, p in enumerate(places):
                p = moved(p, axis) if mode == "cubic" else p
                if padding_mode == "zeros":
                    inside = land(inside, land(p >= 0.0, p <= cast(dtype, sizes[axis] - 1)))
                source.append(index_of(p, sizes[axis]))
            value = Load(bufs[0], (*index[:2], *source))
            return cast(dtype, select(inside, value, const(0, x.dtype)))

        row = (index[0], *index[2:])
        where = [position(wide(bufs[1][(*row, rank - 1 - i)]), i) for i in range(rank)]
        if mode == "nearest":
            return read(where)
        return tapped(read, where, taps[mode], cubic if mode == "cubic" else triangle)

    return b.compute(x.dtype, (*x.shape[:2], *grid.shape[1:-1]), [x, grid], at)


# -- regions of interest -------------------------------------------------------------------------


def _bilinear(read: Read, y: Expr, x: Expr, height: Expr, width: Expr) -> list[Expr]:
    """The four weighted neighbours of (y, x); 0 further than a pixel outside the map."""
    inside = land(land(y >= -1.0, y <= cast(F32, height)), land(x >= -1.0, x <= cast(F32, width)))
    found = []
    axes = []
    for p, size in ((y, height), (x, width)):
        p = minimum(maximum(p, 0.0), cast(F32, size - 1))
        low = call("floor", p)
        axes.append([(low, 1.0 - (p - low)), (minimum(low + 1.0, cast(F32, size - 1)), p - low)])
    for (r, wr), (c, wc) in combinations(*axes):
        found.append(select(inside, read([r, c]) * (wr * wc), const(0, F32)))
    return found


@op("RoiAlign", since=10)
def roi_align_10(b: Builder, x: Tensor, rois: Tensor, batch: Tensor, **settings: Any) -> Tensor:
    return roi_align(b, x, rois, batch, coordinate_transformation_mode="output_half_pixel", **settings)


@op("RoiAlign", since=16)
def roi_align(
    b: Builder, x: Tensor, rois: Tensor, batch: Tensor, *, mode: str = "avg", output_height: int = 1,
    output_width: int = 1, sampling_ratio: int = 0, spatial_scale: float = 1.0,
    coordinate_transformation_mode: str = "half_pixel",
) -> Tensor:  # fmt: skip
    """Each bin pools a grid of bilinear samples; with sampling_ratio 0 the grid's size depends on the
    region's (at most MAX_SAMPLES a side)."""
    height, width = x.shape[2:]
    shape = (rois.shape[0], x.shape[1], const(output_height), const(output_width))
    src, boxes, which = (Buffer(f"x{n}", t.dtype, t.shape) for n, t in enumerate((x, rois, batch)))
    out, acc = Buffer("out", x.dtype, shape), Buffer("acc", F32, (const(1),), "register")
    n, c, *bins = index_vars(4)
    steps, image = (Var("sy"), Var("sx")), Var("image")
    half = coordinate_transformation_mode == "half_pixel"
    binds: list[tuple[Var, Expr]] = [(image, clamped(cast(I64, Load(which, (n,))), x.shape[0]))]
    places, counts = [], []
    for axis, (count, bin_index) in enumerate(zip((output_height, output_width), bins, strict=True)):
        low, high = (cast(F32, Load(boxes, (n, const(k)))) * spatial_scale for k in (1 - axis, 3 - axis))
        start, extent, step = (Var(f"{name}{axis}", F32) for name in ("from", "ext", "bin"))
        many = Var(f"cnt{axis}")
        span = high - low if half else maximum(high - low, 1.0)
        grid = call("ceil", step)
        wanted = const(sampling_ratio) if sampling_ratio > 0 else index_of(grid, const(MAX_SAMPLES + 1))
        binds += [(start, low - 0.5 if half else low), (extent, span)]
        binds += [(step, extent / float(count)), (many, wanted)]
        offset = (cast(F32, steps[axis]) + 0.5) * step / cast(F32, many)
        places.append(start + cast(F32, bin_index) * step + offset)
        counts.append(many)

    def read(place: Sequence[Expr]) -> Expr:
        row, col = index_of(place[0], height), index_of(place[1], width)
        return cast(F32, Load(src, (image, c, row, col)))

    sample = _bilinear(read, places[0], places[1], height, width)
    held = Load(acc, ZERO)
    total = counts[0] * counts[1]
    if mode == "max":
        first = const(float("-inf"), F32)
        update = Store(acc, ZERO, maximum(held, reduce(maximum, sample)))
        value = select(total > 0, held, const(0, F32))
    else:
        first = const(0, F32)
        update = Store(acc, ZERO, held + reduce(lambda v, w: v + w, sample))
        value = held / cast(F32, maximum(total, 1))
    grid_loops = nest(counts, steps, update)
    store = Store(out, (n, c, *bins), cast(x.dtype, value))
    body: Stmt = Alloc(acc, block(Store(acc, ZERO, first), grid_loops, store))
    for var, bound in reversed(binds):
        body = Let(var, bound, body)
    loops = nest(shape, (n, c, *bins), body, "parallel")
    return b.loop_nest([x, rois, batch], loops, x.dtype, shape)


@op("MaxRoiPool")
def max_roi_pool(
    b: Builder, x: Tensor, rois: Tensor, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> Tensor:
    """The maximum of each of the cells that a region, rounded to pixels, is cut into; 0 if empty."""
    shape = (rois.shape[0], x.shape[1], *(const(p) for p in pooled_shape))
    src, boxes, out = (
        Buffer("x0", x.dtype, x.shape), Buffer("x1", rois.dtype, rois.shape), Buffer("out", x.dtype, shape)
    )  # fmt: skip
    n, c, *cells = index_vars(4)
    image = index_of(cast(F32, Load(boxes, (n, const(0)))), x.shape[0])
    binds: list[tuple[Var, Expr]] = [(Var("image"), image)]
    starts, counts, steps = [], [], (Var("sy"), Var("sx"))
    for axis, (pooled, cell) in enumerate(zip(pooled_shape, cells, strict=True)):
        size = x.shape[2 + axis]
        low, high = (
            call("floor", cast(F32, Load(boxes, (n, const(k)))) * spatial_scale + 0.5)
            for k in (2 - axis, 4 - axis)
        )
        step = maximum(high - low + 1.0, 1.0) / float(pooled)
        at, end, many = Var(f"at{axis}"), Var(f"end{axis}"), Var(f"cnt{axis}")
        binds.append((at, index_of(low + call("floor", cast(F32, cell) * step), size + 1)))
        binds.append((end, index_of(low + call("ceil", (cast(F32, cell) + 1.0) * step), size + 1)))
        binds.append((many, maximum(end - at, 0)))
        starts.append(at)
        counts.append(many)
    place = (n, c, *cells)
    value = Load(src, (Var("image"), c, starts[0] + steps[0], starts[1] + steps[1]))
    first = ne(steps[0] + steps[1], 0)
    update = Store(out, place, select(first, maximum(Load(out, place), value), value))
    body: Stmt = block(Store(out, place, const(0, x.dtype)), nest(counts, steps, update))
    for var, bound in reversed(binds):
        body = Let(var, bound, body)
    loops = nest(shape, place, body, "parallel")
    return b.loop_nest([x, rois], loops, x.dtype, shape)


# -- DeformConv ----------------------------------------------------------------------------------


@op("DeformConv", since=19)
def deform_conv(
    b: Builder, x: Tensor, w: Tensor, offset: Tensor, bias: Tensor | None = None,
    mask: Tensor | None = None, *, offset_group: int = 1, **window: Any,
) -> Tensor:  # fmt: skip
    """The taps, read at shifted positions by linear interpolation, as columns of a matrix product."""
    g = Convolution(**window)
    kernel = g.kernel(x, w)
    rank, out = len(kernel), offset.shape[2:]
    strides, dilations = g.steps(rank)
    pads = list(g.pads or [0] * rank)
    channels = x.shape[1]
    per_offset = divide(channels, const(offset_group), b.symbols)
    shifts = b.reshape(offset, [offset.shape[0], offset_group, *kernel, rank, *out])
    inputs = [x, shifts]
    if mask is not None:
        inputs.append(b.reshape(mask, [mask.shape[0], offset_group, *kernel, *out]))
    dtype = wide(const(0, x.dtype)).dtype

    def column(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        n, c = index[:2]
        taps, at = index[2 : 2 + rank], index[2 + rank :]
        group = simplify(c // per_offset)
        where = []
        for i in range(rank):
            base = at[i] * strides[i] - pads[i] + taps[i] * dilations[i]
            where.append(cast(dtype, base) + wide(bufs[1][(n, group, *taps, i, *at)]))

        def read(places: Sequence[Expr]) -> Expr:
            inside: Expr = const(True, BOOL)
            for p, d in zip(places, x.shape[2:], strict=True):
                inside = land(inside, land(p >= 0.0, p <= cast(dtype, d - 1)))
            source = [index_of(p, d) for p, d in zip(places, x.shape[2:], strict=True)]
            return select(inside, wide(bufs[0][(n, c, *source)]), const(0, dtype))

        value = tapped(read, where, range(2), triangle)
        return value * wide(bufs[2][(n, group, *taps, *at)]) if mask is not None else value

    columns = b.compute(x.dtype, [x.shape[0], channels, *kernel, *out], inputs, column)
    area, pixels = product(kernel), product(out)
    inner = w.shape[1] * area
    filters = divide(w.shape[0], const(g.group), b.symbols)
    left = b.reshape(w, [g.group, filters, inner])
    right = b.reshape(columns, [x.shape[0], g.group, inner, pixels])
    return add_bias(b, b.reshape(b.matmul(left, right), [x.shape[0], w.shape[0], *out]), bias)
