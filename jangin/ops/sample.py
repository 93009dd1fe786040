"""Reading at run-time positions: grids, regions of interest, deformable convolutions.

Positions, NaN included, are clamped as floats before they become indices, so no input can reach outside a
buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product as combinations

from jangin.ir.dtype import BOOL, F32, I64
from jangin.ir.expr import Buffer, Expr, Load, Var, call, cast, const, land, maximum, minimum, ne, select
from jangin.ir.graph import CompileError
from jangin.ir.loop import Alloc, Let, Stmt, Store, block
from jangin.ir.simplify import simplify
from jangin.ops.axes import clamped, divide, product
from jangin.ops.builder import Builder
from jangin.ops.conv import add_bias, kernel_size
from jangin.ops.index import in_range, index_vars, nest
from jangin.ops.nontensor import called
from jangin.ops.operands import wide
from jangin.ops.resize import cubic, triangle
from jangin.ops.values import Tensor
from jangin.ops.window import Sizes, steps

Read = Callable[[Sequence[Expr]], Expr]
Region = Callable[[int], Expr]
"""A region's f32 numbers, by their place in its row."""
ZERO = (const(0),)
MAX_SAMPLES = 1 << 12
"""Most bilinear samples along one side of a RoiAlign bin. A bin takes the square of this number, 16 million,
so more are a mistake or meant to harm."""


def index_of(x: Expr, size: Expr) -> Expr:
    """Return a whole float as an index into an axis of `size`, clamped; NaN gives 0."""
    top = cast(x.dtype, size - 1)
    return cast(I64, select(x >= 0, select(x <= top, x, top), const(0, x.dtype)))


def tapped(read: Read, at: Sequence[Expr], taps: range, kernel: Callable[[Expr], Expr]) -> Expr:
    """Return a weighted sum of `read(floats)` over the taps around `at` on every axis."""
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


# -- grids ---------------------------------------------------------------------------------------


def _reflected(x: Expr, low: Expr, high: Expr) -> Expr:
    """Return x folded back at both borders until it lies between them."""
    span = high - low
    away = call("abs", x - low)
    rest = away - call("floor", away / (span * 2.0)) * (span * 2.0)
    return low + minimum(rest, span * 2.0 - rest)


def grid_sample(
    b: Builder, x: Tensor, grid: Tensor, *, mode: str = "linear", padding: str = "zeros",
    align_corners: bool = False,
) -> Tensor:  # fmt: skip
    """Sample x [N, C, *sizes] at the positions grid [N, *out, axes]: return [N, C, *out] (Jaderberg et al.
    2015).

    A position is in [-1, 1] for each spatial axis, the last axis first. -1 and 1 are the border's outer edge,
    or with `align_corners` the first and last entries. `mode`: nearest, linear or cubic. `padding` is the
    value outside: zeros, the border ("border") or the mirrored input ("reflection").
    """
    taps = {"nearest": range(1), "linear": range(2), "cubic": range(-1, 3)}
    for what, asked, known in (("mode", mode, taps), ("padding", padding, ("zeros", "border", "reflection"))):
        if asked not in known:
            raise CompileError(f"the {what} {asked!r} is none of {', '.join(known)}, and is not supported")
    rank, sizes = x.rank - 2, x.shape[2:]
    dtype = wide(const(0, grid.dtype)).dtype

    def borders(axis: int) -> tuple[Expr, Expr]:
        edge = 0.0 if align_corners else 0.5
        return const(-edge, dtype), cast(dtype, sizes[axis] - 1) + edge

    def moved(p: Expr, axis: int) -> Expr:
        if padding == "border":
            return minimum(maximum(p, 0.0), cast(dtype, sizes[axis] - 1))
        return _reflected(p, *borders(axis)) if padding == "reflection" else p

    def position(g: Expr, axis: int) -> Expr:
        """Return the position in input elements. Cubic taps are clamped one by one; other modes clamp the
        centre."""
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
                if padding == "zeros":
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
    """Return the four weighted neighbours of (y, x). They are 0 if (y, x) lies further than a pixel outside
    the map."""
    inside = land(land(y >= -1.0, y <= cast(F32, height)), land(x >= -1.0, x <= cast(F32, width)))
    terms = []
    axes = []
    for p, size in ((y, height), (x, width)):
        p = minimum(maximum(p, 0.0), cast(F32, size - 1))
        low = call("floor", p)
        axes.append([(low, 1.0 - (p - low)), (minimum(low + 1.0, cast(F32, size - 1)), p - low)])
    for (r, wr), (c, wc) in combinations(*axes):
        terms.append(select(inside, read([r, c]) * (wr * wc), const(0, F32)))
    return terms


def roi_align(
    b: Builder, x: Tensor, rois: Tensor, batch: Tensor, *, size: tuple[int, int], mode: str = "avg",
    samples: int = 0, scale: float = 1.0, half_pixel: bool = True,
) -> Tensor:  # fmt: skip
    """Return RoiAlign of x [N, C, H, W]: [R, C, *size] (He et al. 2017).

    rois [R, 4] are x and y of two corners, multiplied by `scale`; `batch` [R] are their images. Each bin
    pools a grid of bilinear samples by `mode` "avg" or "max". The grid has `samples` a side; 0 means as many
    as the bin has entries (at most MAX_SAMPLES). `half_pixel`: positions are of entries' centres; without it,
    a region is at least one entry large.
    """
    if samples > MAX_SAMPLES:
        raise CompileError(f"a grid has {samples} samples a side, and may have at most {MAX_SAMPLES}")
    height, width = x.shape[2:]
    shape = (rois.shape[0], x.shape[1], *map(const, size))
    if b.whole:
        settings = {"size": size, "mode": mode, "samples": samples, "scale": scale, "half_pixel": half_pixel}
        return called(b, "roi_align", [x, rois, batch], x.dtype, shape, **settings)
    batch = in_range(b, batch, x.shape[0], from_end=False)
    src, boxes, which = (Buffer(f"x{n}", t.dtype, t.shape) for n, t in enumerate((x, rois, batch)))
    out, acc = Buffer("out", x.dtype, shape), Buffer("acc", F32, (const(1),), "register")
    n, c, *bins = index_vars(4)
    steps, image = (Var("sy"), Var("sx")), Var("image")
    binds: list[tuple[Var, Expr]] = [(image, clamped(cast(I64, Load(which, (n,))), x.shape[0]))]
    places, counts = [], []
    for axis, (count, bin_index) in enumerate(zip(size, bins, strict=True)):
        low, high = (cast(F32, Load(boxes, (n, const(k)))) * scale for k in (1 - axis, 3 - axis))
        start, extent, step = (Var(f"{name}{axis}", F32) for name in ("from", "ext", "bin"))
        many = Var(f"cnt{axis}")
        span = high - low if half_pixel else maximum(high - low, 1.0)
        grid = call("ceil", step)
        wanted = const(samples) if samples > 0 else index_of(grid, const(MAX_SAMPLES + 1))
        binds += [(start, low - 0.5 if half_pixel else low), (extent, span)]
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
    least = minimum(1, shape[0] * shape[1])
    return b.loop_nest([x, rois, batch], loops, x.dtype, shape, [height >= least, width >= least])


def roi_max_pool(b: Builder, x: Tensor, rois: Tensor, *, size: tuple[int, int], scale: float = 1.0) -> Tensor:
    """Return RoI max pooling of x [N, C, H, W]: [R, C, *size] (Girshick 2015).

    Each region, rounded to pixels, is cut into cells; an empty cell gives 0. rois [R, 5]: the image, then x
    and y of two corners, multiplied by `scale`.
    """
    if b.whole:
        shape = (rois.shape[0], x.shape[1], *map(const, size))
        return called(b, "roi_max_pool", [x, rois], x.dtype, shape, size=size, scale=scale)

    def number(bufs: Sequence[Buffer], n: Expr) -> Expr:
        """Return the image of a region. An invalid number stays out of range."""
        real = cast(F32, Load(bufs[0], (n, const(0))))
        return cast(I64, minimum(maximum(call("floor", real), -(2.0**31)), 2.0**31))

    def ends(region: Region, axis: int, cell: Expr) -> tuple[Expr, Expr]:
        low, high = (call("floor", region(k - axis) * scale + 0.5) for k in (2, 4))
        step = maximum(high - low + 1.0, 1.0) / float(size[axis])
        return low + call("floor", cell * step), low + call("ceil", (cell + 1.0) * step)

    return pool_cells(b, x, rois, b.compute(I64, (rois.shape[0],), [rois], number), size, ends)


def pool_cells(
    b: Builder, x: Tensor, rois: Tensor, images: Tensor, size: Sequence[int],
    ends: Callable[[Region, int, Expr], tuple[Expr, Expr]], mode: str = "max",
) -> Tensor:  # fmt: skip
    """Pool the cells of regions by maximum, or with `mode` "avg" by mean: [R, C, *size]. An empty cell gives
    0.

    `rois` [R, numbers] are regions of the `images` [R] of x [N, C, *sizes]. `ends` gives the begin and end of
    a region's cell on an axis, whole numbers in f32. Entries outside x aren't in a cell.
    """
    shape = (rois.shape[0], x.shape[1], *map(const, size))
    images = in_range(b, images, x.shape[0], from_end=False)
    src, boxes, which = (Buffer(f"x{n}", t.dtype, t.shape) for n, t in enumerate((x, rois, images)))
    out = Buffer("out", x.dtype, shape)
    n, c, *cells = index_vars(x.rank)
    image, steps = Var("image"), index_vars(len(size), "s")
    binds: list[tuple[Var, Expr]] = [(image, clamped(Load(which, (n,)), x.shape[0]))]
    starts: list[Expr] = []
    counts: list[Expr] = []
    for axis, cell in enumerate(cells):
        low, high = ends(lambda k: cast(F32, Load(boxes, (n, const(k)))), axis, cast(F32, cell))
        at, end, many = Var(f"at{axis}"), Var(f"end{axis}"), Var(f"cnt{axis}")
        limit = x.shape[2 + axis] + 1
        binds += [(at, index_of(low, limit)), (end, index_of(high, limit)), (many, maximum(end - at, 0))]
        starts.append(at)
        counts.append(many)
    place = (n, c, *cells)
    held = Load(out, place)
    value = Load(src, (image, c, *(at + step for at, step in zip(starts, steps, strict=True))))
    if mode == "max":
        away: list[Expr] = [*steps]
        first = ne(reduce(lambda v, w: v + w, away), 0)
        parts = [nest(counts, steps, Store(out, place, select(first, maximum(held, value), value)))]
    else:
        total = maximum(reduce(lambda v, w: v * w, counts), 1)
        sums = nest(counts, steps, Store(out, place, held + value))
        parts = [sums, Store(out, place, held / cast(x.dtype, total))]
    body: Stmt = block(Store(out, place, const(0, x.dtype)), *parts)
    for var, bound in reversed(binds):
        body = Let(var, bound, body)
    loops = nest(shape, place, body, "parallel")
    return b.loop_nest([x, rois, images], loops, x.dtype, shape)


def resample_regions(
    b: Builder, x: Tensor, images: Tensor, rois: Tensor, size: Sequence[int],
    position: Callable[[Expr, Expr, Expr, int], Expr],
) -> Tensor:  # fmt: skip
    """Resample regions of x [N, C, *sizes] to `size` multilinearly: [R, C, *size].

    `rois` [R, 2 axes] hold each region's begins, then ends, in entries; `images` [R] are their images.
    `position` gives the place of an entry of the result. Its arguments are the region's begin and extent on
    an axis, the entry's number (f32), and the number of entries. Beyond x, its border continues.
    """
    images = in_range(b, images, x.shape[0], from_end=False)
    sizes = x.shape[2:]

    def at(bufs: Sequence[Buffer], n: Expr, c: Expr, *place: Expr) -> Expr:
        image = clamped(bufs[1][n], x.shape[0])

        def read(where: Sequence[Expr]) -> Expr:
            inside = [index_of(p, d) for p, d in zip(where, sizes, strict=True)]
            return Load(bufs[0], (image, c, *inside))

        where = []
        for axis, (i, count) in enumerate(zip(place, size, strict=True)):
            low, high = (cast(F32, bufs[2][n, const(k)]) for k in (axis, len(size) + axis))
            p = position(low, high - low, cast(F32, i), count)
            where.append(minimum(maximum(p, 0.0), cast(F32, sizes[axis] - 1)))
        return tapped(read, where, range(2), triangle)

    shape = (rois.shape[0], x.shape[1], *map(const, size))
    return b.compute(x.dtype, shape, [x, images, rois], at)


def roi_group_pool(
    b: Builder, x: Tensor, rois: Tensor, group: int, outputs: int, scale: float = 1.0
) -> Tensor:
    """Return position-sensitive RoI pooling (Dai et al. 2016): [R, outputs, group, group].

    Each region of x [N, outputs * group * group, H, W] is cut into group * group cells. A cell is the mean
    over its own channels, or 0 if it is empty. rois [R, 5]: the image, then x and y of two corners, rounded
    and multiplied by `scale`. Weights of 0 and 1 select a cell's rows and columns.
    """
    count, (_, _, height, width) = rois.shape[0], x.shape
    sides = []
    for axis, size in enumerate((height, width)):

        def inside(bufs: Sequence[Buffer], n: Expr, cell: Expr, i: Expr, at: int = axis) -> Expr:
            corner = [call("floor", cast(F32, bufs[0][n, const(k)]) + 0.5) for k in (2 - at, 4 - at)]
            low, high = corner[0] * scale, (corner[1] + 1.0) * scale
            step, place = maximum(high - low, 0.1) / float(group), cast(F32, cell)
            first, last = call("floor", place * step + low), call("ceil", (place + 1.0) * step + low)
            here = cast(F32, i)
            return cast(F32, land(here >= first, here < last))

        sides.append(b.compute(F32, (count, const(group), size), [rois], inside))
    images = b.reshape(b.slice(rois, [0, 0], [count, const(1)], [1, 1]), [count])
    near = b.gather(x, in_range(b, b.cast(images, I64), x.shape[0], from_end=False), 0)
    near = b.reshape(near, [count, outputs, group, group, height, width])
    masks = [
        b.reshape(sides[0], [count, 1, group, 1, height, 1]),
        b.reshape(sides[1], [count, 1, 1, group, 1, width]),
    ]
    total = b.reduce("sum", b.map(lambda v, r, c: v * (r * c), near, *masks), [4, 5])
    many = b.reduce("sum", b.map(lambda r, c: r * c, *masks), [4, 5])
    return b.map(lambda v, n: select(n > 0, v / maximum(n, 1.0), const(0.0, F32)), total, many)


# -- deformable convolutions ---------------------------------------------------------------------------


def deform_conv(
    b: Builder, x: Tensor, w: Tensor, offset: Tensor, bias: Tensor | None = None,
    mask: Tensor | None = None, *, strides: Sizes = (), dilations: Sizes = (), begins: Sizes = (),
    groups: int = 1, offset_groups: int = 1,
) -> Tensor:  # fmt: skip
    """Return the deformable convolution (Dai et al. 2017; with a mask, Zhu et al. 2019): [N, M, *out].

    Taps are read at shifted positions by linear interpolation, as columns of a matrix product. `begins` is
    the padding before each axis; entries outside x are 0. The shapes:

    - x [N, C, *sizes], w [M, C / groups, *kernel], bias [M]
    - offset [N, offset_groups * kernel * axes, *out]
    - mask [N, offset_groups * kernel, *out]
    """
    kernel = kernel_size(x, w)
    rank, out = len(kernel), offset.shape[2:]
    strides, dilations, pads = steps(strides, rank), steps(dilations, rank), begins or [0] * rank
    channels = x.shape[1]
    per_offset = divide(channels, const(offset_groups), b.symbols)
    shifts = b.reshape(offset, [offset.shape[0], offset_groups, *kernel, rank, *out])
    inputs = [x, shifts]
    if mask is not None:
        inputs.append(b.reshape(mask, [mask.shape[0], offset_groups, *kernel, *out]))
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
    filters = divide(w.shape[0], const(groups), b.symbols)
    left = b.reshape(w, [groups, filters, inner])
    right = b.reshape(columns, [x.shape[0], groups, inner, pixels])
    return add_bias(b, b.reshape(b.matmul(left, right), [x.shape[0], w.shape[0], *out]), bias)
