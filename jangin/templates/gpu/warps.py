"""Matrix products and convolutions by instructions with which a warp's lanes multiply small matrices together
(tensor cores).

A group makes a tile of sums. Each of its warps makes a part, in matrices whose elements its lanes share. All
threads copy panels of both operands to shared memory, 16 bytes at a time.

    block { sums = 0; k panel { copy both panels; warp { matrices of terms { load; sums += left * right } } }
            warp { write back } }

A convolution is a product whose rows are pixels, and whose terms are taps and channels (implicit GEMM). Its
image is gathered as it is copied. A pixel outside of the image is 0.

The next panels' elements are copied beside a panel's products (`ahead`), if there are several. They go to
second buffers if all are copied 16 bytes at a time, or else through registers.

Source: Markidis et al., "NVIDIA tensor core programmability, performance and precision" (2018).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jangin.ir import te
from jangin.ir.expr import Call, Const, Load, Var, const, product_of
from jangin.ir.fragments import HALF, WARP
from jangin.ir.products import Product
from jangin.ir.simplify import simplify
from jangin.ir.traversal import loads
from jangin.schedule.primitives import find
from jangin.targets.cuda import BEGUN
from jangin.templates.common import fuse_all, stride
from jangin.templates.gpu.common import (
    BANKS,
    L2_BYTES,
    blocks,
    constant,
    met,
    shared_out,
    shares,
    split_terms,
    unfilled,
)
from jangin.templates.roles import Roles, pack_right, pack_terms, packing_positions, roles
from jangin.templates.scheduled import Params, Recorder, Scheduled
from jangin.templates.template import Template, Workload

TILES = (
    (2, 2, 4, 8), (2, 4, 4, 8), (1, 4, 4, 8), (2, 4, 4, 6), (2, 4, 4, 4), (2, 2, 4, 4), (2, 2, 2, 4),
    (1, 4, 4, 2), (1, 4, 2, 4), (1, 4, 2, 2), (1, 4, 1, 4), (1, 4, 1, 2),
)  # fmt: skip
"""Tiles to try: warps down and across a group's tile, then matrices down and across of each warp."""
DEPTHS, MOST_DEPTH = (128, 64), 192
"""Bytes of each row of a panel to try, and the most of a window's tap."""
FETCHED, STAGED, MIXED = 1, 2, 3
"""Ways to copy the next panels beside a panel's products, by their numbers in candidates. They go through
registers, or to second buffers of shared memory (`cp.async`). `MIXED`: both have second buffers, and the left
panel goes there through registers."""
TWICE = STAGED, MIXED
"""The ways with second buffers."""
SYNC = 40.0
"""Cycles for a panel's barriers, and for the first loads after them. It is an estimate: nothing was measured
on a GPU."""
ONCE = 0.4
"""The part of `SYNC` of panels in second buffers, which need one barrier, and no stores before it. It is an
estimate, like `SYNC`."""
UNIT_REGISTERS = 64 << 10
"""Registers of a unit (CUDA C++ Programming Guide)."""
OTHERS = 56
"""Registers of a work-item for matrices, addresses and counters: the most of what NVRTC gave 60 kernels."""
KEPT = 1024
"""Bytes of shared memory that the system takes for each group (the same guide)."""
MOST_REGISTERS = 200
"""Registers of a work-item for its sums and for the elements fetched ahead. It has 255 (CUDA C++ Programming
Guide), and matrices and addresses need some too."""
ALONE, SHARED = 4, 16
"""Registers for an element that is copied alone (itself, its condition and its address), and for groups that
share a tile. NVRTC 13.5 spills some kernels for which fewer are counted."""
GATHER, STAGED_GATHER = 3, 10
"""Registers of a work-item for each load of a convolution's image: its row, column and address. Copies to
second buffers have two of them, and NVRTC keeps parts of the next ones."""
COPIED, GATHERED, COUNTED = 6, 14, 24
"""Instructions of a warp for each load of 16 bytes, for each that tests for the image's border, and for each
panel. They are counted in NVRTC's code."""
BESIDE = 0.5
"""The part of these instructions that products don't hide. It is an estimate: a quarter of a unit begins one
instruction each cycle, and a product of matrices takes 4 to 8 cycles."""
CORES = 4
"""Tensor cores of a unit, each of which serves a quarter of the warps (CUDA C++ Programming Guide)."""
SHARED_BYTES = 128
"""Bytes that a unit reads from shared memory each cycle: 32 banks of 4 bytes (the same guide)."""


def match(workload: Workload) -> WarpProduct | None:
    """Return the template for a product of small floats that the target's warps multiply, or None for any
    other kernel."""
    if len(workload.stages) != 1 or not workload.stages[0].axes:
        return None
    (stage,) = workload.stages
    small, role = product_of(stage.body), roles(stage, guarded=True)
    row = workload.target.matrix_row(small) if small is not None else None
    if row is None or not row.fragments or row.product is None or role is None or role.groups > 1:
        return None
    if role.left.buffer.name == role.right.buffer.name:
        return None
    if any(a.extent == const(0) for a in (*stage.axes, *stage.reduce_axes)):
        return None
    return WarpProduct(workload, stage, role, row.product)


@dataclass
class WarpProduct(Template):
    """A product. `role` says which axes are its rows, columns and terms. `matrix` is one instruction's.
    `gathers`: it is a convolution with a window."""

    workload: Workload
    stage: te.Stage
    role: Roles
    matrix: Product
    name = "warps"
    by_terms: bool = False
    """Constant weights are packed with a column's terms as neighbours, as instructions load elements of 4
    bytes. Loads of smaller ones can transpose matrices."""

    def __post_init__(self) -> None:
        p, role = self.workload, self.role
        self.gpu = p.gpu
        self.most_shared = max(p.gpu.shared, p.gpu.asked)
        size = {a.var.name: p.size(a.extent) for a in (*self.stage.axes, *self.stage.reduce_axes)}
        self.rows = math.prod(size[r] for r in role.rows)
        self.columns = size[role.column]
        self.depth = math.prod(size[k] for k in role.k)
        self.batches = math.prod(size[b] for b in role.batch)
        self.packed = role.right.buffer.name in p.constants and packing_positions(role) is not None
        self.element = role.left.dtype.bytes
        self.by_terms = self.element > HALF
        self.whole = self._in_rows(role.left, role.rows[-1]), self._in_rows(role.right, role.column)
        self.fixed = all(constant(a.extent) for a in (*self.stage.axes, *self.stage.reduce_axes))
        self.rounded = self._rounded()
        self.gathers = sum(size[k] > 1 for k in role.k) > 1

    def _rounded(self) -> Sequence[str]:
        """Return the panels whose numbers are rounded as they are copied."""
        body = self.stage.body
        ready = self.matrix.ready and isinstance(body, Call) and self.role.left in loads(body.args[0])
        panels = [*([] if ready else ["left"]), *([] if self.packed else ["right"])]
        return panels if self.matrix.rounds else []

    def _in_rows(self, load: Load, line: str) -> bool:
        """Return whether an operand is copied 16 bytes at a time."""
        axes = {a.var.name: a.extent for a in (*self.stage.axes, *self.stage.reduce_axes)}
        across = [axes[n] for n in (line, self.role.k[-1]) if runs(load, n, self.workload)]
        if load is self.role.right and self.packed:
            across = [axes[self.role.k[-1]]]
        size = constant(across[0]) if across else None
        packed = load is self.role.right and self.packed and not self.by_terms
        return packed or (size is not None and size % self.gpu.lanes(self.element) == 0)

    def _registers(self, params: Params) -> int:
        """Return the registers of a work-item for its sums and for the elements fetched ahead. An element
        that is copied alone takes `ALONE`. A gathered load also takes `GATHER`, and `ALONE` if it is of one
        element."""
        of_word = 4 // self.element
        registers = 4 * params["tm"] * params["tn"] + (SHARED if "share" in params else 0)
        for load, lines, whole in zip(
            (self.role.left, self.role.right), self.shape(params), self.whole, strict=True
        ):
            elements = lines * params["bk"] // (WARP * params["wm"] * params["wn"])
            if params["ahead"] == FETCHED or (params["ahead"] == MIXED and load is self.role.left):
                registers += elements // of_word if whole else ALONE * elements
            if load is self.role.left and self.gathers:
                each = STAGED_GATHER if params["ahead"] in TWICE else GATHER if whole else GATHER + ALONE
                registers += each * elements // (self.gpu.lanes(self.element) if whole else 1)
        return registers

    def shape(self, params: Params) -> tuple[int, int]:
        """Return the rows and the columns of a group's tile."""
        return (
            params["wm"] * params["tm"] * self.matrix.rows,
            params["wn"] * params["tn"] * self.matrix.columns,
        )

    def space(self) -> Sequence[Params]:
        choices, least = list[Params](), min(wn * tn for _, wn, _, tn in TILES)
        for wm, wn, tm, tn in TILES:
            if wn * tn > least and wn * tn * self.matrix.columns >= 2 * self.columns:
                continue  # a narrower tile has as many, and fewer that don't exist
            for bk in self._depths():
                params = {"wm": wm, "wn": wn, "tm": tm, "tn": tn, "bk": bk}
                params["ahead"] = 0 if self.depth <= bk else self._ahead(params)
                threads = WARP * wm * wn
                copied = self.gpu.lanes(self.element) * threads
                fits = self._shared(params) <= self.most_shared and self._registers(params) <= MOST_REGISTERS
                if (
                    threads <= self.gpu.group
                    and fits
                    and all(n * bk % copied == 0 for n in self.shape(params))
                ):
                    choices.append(params)
                    shared = ({**params, "share": n} for n in self._shares(params))
                    choices += [p for p in shared if self._registers(p) <= MOST_REGISTERS]
        return choices

    def _depths(self) -> Sequence[int]:
        """Return the terms of panels to try. A panel that is one tap of a window needs no division for its
        loads."""
        depths = [d // self.element for d in DEPTHS]
        taps = {a.var.name: constant(a.extent) for a in self.stage.reduce_axes}
        tap = taps[self.role.k[-1]] or 0
        fits = self.gathers and tap % self.matrix.words == 0 and DEPTHS[-1] < tap * self.element <= MOST_DEPTH
        return depths if tap in depths or not fits else [tap, *depths]

    def _shares(self, params: Params) -> Sequence[int]:
        """Return the numbers of groups that may share a tile. Tiles of six columns of matrices would spill
        registers."""
        if not self.fixed or params["tn"] & (params["tn"] - 1):
            return ()
        return shares(self.gpu, self._tiles(params), math.ceil(self.depth / params["bk"]))

    def _tiles(self, params: Params) -> int:
        rows, columns = self.shape(params)
        return self.batches * math.ceil(self.rows / rows) * math.ceil(self.columns / columns)

    def _ahead(self, params: Params) -> int:
        """Return how the next panels are copied. Numbers that are rounded, or copied one by one, go through
        registers."""
        if 2 * self._shared(params) > self.most_shared:
            return FETCHED
        left = self.whole[0] and "left" not in self.rounded
        right = self.whole[1] and "right" not in self.rounded
        if not right or (self.gathers and not self.whole[0]):
            return FETCHED
        return STAGED if left else MIXED

    def _shared(self, params: Params) -> int:
        """Return the bytes of a group's panels."""
        rows = sum(self.shape(params)) * (params["bk"] * self.element + BANKS)
        return rows * (2 if params.get("ahead") in TWICE else 1)

    def estimate(self, params: Params) -> float:
        """Return the estimated seconds: the longer of a unit's work and the operands' way from memory.

        A unit works on several groups at one time. A panel takes the longest of four times: for the products,
        for reading shared memory, for copying from the level 2 cache, and for waiting.
        """
        gpu, (wm, wn, tm, tn, bk) = self.gpu, (params[n] for n in ("wm", "wn", "tm", "tn", "bk"))
        bm, bn = self.shape(params)
        panels = math.ceil(self.depth / bk)
        share = params.get("share", panels)
        count = math.ceil(panels / share)
        groups = self._tiles(params) * count
        turns = math.ceil(groups / gpu.units)
        resident = min(turns, self._resident(params))
        busy = min(1.0, resident * wm * wn / (2 * CORES))  # two warps a core hide the instruction's latency
        wait = SYNC * (ONCE if params["ahead"] == STAGED else 1)
        rate = gpu.matrix_rate * HALF / self.element
        read = wm * wn * (tm * self.matrix.rows + tn * self.matrix.columns) * bk * self.element
        copied = (bm + bn) * bk * self.element
        each = max(bm * bn * bk / rate / busy, read / SHARED_BYTES, copied / L2_BYTES)
        loads = copied / gpu.vector_bytes / WARP * (GATHERED if self.gathers else COPIED)
        each += (loads + wm * wn * COUNTED) / CORES * BESIDE
        hidden = each * resident if params["ahead"] else 0.0
        panel = max(gpu.panel_wait, hidden) + (0.0 if params["ahead"] else each * resident) + wait
        work = math.ceil(turns / resident) * (share * panel + BEGUN) + met(4 * bm * bn, count)
        work *= unfilled(gpu, groups)
        own = (self.rows + self.columns) * self.depth * self.element + self.rows * self.columns * 4
        return float(gpu.startup + max(work / gpu.clock, self.batches * own / gpu.bandwidth))

    def _resident(self, params: Params) -> int:
        """Return the groups that a unit holds at one time, by its registers, work-items and shared memory."""
        gpu, items = self.gpu, WARP * params["wm"] * params["wn"]
        registers = UNIT_REGISTERS // (items * (self._registers(params) + OTHERS))
        return max(1, min(registers, gpu.resident // items, gpu.unit_shared // (self._shared(params) + KEPT)))

    def schedule(self, params: Params) -> Scheduled:
        p = self.workload
        rec = Recorder(te.lower(p.name, p.stages, p.inputs, p.symbols))
        _Tiler(self, rec, params).run()
        return rec.finish(self.name, params, float(math.prod(self.shape(params)) * self.depth))


class _Tiler:
    """Makes the schedule for one set of parameters.

    The rows are numbered through as `m` and split into mo (blocks), mio (warps), miio (a warp's matrices) and
    miii (rows of a matrix). The column `c` is split likewise. The terms are numbered through as `k` and split
    into ko (panels), kio (matrices) and kii.
    """

    def __init__(self, product: WarpProduct, rec: Recorder, params: Params) -> None:
        self.product, self.rec, self.params = product, rec, params
        self.role, self.acc = product.role, f"{product.stage.out.name}.acc"
        self.threads = WARP * params["wm"] * params["wn"]
        self.lanes = product.gpu.lanes(product.element)

    def run(self) -> None:
        do, role, q, matrix = self.rec.do, self.role, self.params, self.product.matrix
        packed, rounds = self.product.packed, matrix.rounds
        by_terms = self.product.by_terms
        if packed and by_terms:
            pack_terms(self.rec, role, rounded=rounds)
        elif packed:
            pack_right(self.rec, role, self.product.shape(q)[1])
        rows_run = runs(role.left, role.rows[-1], self.product.workload)
        columns_run = not by_terms if packed else runs(role.right, role.column, self.product.workload)
        row, c = fuse_all(self.rec, role.rows, "m"), role.column
        k = split_terms(self.rec, role.k, q["bk"], self.acc, q.get("share", 0))
        for loop, warps, each, size in (
            (row, q["wm"], q["tm"], matrix.rows),
            (c, q["wn"], q["tn"], matrix.columns),
        ):
            do("split", loop, warps * each * size)
            do("split", f"{loop}i", each * size)
            do("split", f"{loop}ii", size)
        do("split", f"{k}i", matrix.words)
        warp, tiles, lines = ([f"{loop}{part}" for loop in (row, c)] for part in ("io", "iio", "iii"))
        terms = [f"{k}io", f"{k}ii"]
        do("reorder", [*role.batch, f"{row}o", f"{c}o", *warp, *tiles, *lines])
        padded = (role.right.buffer.name,) if packed and not by_terms else ()
        do("privatize", self.acc, [*warp, *tiles, *lines], padded)
        do("reorder", [*warp, terms[0], *tiles, *lines, terms[1]])
        down, across = ([f"{loop}io", f"{loop}iio", f"{loop}iii"] for loop in (row, c))
        self._panel("left", role.left, down, terms, f"{k}o", rows_run)
        self._panel("right", role.right, across, terms, f"{k}o", columns_run)
        do("pack", terms[0], "left", [tiles[0], lines[0], terms[1]], "left_part", "tile")
        do("pack", terms[0], "right", [tiles[1], terms[1], lines[1]], "right_part", "tile")
        do("place", self.acc, "tile")
        do("join_axes", self.acc, 2)
        for suffix in ("", "_z", "_w"):
            do("fuse", f"{warp[0]}{suffix}", f"{warp[1]}{suffix}", f"x{suffix}")
            do("bind_warp", f"x{suffix}")
            for tile in tiles:
                do("unroll", f"{tile}{suffix}")
        for loop in (terms[0], f"left_part_{tiles[0]}", f"right_part_{tiles[1]}"):
            do("unroll", loop)
        if q["ahead"]:
            way, fetched = "fetch_ahead" if q["ahead"] == FETCHED else "stage", q["ahead"] == MIXED
            do(way, f"{k}o", ["left", "right"], *([["left"]] if fetched else []))
        for panel in self.product.rounded:
            for number in ("", ".odd")[: 2 if q["ahead"] in TWICE else 1]:
                do("round_copies", f"{panel}{number}", rounds)
        tasks = blocks(self.rec, [*role.batch, f"{row}o", f"{c}o"])
        if "share" in q:
            shared_out(self.rec, tasks, k, self.acc)

    def _panel(
        self, name: str, load: Load, lines: Sequence[str], terms: Sequence[str], at: str, lines_run: bool
    ) -> None:
        """Copy a panel to shared memory, along the axis that is contiguous in memory. Room behind its rows
        keeps eight of them in different memory banks.

        Each warp copies neighbouring rows. Its copies then lie so near that most need no own address: a copy
        beside work reaches 2 KiB to either side of one."""
        do = self.rec.do
        outer, inner = (terms, lines) if lines_run else (lines, terms)
        do("pack", at, load.buffer.name, [*outer, *inner], name, "shared")
        loops = [f"{name}_{n}" for n in (*outer, *inner)]
        if find(self.rec.func, loops[-1]).extent != const(self.lanes):
            do("split", loops[-1], self.lanes)
            loops = [*loops[:-1], f"{loops[-1]}o", f"{loops[-1]}i"]
        element = fuse_all(self.rec, loops[:-1], f"{name}_e")
        count = simplify(find(self.rec.func, element).extent)
        assert isinstance(count, Const)
        each = int(count.value) // self.threads
        do("split", element, each * WARP)
        do("split", f"{element}i", WARP)
        do("reorder", [f"{element}o", f"{element}ii", f"{element}io", loops[-1]])
        do("fuse", f"{element}o", f"{element}ii", f"{element}x")
        do("bind_thread", f"{element}x")
        do("unroll", f"{element}io")
        do("vectorize", loops[-1])
        do("join_axes", name, len(inner), len(outer))
        do("join_axes", name, len(outer))
        do("stretch", name, BANKS // self.product.element)


def runs(load: Load, axis: str, workload: Workload) -> bool:
    """Return whether an operand is contiguous along an axis."""
    return stride(load, Var(axis), dict(workload.symbols)) == 1
