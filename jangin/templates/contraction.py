"""GEMM and convolution: one schedule for every product of two operands summed over something.

The output axes are those of the left operand only (rows: pixels, tokens), of the right operand
only (columns: output channels, which must come last), and of both (batches and groups). Rows are
numbered through as one loop, so tiles cross image rows; the right operand is read in panels of
`width` columns that lie contiguously: packed at compile time where it is constant, at the top of
each panel's loop where it isn't. A tile of `mr` rows by `nv` vectors of columns accumulates in
registers.

    parallel task { panel { [pack B] row tile { acc = 0; k { acc += a[row] * panel[k] }; write back } } }
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jangin import te
from jangin.ir.expr import Binary, Buffer, Cast, Const, Expr, Load, Var, const, free_vars, walk
from jangin.ir.graph import static_shape
from jangin.ir.loop import Func
from jangin.ir.simplify import Range, interval, linear, simplify
from jangin.schedule.normalize import simplify_func
from jangin.schedule.primitives import find
from jangin.targets.target import Target
from jangin.templates.common import fuse_all
from jangin.templates.scheduled import Packing, Recorder, Scheduled

MAX_ROWS = 8
"""Rows of a register tile: each holds its address in a general register, of which there are 15."""
TASK_OPS = 1e6
"""Multiply-adds that one task should be worth: some 20 us on one core."""
REUSE_ROWS = 48
"""Rows that a panel should be read for before the next task reads it again."""
STREAM_OPS = 16
"""Multiply-adds that could be done while one element of a panel comes from memory."""


@dataclass(frozen=True)
class Roles:
    """Which output axes belong to what, as loop names; `k` in loop order, innermost last."""

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    column: str
    k: tuple[str, ...]
    left: Load
    right: Load
    groups: int


def roles(stage: te.Stage) -> Roles | None:
    """The stage's axes sorted by operand, or None where this template doesn't fit."""
    if stage.combiner != "sum" or not (isinstance(stage.body, Binary) and stage.body.op == "mul"):
        return None
    left, right = _operand(stage.body.a), _operand(stage.body.b)
    if left is None or right is None or len(stage.axes) < 2:
        return None
    column = stage.axes[-1].var
    in_left = {v for i in left.index for v in free_vars(i)}
    in_right = {v for i in right.index for v in free_vars(i)}
    groups = _groups(stage, left, column) if column in in_left else 1
    if groups is None or column not in in_right:
        return None
    batch: list[str] = []
    rows: list[str] = []
    for axis in stage.axes[:-1]:  # a leading axis of size 1 is neither; it counts as a batch
        unit = axis.extent == const(1) and not rows and axis is not stage.axes[-2]
        (batch if axis.var in in_right or unit else rows).append(axis.var.name)
    if not rows or [*batch, *rows] != [a.var.name for a in stage.axes[:-1]]:
        return None
    k = tuple(a.var.name for a in stage.reduce_axes)
    return Roles(tuple(batch), tuple(rows), column.name, k, left, right, groups)


def _operand(e: Expr) -> Load | None:
    inner = e.a if isinstance(e, Cast) else e
    return inner if isinstance(inner, Load) else None


def _groups(stage: te.Stage, left: Load, column: Var) -> int | None:
    """The group count where the left operand depends on the column only through column // (N/groups)."""
    size = stage.axes[-1].extent
    quotients = [p for i in left.index for p in walk(i) if isinstance(p, Binary) and p.op == "floordiv"]
    for q in quotients:
        if q.a == column and isinstance(q.b, Const) and isinstance(size, Const):
            return int(size.value) // int(q.b.value)
    return None


def _split_parts(e: Expr) -> tuple[Expr, Expr]:
    """(outer, inner) of the index outer*factor + inner that splitting a loop leaves."""
    assert isinstance(e, Binary) and isinstance(e.a, Binary), e
    return e.a.a, e.b


def tile_shape(rows: int | None, columns: int, target: Target, lanes: int) -> tuple[int, int]:
    """(mr, nv): rows and vectors of the register tile with the least estimated time. Per step of k a
    tile takes mr*nv multiply-adds (two a cycle), mr + nv loads (two a cycle), and at least the
    multiply-add's latency of 4 cycles."""
    vectors = math.ceil(columns / lanes)
    best, choice = math.inf, (1, 1)
    for nv in range(1, min(vectors, 6) + 1):
        for mr in range(1, MAX_ROWS + 1):
            if mr * nv + nv + 1 > target.registers or (rows is not None and mr > rows):
                break
            tiles = (rows / mr if rows is None else math.ceil(rows / mr)) if rows else 1 / mr
            step = max(mr * nv / 2, (mr + nv) / 2, 4.0) + 0.25
            cost = tiles * math.ceil(vectors / nv) * step
            if cost < best * 0.999:
                best, choice = cost, (mr, nv)
    return choice


def schedule(
    name: str,
    stage: te.Stage,
    inputs: Sequence[Buffer],
    symbols: Mapping[Var, Range],
    constants: Mapping[str, tuple[int, ...]],
    target: Target,
) -> Scheduled | None:
    """The stage as a tiled product, or None where it isn't one. `constants`: names of inputs that
    are constant (they may be packed)."""
    role = roles(stage) if stage.axes else None
    if role is None or role.left.buffer.name == role.right.buffer.name:
        return None  # a product with itself would need a panel of one of its two readings
    if any(a.extent == const(0) for a in (*stage.axes, *stage.reduce_axes)):
        return None
    size = static_shape((stage.axes[-1].extent,))
    lanes = target.lanes(stage.body.dtype.bytes)
    if size is not None and size[0] // role.groups < max(2, lanes // 2):
        return None
    naive = te.lower(name, [stage], inputs, symbols)
    return _Tiler(role, stage, naive, target, lanes, role.right.buffer.name in constants).run()


class _Tiler:
    """The schedule, step by step."""

    def __init__(
        self, role: Roles, stage: te.Stage, naive: Func, target: Target, lanes: int, constant: bool
    ) -> None:
        self.role, self.stage, self.target, self.lanes = role, stage, target, lanes
        self.s = Recorder(naive)
        self.packed = constant and self._packing_positions() is not None
        self.symbols = dict(naive.symbols)
        extents = {a.var.name: a.extent for a in (*stage.axes, *stage.reduce_axes)}
        self.extents = extents
        self.rows = simplify(math.prod((extents[r] for r in role.rows), start=const(1)), self.symbols)
        columns = extents[role.column]
        self.columns = simplify(columns // role.groups, self.symbols)
        rows, cols = self._typical(self.rows), self._typical(self.columns)
        static_rows = int(self.rows.value) if isinstance(self.rows, Const) else None
        self.mr, self.nv = tile_shape(static_rows, cols, target, lanes)
        self.width = self.nv * lanes
        self.blocks(rows, cols)

    def _typical(self, e: Expr) -> int:
        """A dimension's size, or what to expect of a symbolic one."""
        if isinstance(e, Const):
            return int(e.value)
        low, high = interval(e, self.symbols)
        return max(low or 1, min(high or 256, 256))

    def blocks(self, rows: int, cols: int) -> None:
        """Row tiles and column panels of a task: its rows' operand stays in half the L2 cache, the
        panels are read for enough rows, and it is worth its hand-out; few tasks are an even number."""
        depth = math.prod(self._typical(self.extents[k]) for k in self.role.k)
        inner = self._typical(self.extents[self.role.k[-1]])
        tiles, panels = math.ceil(rows / self.mr), math.ceil(cols / self.width)
        fit = max(1, self.target.l2 // 2 // (inner * self.stage.body.dtype.bytes * self.mr))
        unit = self.mr * self.width * depth
        row_tiles = min(tiles, fit, max(math.ceil(REUSE_ROWS / self.mr), round(TASK_OPS / (unit * panels))))
        step = max(unit * row_tiles, STREAM_OPS * self.width * depth)
        count = max(1, min(panels, round(TASK_OPS / step)))
        across, down = math.ceil(panels / count), math.ceil(tiles / row_tiles)
        if across * down < 16 and across % 2 and down % 2:
            across, down = (across + 1, down) if across < panels else (across, min(down + 1, tiles))
        self.panels = math.ceil(panels / across)
        self.row_tiles = math.ceil(tiles / down) if isinstance(self.rows, Const) else row_tiles
        self.task_ops = max(self.row_tiles * unit, STREAM_OPS * self.width * depth) * self.panels

    def _packing_positions(self) -> tuple[int, tuple[int, ...], tuple[int, ...]] | None:
        """Positions in the right operand's index of the column, of each k that stands there (in loop
        order), and of the rest (batch axes, and axes of size 1); None where an index is more than a
        variable."""
        index = self.role.right.index
        names = [i.name if isinstance(i, Var) else "" for i in index]
        plain = all(isinstance(i, Var) or i == const(0) for i in index)
        if (
            not plain
            or self.role.column not in names
            or len(set(names) - {""}) != len(names) - names.count("")
        ):
            return None
        ks = tuple(names.index(k) for k in self.role.k if k in names)
        column = names.index(self.role.column)
        rest = tuple(p for p in range(len(index)) if p != column and p not in ks)
        return column, ks, rest

    def run(self) -> Scheduled:
        do, role = self.s.do, self.role
        column = role.column
        batch = list(role.batch)
        if role.groups > 1:
            per_group = int(self.columns.value) if isinstance(self.columns, Const) else 0
            do("split", column, per_group)
            batch.append(column + "o")
            column += "i"
        packings = {role.right.buffer.name: self._relayout()} if self.packed else {}
        row = fuse_all(self.s, role.rows, "m")
        self._tile(row, column)
        outer = [*batch, "moo", f"{column}ooo"]
        tile = ["mi", f"{column}oi", f"{column}i"]
        do("reorder", [*batch, "moo", f"{column}ooo", f"{column}ooi", "moi", *tile])
        acc = f"{self.stage.out.name}.acc"
        do("privatize", acc, tile, (role.right.buffer.name,) if self.packed else ())
        k = self._reduction_loops()
        if not self.packed:
            do("pack", f"{column}ooi", role.right.buffer.name, [*k, *tile[1:]], "panel")
            self._vector_copy(tile)
        self._unroll_k(k[-1])
        for suffix in ("", "_z", "_w"):
            do("unroll", tile[0] + suffix)
            do("unroll", tile[1] + suffix)
            do("vectorize", tile[2] + suffix)
        task = fuse_all(self.s, outer, "t")
        do("parallelize", task)
        params = {"mr": self.mr, "nv": self.nv, "row_tiles": self.row_tiles, "panels": self.panels}
        return Scheduled(
            "contraction",
            simplify_func(self.s.func),
            tuple(self.s.steps),
            packings,
            params,
            self.task_ops / self.lanes,
        )

    def _tile(self, row: str, column: str) -> None:
        do = self.s.do
        do("split", column, self.lanes)
        do("split", f"{column}o", self.nv)
        do("split", f"{column}oo", self.panels, "bound")
        if row != "m":
            do("rename", row, "m")
        do("split", "m", self.mr)
        do("split", "mo", self.row_tiles, "bound")

    def _relayout(self) -> Packing:
        """Right operand [.., N, .., k..] to [batch.., groups, panels, k.., width]."""
        positions = self._packing_positions()
        assert positions is not None
        at, ks, lead = positions
        role, old = self.role, self.role.right.buffer
        groups, width = role.groups, self.width
        per_group = simplify(old.shape[at] // groups)

        def index(*i: Expr) -> tuple[Expr, ...]:
            group, inner = (const(0), i[at]) if groups == 1 else _split_parts(i[at])
            return (*(i[b] for b in lead), group, inner // width, *(i[k] for k in ks), inner % width)

        panels = simplify((per_group + (width - 1)) // width)
        shape = (
            *(old.shape[b] for b in lead),
            const(groups),
            panels,
            *(old.shape[k] for k in ks),
            const(width),
        )
        self.s.do("relayout", old.name, shape, index)
        return Packing((*lead, at, *ks), len(lead), groups, width)

    def _reduction_loops(self) -> list[str]:
        """The loops over k, the innermost two fused where both operands run through them contiguously."""
        k = list(self.role.k)
        sizes = {a.var.name: a.extent for a in self.stage.reduce_axes}
        while len(k) >= 2 and self._contiguous(k[-2], k[-1], sizes[k[-1]]):
            fused = f"{k[-2]}{k[-1]}"
            self.s.do("fuse", k[-2], k[-1], fused)
            sizes[fused] = sizes[k[-2]] * sizes[k[-1]]
            k[-2:] = [fused]
            break
        return k

    def _contiguous(self, outer: str, inner: str, size: Expr) -> bool:
        flat: Expr = const(0)
        for i, d in zip(self.role.left.index, self.role.left.buffer.shape, strict=True):
            flat = flat * d + i
        a, b = linear(flat, Var(outer)), linear(flat, Var(inner))
        return a is not None and b is not None and simplify(a[0] - b[0] * size, self.symbols) == const(0)

    def _vector_copy(self, tile: Sequence[str]) -> None:
        """Copy a panel by vectors where the right operand's columns lie contiguously."""
        last = self.role.right.index[-1]
        if last == Var(self.role.column):
            self.s.do("vectorize", f"panel_{tile[2]}")

    def _unroll_k(self, loop: str) -> None:
        """Unroll the innermost k by 4 (or less where that leaves a remainder)."""
        extent = simplify(find(self.s.func, loop).extent, self.symbols)
        if isinstance(extent, Const):
            n = int(extent.value)
            factor = next((f for f in (4, 3, 2) if n % f == 0), 4 if n > 16 else 1)
        else:
            factor = 4
        if factor > 1 and not (isinstance(extent, Const) and int(extent.value) <= factor):
            self.s.do("split", loop, factor, "cut")
            self.s.do("unroll", f"{loop}i")
