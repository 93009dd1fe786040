"""Products with weights that are stored in blocks (see `ops.blocks`).

They are tiled as in `contraction`, but the right operand is an expression of several constants, which are
packed alike. For a few rows, each vector of it is widened at its multiplication. For many rows, a task widens
a panel once, and its tiles read the widened panel.

    `parallel task { panel { [widen panel] row tile { acc = 0; k { acc += a[row] * widened };
      write back } } }`

For a single row, the common factor of a block multiplies the block's sum, not each weight.

If rows are words of four 8-bit numbers, a tile has two sets of accumulators: the i32 sums of a block, and f32
sums. Once for each block, its sums are multiplied by their factors and added to the f32 sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from jangin.ir import te
from jangin.ir.dtype import I32
from jangin.ir.expr import Binary, Const, Load, const, product_of
from jangin.ir.traversal import children, free_vars, loads, substitute, walk
from jangin.targets.processor import SHARE
from jangin.templates.common import fuse_all
from jangin.templates.contraction import TASK_OPS, Contraction
from jangin.templates.cost import LOOP, arithmetic, launch
from jangin.templates.micro import MAX_ROWS, Micro
from jangin.templates.roles import Roles
from jangin.templates.scheduled import Params, Recorder, Scheduled
from jangin.templates.template import Workload
from jangin.templates.tiling import Tiler

WORD = 8
"""Weights in a word, or terms in one iteration of the loop over other weights. A word of 32 bits has eight
weights of 4 bits."""
FEW = 4
"""Most rows for which weights are widened at their multiplication. For more rows, a task widens its panel
once and reads it again for each row tile."""
TASK_WEIGHTS = 0.2e6
"""Weights that a task of a few rows should read. They take some 10 us, long beside the start of a task and
short enough for an even division."""


SHORT = 16
"""Most words of a block that are multiplied without a loop. A loop of more iterations costs little beside its
work."""
ADDED = 4.0
"""Instructions that add a block's sum to the f32 sums: conversion, two products, addition."""


def match(workload: Workload) -> Contraction | None:
    """Return the template for a product with weights in blocks, or None for other kernels."""
    if workload.processor.lanes(4) < 2:
        return None
    if len(workload.stages) != 1:
        return _rounded(workload)
    (stage,) = workload.stages
    role = roles(stage, workload)
    return None if role is None else Blocks(workload, role, workload.processor.lanes(4))


def roles(stage: te.Stage, workload: Workload) -> Roles | None:
    """Return the `Roles` of the axes in a product with weights in blocks: rows, columns and terms. Return
    None if the stage isn't such a product."""
    body = stage.body
    if stage.combiner != "sum" or len(stage.axes) != 2 or len(stage.reduce_axes) != 1:
        return None
    if not (isinstance(body, Binary) and body.op == "mul"):
        return None
    (row, column), (k,) = (a.var for a in stage.axes), (a.var for a in stage.reduce_axes)
    for left, right in (children(body), children(body)[::-1]):
        parts = tuple(loads(right))
        of_column = all(len(p.index) == 2 and p.index[0] == column for p in parts)
        known = all(p.buffer.name in workload.constants for p in parts)
        if not isinstance(left, Load) or left.index not in ((row, k), (const(0), k)):
            continue
        if of_column and known and len(parts) > 1 and row not in free_vars(right):
            return Roles((), (row.name,), (column.name,), (k.name,), left, parts[0], 1, parts=parts)
    return None


class Blocks(Contraction):
    """The template for a product with block-quantized weights. `block` is the number of neighbouring weights
    of a row that share their factors. `widening` is the number of vector instructions that convert a vector
    of weights to floats."""

    name = "weight_blocks"

    def __init__(self, workload: Workload, role: Roles, lanes: int) -> None:
        super().__init__(workload, role, lanes)
        self.packed, self.elements = True, Micro(*self.operands)
        self.block = max((_divisor(p) for p in role.parts), default=1)
        (self.right,) = (e for e in children(self.stage.body) if e is not role.left)
        self.widening = arithmetic(self.right) + 1
        held = (p.buffer for p in role.parts)
        self.weight_bytes = sum(b.dtype.bytes * math.prod(map(workload.size, b.shape)) for b in held) / (
            self.columns * self.depth
        )

    def space(self) -> Sequence[Params]:
        """Return the parameters to try. The panels don't depend on the rows, so kernels for one row and for
        many share the constants."""
        nv = min(3 if self.processor.registers <= 16 else 4, math.ceil(self.columns / self.lanes))
        most = min(MAX_ROWS, (self.processor.registers - 1) // nv - 1)
        few = min(self.rows, FEW) if self.known_rows else 1
        choices = [
            self._task(few, nv, 0),
            self._task(min(most, self.rows) if self.known_rows else most, nv, 1),
        ]
        return choices if self.rows > 1 or not self.known_rows else choices[:1]

    def _task(self, mr: int, nv: int, widened: int) -> Params:
        width = nv * self.lanes
        tiles, panels = math.ceil(self.rows / mr), math.ceil(self.columns / width)
        fit = max(1, self.processor.l2 // (2 * self.depth * self.left_bytes * mr))
        row_tiles = min(tiles, fit) if widened else 1
        wanted = TASK_WEIGHTS / (row_tiles * mr if widened else 1)
        across = max(1, math.floor(self.columns * self.depth / wanted))
        params = {"mr": mr, "nv": nv, "row_tiles": row_tiles, "panels": _shared(panels, across)}
        depth = {"block": self.block} if WORD < self.block < self.depth else {}
        if self.block % WORD == 0 and self.depth > WORD:
            depth["word"] = WORD
            if mr == 1 and "block" in depth and self.depth % self.block == 0 and not widened:
                depth["factored"] = 1
        return {**params, **depth, "unroll": WORD, "panels_inside": 0, "widened": widened}

    def estimate(self, params: Params) -> float:
        """Return the estimated seconds: the multiply-adds and the widening for each row tile or task, or the
        reads of the weights if they take longer."""
        t, mr, nv = self.processor, params["mr"], params["nv"]
        tiles, panels = math.ceil(self.rows / mr), math.ceil(self.columns / (nv * self.lanes))
        down, across = math.ceil(tiles / params["row_tiles"]), math.ceil(panels / params["panels"])
        vectors = panels * nv * self.depth
        each = self.widening - (len(self.role.parts) - 1 if params.get("factored") else 0)
        widened = each * vectors * (down if params["widened"] else tiles) / t.multiply_adds
        work = widened + self.elements.tile_cycles(self, mr, nv, WORD) * tiles * panels
        if params["widened"]:
            work += 2 * vectors * down * t.vector_bytes / t.l2_rate
        held = self.weight_bytes * self.columns * self.depth
        moving = held / t.memory_rate + (down - 1) * held / t.rate(held)
        return launch(max(work, moving), down * across) / t.clock

    def micro_of(self, params: Params) -> Micro:
        return _Factored(*self.operands) if params.get("factored") else self.micro

    def task_ops(self, params: Params) -> float:
        again = 1 if params["widened"] else params["row_tiles"]
        ops = params["row_tiles"] * params["mr"] + again * self.widening
        return ops * params["nv"] * self.lanes * self.depth * params["panels"]


class _Factored(Micro):
    """The micro-kernel for a single row, which multiplies a block's sum by the block's factor.

    A block's words are summed apart, so that additions overlap.
    """

    def load(self, tiler: Tiler, column: str, k: list[str]) -> None:
        do, (block, word, term) = tiler.s.do, k
        do("factor_out", block, f"{column}ooo")
        if len(self.role.parts) > 2:
            do("rfactor", f"{block}_{term}_s", tiler.params["word"], 1)
        if self.role.right.dtype is I32:
            do("mask_in_place", word, f"{column}ooo")
            do("vectorize", f"{word}_{term}_x")
        do("partial_sums", word)

    def parts(self, tiler: Tiler, k: Sequence[str]) -> str:
        return ""

    def unrolled(self, tiler: Tiler, k: Sequence[str], across: Sequence[str]) -> None:
        tiler.s.do("unroll", k[-1])


def _shared(panels: int, tasks: int) -> int:
    """Return the number of panels of a task, if there should be about `tasks` tasks. It is chosen among near
    numbers, so that two threads end soonest."""

    def longest(each: int) -> int:
        count, left = divmod(panels, each)
        return math.ceil(count / 2) * each if count % 2 or not left else count // 2 * each + left

    most = math.ceil(panels / min(panels, tasks + tasks % 2))
    return min(range(most, most // 2, -1), key=longest)


def _rounded(workload: Workload) -> RoundedBlocks | None:
    """Return the template for a product of words of bytes with weights in blocks, or None for other
    kernels."""
    if len(workload.stages) != 2:
        return None
    dots, sums = (te.rename_axes(s, prefix) for s, prefix in zip(workload.stages, "ab", strict=True))
    body, count = dots.body, [len(s.axes) for s in (dots, sums)] + [len(s.reduce_axes) for s in (dots, sums)]
    if product_of(body) is None or count != [3, 2, 1, 1]:
        return None
    weights, left = children(body)
    (row, column), block = (a.var for a in sums.axes), sums.reduce_axes[0].var
    read = [n.index for n in loads(sums.body) if n.buffer.name == dots.out.name]
    if not isinstance(left, Load) or {sums.combiner, dots.combiner} != {"sum"} or len(read) != 1:
        return None
    if read[0] not in ((row, column, block), (const(0), column, block)):
        return None
    here = {a.var: i for a, i in zip(dots.axes, read[0], strict=True)}
    parts = [p for e in (substitute(weights, here), sums.body) for p in loads(e) if p.index[:1] == (column,)]
    if any(p.buffer.name not in workload.constants for p in parts):
        return None
    role = Roles((), (row.name,), (column.name,), (block.name,), left, parts[0], 1, parts=tuple(parts))
    return RoundedBlocks(workload, dots, sums, role)


class RoundedBlocks(Contraction):
    """The template for a product of words of bytes with block-quantized weights. `words` is the number of
    words in a block of a row."""

    name = "weight_blocks"

    def __init__(self, whole: Workload, dots: te.Stage, sums: te.Stage, role: Roles) -> None:
        super().__init__(replace(whole, stages=(sums,)), role, whole.processor.lanes(4))
        self.whole, self.dots = whole, dots
        self.packed, (words,) = True, (a.extent for a in dots.reduce_axes)
        product = product_of(dots.body)
        assert product is not None and isinstance(words, Const)
        self.words = int(words.value)
        self.depth *= self.words * product.terms
        self.micro = _BlocksOfWords(whole, dots, role, self.lanes)
        self.widening = arithmetic(children(dots.body)[0])
        held = {p.buffer.name: p.buffer for p in role.parts}.values()
        self.weight_bytes = sum(b.dtype.bytes * math.prod(map(whole.size, b.shape)) for b in held) / (
            self.columns * self.depth
        )

    def space(self) -> Sequence[Params]:
        """Return the parameters of the only candidate. The panels don't depend on the rows, so kernels for
        one row and for many share the constants."""
        registers = self.processor.registers
        nv = min(4 if registers > 16 else 2, math.ceil(self.columns / self.lanes))
        most = max(1, min(MAX_ROWS, (registers - 2 - nv - self.micro.between) // (2 * nv)))
        return [self._task(min(most, self.rows) if self.known_rows else most, nv)]

    def _task(self, mr: int, nv: int) -> Params:
        """Return a task with the rows that stay in half the L2 cache, and enough panels to be worth the cost
        of a task."""
        width = nv * self.lanes
        tiles, panels = math.ceil(self.rows / mr), math.ceil(self.columns / width)
        row_tiles = max(1, min(tiles, self.processor.l2 // (SHARE * self.depth * mr)))
        wanted = TASK_WEIGHTS if tiles == 1 else TASK_OPS[1] / (row_tiles * mr)
        across = max(1, math.floor(self.columns * self.depth / wanted))
        task = {"row_tiles": row_tiles, "panels": _shared(panels, across)}
        return {"mr": mr, "nv": nv, **task, "panels_inside": 0}

    def estimate(self, params: Params) -> float:
        """Return the estimated seconds: the multiply-adds, widening and work once a block, or the reads of
        the weights if they take longer."""
        t, mr, nv = self.processor, params["mr"], params["nv"]
        tiles, panels = math.ceil(self.rows / mr), math.ceil(self.columns / (nv * self.lanes))
        down, across = math.ceil(tiles / params["row_tiles"]), math.ceil(panels / params["panels"])
        work = tiles * panels * (self.inner * self._block_ops(mr, nv) / t.multiply_adds + LOOP)
        held = self.weight_bytes * self.columns * self.depth
        moving = held / t.memory_rate + (down - 1) * held / t.rate(held)
        return launch(max(work, moving), down * across) / t.clock

    def _block_ops(self, mr: int, nv: int) -> float:
        """Return the number of instructions of a tile for one block: multiply-adds, work once a block, and
        widening."""
        return nv * (mr * (self.words * self.micro.multiplies + ADDED) + self.words * (1 + self.widening))

    def task_ops(self, params: Params) -> float:
        """Return the number of operations of a task. It is at least the number made in the time in which the
        task's weights come from memory."""
        processor, (mr, nv, panels) = self.processor, (params[n] for n in ("mr", "nv", "panels"))
        ops = params["row_tiles"] * panels * self.inner * self._block_ops(mr, nv)
        held = self.weight_bytes * panels * nv * self.lanes * self.depth
        return max(ops, held / processor.memory_rate) * self.lanes

    def schedule(self, params: Params) -> Scheduled:
        p = self.whole
        rec = Recorder(te.lower(p.name, p.stages, p.inputs, p.symbols))
        rec.do("inline_sum", self.dots.out.name)
        rec.do("parallelize", fuse_all(rec, self.arrange(rec, params), "t"))
        return rec.finish(self.name, params, self.task_ops(params) / self.lanes)


class _BlocksOfWords(Micro):
    """The micro-kernel that sums a block's words in i32, and adds the sum to the f32 sums once a block.

    `stage`: the sums of a block.
    """

    begins = False

    def multiply(self, tiler: Tiler, tile: list[str], column: str, k: list[str]) -> None:
        """Schedule the tile. The loops over a block's sums are named like the tile's, with an s appended."""
        do = tiler.s.do
        for loop in tile:
            do("rename", loop, f"{loop}s")
        block = [f"{loop}s" for loop in tile]
        do("privatize", f"{self.stage.out.name}.acc", block)
        (words,) = self.stage.reduce_axes
        name = words.var.name
        if int(str(words.extent)) > SHORT:
            do("split", name, WORD)
            name = f"{name}i"
        do("unroll", name)
        for loops, suffixes in ((tile, ("_z", "_w")), (block, ("_z", "", "_w"))):
            for suffix in suffixes:
                do("unroll", loops[0] + suffix)
                do("unroll", loops[1] + suffix)
                do("vectorize", loops[2] + suffix)
        if tiler.hints:
            do("prefetch_tile", "moi", "mi_w", tiler.width)
            tiler.prefetch_once()


def _divisor(part: Load) -> int:
    """Return the number of neighbouring terms that read the same element of a part."""
    divisors = [int(e.b.value) for e in walk(part.index[1]) if isinstance(e, Binary) and e.op == "floordiv"
             and isinstance(e.b, Const)]  # fmt: skip
    return max(divisors, default=1)
