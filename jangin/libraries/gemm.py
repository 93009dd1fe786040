"""Matrix products by a library's SGEMM: products and 1 x 1 convolutions of known sizes.

BLAS computes C = A B for row-major C and for A and B of either order, each with one distance between
its rows. Output axes that are no such rows (batches, the image rows of a strided convolution) are
counted through by the tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jangin.ir import te
from jangin.ir.dtype import F32
from jangin.ir.expr import Const, Expr, Load, Var, const, loads, rewrite, substitute
from jangin.ir.plan import LibraryCall
from jangin.ir.simplify import Ranges
from jangin.schedule.normalize import simplify_func
from jangin.templates.common import flat_index, fuse_all, lanes_for, stride, vectorize
from jangin.templates.contraction import roles
from jangin.templates.cost import launch
from jangin.templates.scheduled import Params, Recorder, Scheduled
from jangin.templates.template import Template, Workload

PIECES = (2, 1, 4, 8)
"""Into how many tasks the rows of one product may be split, the usual first."""
LEAST_ROWS = 16
EFFICIENCY = 0.85
"""Share of the processor's multiply-adds assumed for an estimate."""


@dataclass(frozen=True)
class Matrix:
    """An operand: where it begins, how far apart its rows are, whether it is stored transposed, and how
    far each outer axis moves it; in elements."""

    start: int
    lead: int
    transposed: bool
    outer: tuple[int, ...]


@dataclass(frozen=True)
class Sgemm:
    """The product: `outer` axes' sizes, then [rows, depth] x [depth, columns]."""

    outer: tuple[int, ...]
    rows: int
    columns: int
    depth: int
    left: Matrix
    right: Matrix


def product(workload: Workload) -> Sgemm | None:
    """The kernel as one SGEMM for each step of its outer axes, or None where it isn't that."""
    stage = workload.stages[0]
    role = roles(stage) if len(workload.stages) == 1 and stage.axes else None
    axes = {a.var.name: a for a in (*stage.axes, *stage.reduce_axes)}
    extents = {n: int(a.extent.value) for n, a in axes.items() if isinstance(a.extent, Const)}
    floats = {stage.out.dtype, *(n.dtype for n in loads(stage.body))} == {F32}
    if (
        role is None
        or stage.at
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
    return Sgemm(
        tuple(extents[n] for n in counted), rows, columns, depth,
        Matrix(at_left, *a, tuple(left[n] for n in counted)),
        Matrix(at_right, *b, tuple(right[n] for n in counted)),
    )  # fmt: skip


def _strides(load: Load, axes: Mapping[str, te.Axis], ranges: Ranges) -> dict[str, int] | None:
    found = {name: stride(load, axis.var, ranges) for name, axis in axes.items()}
    known = {name: step for name, step in found.items() if step is not None}
    return known if len(known) == len(found) else None


def _start(load: Load, axes: Mapping[str, te.Axis], ranges: Ranges) -> int:
    zero: dict[Var, Expr] = {a.var: const(0) for a in axes.values()}
    at = substitute(flat_index(load.buffer, load.index, ranges), zero)
    assert isinstance(at, Const)
    return int(at.value)


def _merged(
    names: Sequence[str], extents: Mapping[str, int], strides: Mapping[str, int]
) -> tuple[list[str], tuple[int, int]]:
    """The axes as (those that stay outside, (size, stride) of the rest as one)."""
    left = [n for n in names if extents[n] > 1]
    if not left:
        return [], (1, 1)
    last = left.pop()
    size, step = extents[last], strides[last]
    while left and strides[left[-1]] == size * step:
        size *= extents[left.pop()]
    return left, (size, step)


def _order(rows: int, columns: int, row_step: int, column_step: int) -> tuple[int, bool] | None:
    """(distance between rows as stored, whether stored transposed); None where BLAS takes neither."""
    if columns == 1 or column_step == 1:
        lead = columns if rows == 1 else row_step
        return (lead, False) if lead >= columns else None
    if rows == 1 or row_step == 1:
        return (column_step, True) if column_step >= rows else None
    return None


class Gemm(Template):
    """A product by the SGEMM of `library`; its parameter is how many rows a task takes."""

    def __init__(self, workload: Workload, sgemm: Sgemm, library: str) -> None:
        self.workload, self.sgemm, self.library = workload, sgemm, library
        (self.stage,) = workload.stages

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.library

    def space(self) -> Sequence[Params]:
        rows = self.sgemm.rows
        sizes = [-(-rows // n) for n in PIECES if n == 1 or rows >= n * LEAST_ROWS]
        return [{"rows": n} for n in sizes]

    def estimate(self, params: Params) -> float:
        s, t = self.sgemm, self.workload.target
        steps = math.prod(s.outer) * s.rows * s.columns * s.depth / t.lanes(4)
        tasks = math.prod(s.outer) * -(-s.rows // params["rows"])
        return launch(steps / (t.multiply_adds * EFFICIENCY), tasks) / t.clock

    def schedule(self, params: Params) -> Scheduled:
        """The naive nest, which says what it computes, and the call."""
        p, s, rows = self.workload, self.sgemm, params["rows"]
        func = simplify_func(te.lower(p.name, p.stages, p.inputs, p.symbols))
        rest = self._rest()
        tasks = math.prod(s.outer) * -(-s.rows // rows)
        names = [b.name for b in func.params]
        places = (names.index(n) for n in (self._operand("left"), self._operand("right")))
        text = _module(func.name, s, rows, self.library, (*places, len(names) - 1), rest is not None)
        call = LibraryCall(self.library, text, rest.func if rest else None, const(tasks))
        cost = rows * s.columns * s.depth / p.target.lanes(4)
        return Scheduled(self.library, func, (), params=params, cost=cost, call=call)

    def _operand(self, side: str) -> str:
        role = roles(self.stage)
        assert role is not None
        name: str = getattr(role, side).buffer.name
        return name

    def _rest(self) -> Recorder | None:
        """What the kernel does to the product, in place and with the product's rows as its tasks."""
        stage, p = self.stage, self.workload
        if stage.epilogue is None:
            return None
        point = Load(stage.out, tuple(a.var for a in stage.axes))
        body = rewrite(stage.epilogue, lambda e: point if e == stage.acc else None)
        only = replace(stage, body=body, reduce_axes=(), combiner="", epilogue=None)
        rest = replace(p, name=f"{p.name}_rest", stages=(only,))
        rec = Recorder(te.lower(rest.name, rest.stages, rest.inputs, rest.symbols))
        axes = [a.var.name for a in stage.axes]
        row = fuse_all(rec, axes[:-1], "row")
        vectorize(rec, axes[-1], stage.axes[-1].extent, lanes_for(rest))
        rec.do("parallelize", row)
        rec.func = simplify_func(rec.func)
        return rec


_CALLS = {
    "openblas": """
declare void @jangin_openblas_sgemm(i32, i32, i32, i64, i64, i64, float, ptr, i64, ptr, i64, float,
                                   ptr, i64)
define internal void @sgemm(i1 %ta, i1 %tb, i64 %m, i64 %n, i64 %k, ptr %a, i64 %lda,
                            ptr %b, i64 %ldb, ptr %c) {
  %x = select i1 %ta, i32 112, i32 111
  %y = select i1 %tb, i32 112, i32 111
  call void @jangin_openblas_sgemm(i32 101, i32 %x, i32 %y, i64 %m, i64 %n, i64 %k, float 1.0,
                                   ptr %a, i64 %lda, ptr %b, i64 %ldb, float 0.0, ptr %c, i64 %n)
  ret void
}
""",
    "onednn": """
declare i32 @jangin_onednn_sgemm(i8 signext, i8 signext, i64, i64, i64, float, ptr, i64, ptr, i64, float,
                                ptr, i64)
declare i32 @jangin_onednn_threads()
declare void @jangin_onednn_set_threads(i32)
define internal void @sgemm(i1 %ta, i1 %tb, i64 %m, i64 %n, i64 %k, ptr %a, i64 %lda,
                            ptr %b, i64 %ldb, ptr %c) {
  %x = select i1 %ta, i8 84, i8 78
  %y = select i1 %tb, i8 84, i8 78
  %threads = call i32 @jangin_onednn_threads()
  call void @jangin_onednn_set_threads(i32 1)
  call i32 @jangin_onednn_sgemm(i8 signext %x, i8 signext %y, i64 %m, i64 %n, i64 %k, float 1.0,
                                ptr %a, i64 %lda, ptr %b, i64 %ldb, float 0.0, ptr %c, i64 %n)
  call void @jangin_onednn_set_threads(i32 %threads)
  ret void
}
""",
}
"""C = A B, row-major and dense in C, on the calling thread; by library. (CBLAS: 101 row-major, 111 as it
is, 112 transposed; oneDNN: "N" and "T".)"""


def _module(name: str, s: Sgemm, rows: int, library: str, places: tuple[int, ...], rest: bool) -> str:
    """The kernel's LLVM IR: for each task the product of its rows, then what is fused behind it.
    `places`: of left, right and result among the arguments."""
    pieces = -(-s.rows // rows)
    lines = [
        *(f"  %{x}.at = getelementptr ptr, ptr %args, i64 {i}" for x, i in zip("abc", places, strict=True)),
        *(f"  %{x} = load ptr, ptr %{x}.at" for x in "abc"),
        "  %any = icmp slt i64 %lo, %hi\n  br i1 %any, label %task, label %end\ntask:",
        "  %t = phi i64 [ %lo, %start ], [ %t1, %task ]",
        f"  %piece = urem i64 %t, {pieces}\n  %step = udiv i64 %t, {pieces}",
        f"  %row = mul i64 %piece, {rows}\n  %left = sub i64 {s.rows}, %row",
        f"  %m = call i64 @llvm.umin.i64(i64 {rows}, i64 %left)",
        *_offset("a", s.left, s.outer, 1 if s.left.transposed else s.left.lead),
        *_offset("b", s.right, s.outer, 0),
        f"  %above = mul i64 %step, {s.rows}\n  %first = add i64 %above, %row",
        f"  %before = mul i64 %first, {s.columns}\n  %to = getelementptr float, ptr %c, i64 %before",
        f"  call void @sgemm(i1 {int(s.left.transposed)}, i1 {int(s.right.transposed)}, i64 %m, "
        f"i64 {s.columns}, i64 {s.depth}, ptr %a.from, i64 {s.left.lead}, ptr %b.from, i64 {s.right.lead}, "
        "ptr %to)",
    ]
    if rest:
        lines.append("  %last = add i64 %first, %m")
        lines.append(
            f'  call void @"{name}_rest"(ptr %args, ptr %sizes, i64 %first, i64 %last, ptr %scratch)'
        )
    return "\n".join(
        [
            *([f'declare void @"{name}_rest"(ptr, ptr, i64, i64, ptr)'] if rest else []),
            "declare i64 @llvm.umin.i64(i64, i64)",
            _CALLS[library],
            f'define void @"{name}"(ptr %args, ptr %sizes, i64 %lo, i64 %hi, ptr %scratch) {{\nstart:',
            *lines,
            "  %t1 = add i64 %t, 1\n  %more = icmp slt i64 %t1, %hi",
            "  br i1 %more, label %task, label %end\nend:\n  ret void\n}\n",
        ]
    )


def _offset(x: str, operand: Matrix, outer: Sequence[int], row_step: int) -> list[str]:
    """Lines that set %<x>.from to where a task's part of an operand begins."""
    lines = [f"  %{x}.rows = mul i64 %row, {row_step}", f"  %{x}.sum = add i64 %{x}.rows, {operand.start}"]
    total, count = f"%{x}.sum", "%step"
    for n, (size, step) in reversed([*enumerate(zip(outer, operand.outer, strict=True))]):
        lines += [
            f"  %{x}.i{n} = urem i64 {count}, {size}\n  %{x}.n{n} = udiv i64 {count}, {size}",
            f"  %{x}.o{n} = mul i64 %{x}.i{n}, {step}\n  %{x}.s{n} = add i64 {total}, %{x}.o{n}",
        ]
        total, count = f"%{x}.s{n}", f"%{x}.n{n}"
    return [*lines, f"  %{x}.from = getelementptr float, ptr %{x}, i64 {total}"]


def openblas(workload: Workload) -> Gemm | None:
    """The kernel by OpenBLAS's SGEMM, where it is one."""
    found = product(workload)
    return Gemm(workload, found, "openblas") if found else None


def onednn(workload: Workload) -> Gemm | None:
    """The kernel by oneDNN's SGEMM, where it is one."""
    found = product(workload)
    return Gemm(workload, found, "onednn") if found else None
