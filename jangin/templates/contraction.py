"""GEMM and convolution: one template for every product of two operands that is summed over some axes.

The output axes are of three kinds. Rows (pixels, tokens) are axes of the left operand only. Columns (output
channels, which must come last) are axes of the right operand only. Batches and groups are axes of both.

Rows are numbered through as one loop, so tiles cross image rows. Several column axes are numbered through if
every access is linear in the numbers (the pixels of planes).

The right operand is read in panels: `nv` vectors of columns that lie contiguously. A constant operand is
packed at compile time, and any other at the top of each panel's loop. It is read in place if a single tile of
rows reads it, or if it lies as a panel does. For a single tile, a deep sum goes by blocks of a few terms,
each over all of a task's columns. Long pieces of the operand's rows are then read one after the other.

A register tile of `mr` rows by `nv` vectors of columns accumulates the sums. A task has `row_tiles` tiles by
`panels` panels.

    `parallel task { panel { [pack B] row tile { acc = 0; k { acc += a[row] * panel[k] }; write back } } }`

If multiply-adds take one lane of a vector (NEON), a vector holds the next terms of a row. Alternatively, a
task packs its rows term by term for its tiles and all panels. A vector then holds one term of several rows.
This takes fewer loads, and leaves more registers for the tile.

If instructions multiply two rows by two columns of words (i8mm, `Product.of_matrices`), a register has the
sums of these rows and columns. Rows go in pairs. A pair's words are packed side by side, or joined when they
are read. A vector of one row is put together from two registers when results are written.

If a panel of a deep sum is too long for the L1 cache, the sum is made in blocks of `terms` terms. All row
tiles take one block before the next. Partial sums wait in memory (as in Goto and van de Geijn, "Anatomy of
high-performance matrix multiplication", 2008).

Weights that a single tile of rows reads, each once, come from memory. They are prefetched two pages ahead.

Constants of 16 bits, or of bytes, stay as small in their panels. For a few rows, each vector is widened
before it is multiplied. For more rows, a task's first tile widens a panel (or a block of its terms) for all
tiles, while it reads the panel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jangin.ir import te
from jangin.ir.expr import Const, Var, const, product_of
from jangin.ir.simplify import simplify
from jangin.schedule.primitives import ranges_at
from jangin.targets.processor import SHARE
from jangin.templates.across import Across, sums_across
from jangin.templates.common import fuse_all, messy, stride
from jangin.templates.cost import EXPOSED, HANDED_OUT, LOOP, far_rate, launch, overlapped
from jangin.templates.micro import MAX_ROWS, UNROLL, ByLanes, HalvedRows, Micro, PackedRows, vectors_of
from jangin.templates.register_tile import HALVED
from jangin.templates.roles import Roles, packing_positions, roles
from jangin.templates.scheduled import Params, Recorder, Scheduled
from jangin.templates.template import Template, Workload, least
from jangin.templates.tiles import MatrixRegisters
from jangin.templates.tiling import COLUMNS, Tiler

TASK_OPS = (1e6, 4e6, 0.25e6)
"""Multiply-adds of one task, to try. The first takes about 20 us on one core; it is preferred in doubt."""
SCATTERED = 0.2
"""Share of the time to write the result that is lost if a task writes its rows panel by panel. It counts only
if all panels would stay in the L1 cache."""
IMAGE = 16
"""If the least value of a symbolic number of rows is this or more, rows count as pixels of images. The least
value, most often one image, is then taken as their number."""
DEEP = 3
"""Fewest blocks of a sum that is made in blocks. With fewer, writing and reading the sums between blocks
isn't made up for."""
DEEP_COLUMNS = 2
"""`DEEP` for sums whose rows are read by columns. Blocks pay off sooner, because the cache lines of such
rows are loaded again without blocks."""
LINE = 64
"""Bytes of a cache line."""
THIRD = 3
"""Lines of rows that are read by columns take a third of the L1 cache. With half of it, products of weights'
gradients were up to 1.1 times as slow."""
FAR_LINE = 1.0
"""Cycles that a term takes longer if a line of rows that are read by columns comes from the L2 cache. It is
an estimate that only orders candidates, which tuning measures."""
TILES = 7
"""Register tiles that are tried, the quickest by estimate. Further ones are hardly ever the quickest, and
each multiplies the candidates."""
MOST = 40
"""Candidates that are tried, of all tiles together. Tuning compiles and times each, which takes some tenths
of a second."""
REUSE_ROWS = 48
"""Fewest rows of a task that read a panel before the next task reads it again. It is an estimate that only
orders candidates, which tuning measures."""
PACKING = 4
"""A panel that each task packs itself is read at the L2 cache's rate divided by this. Its elements lie far
apart, and they are written once more."""
IN_PLACE = 8
"""Most rows for which weights of 16 bits are widened at each multiplication. They fit in one or two register
tiles, so a widened panel would be read once or twice. It is an estimate."""
WIDENED = 0.5
"""Cycles to widen a vector of a panel and to store it, while multiply-adds run. It is an estimate that only
orders candidates, which tuning measures."""
BLOCK_SHARE = 3, 4
"""The part of the L1 cache (3 of 4) for a block of a panel's terms. The rest is for the rows read with it."""
COPIED_SHARE = 8
"""A block of a panel's terms that tasks copy takes one part in so many of the L2 cache. The rows read with it
take more."""
ROWS_AT_ONCE = 8
"""Terms in a block of a sum whose right operand is read in place, row by row. Rows often lie a power of two
apart, and a set of the L1 cache has as many lines."""
PIECES = (1024, 2048, 4096, 8192)
"""Bytes of a row that a task reads in place one after the other, to try."""
STREAM_OPS = 16
"""Multiply-adds in the time in which one element of a panel comes from memory. At 8 GB/s an f32 takes half a
nanosecond, in which a core makes some 16."""


def match(workload: Workload) -> Contraction | None:
    """Return the template for a tiled product, or None if the kernel isn't a product of two different
    buffers."""
    if len(workload.stages) != 1:
        return None
    (stage,) = workload.stages
    product = product_of(stage.body)
    word = product.word if product else stage.body.dtype
    lanes = _lanes(workload, stage, word.bytes)
    role = roles(stage, lanes) or _over_axes(workload, lanes) if stage.axes else None
    if role is None or role.left.buffer.name == role.right.buffer.name:
        return None  # a product with itself would need a panel of only one of its two accesses
    if any(a.extent == const(0) for a in (*stage.axes, *stage.reduce_axes)):
        return None
    return Contraction(workload, role, lanes)


def _lanes(workload: Workload, stage: te.Stage, size: int) -> int:
    """Return the lanes of a vector of elements of `size` bytes.

    They are half a register's lanes if these hold all columns and the target has instructions for them. An
    instruction on half a register takes no longer. On processors that split wide vectors in two, it takes
    half the time.
    """
    if sums_across(workload, stage):
        return 1
    processor, columns = workload.processor, stage.axes[-1].extent if stage.axes else None
    product = product_of(stage.body)
    lanes = processor.lanes(size if processor.several_sums else max(size, stage.body.dtype.bytes))
    few = isinstance(columns, Const) and columns.value <= lanes // 2 and processor.vector_bytes > HALVED
    row = workload.target.product_row(product.by_lanes, lanes // 2) if product else None
    return lanes // 2 if few and (row is None or row.becomes) else lanes


def _over_axes(workload: Workload, lanes: int) -> Roles | None:
    """Return the roles if the columns are several axes that can be numbered through, else None."""
    (stage,) = workload.stages
    for count in range(2, len(stage.axes)):
        role = roles(stage, lanes, count)
        if role is not None:
            rec = Recorder(te.lower(workload.name, workload.stages, workload.inputs, workload.symbols))
            column = fuse_all(rec, role.columns, COLUMNS)
            return None if messy(rec.func, Var(column), ranges_at(rec.func, column)) else role
    return None


class Contraction(Template):
    """A product with its sizes.

    The product has `rows` by `columns` (of a group) and sums `depth` terms, `inner` of them in the innermost
    sum. It is computed `batches` times. `micro` is the micro-kernel for rows that are read in place.

    The parameters of a candidate:

    - `mr` and `nv`: rows, and vectors of columns, of a register tile.
    - `row_tiles` and `panels`: tiles and panels of a task.
    - `panels_inside`: a task goes over all panels for each row tile.
    - `unroll`: terms in one iteration of the sum's loop.
    - `terms`: terms in a block of the sum.
    - `in_place`: the right operand is read in place.
    - `widened`: a task widens its panels first.
    - `rows_packed`: a task packs its rows.
    - `matrix_rows`: rows of a matrix register.
    """

    name = "contraction"

    def __init__(self, workload: Workload, role: Roles, lanes: int) -> None:
        self.stage = workload.stages[-1]
        self.workload, self.processor = workload, workload.processor
        self.role, self.lanes = role, lanes
        size = {a.var.name: workload.size(a.extent) for a in (*self.stage.axes, *self.stage.reduce_axes)}
        extent = {a.var.name: a.extent for a in self.stage.axes}
        rows = simplify(math.prod((extent[r] for r in role.rows), start=const(1)), dict(workload.symbols))
        fewest = least(rows, workload.symbols)
        self.known_rows = isinstance(rows, Const) or fewest >= IMAGE
        self.rows = fewest if self.known_rows else workload.size(rows)
        columns = math.prod((extent[c] for c in role.columns), start=const(1))
        self.columns = workload.size(simplify(columns // role.groups, dict(workload.symbols)))
        self.depth = math.prod(size[k] for k in role.k)
        self.inner = size[role.k[-1]]
        self.batches = role.groups * math.prod(size[b] for b in role.batch)
        self.packed = role.right.buffer.name in workload.constants and packing_positions(role) is not None
        along = next((k for k in reversed(role.k) if size[k] > 1), role.k[-1])
        runs = stride(role.left, Var(along), dict(workload.symbols)) == 1
        across = sums_across(workload, self.stage) and self.packed and runs
        self.micro = (Across if across else vectors_of)(workload, self.stage, role, lanes)
        self.left_bytes, self.right_bytes = (o.buffer.dtype.bytes for o in (role.left, role.right))
        of_floats = self.stage.body.dtype.is_float and not product_of(self.stage.body)
        self.small = (
            self.packed and of_floats and not role.parts and role.right.dtype is not self.stage.body.dtype
        )
        self.widened = self.small and self.rows > IN_PLACE
        self.panel_bytes = self.stage.body.dtype.bytes if self.widened else self.right_bytes

    def space(self) -> Sequence[Params]:
        """Return the parameters with the quickest register tiles, for tasks of several sizes."""
        vectors, matrices = (
            [*{str(p): p for p in choices}.values()]
            for choices in ([*self._packing_rows(), *self._of_rows()], self._of_matrices())
        )
        return [*vectors[:MOST], *matrices]

    def _packing_rows(self) -> Iterator[Params]:
        """Yield candidates that pack their rows, with the panels inside or outside the rows. Widened panels
        are always outside."""
        if isinstance(self.micro, HalvedRows):
            for mr, nv in self.tiles():
                task = {"mr": mr, "nv": nv, **self._all_panels(mr, nv, TASK_OPS[0]), "unroll": UNROLL}
                yield {**task, "panels_inside": 1, "rows_packed": 1}
            return
        if not isinstance(self.micro, ByLanes) or self.micro.each > 1:
            return
        packs = PackedRows(*self.operands)
        for mr, nv in self.tiles(packs):
            turn = {"unroll": packs.terms_in_turn(self, mr, nv)}
            for ops in TASK_OPS[:2]:
                task = {"mr": mr, "nv": nv, **self._all_panels(mr, nv, ops), **turn}
                for inside in (0,) if self.widened else (0, 1):
                    yield {**task, "panels_inside": inside, "rows_packed": 1, **self._widening}

    def _of_rows(self) -> Iterator[Params]:
        """Yield candidates that read rows in place. They vary the blocks of deep sums, the loop order of
        panels and rows, and the unrolling."""
        if isinstance(self.micro, HalvedRows):
            return
        own = self.tiles()
        in_place = [tile for tile in own if self._reads_in_place(*tile)]
        yield from self._row_by_row(in_place)
        panel = {**self._widening, **({"in_place": 1} if in_place else {})}
        for mr, nv in in_place or own:
            for ops in TASK_OPS:
                task = self._blocks(mr, nv, ops)
                params = {
                    "mr": mr, "nv": nv, **task, "unroll": self.micro.unroll, "panels_inside": 0, **panel,
                }  # fmt: skip
                yield params
                if terms := self._terms(nv):
                    yield {**params, **self._blocks(mr, nv, ops, terms), "terms": terms}
                if ops == TASK_OPS[0] and not self.micro.between and self.micro.fits(mr, nv, 2 * UNROLL):
                    yield {**params, "unroll": 2 * UNROLL}
                if self.packed and not self.widened and task["panels"] > 1 and task["row_tiles"] > 1:
                    yield {**params, "panels_inside": 1}

    def _row_by_row(self, in_place: Sequence[tuple[int, int]]) -> Iterator[Params]:
        """Yield candidates that read a right operand in place by blocks of its rows."""
        if self.depth < DEEP * ROWS_AT_ONCE:
            return
        for mr, nv in in_place:
            width, most = nv * self.lanes, math.ceil(self.columns / (nv * self.lanes))
            task = {"mr": mr, "nv": nv, "row_tiles": 1}
            block = {"unroll": ROWS_AT_ONCE, "panels_inside": 1, "in_place": 1, "terms": ROWS_AT_ONCE}
            for panels in dict.fromkeys(min(most, n // (width * self.right_bytes)) for n in PIECES):
                if panels > 1:
                    yield {**task, "panels": panels, **block}

    def _of_matrices(self) -> Iterator[Params]:
        """Yield candidates of tiles in matrix registers, with the panels inside or outside the rows."""
        for tile in MatrixRegisters(*self.operands).candidates(self):
            for task in self._of_tiles(tile):
                for inside in (0, 1) if task["panels"] > 1 and task["row_tiles"] > 1 else (0,):
                    yield {**tile, **task, "panels_inside": inside}

    def estimate(self, params: Params) -> float:
        """Return the estimated seconds of a launch on one thread.

        The estimate adds the tiles' cycles and the reads of panels and rows that computation doesn't hide.
        Packing rows, widening panels, splitting deep sums and scattered stores cost extra. A task's rows are
        read again for each panel if they exceed a share of the L2 cache.
        """
        t, mr, nv, micro = self.processor, params["mr"], params["nv"], self.micro_of(params)
        width, tile = nv * self.lanes, micro.cycles(self, params)
        tiles, panels = math.ceil(self.rows / mr), math.ceil(self.columns / width)
        down, across = math.ceil(tiles / params["row_tiles"]), math.ceil(panels / params["panels"])
        panel = width * self.depth * self.right_bytes
        row_bytes = mr * self.inner * self.left_bytes * params["row_tiles"]
        whole = self.columns * self.depth * self.right_bytes
        source = self._source_rate(params)
        own, rest = tile * tiles / down, max(down - 1, 0)
        if self.packed and not params["panels_inside"]:  # the next panel is fetched meanwhile
            block = overlapped(own, panel / source) + rest * overlapped(own, panel / t.rate(whole))
        else:
            block = overlapped(tile, panel / source) + rest * overlapped(tile, panel / t.rate(whole))
            block += (tiles - down) * tile
        if params.get("widened"):
            block += down * nv * self.depth * WIDENED
        left = row_bytes * across * down / t.rate(self.rows * self.inner * self.left_bytes)
        if row_bytes > t.l2 / SHARE:
            left *= params["panels"]
        if self.by_columns and not 0 < params.get("terms", 0) <= self.near_lines:
            left += panels * tiles * self.depth * FAR_LINE / EXPOSED
        tasks = self.batches * down * across
        cycles = self.batches * (panels * block + EXPOSED * left) + micro.begun * tasks
        if terms := params.get("terms", 0):
            cycles += self.batches * tiles * panels * math.ceil(self.depth / terms) * (2 * mr * nv + LOOP)
        else:  # a panel and its rows evict each other if they don't fit
            out = min(panel, max(0, panel + row_bytes * self.depth / self.inner - t.l2 / SHARE))
            cycles += self.batches * tiles * panels * EXPOSED * out / t.l3_rate
        if whole <= t.l1 / SHARE and params["panels"] > 1 and not params["panels_inside"]:
            written = self.batches * self.rows * self.columns * self.stage.out.dtype.bytes
            cycles += SCATTERED * written / t.rate(written)
        if params.get("rows_packed"):
            cycles += self.batches * across * self.rows * self.depth * micro.copied
        return launch(cycles * micro.long_loop(params), tasks) / t.clock

    def _source_rate(self, params: Params) -> float:
        """Return the bytes of the right operand that arrive in a cycle when a panel is first read."""
        t = self.processor
        if self.packed or not params.get("in_place"):
            return t.memory_rate if self.packed else t.l2_rate / PACKING
        row = self.columns * self.right_bytes
        piece = (
            (params["panels"] if params.get("terms") else 1) * params["nv"] * self.lanes * self.right_bytes
        )
        return far_rate(t, self.batches * self.depth * row, piece, row)

    def schedule(self, params: Params) -> Scheduled:
        p = self.workload
        rec = Recorder(te.lower(p.name, p.stages, p.inputs, p.symbols))
        rec.do("parallelize", fuse_all(rec, self.arrange(rec, params), "t"))
        return rec.finish(self.name, params, self.task_ops(params) / self.lanes)

    def arrange(self, rec: Recorder, params: Params) -> list[str]:
        """Schedule the product's loops. Return the loops that may become tasks."""
        return Tiler(self.workload, self.role, self.micro_of(params), params, self.packed, rec).run()

    @property
    def _widening(self) -> Params:
        return {"widened": 1} if self.widened else {}

    @property
    def operands(self) -> tuple[Workload, te.Stage, Roles, int]:
        """The arguments of a micro-kernel's class: the kernel, its sum of products, the roles of its axes,
        and the lanes of a vector."""
        return self.workload, self.stage, self.role, self.lanes

    def micro_of(self, params: Params) -> Micro:
        """Return the micro-kernel for a set of parameters."""
        if "matrix_rows" in params:
            return MatrixRegisters(*self.operands)
        packs = params.get("rows_packed") and not isinstance(self.micro, HalvedRows)
        return PackedRows(*self.operands) if packs else self.micro

    def tiles(self, micro: Micro | None = None) -> list[tuple[int, int]]:
        """Return the register tiles (mr, nv) to try, the quickest first. `micro`: the micro-kernel, by
        default the one for rows read in place."""
        micro = micro or self.micro
        fitting = [
            t for t in micro.tiles(self.columns) if t[0] < self.rows + micro.pair or not self.known_rows
        ]
        cycles = {t: micro.tile_cycles(self, *t, micro.unroll) * self._tile_count(*t) for t in fitting}
        return sorted(cycles, key=lambda t: cycles[t])[:TILES]

    def tile_cycles(self, mr: int, nv: int) -> float:
        """Return the cycles of one tile whose rows are read in place."""
        return self.micro.tile_cycles(self, mr, nv, self.micro.unroll)

    def panel_cycles(self, nv: int) -> float:
        """Return the cycles in which the L2 cache delivers a panel's vectors for one term. A term of a tile
        takes at least this long. Return 0 if the panel stays in the L1 cache."""
        t = self.processor
        near = nv * self.lanes * self.depth * self.panel_bytes <= t.l1 // SHARE
        return 0.0 if near else nv * t.vector_bytes / t.l2_rate

    def _tile_count(self, mr: int, nv: int) -> float:
        rows = math.ceil(self.rows / mr) if self.known_rows else self.rows / mr
        return rows * math.ceil(self.columns / (nv * self.lanes))

    def _reads_in_place(self, mr: int, nv: int) -> bool:
        """Return whether a right operand that isn't packed is read without a copy.

        One row tile must read all of it, by whole vectors of neighbouring columns. Rows as wide as the tile
        lie as a panel would, and are read for any number of tiles.
        """
        role, columns, symbols = self.role, self.stage.axes[-1].extent, dict(self.workload.symbols)
        if self.packed or role.groups > 1 or len(role.columns) > 1 or not isinstance(columns, Const):
            return False
        if int(columns.value) % (nv * self.lanes) or stride(role.right, Var(role.column), symbols) != 1:
            return False
        is_panel = int(columns.value) == nv * self.lanes == stride(role.right, Var(role.k[-1]), symbols)
        return is_panel or (self.known_rows and self.rows <= mr)

    def _terms(self, nv: int) -> int:
        """Return the terms in a block of the sum, so that a panel's part stays in the L1 cache. A part that
        tasks copy stays in the L2 cache, because longer blocks hide the copy's beginning and end.

        Return 0 if the sum has too few blocks, or the rows are few.
        """
        part, of = BLOCK_SHARE
        held = part * self.processor.l1 // of if self.packed else self.processor.l2 // COPIED_SHARE
        terms, deep = held // (nv * self.lanes * self.panel_bytes), DEEP
        if self.by_columns:
            terms, deep = min(terms, self.near_lines), DEEP_COLUMNS
        again = self.rows > MAX_ROWS
        return terms if again and self.depth >= deep * terms else 0

    @property
    def by_columns(self) -> bool:
        """Whether the terms of a row lie in different cache lines, as in a transposed matrix. The rows of the
        next tiles then lie in the same cache lines."""
        (k, *others), symbols = self.role.k, dict(self.workload.symbols)
        if self.packed or others or self.rows <= MAX_ROWS:
            return False
        steps = [stride(self.role.left, Var(n), symbols) for n in (k, self.role.rows[-1])]
        return steps[0] != 1 == steps[1]

    @property
    def near_lines(self) -> int:
        """The number of cache lines that stay in the L1 cache beside a panel, if rows are read by columns."""
        return self.processor.l1 // THIRD // LINE

    def _blocks(self, mr: int, nv: int, task_ops: float, terms: int = 0) -> Params:
        """Return the row tiles and panels of a task.

        The task's rows stay in half the L2 cache, and each panel serves enough rows. The work is worth the
        cost of a task. If each task packs or widens its own panels, a panel serves all rows. If tasks are few
        enough to be handed out singly, their number is even.
        """
        width = nv * self.lanes
        tiles, panels = math.ceil(self.rows / mr), math.ceil(self.columns / width)
        inner = (min(self.inner, terms) if terms else self.inner) * self.role.groups
        fit = max(1, self.processor.l2 // SHARE // (inner * self.left_bytes * mr))
        unit = mr * width * self.depth
        enough = max(math.ceil(REUSE_ROWS / mr), round(task_ops / (unit * panels)))
        as_it_is = self.role.right.buffer.name in self.workload.constants and not self.widened
        row_tiles = min(tiles, fit, enough if as_it_is else tiles)
        step = max(unit * row_tiles, STREAM_OPS * width * self.depth)
        count = max(1, min(panels, round(task_ops / step)))
        across, down = math.ceil(panels / count), math.ceil(tiles / row_tiles)
        if across * down < HANDED_OUT and across % 2 and down % 2:
            across, down = (across + 1, down) if across < panels else (across, min(down + 1, tiles))
        row_tiles = math.ceil(tiles / down) if self.known_rows else row_tiles
        return {"row_tiles": row_tiles, "panels": math.ceil(panels / across)}

    def _of_tiles(self, tile: Params) -> Iterator[Params]:
        """Yield the tasks for tiles in matrix registers, which take less time than others.

        Tasks that pack their rows take all panels. Alternatively they take as many rows as fit half the L2
        cache, and a part of the panels.
        """
        mr, nv = tile["mr"], tile["nv"]
        for ops in TASK_OPS:
            if "rows_packed" not in tile:
                yield self._blocks(mr, nv, MatrixRegisters.quicker * ops)
                continue
            block = self._all_panels(mr, nv, MatrixRegisters.quicker * ops)
            yield block
            fit = self.processor.l2 // SHARE // (self.depth * self.left_bytes * mr)
            row_tiles = max(1, min(fit, math.ceil(self.rows / mr)))
            wanted = round(MatrixRegisters.quicker * ops / (row_tiles * mr * nv * self.lanes * self.depth))
            yield {"row_tiles": row_tiles, "panels": max(1, min(block["panels"], wanted))}

    def _all_panels(self, mr: int, nv: int, task_ops: float) -> Params:
        """Return the parameters of a task that packs its rows and takes all panels. It makes about `task_ops`
        multiply-adds."""
        panels = math.ceil(self.columns / (nv * self.lanes))
        tiles = math.ceil(self.rows / mr)
        fit = max(1, self.processor.l2 // SHARE // (self.depth * self.left_bytes * mr))
        wanted = max(1, round(task_ops / (mr * self.columns * self.depth)))
        down = math.ceil(tiles / min(tiles, fit, wanted))
        return {"row_tiles": math.ceil(tiles / down), "panels": panels}

    def task_ops(self, params: Params) -> float:
        """Return the time of a task, as the number of multiply-adds that vector instructions would make in
        it. It is at least the time in which the task's panels come from memory."""
        width = params["nv"] * self.lanes
        unit = params["mr"] * width * self.depth
        unit //= self.micro_of(params).quicker
        return max(params["row_tiles"] * unit, STREAM_OPS * width * self.depth) * params["panels"]
