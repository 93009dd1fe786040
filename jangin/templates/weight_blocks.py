"""Products with weights that are kept in blocks (see `ops.blocks`): as `contraction`, but the right operand
is an expression of several constants, packed alike. A few rows widen each vector of it where they multiply
by it; of many rows a task widens a panel once, and its tiles read that.

    parallel task { panel { [widen panel] row tile { acc = 0; k { acc += a[row] * widened }; write back } } }

For a single row what a block's weights have in common multiplies their sum, not each of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jangin.ir import te
from jangin.ir.expr import Binary, Const, Load, const
from jangin.ir.traversal import children, free_vars, loads, walk
from jangin.templates.contraction import MAX_ROWS, Contraction
from jangin.templates.cost import arithmetic, launch, rate
from jangin.templates.scheduled import Params
from jangin.templates.template import Workload
from jangin.templates.tiling import Roles

WORD = 8
"""Weights that a word has, and terms in one turn of the loop over others."""
FEW = 4
"""Rows for which weights are widened where they are multiplied, at most."""
TASK_WEIGHTS = 0.2e6
"""Weights that a task of a few rows should read."""


def match(workload: Workload) -> Blocks | None:
    """The kernel as a product with weights in blocks, or None where it isn't one."""
    if len(workload.stages) != 1 or workload.target.lanes(4) < 2:
        return None
    (stage,) = workload.stages
    role = roles(stage, workload)
    return None if role is None else Blocks(workload, role, workload.target.lanes(4))


def roles(stage: te.Stage, workload: Workload) -> Roles | None:
    """Which axes are what in a product with weights in blocks; None where it is none."""
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
            return Roles((), (row.name,), (column.name,), (k.name,), left, parts[0], 1, parts)
    return None


class Blocks(Contraction):
    """`block`: neighbouring weights of a row that share all factors; `widening`: vector instructions that
    make floats of a vector of weights."""

    name = "weight_blocks"

    def __init__(self, workload: Workload, role: Roles, lanes: int) -> None:
        super().__init__(workload, role, lanes)
        self.packed, self.by_lane = True, False
        self.block = max((_divisor(p) for p in role.parts), default=1)
        (self.right,) = (e for e in children(self.stage.body) if e is not role.left)
        self.widening = arithmetic(self.right) + 1
        held = (p.buffer for p in role.parts)
        self.weight_bytes = sum(b.dtype.bytes * math.prod(map(workload.size, b.shape)) for b in held) / (
            self.columns * self.depth
        )

    def space(self) -> Sequence[Params]:
        """The same panels whatever the rows, so that kernels for one and for many share the constants."""
        nv = min(3 if self.workload.target.registers <= 16 else 4, math.ceil(self.columns / self.lanes))
        most = min(MAX_ROWS, (self.workload.target.registers - 1) // nv - 1)
        few = min(self.rows, FEW) if self.known_rows else 1
        found = [self._task(few, nv, 0), self._task(min(most, self.rows) if self.known_rows else most, nv, 1)]
        return found if self.rows > 1 or not self.known_rows else found[:1]

    def _task(self, mr: int, nv: int, widened: int) -> Params:
        width = nv * self.lanes
        tiles, panels = math.ceil(self.rows / mr), math.ceil(self.columns / width)
        fit = max(1, self.workload.target.l2 // (2 * self.depth * self.left_bytes * mr))
        row_tiles = min(tiles, fit) if widened else 1
        wanted = TASK_WEIGHTS / (row_tiles * mr if widened else 1)
        across = max(1, math.floor(self.columns * self.depth / wanted))
        across = min(panels, across + across % 2)
        params = {"mr": mr, "nv": nv, "row_tiles": row_tiles, "panels": math.ceil(panels / across)}
        depth = {"block": self.block} if WORD < self.block < self.depth else {}
        if self.block % WORD == 0 and self.depth > WORD:
            depth["word"] = WORD
            if mr == 1 and "block" in depth and self.depth % self.block == 0 and not widened:
                depth["factored"] = 1
        return {**params, **depth, "unroll": WORD, "panels_inside": 0, "widened": widened}

    def estimate(self, params: Params) -> float:
        """Instructions of the widening, for each row tile or each task, and of the multiply-adds; weights
        come from memory once."""
        t, mr, nv = self.workload.target, params["mr"], params["nv"]
        tiles, panels = math.ceil(self.rows / mr), math.ceil(self.columns / (nv * self.lanes))
        down, across = math.ceil(tiles / params["row_tiles"]), math.ceil(panels / params["panels"])
        vectors = panels * nv * self.depth
        each = self.widening - (len(self.role.parts) - 1 if params.get("factored") else 0)
        widened = each * vectors * (down if params["widened"] else tiles) / t.multiply_adds
        work = widened + self.tile_cycles(mr, nv, unroll=WORD) * tiles * panels
        if params["widened"]:
            work += 2 * vectors * down * t.vector_bytes / t.l2_rate
        held = self.weight_bytes * self.columns * self.depth
        moving = held / t.memory_rate + (down - 1) * held / rate(t, held)
        return launch(max(work, moving), down * across) / t.clock

    def task_ops(self, params: Params) -> float:
        again = 1 if params["widened"] else params["row_tiles"]
        ops = params["row_tiles"] * params["mr"] + again * self.widening
        return ops * params["nv"] * self.lanes * self.depth * params["panels"]


def _divisor(part: Load) -> int:
    """How many neighbouring terms read one element of a part."""
    found = [int(e.b.value) for e in walk(part.index[1]) if isinstance(e, Binary) and e.op == "floordiv"
             and isinstance(e.b, Const)]  # fmt: skip
    return max(found, default=1)
