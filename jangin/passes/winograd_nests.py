"""The loop nests of Winograd's method: tiles of the input transformed, tiles of the output restored.

Both run tiles in parallel and channels by vectors, and a tile's rows in a loop, whose code is a fraction of
what all of them take. Tiles of the input that lie inside the image take a path without tests; the others
test each position. Tiles of the output test each position that may lie beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jangin.ir.dtype import F32, DType
from jangin.ir.expr import Buffer, Expr, Load, Var, const, land, select
from jangin.ir.loop import Alloc, For, If, Let, Prefetch, Stmt, Store, block
from jangin.ir.records import dataclass
from jangin.ops.operands import TRUE
from jangin.passes.winograd_transform import Transform

TILE = Var("t")
"""A tile's number."""
IMAGE = Var("n")
"""A tile's image."""
Y = Var("y")
"""The row of a tile's first output."""
X = Var("x")
"""The column of a tile's first output."""


@dataclass(frozen=True)
class Tiling:
    """Tiles of a transform over `images` (may be symbolic) of `height` x `width` outputs. What is kept of
    a tile lies point by point, or together where kernels work on `blocks` of tiles. `lanes`: channels of a
    vector loop; `dtype`: of what is transformed and kept (i32: pairs of int16, and their products); `hints`:
    whether to fetch early where the kernel will write; `whole`: whether all rows of a tile are in the text,
    for processors of which a loop's own instructions count."""

    transform: Transform
    images: Expr
    height: int
    width: int
    lanes: int
    blocks: bool = False
    dtype: DType = F32
    hints: bool = False
    whole: bool = False

    def over_rows(self, var: Var, rows: int, body: Stmt) -> Stmt:
        """A loop over a tile's rows, or columns."""
        return For(var, const(rows), body, "unroll" if self.whole else "serial")

    @property
    def down(self) -> int:
        return -(-self.height // self.transform.tile)

    @property
    def across(self) -> int:
        return -(-self.width // self.transform.tile)

    @property
    def count(self) -> Expr:
        return self.images * (self.down * self.across)

    def shape(self, channels: int) -> tuple[Expr, ...]:
        """Of what is kept of all tiles."""
        points, last = const(self.transform.products), const(channels)
        return (self.count, points, last) if self.blocks else (points, self.count, last)

    def at(self, point: Expr, channel: Expr) -> tuple[Expr, ...]:
        """Where a tile's element lies."""
        return (TILE, point, channel) if self.blocks else (point, TILE, channel)

    @property
    def overhangs(self) -> tuple[bool, bool]:
        """Whether the last row and column of tiles reach beyond the outputs."""
        tile = self.transform.tile
        return self.height % tile != 0, self.width % tile != 0

    def over_tiles(self, body: Stmt) -> Stmt:
        tile = self.transform.tile
        row = TILE // self.across
        inner = Let(X, TILE % self.across * tile, body)
        inner = Let(Y, row % self.down * tile, inner)
        return For(TILE, self.count, Let(IMAGE, row // self.down, inner), "parallel")

    def over_channels(self, channels: int, body: Callable[[Expr], Stmt]) -> Stmt:
        """Whole vectors, then one of the channels left."""
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
    """What an input transform reads: `value(n, h, w, c)` in the padded image, where `guard(h, w)`
    holds, else 0; over buffers x0, x1, ... for the values called `inputs`."""

    inputs: tuple[str, ...]
    value: Callable[[Expr, Expr, Expr, Expr], Expr]
    guard: Callable[[Expr, Expr], Expr]


def input_nest(tiling: Tiling, patch: Patch, channels: int) -> Stmt:
    """V = B^T d B of each tile's patch."""
    size = tiling.transform.size
    out = Buffer("out", tiling.dtype, tiling.shape(channels))

    def inside(h: Expr, w: Expr) -> Expr:
        bottom, right = tiling.overhangs
        own = land(
            h < tiling.height + size - tiling.transform.tile if bottom else TRUE,
            w < tiling.width + size - tiling.transform.tile if right else TRUE,
        )
        return land(own, patch.guard(h, w))

    def transformed(guarded: bool) -> Stmt:
        def read(i: Expr, j: Expr, c: Expr) -> Expr:
            value = patch.value(IMAGE, Y + i, X + j, c)
            return select(inside(Y + i, X + j), value, const(0, tiling.dtype)) if guarded else value

        return tiling.over_channels(channels, lambda c: _input_tile(tiling, read, out, c))

    corners = land(inside(Y, X), inside(Y + (size - 1), X + (size - 1)))
    if corners == TRUE:
        return tiling.over_tiles(transformed(False))
    return tiling.over_tiles(If(corners, transformed(False), transformed(True)))


def _input_tile(tiling: Tiling, read: Callable[[Expr, Expr, Expr], Expr], out: Buffer, c: Expr) -> Stmt:
    """Columns first; what they give is kept for the rows, whose lines are fetched meanwhile: stores to so
    many places would wait for them."""
    t = tiling.transform
    line, grid = _registers("line", t.size, tiling.dtype), _registers("grid", t.size * t.size, tiling.dtype)
    j, k = Var("j"), Var("k")
    column = [Store(line, (const(i),), read(const(i), j, c)) for i in range(t.size)]
    made = t.inputs([line[i] for i in range(t.size)])
    column += [Store(grid, (j + n * t.size,), e) for n, e in enumerate(made)]
    made = t.inputs([grid[k * t.size + n] for n in range(t.size)])
    row = [Store(out, tiling.at(k * t.size + n, c), e) for n, e in enumerate(made)]
    hints = [Prefetch(out, tiling.at(j + n * t.size, c)) for n in range(t.size) if tiling.hints]
    columns = tiling.over_rows(j, t.size, Alloc(line, block(*hints, *column)))
    return Alloc(grid, block(columns, tiling.over_rows(k, t.size, block(*row))))


def output_nest(tiling: Tiling, out: Buffer, finish: Callable[[Expr, Sequence[Expr]], Expr]) -> Stmt:
    """out[n, h, w, o] = finish(A^T M A, index) of the products x0."""
    outputs = int(str(out.shape[-1]))
    products = Buffer("x0", tiling.dtype, tiling.shape(outputs))

    def restored(o: Expr) -> Stmt:
        return _output_tile(tiling, products, out, o, finish)

    return tiling.over_tiles(tiling.over_channels(outputs, restored))


def _output_tile(
    tiling: Tiling, products: Buffer, out: Buffer, o: Expr, finish: Callable[[Expr, Sequence[Expr]], Expr]
) -> Stmt:
    """Columns first, one after another in the text: a loop over them was slower by a third."""
    t = tiling.transform
    bottom, right = tiling.overhangs
    line, grid = _registers("line", t.tile, tiling.dtype), _registers("grid", t.tile * t.size, tiling.dtype)
    i, j = Var("i"), Var("j")
    made = t.outputs([Load(products, tiling.at(j + n * t.size, o)) for n in range(t.size)])
    column = [Store(grid, (j + n * t.size,), e) for n, e in enumerate(made)]
    made = t.outputs([grid[i * t.size + n] for n in range(t.size)])
    row: list[Stmt] = [Store(line, (const(n),), e) for n, e in enumerate(made)]
    for n in range(t.tile):
        at = (IMAGE, Y + i, X + n, o)
        store: Stmt = Store(out, at, finish(t.restored(line[n]), at))
        fits = land(Y + i < tiling.height if bottom else TRUE, X + n < tiling.width if right else TRUE)
        row.append(store if fits == TRUE else If(fits, store))
    columns = For(j, const(t.size), block(*column), "unroll")
    return Alloc(grid, block(columns, tiling.over_rows(i, t.tile, Alloc(line, block(*row)))))


def _registers(name: str, count: int, dtype: DType) -> Buffer:
    return Buffer(name, dtype, (const(count),), "register")
