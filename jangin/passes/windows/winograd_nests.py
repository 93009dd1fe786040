"""The loop nests of Winograd's method: the transforms of inputs, of outputs, and of weights that change.

Both run tiles in parallel and channels by vectors. A tile's rows are a loop, whose code is a fraction of the
unrolled code. Input tiles inside the image take a path without tests; the others test each position. Output
tiles test each position that may lie beyond the result.

If windows are dilated by d, every d-th pixel of an axis makes an image of its own, and a tile's pixels lie d
apart. Tiles are numbered image by image within each row, and column, of tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jangin.ir.dtype import F32, DType
from jangin.ir.expr import Buffer, Const, Expr, Load, Var, const, land, select
from jangin.ir.loop import Alloc, For, If, Let, Prefetch, Stmt, Store, block
from jangin.ir.records import dataclass
from jangin.ir.simplify import simplify
from jangin.ops.operands import TRUE
from jangin.passes.windows.winograd_transform import TAPS, Transform

TILE = Var("t")
"""A tile's number."""
IMAGE = Var("n")
"""A tile's image."""
Y = Var("y")
"""The row of a tile's first output."""
X = Var("x")
"""The column of a tile's first output."""
CHANNELS = 32
"""Most channels whose weights a task transforms. The weights of one output are then read in pieces of a
kilobyte. Pieces of a quarter took 1.2 times as long."""
PARTS = 8
"""Fewest tasks of a transform of weights, if there are channels enough. Two for each of four threads share
the work evenly."""


@dataclass(frozen=True)
class Tiling:
    """The tiles of a transform over `images` of `height` x `width` outputs. All three may be symbolic, the
    sizes without dilations.

    - `lanes`: channels of a vector loop.
    - `blocks`: V and M are stored tile by tile, for kernels that work on blocks of tiles; otherwise point by
      point.
    - `dtype`: of the transformed values (i32: pairs of int16, and their products).
    - `hints`: whether to prefetch the memory that the kernel will write.
    - `whole`: whether all rows of a tile are unrolled, for processors on which a loop's own instructions
      count.
    - `dilations`: down and across.
    - `frames`: of a video, in which an output image is one frame (0: no video).
    - `depth`: input frames of an output frame, whose channels follow one another.
    - `panel`: columns of M that lie side by side, if weights that change are made as panels (0: all).
    """

    transform: Transform
    images: Expr
    height: Expr
    width: Expr
    lanes: int
    blocks: bool = False
    dtype: DType = F32
    hints: bool = False
    whole: bool = False
    dilations: tuple[int, ...] = (1, 1)
    frames: int = 0
    depth: int = 1
    panel: int = 0

    def over_rows(self, var: Var, rows: int, body: Stmt) -> Stmt:
        """Return a loop over a tile's rows, or columns."""
        return For(var, const(rows), body, "unroll" if self.whole else "serial")

    @property
    def down(self) -> Expr:
        return self._tiles(self.height, self.dilations[0])

    @property
    def across(self) -> Expr:
        return self._tiles(self.width, self.dilations[1])

    def _tiles(self, size: Expr, dilation: int) -> Expr:
        """Return the number of tiles along an axis of `size` outputs."""
        if isinstance(size, Const):
            return const(self.transform.tiles(int(size.value), dilation))
        return simplify((size + (self.transform.tile - 1)) // self.transform.tile)

    @property
    def count(self) -> Expr:
        return self.images * (self.down * self.across)

    def shape(self, channels: int) -> tuple[Expr, ...]:
        """Return the shape of V, or of M as a whole, for all tiles."""
        points, last = const(self.transform.products), const(channels)
        return (self.count, points, last) if self.blocks else (points, self.count, last)

    def at(self, point: Expr, channel: Expr) -> tuple[Expr, ...]:
        """Return the index of a tile's element in V or M."""
        return (TILE, point, channel) if self.blocks else (point, TILE, channel)

    def product_shape(self, channels: int) -> tuple[Expr, ...]:
        """Return the shape of M for all tiles."""
        if not self.panel:
            return self.shape(channels)
        return const(self.transform.products), const(channels // self.panel), self.count, const(self.panel)

    def product_at(self, point: Expr, channel: Expr) -> tuple[Expr, ...]:
        """Return the index of a tile's element in M."""
        if not self.panel:
            return self.at(point, channel)
        return point, channel // self.panel, TILE, channel % self.panel

    @property
    def overhangs(self) -> tuple[bool, bool]:
        """Whether the last row and column of tiles may reach beyond the outputs."""
        down, across = (self.transform.tile * d for d in self.dilations)
        return simplify(self.height % down) != const(0), simplify(self.width % across) != const(0)

    @property
    def spans(self) -> tuple[int, ...]:
        """The distances, down and across, from the first pixel that a tile reads to the last."""
        return tuple((self.transform.size - 1) * d for d in self.dilations)

    def pixel(self, i: Expr | int, j: Expr | int) -> tuple[Expr, Expr]:
        """Return the row and column in the image of a tile's pixel in row `i` and column `j`."""
        down, across = self.dilations
        return Y + i * down, X + j * across

    def image(self, after: Expr | int = 0) -> tuple[Expr, ...]:
        """Return the index of a tile's image, or of the frame `after` frames later."""
        return (IMAGE // self.frames, IMAGE % self.frames + after) if self.frames else (IMAGE,)

    def over_tiles(self, body: Stmt) -> Stmt:
        (height, width), (down, across) = (self.height, self.width), self.dilations
        row = TILE // self.across
        inner = Let(X, self._first(TILE % self.across, width, across), body)
        inner = Let(Y, self._first(row % self.down, height, down), inner)
        return For(TILE, self.count, Let(IMAGE, row // self.down, inner), "parallel")

    def _first(self, tile: Expr, size: Expr, dilation: int) -> Expr:
        """Return the position of a tile's first output along an axis."""
        images = min(int(size.value), dilation) if isinstance(size, Const) else 1
        return tile // images * (self.transform.tile * dilation) + tile % images

    def over_channels(self, channels: int, body: Callable[[Expr], Stmt]) -> Stmt:
        """Return loops over whole vectors of channels, then over the remaining channels."""
        whole, rest, group, lane = channels // self.lanes, channels % self.lanes, Var("g"), Var("c")
        parts: list[Stmt] = []
        if whole:
            vector = For(lane, const(self.lanes), body(group * self.lanes + lane), "vector")
            parts.append(For(group, const(whole), vector))
        if rest:
            parts.append(For(lane, const(rest), body(lane + whole * self.lanes), "vector"))
        return block(*parts)


@dataclass(frozen=True)
class Patch:
    """The input of an input transform, over buffers x0, x1, ... for the values called `inputs`.

    It is `value(n, h, w, c)` in the padded image, or `value(n, f, h, w, c)` with frames, if `guard(h, w)`
    holds, else 0.
    """

    inputs: tuple[str, ...]
    value: Callable[..., Expr]
    guard: Callable[[Expr, Expr], Expr]


def input_nest(tiling: Tiling, patch: Patch, channels: int) -> Stmt:
    """Return the loop nest of V = B^T d B for each tile's patch, whose frames have `channels` channels."""
    out = Buffer("out", tiling.dtype, tiling.shape(tiling.depth * channels))
    frame = Var("f") if tiling.depth > 1 else const(0)

    def inside(h: Expr, w: Expr) -> Expr:
        (bottom, right), (down, across) = tiling.overhangs, tiling.dilations
        own = land(
            h < tiling.height + (TAPS - 1) * down if bottom else TRUE,
            w < tiling.width + (TAPS - 1) * across if right else TRUE,
        )
        return land(own, patch.guard(h, w))

    def transformed(guarded: bool) -> Stmt:
        def read(i: Expr, j: Expr, c: Expr) -> Expr:
            pixel = tiling.pixel(i, j)
            value = patch.value(*tiling.image(frame), *pixel, c)
            return select(inside(*pixel), value, const(0, tiling.dtype)) if guarded else value

        def tile(c: Expr) -> Stmt:
            return _input_tile(tiling, lambda i, j: read(i, j, c), out, frame * channels + c)

        each = tiling.over_channels(channels, tile)
        return For(frame, const(tiling.depth), each) if isinstance(frame, Var) else each

    down, across = tiling.spans
    corners = land(inside(Y, X), inside(Y + down, X + across))
    if corners == TRUE:
        return tiling.over_tiles(transformed(False))
    return tiling.over_tiles(If(corners, transformed(False), transformed(True)))


def _input_tile(tiling: Tiling, read: Callable[[Expr, Expr], Expr], out: Buffer, c: Expr) -> Stmt:
    """Return the input transform of one tile: its columns first, kept in registers for its rows.

    The output's cache lines are prefetched meanwhile, because stores to many places would wait for them.
    """
    t = tiling.transform
    line, grid = _registers("line", t.size, tiling.dtype), _registers("grid", t.size * t.size, tiling.dtype)
    j, k = Var("j"), Var("k")
    column = [Store(line, (const(i),), read(const(i), j)) for i in range(t.size)]
    transformed = t.inputs([line[i] for i in range(t.size)])
    column += [Store(grid, (j + n * t.size,), e) for n, e in enumerate(transformed)]
    transformed = t.inputs([grid[k * t.size + n] for n in range(t.size)])
    row = [Store(out, tiling.at(k * t.size + n, c), e) for n, e in enumerate(transformed)]
    hints = [Prefetch(out, tiling.at(j + n * t.size, c)) for n in range(t.size) if tiling.hints]
    columns = tiling.over_rows(j, t.size, Alloc(line, block(*hints, *column)))
    return Alloc(grid, block(columns, tiling.over_rows(k, t.size, block(*row))))


def output_nest(tiling: Tiling, out: Buffer, finish: Callable[[Expr, Sequence[Expr]], Expr]) -> Stmt:
    """Return the loop nest of out[n, h, w, o] = finish(A^T M A, index), where M are the products x0."""
    outputs = int(str(out.shape[-1]))
    products = Buffer("x0", tiling.dtype, tiling.product_shape(outputs))

    def restored(o: Expr) -> Stmt:
        return _output_tile(tiling, products, out, o, finish)

    return tiling.over_tiles(tiling.over_channels(outputs, restored))


def _output_tile(
    tiling: Tiling, products: Buffer, out: Buffer, o: Expr, finish: Callable[[Expr, Sequence[Expr]], Expr]
) -> Stmt:
    """Return the output transform of one tile: its columns first, unrolled, because a loop over them was
    slower by a third."""
    t = tiling.transform
    bottom, right = tiling.overhangs
    line, grid = _registers("line", t.tile, tiling.dtype), _registers("grid", t.tile * t.size, tiling.dtype)
    i, j = Var("i"), Var("j")
    transformed = t.outputs([Load(products, tiling.product_at(j + n * t.size, o)) for n in range(t.size)])
    column = [Store(grid, (j + n * t.size,), e) for n, e in enumerate(transformed)]
    transformed = t.outputs([grid[i * t.size + n] for n in range(t.size)])
    row: list[Stmt] = [Store(line, (const(n),), e) for n, e in enumerate(transformed)]
    for n in range(t.tile):
        y, x = tiling.pixel(i, n)
        at = (*tiling.image(), y, x, o)
        store: Stmt = Store(out, at, finish(t.restored(line[n]), at))
        fits = land(y < tiling.height if bottom else TRUE, x < tiling.width if right else TRUE)
        row.append(store if fits == TRUE else If(fits, store))
    columns = For(j, const(t.size), block(*column), "unroll")
    return Alloc(grid, block(columns, tiling.over_rows(i, t.tile, Alloc(line, block(*row)))))


Taps = Callable[[Expr, Expr, int, int], Expr]
"""A function that returns the weight of an output, a channel, and a tap's row and column."""


def weights_nest(
    t: Transform, channels: int, outputs: int, lanes: int, taps: Taps, panel: int = 0, dtype: DType = F32
) -> Stmt:
    """Return the loop nest of U = G g G^T [products, channels, outputs] for g [outputs, channels, 3, 3]. With
    `panel`, U is panels of so many outputs: [products, panels, channels, panel].

    A vector has several outputs, whose weights lie far apart. The next channels' lie in the same lines. A
    task makes all outputs of a few channels, so that it writes whole rows of U one after the other."""
    panels = (outputs // panel, channels, panel) if panel else (channels, outputs)
    out = Buffer("out", dtype, tuple(map(const, (t.products, *panels))))
    grid = _registers("grid", t.size * TAPS, dtype)
    most = max(1, min(CHANNELS, channels // PARTS))
    several = next(n for n in range(most, 0, -1) if channels % n == 0)
    group, lane, part, one = Var("g"), Var("o"), Var("p"), Var("c")
    c = part * several + one

    def transformed(o: Expr) -> Stmt:
        parts: list[Stmt] = []
        for j in range(TAPS):
            column = t.combined([taps(o, c, i, j) for i in range(TAPS)])
            parts += [Store(grid, (const(n * TAPS + j),), e) for n, e in enumerate(column)]
        for n in range(t.size):
            row = t.combined([grid[n * TAPS + j] for j in range(TAPS)])
            at = (o // panel, c, o % panel) if panel else (c, o)
            parts += [Store(out, (const(n * t.size + i), *at), e) for i, e in enumerate(row)]
        return Alloc(grid, block(*parts))

    def vector(width: int, start: Expr) -> Stmt:
        each = For(lane, const(width), transformed(simplify(start + lane)), "vector")
        return For(one, const(several), each)

    whole, rest = divmod(outputs, lanes)
    vectors: list[Stmt] = [For(group, const(whole), vector(lanes, group * lanes))] if whole else []
    vectors += [vector(rest, const(whole * lanes))] if rest else []
    return For(part, const(channels // several), block(*vectors), "parallel")


def _registers(name: str, count: int, dtype: DType) -> Buffer:
    return Buffer(name, dtype, (const(count),), "register")
