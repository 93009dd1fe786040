"""Compute matrix products by a library's SGEMM: products and 1 x 1 convolutions of known sizes.

BLAS computes C = A B for row-major C, and for A and B of either order, each with one distance between its
rows. Output axes that don't fit (batches, the image rows of a strided convolution) are counted through by the
tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jangin.ir import te
from jangin.ir.dtype import F32
from jangin.ir.expr import Const, Expr, Load, Var, const
from jangin.ir.library import Convolution, LibraryCall, Matrix, Sgemm
from jangin.ir.loop import Func
from jangin.ir.simplify import Ranges
from jangin.ir.traversal import loads, rewrite, substitute
from jangin.schedule.normalize import simplify_func
from jangin.templates.common import flat_index, fuse_all, lanes_for, stride, vectorize
from jangin.templates.cost import launch
from jangin.templates.gpu.elements import Elements
from jangin.templates.roles import roles
from jangin.templates.scheduled import Params, Recorder, Scheduled
from jangin.templates.template import Template, Workload

PIECES = (2, 1, 4, 8)
"""The numbers of tasks into which the rows of one product may be split, the default first."""
LEAST_ROWS = 16
"""Fewest rows of a piece of a product that is split into tasks. In smaller pieces the library packs its
operands for too little work."""
EFFICIENCY = 0.85
"""The share of the processor's multiply-adds that an estimate assumes. It is an estimate that only orders
candidates, which tuning measures."""


def product(workload: Workload) -> Sgemm | None:
    """Return the kernel as one SGEMM for each step of its outer axes, or None if the kernel isn't such a
    product."""
    stage = workload.stages[0]
    role = roles(stage) if len(workload.stages) == 1 and stage.axes else None
    axes = {a.var.name: a for a in (*stage.axes, *stage.reduce_axes)}
    extents = {n: int(a.extent.value) for n, a in axes.items() if isinstance(a.extent, Const)}
    floats = {stage.out.dtype, *(n.dtype for n in loads(stage.body))} == {F32}
    if (
        role is None
        or stage.at
        or stage.rounded
        or role.groups != 1
        or len(extents) < len(axes)
        or not floats
        or 0 in extents.values()
    ):
        return None
    if not (isinstance(stage.body.a, Load) and isinstance(stage.body.b, Load)):  # type: ignore[attr-defined]
        return None
    ranges: Ranges = {a.var: (const(0), a.extent - 1) for a in axes.values()}
    left, right = (_strides(x, axes, ranges) for x in (role.left, role.right))
    if left is None or right is None:
        return None
    at_left, at_right = (_start(x, axes, ranges) for x in (role.left, role.right))
    outer, (rows, row_step) = _merged(role.rows, extents, left)
    left_sums, right_sums = (_merged(role.k, extents, s) for s in (left, right))
    if left_sums[0] or right_sums[0]:
        return None
    depth, k_left, k_right = left_sums[1][0], left_sums[1][1], right_sums[1][1]
    columns, column_step = extents[role.column], right[role.column]
    a = _order(rows, depth, row_step, k_left)
    b = _order(depth, columns, k_right, column_step)
    if a is None or b is None:
        return None
    counted = [n for n in (*role.batch, *outer) if extents[n] > 1]
    params = [p.name for p in workload.inputs]
    return Sgemm(
        tuple(extents[n] for n in counted), rows, columns, depth,
        Matrix(params.index(role.left.buffer.name), at_left, *a, tuple(left[n] for n in counted)),
        Matrix(params.index(role.right.buffer.name), at_right, *b, tuple(right[n] for n in counted)),
        len(params),
    )  # fmt: skip


def _strides(load: Load, axes: Mapping[str, te.Axis], ranges: Ranges) -> dict[str, int] | None:
    steps = {name: stride(load, axis.var, ranges) for name, axis in axes.items()}
    known = {name: step for name, step in steps.items() if step is not None}
    return known if len(known) == len(steps) else None


def _start(load: Load, axes: Mapping[str, te.Axis], ranges: Ranges) -> int:
    zero: dict[Var, Expr] = {a.var: const(0) for a in axes.values()}
    at = substitute(flat_index(load.buffer, load.index, ranges), zero)
    assert isinstance(at, Const)
    return int(at.value)


def _merged(
    names: Sequence[str], extents: Mapping[str, int], strides: Mapping[str, int]
) -> tuple[list[str], tuple[int, int]]:
    """Return (the axes that stay outside, the (size, stride) of all other axes merged into one)."""
    left = [n for n in names if extents[n] > 1]
    if not left:
        return [], (1, 1)
    last = left.pop()
    size, step = extents[last], strides[last]
    while left and strides[left[-1]] == size * step:
        size *= extents[left.pop()]
    return left, (size, step)


def _order(rows: int, columns: int, row_step: int, column_step: int) -> tuple[int, bool] | None:
    """Return (distance between stored rows, whether stored transposed), or None if BLAS takes neither
    order."""
    if columns == 1 or column_step == 1:
        lead = columns if rows == 1 else row_step
        return (lead, False) if lead >= columns else None
    if rows == 1 or row_step == 1:
        return (column_step, True) if column_step >= rows else None
    return None


class Called(Template):
    """A kernel that a library computes."""

    def __init__(self, workload: Workload, library: str) -> None:
        self.workload, self.library = workload, library
        (self.stage,) = workload.stages

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.library

    def scheduled(self, params: Params, call: LibraryCall, cost: float) -> Scheduled:
        """Return the naive nest, which defines the result, and the library's call."""
        p = self.workload
        func = simplify_func(te.lower(p.name, p.stages, p.inputs, p.symbols))
        return Scheduled(self.library, func, (), params=params, cost=cost, call=call)

    def rest(self) -> Workload | None:
        """Return the epilogue as a kernel that changes the product in place, or None."""
        stage, p = self.stage, self.workload
        if stage.epilogue is None:
            return None
        point = Load(stage.out, tuple(a.var for a in stage.axes))
        body = rewrite(stage.epilogue, lambda e: point if e == stage.acc else None)
        only = replace(stage, body=body, reduce_axes=(), combiner="", epilogue=None)
        return replace(p, name=f"{p.name}_rest", stages=(only,))


class Gemm(Called):
    """A product by the SGEMM of `library`. Its parameter is the number of rows of a task."""

    def __init__(self, workload: Workload, sgemm: Sgemm, library: str) -> None:
        super().__init__(workload, library)
        self.sgemm = sgemm

    def space(self) -> Sequence[Params]:
        rows = self.sgemm.rows
        sizes = [-(-rows // n) for n in PIECES if n == 1 or rows >= n * LEAST_ROWS]
        return [{"rows": n} for n in sizes]

    def estimate(self, params: Params) -> float:
        s, machine = self.sgemm, self.workload.machine
        tasks = math.prod(s.outer) * -(-s.rows // params["rows"])
        return launch(s.steps / (machine.peak * EFFICIENCY), tasks) / machine.clock

    def schedule(self, params: Params) -> Scheduled:
        """Return the naive nest, which defines the result, and the library's call."""
        rest = self.rest()
        call = LibraryCall(self.library, self.sgemm, params["rows"], None if rest is None else _by_rows(rest))
        cost = params["rows"] * self.sgemm.columns * self.sgemm.depth / self.workload.machine.lanes(4)
        return self.scheduled(params, call, cost)


class Device(Called):
    """A product by a device's library, which distributes it among work-groups itself. An epilogue is an
    ordinary kernel in the same launch."""

    def __init__(self, workload: Workload, of: Sgemm | Convolution, library: str) -> None:
        super().__init__(workload, library)
        self.of = of

    def space(self) -> Sequence[Params]:
        return [{}]

    def estimate(self, params: Params) -> float:
        machine = self.workload.machine
        return launch(self.of.steps / (machine.peak * EFFICIENCY), 1) / machine.clock

    def schedule(self, params: Params) -> Scheduled:
        rest = self.rest()
        if rest is None:
            return self.scheduled(params, LibraryCall(self.library, self.of, 0, None), 1.0)
        if rest.target.groups:
            template = Elements(rest)
            func = template.schedule(min(template.space(), key=template.estimate)).func
        else:
            func = _by_rows(rest)
        cost = rest.size(self.stage.axes[-1].extent) / rest.machine.lanes(4)
        return self.scheduled(params, LibraryCall(self.library, self.of, 0, func), cost)


def _by_rows(rest: Workload) -> Func:
    """Return the epilogue of a product as a kernel whose tasks are the product's rows."""
    (stage,) = rest.stages
    rec = Recorder(te.lower(rest.name, rest.stages, rest.inputs, rest.symbols))
    axes = [a.var.name for a in stage.axes]
    row = fuse_all(rec, axes[:-1], "row")
    vectorize(rec, axes[-1], stage.axes[-1].extent, lanes_for(rest))
    rec.do("parallelize", row)
    rec.do("simplify")
    return rec.func


def openblas(workload: Workload) -> Gemm | None:
    """Return the kernel by OpenBLAS's SGEMM, or None if it isn't a fitting product."""
    contraction = product(workload)
    return Gemm(workload, contraction, "openblas") if contraction else None


def onednn(workload: Workload) -> Gemm | None:
    """Return the kernel by oneDNN's SGEMM, or None if it isn't a fitting product."""
    contraction = product(workload)
    return Gemm(workload, contraction, "onednn") if contraction else None


def cublas(workload: Workload) -> Device | None:
    """Return the kernel by cuBLASLt, or None if it isn't a fitting product."""
    contraction = product(workload)
    return Device(workload, contraction, "cublas") if contraction else None


def clblast(workload: Workload) -> Device | None:
    """Return the kernel by CLBlast's SGEMM, or None if it isn't a fitting product."""
    contraction = product(workload)
    return Device(workload, contraction, "clblast") if contraction else None
