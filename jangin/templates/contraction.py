"""GEMM and convolution: one template for every product of two operands summed over something.

The output axes are those of the left operand only (rows: pixels, tokens), of the right operand
only (columns: output channels, which must come last), and of both (batches and groups). Rows are
numbered through as one loop, so tiles cross image rows, and so are columns of several axes, where all that
is read runs through them evenly (the pixels of planes); the right operand is read in panels of
`nv` vectors of columns that lie contiguously: packed at compile time where it is constant, at the top
of each panel's loop where it isn't, and as it lies where one tile of rows reads it alone. A tile of `mr`
rows by `nv` vectors of columns accumulates in registers; a task is `row_tiles` tiles by `panels` panels.

    parallel task { panel { [pack B] row tile { acc = 0; k { acc += a[row] * panel[k] }; write back } } }

Where multiply-adds take one lane of a vector (NEON), a vector holds the next terms of a row, or the rows
themselves are packed, term by term, for a task's tiles and all panels, so that a vector holds several rows'
values of one term: fewer loads, and more registers left for the tile.

Where instructions multiply two rows by two columns of words (`Product.of_matrices`), a register has the
sums of these: rows go in pairs, whose words are packed side by side or put together as they are read, and
vectors of a row are taken from two registers each where results are written.

Where a panel of a deep sum is too long for the L1 cache, all row tiles take one block of `terms` terms
after the other, and partial sums wait in memory (as in Goto and van de Geijn, "Anatomy of
high-performance matrix multiplication", 2008).

Weights that a single tile of rows reads, each once, come from memory; hints ask for them two pages ahead.

Constants of 16 bits are kept so in their panels. For a few rows each vector is widened where it is
multiplied; for more, a task's first tile widens a panel (or a block of its terms) for all of them, as it
reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jangin.ir import te
from jangin.ir.expr import Binary, Cast, Const, Expr, Load, Var, const, product_of
from jangin.ir.simplify import simplify
from jangin.ir.traversal import children, free_vars, walk
from jangin.schedule.primitives import ranges_at
from jangin.templates.common import fuse_all, messy, stride
from jangin.templates.cost import (
    EXPOSED,
    HANDED_OUT,
    LOOP,
    LOOP_INSTRUCTIONS,
    MOST_LOADED,
    SHARE,
    launch,
    overlapped,
    rate,
    tile_step,
    vector_loads,
)
from jangin.templates.register_tile import HALVED, terms_at_once
from jangin.templates.scheduled import Params, Recorder, Scheduled
from jangin.templates.template import Template, Workload, least
from jangin.templates.tiles import CONFIGURED, COPIED, QUICKER, tile_cycles, tiles
from jangin.templates.tiling import COLUMNS, Roles, Tiler, by_lane, packing_positions

MAX_ROWS = 8
"""Rows of a register tile: each holds its address in a general register, of which there are 15."""
TASK_OPS = (1e6, 4e6, 0.25e6)
"""Multiply-adds that one task may be worth; the first, some 20 us on one core, in doubt."""
UNROLL = 4
"""Terms of the sum in one turn of its loop."""
TESTED = 4
"""Instructions more to write a tile's row back where tiles don't divide the rows, or the columns: a test, and
what rows would share."""
LONG_LOOP = 1.01
"""What more instructions in the innermost loop cost in doubt; a single row gains by them, as more loads are
under way."""
SCATTERED = 0.2
"""Share of the time to write the result that is lost where a task writes its rows in parts, panel by panel,
though all panels would stay in the L1 cache."""
IMAGE = 16
"""Of rows whose number only a run tells, as many at least are the pixels of images: of one, most often."""
DEEP = 3
"""Blocks that a sum should have to be made by blocks."""
TILES = 7
"""Register tiles that are tried."""
MOST = 40
"""Candidates that are tried, of all tiles together."""
REUSE_ROWS = 48
"""Rows that a panel should be read for before the next task reads it again."""
MAX_PANEL = 6
"""Vectors of a panel's width, in pairs where instructions multiply small matrices."""
MAX_PACKED_ROWS = 12
"""Rows of a register tile that are packed and have no addresses of their own."""
PACKED_TERMS = 8, 32
"""Terms in one turn of the loop over packed rows, from and to."""
PACK_ROW = 0.75
"""Cycles to pack an element of the rows, which are turned in registers."""
PACKING = 4
"""A panel that each task packs itself comes so many times slower than from the L2 cache: its elements are
read far apart, and written once more."""
IN_PLACE = 8
"""Rows up to which weights of 16 bits are widened where they are multiplied."""
WIDENED = 0.5
"""Cycles to widen a vector of a panel, and to store it, beside multiply-adds."""
BLOCK_SHARE = 3, 4
"""The part of the L1 cache (3 of 4) for a block of a panel's terms: the rows read with it need the rest."""
STREAM_OPS = 16
"""Multiply-adds that could be done while one element of a panel comes from memory."""


def match(workload: Workload) -> Contraction | None:
    """The kernel as a tiled product, or None where it isn't one."""
    if len(workload.stages) != 1:
        return None
    (stage,) = workload.stages
    product = product_of(stage.body)
    word = product.word if product else stage.body.dtype
    lanes = _lanes(workload, stage, word.bytes)
    role = roles(stage, lanes) or _over_axes(workload, lanes) if stage.axes else None
    if role is None or role.left.buffer.name == role.right.buffer.name:
        return None  # a product with itself would need a panel of one of its two readings
    if any(a.extent == const(0) for a in (*stage.axes, *stage.reduce_axes)):
        return None
    return Contraction(workload, role, lanes)


def _lanes(workload: Workload, stage: te.Stage, size: int) -> int:
    """Elements of a vector of so many bytes each: half of a register's where the columns are no more, as what
    is half as wide takes no longer, and half the time on processors that take wide ones in two steps."""
    target, columns = workload.target, stage.axes[-1].extent if stage.axes else None
    lanes, product = target.lanes(size), product_of(stage.body)
    few = isinstance(columns, Const) and columns.value <= lanes // 2 and target.vector_bytes > HALVED
    row = target.product_row(product.by_lanes, lanes // 2) if product else None
    return lanes // 2 if few and (row is None or row.becomes) else lanes


def _over_axes(workload: Workload, lanes: int) -> Roles | None:
    """The roles where the columns are of several axes, which can be numbered through; None elsewhere."""
    (stage,) = workload.stages
    for count in range(2, len(stage.axes)):
        role = roles(stage, lanes, count)
        if role is not None:
            rec = Recorder(te.lower(workload.name, workload.stages, workload.inputs, workload.symbols))
            column = fuse_all(rec, role.columns, COLUMNS)
            return None if messy(rec.func, Var(column), ranges_at(rec.func, column)) else role
    return None


def roles(stage: te.Stage, lanes: int = 1, columns: int = 1) -> Roles | None:
    """The stage's axes sorted by operand, or None where this template doesn't fit. Groups of fewer columns
    than a vector has `lanes` may be taken together. `columns`: how many axes at the end are columns."""
    body = stage.body
    plain = isinstance(body, Binary) and body.op == "mul"
    if stage.combiner != "sum" or not (plain or product_of(body)):
        return None
    factors = children(body)
    operands = _operand(factors[0]), _operand(factors[1])
    pairs = operands, operands[::-1]  # a product of i64 may be turned
    found = (_roles(stage, *pair, lanes, columns) for pair in pairs)
    return next((r for r in found if r is not None), None)


def _roles(stage: te.Stage, left: Load | None, right: Load | None, lanes: int, columns: int) -> Roles | None:
    if left is None or right is None or len(stage.axes) <= columns:
        return None
    outer, inner = stage.axes[:-columns], [a.var for a in stage.axes[-columns:]]
    in_left, in_right = ({v for i in o.index for v in free_vars(i)} for o in (left, right))
    groups = _groups(stage, left, inner[-1], lanes) if columns == 1 and inner[-1] in in_left else (1, False)
    if groups is None or not in_right.issuperset(inner) or (columns > 1 and in_left & set(inner)):
        return None
    batch: list[str] = []
    rows: list[str] = []
    for axis in outer:  # a leading axis of size 1 is neither; it counts as a batch
        unit = axis.extent == const(1) and not rows and axis is not outer[-1]
        (batch if axis.var in in_right or unit else rows).append(axis.var.name)
    if not rows or [*batch, *rows] != [a.var.name for a in outer]:
        return None
    k = tuple(a.var.name for a in stage.reduce_axes)
    return Roles(tuple(batch), tuple(rows), tuple(v.name for v in inner), k, left, right, *groups)


def _operand(e: Expr) -> Load | None:
    inner = e.a if isinstance(e, Cast) else e
    return inner if isinstance(inner, Load) else None


def _groups(stage: te.Stage, left: Load, column: Var, lanes: int) -> tuple[int, bool] | None:
    """The group count where the left operand depends on the column only through column // (N/groups), and
    whether groups of which several fill a vector count as one."""
    size = stage.axes[-1].extent
    quotients = [p for i in left.index for p in walk(i) if isinstance(p, Binary) and p.op == "floordiv"]
    for q in quotients:
        if q.a == column and isinstance(q.b, Const) and isinstance(size, Const):
            width = int(q.b.value)
            several = width < lanes and lanes % width == 0 and int(size.value) % lanes == 0
            return int(size.value) // (lanes if several else width), several
    return None


class Contraction(Template):
    """A product with its sizes: `rows` by `columns` (of a group), `depth` terms, the innermost sum over
    `inner` of them, `batches` times. `each`: registers of a vector's sums, half a one where it has
    two rows' (`pair`)."""

    name = "contraction"

    def __init__(self, workload: Workload, role: Roles, lanes: int) -> None:
        self.stage = workload.stages[-1]
        self.workload, self.role, self.lanes = workload, role, lanes
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
        self.by_lane = by_lane(role, self.stage, workload)
        product = product_of(self.stage.body)
        self.pair = product.rows if product else 1
        bytes_of_sums = lanes * self.stage.body.dtype.bytes
        self.each = max(1, bytes_of_sums // workload.target.vector_bytes) / self.pair
        self.unroll = lanes if self.each > 1 and self.inner > lanes else UNROLL
        row = workload.target.product_row(product.by_lanes, lanes) if product else None
        self.multiplies = (1 if row is None else row.multiplies) / self.pair
        self.between = 0 if row is None else row.between
        self.registers = (row and row.registers) or workload.target.registers
        self.left_bytes, self.right_bytes = (o.buffer.dtype.bytes for o in (role.left, role.right))
        small = self.packed and not (role.parts or product) and role.right.dtype.is_float
        self.small = small and role.right.dtype.wide is not role.right.dtype
        self.widened = self.small and self.rows > IN_PLACE
        self.panel_bytes = role.right.dtype.wide.bytes if self.widened else self.right_bytes

    def space(self) -> Sequence[Params]:
        """Tiles that keep the multiply-adds busy, by tasks of several sizes; deep sums in blocks; the panels
        inside the rows or outside, unless they are widened first; the sum unrolled more."""
        found: list[Params] = []
        widened = {"widened": 1} if self.widened else {}
        if self.by_lane and self.each <= 1:
            packed = [
                self._packed_rows(*tile, ops) for tile in self.tiles(packed=True) for ops in TASK_OPS[:2]
            ]
            orders = (0,) if self.widened else (0, 1)
            found += [{**p, "panels_inside": inside, **widened} for p in packed for inside in orders]
        own = self.tiles()
        as_it_lies = [tile for tile in own if self._reads_in_place(*tile)]
        in_place = {"in_place": 1} if as_it_lies else {}
        for mr, nv in as_it_lies or own:
            blocks = [self._blocks(mr, nv, ops) for ops in TASK_OPS]
            for b in blocks:
                params = {
                    "mr": mr,
                    "nv": nv,
                    **b,
                    "unroll": self.unroll,
                    "panels_inside": 0,
                    **widened,
                    **in_place,
                }
                found.append(params)
                if terms := self._terms(nv):
                    task = self._blocks(mr, nv, TASK_OPS[blocks.index(b)], terms)
                    found.append({**params, **task, "terms": terms})
                if b is blocks[0] and not self.between and self._fits(mr, nv, unroll=2 * UNROLL):
                    found.append({**params, "unroll": 2 * UNROLL})
                if self.packed and not self.widened and b["panels"] > 1 and b["row_tiles"] > 1:
                    found.append({**params, "panels_inside": 1})
        matrices = [
            {**tile, **b, "panels_inside": inside}
            for tile in tiles(self)
            for b in self._of_tiles(tile)
            for inside in ((0, 1) if b["panels"] > 1 and b["row_tiles"] > 1 else (0,))
        ]
        once = [[*{str(p): p for p in some}.values()] for some in (found, matrices)]
        return [*once[0][:MOST], *once[1]]

    def estimate(self, params: Params) -> float:
        """A tile's multiply-adds, loads and latency; its panel from memory or cache when it is first read;
        its rows again for every panel where they don't stay in the L2 cache."""
        t, mr, nv = self.workload.target, params["mr"], params["nv"]
        width = nv * self.lanes
        tiles, panels = math.ceil(self.rows / mr), math.ceil(self.columns / width)
        down, across = math.ceil(tiles / params["row_tiles"]), math.ceil(panels / params["panels"])
        rows_packed = bool(params.get("rows_packed"))
        of_tiles = "matrix_rows" in params
        tile = (
            tile_cycles(self, params) if of_tiles else self.tile_cycles(mr, nv, rows_packed, params["unroll"])
        )
        panel = width * self.depth * self.right_bytes
        row_bytes = mr * self.inner * self.left_bytes * params["row_tiles"]
        whole = self.columns * self.depth * self.right_bytes
        source = t.memory_rate if self.packed else t.l2_rate / (1 if params.get("in_place") else PACKING)
        own, rest = tile * tiles / down, max(down - 1, 0)
        if self.packed and not params["panels_inside"]:  # the next panel is fetched meanwhile
            block = overlapped(own, panel / source) + rest * overlapped(own, panel / rate(t, whole))
        else:
            block = overlapped(tile, panel / source) + rest * overlapped(tile, panel / rate(t, whole))
            block += (tiles - down) * tile
        if params.get("widened"):
            block += down * nv * self.depth * WIDENED
        left = row_bytes * across * down / rate(t, self.rows * self.inner * self.left_bytes)
        if row_bytes > t.l2 / SHARE:
            left *= params["panels"]
        tasks = self.batches * down * across
        cycles = self.batches * (panels * block + EXPOSED * left) + (CONFIGURED * tasks if of_tiles else 0)
        if terms := params.get("terms", 0):
            cycles += self.batches * tiles * panels * math.ceil(self.depth / terms) * (2 * mr * nv + LOOP)
        else:  # what of a panel and its rows doesn't fit is pushed out by the other
            out = min(panel, max(0, panel + row_bytes * self.depth / self.inner - t.l2 / SHARE))
            cycles += self.batches * tiles * panels * EXPOSED * out / t.l3_rate
        if whole <= t.l1 / SHARE and params["panels"] > 1 and not params["panels_inside"]:
            written = self.batches * self.rows * self.columns * self.stage.out.dtype.bytes
            cycles += SCATTERED * written / rate(t, written)
        if rows_packed:
            cycles += self.batches * across * self.rows * self.depth * (COPIED if of_tiles else PACK_ROW)
        if params["unroll"] > UNROLL and not t.issue and not of_tiles:
            cycles *= LONG_LOOP if mr > 1 else 1 / LONG_LOOP
        return launch(cycles, tasks) / t.clock

    def schedule(self, params: Params) -> Scheduled:
        p = self.workload
        rec = Recorder(te.lower(p.name, p.stages, p.inputs, p.symbols))
        rec.do("parallelize", fuse_all(rec, self.arrange(rec, params), "t"))
        return rec.finish(self.name, params, self.task_ops(params) / self.lanes)

    def arrange(self, rec: Recorder, params: Params) -> list[str]:
        """Schedule the product's loops; gives those that may be tasks."""
        return Tiler(self.workload, self.role, self.lanes, params, self.packed, rec).run()

    def tiles(self, packed: bool = False) -> list[tuple[int, int]]:
        """The register tiles (mr, nv) worth a try, the best first. `packed`: of rows that are packed."""
        cycles = {t: self.tile_cycles(*t, packed) * self._tile_count(*t) for t in self._tiles(packed)}
        return sorted(cycles, key=lambda t: cycles[t])[:TILES]

    def _tiles(self, packed: bool) -> Iterator[tuple[int, int]]:
        """(mr, nv) whose accumulators, with a panel's vectors and what is held of the rows, fit the
        registers."""
        least, most_rows = (self.lanes, MAX_PACKED_ROWS) if packed else (self.pair, MAX_ROWS)
        rows = range(least, most_rows + 1, least)
        most = MOST_LOADED if self.each > 1 else MAX_PANEL * self.pair
        for nv in range(1, min(math.ceil(self.columns / self.lanes), most) + 1):
            for mr in rows:
                if self._fits(mr, nv, packed) and (mr < self.rows + self.pair or not self.known_rows):
                    yield mr, nv

    def _fits(self, mr: int, nv: int, packed: bool = False, unroll: int = 0) -> bool:
        """Whether a tile's accumulators, a panel's vectors and what is held of the rows fit the registers.
        Elsewhere than with lane operands or pairs of rows, LLVM holds no more of the rows than there is room
        for."""
        target, rows, unroll = self.workload.target, mr // self.lanes, unroll or self.unroll
        if packed:
            together = terms_at_once(target, nv, rows)
            held = sum(n * (together if n <= target.several // 2 else 1) for n in (nv, rows))
            return mr * nv * self.each + held <= self.registers
        held = 1 + mr * unroll // self.unroll if self.by_lane else 1 if self.pair == 1 else mr // self.pair
        panel = UNROLL if nv == 1 and self.multiplies > 1 else nv  # LLVM loads those of several terms at once
        if self.each > 1:
            panel = nv * terms_at_once(target, nv)
        return mr * nv * self.each + panel + held + self.between <= self.registers

    def _row_loads(self, mr: int, packed: bool, unroll: int) -> float:
        """Loads of a term of the rows: one of each, or of vectors of a row's next terms, in pairs where they
        are that many; packed ones as the panel's."""
        if not self.by_lane:
            return mr
        vectors = mr // self.lanes
        if not packed:  # of words of 16 bits each is copied to all lanes, of 64 bits two rows' are joined
            return mr / max(unroll, self.lanes) + (mr if self.between else mr - mr / self.pair)
        return vector_loads(self.workload.target, vectors)

    def tile_cycles(self, mr: int, nv: int, packed: bool = False, unroll: int = 0) -> float:
        """Of one tile: per term mr*nv multiply-adds, mr + nv loads, at least a multiply-add's latency, its
        share of the loop, and its part of a panel that the L1 cache doesn't hold; then what begins and
        ends it."""
        t, unroll = self.workload.target, unroll or self.unroll
        rows = self._row_loads(mr, packed, unroll)
        step = tile_step(t, mr, nv, unroll if t.issue else UNROLL, rows, self.multiplies)
        if self.small and not self.widened:
            step += nv / t.multiply_adds
        if nv * self.lanes * self.depth * self.panel_bytes > t.l1 // SHARE:
            step = max(step, nv * t.vector_bytes / t.l2_rate)
        inner = self.depth if packed else self.inner
        rest = (self.known_rows and self.rows % mr > 0) + (self.columns % (nv * self.lanes) > 0)
        tested = mr * rest * TESTED / t.issue if t.issue else 0
        return self.depth * step + self.depth / inner * LOOP + mr * nv + LOOP + tested

    def _tile_count(self, mr: int, nv: int) -> float:
        rows = math.ceil(self.rows / mr) if self.known_rows else self.rows / mr
        return rows * math.ceil(self.columns / (nv * self.lanes))

    def _reads_in_place(self, mr: int, nv: int) -> bool:
        """Whether a right operand that isn't packed needs no copy either: one row tile reads all of it, by
        whole vectors of neighbouring columns."""
        role, columns = self.role, self.stage.axes[-1].extent
        if self.packed or role.groups > 1 or len(role.columns) > 1 or not isinstance(columns, Const):
            return False
        whole = self.known_rows and self.rows <= mr and int(columns.value) % (nv * self.lanes) == 0
        return whole and stride(role.right, Var(role.column), dict(self.workload.symbols)) == 1

    def _terms(self, nv: int) -> int:
        """Terms of a block of the sum for which a panel's part stays in the L1 cache; 0 where the sum isn't
        of many such blocks, or nothing reads them again."""
        part, of = BLOCK_SHARE
        terms = part * self.workload.target.l1 // (of * nv * self.lanes * self.panel_bytes)
        again = self.packed and self.rows > MAX_ROWS
        return terms if again and self.depth >= DEEP * terms else 0

    def _blocks(self, mr: int, nv: int, task_ops: float, terms: int = 0) -> Params:
        """Row tiles and column panels of a task: its rows' operand stays in half the L2 cache, the
        panels are read for enough rows (all, where each task packs or widens its own), and it is worth its
        hand-out; fewer tasks than are handed out singly are an even number."""
        width = nv * self.lanes
        tiles, panels = math.ceil(self.rows / mr), math.ceil(self.columns / width)
        inner = (min(self.inner, terms) if terms else self.inner) * self.role.groups
        fit = max(1, self.workload.target.l2 // SHARE // (inner * self.left_bytes * mr))
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
        """Tasks of tiles in matrix registers, as of others, but that they are done sooner; those that pack
        their rows take all panels, or a part of them, of which all rows that fit half the L2 cache are."""
        mr, nv = tile["mr"], tile["nv"]
        for ops in TASK_OPS:
            if "rows_packed" not in tile:
                yield self._blocks(mr, nv, QUICKER * ops)
                continue
            block = self._packed_rows(mr, nv, QUICKER * ops)
            yield {n: block[n] for n in ("row_tiles", "panels")}
            fit = self.workload.target.l2 // SHARE // (self.depth * self.left_bytes * mr)
            row_tiles = max(1, min(fit, math.ceil(self.rows / mr)))
            wanted = round(QUICKER * ops / (row_tiles * mr * nv * self.lanes * self.depth))
            yield {"row_tiles": row_tiles, "panels": max(1, min(block["panels"], wanted))}

    def _packed_rows(self, mr: int, nv: int, task_ops: float) -> Params:
        """A task that packs its rows, and takes all panels."""
        panels = math.ceil(self.columns / (nv * self.lanes))
        tiles = math.ceil(self.rows / mr)
        fit = max(1, self.workload.target.l2 // SHARE // (self.depth * self.left_bytes * mr))
        wanted = max(1, round(task_ops / (mr * self.columns * self.depth)))
        down = math.ceil(tiles / min(tiles, fit, wanted))
        block = {"row_tiles": math.ceil(tiles / down), "panels": panels}
        turn = {"unroll": self._packed_terms(mr, nv), "panels_inside": 0, "rows_packed": 1}
        return {"mr": mr, "nv": nv, **block, **turn}

    def _packed_terms(self, mr: int, nv: int) -> int:
        """Terms in a turn of the loop over packed rows, for which a sum takes the fewest loads, turns, and
        terms left over."""
        target, vectors = self.workload.target, (nv, mr // self.lanes)
        together = terms_at_once(target, *vectors)
        alone = sum(math.ceil(v / max(1, target.several)) for v in vectors)
        several = sum(vector_loads(target, v) for v in vectors)

        def instructions(terms: int) -> float:
            turns, left = divmod(self.depth, terms)
            each = alone if terms % together else several
            return turns * (terms * each + LOOP_INSTRUCTIONS) + left * (alone + LOOP_INSTRUCTIONS)

        fewest, most = (max(UNROLL, min(n, self.depth // 2)) for n in PACKED_TERMS)
        return min(range(fewest, most + 1), key=instructions)

    def task_ops(self, params: Params) -> float:
        """Multiply-adds that a task takes as long as."""
        width = params["nv"] * self.lanes
        unit = params["mr"] * width * self.depth
        unit //= QUICKER if "matrix_rows" in params else 1
        return max(params["row_tiles"] * unit, STREAM_OPS * width * self.depth) * params["panels"]
