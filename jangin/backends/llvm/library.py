"""The LLVM IR of a kernel that calls another maker's library."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.backends.llvm.functions import called, declared, head
from jangin.ir.library import LibraryCall, Matrix, Sgemm
from jangin.runtime.functions import KERNEL

SGEMM = {
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
"""C = A B, row-major and dense in C, on the calling thread, by library. (CBLAS: 101 is row-major, 111 not
transposed, 112 transposed. oneDNN: "N" and "T".)"""

REST = "_rest"
"""The suffix of a kernel's name for the code that runs after the library's call."""


def library_module(name: str, call: LibraryCall) -> str:
    """Return the LLVM IR module of the kernel `name`. For each task it computes the product of the task's
    rows, and then the operators fused behind it."""
    s, rows = call.product, call.rows
    assert isinstance(s, Sgemm)
    places = s.params
    pieces = call.pieces
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
    declares = []
    if call.rest is not None:
        rest = f"{name}{REST}"
        declares.append(declared(KERNEL, rest))
        lines.append("  %last = add i64 %first, %m")
        arguments = ("%args", "%sizes", "%first", "%last", "%scratch")
        lines.append("  " + called(KERNEL, f'@"{rest}"', *arguments))
    return "\n".join(
        [
            *declares,
            "declare i64 @llvm.umin.i64(i64, i64)",
            SGEMM[call.library],
            f"define {head(KERNEL, name)} {{\nstart:",
            *lines,
            "  %t1 = add i64 %t, 1\n  %more = icmp slt i64 %t1, %hi",
            "  br i1 %more, label %task, label %end\nend:\n  ret void\n}\n",
        ]
    )


def _offset(x: str, operand: Matrix, outer: Sequence[int], row_step: int) -> list[str]:
    """Return lines that set %<x>.from to the address of a task's part of an operand."""
    lines = [f"  %{x}.rows = mul i64 %row, {row_step}", f"  %{x}.sum = add i64 %{x}.rows, {operand.start}"]
    total, count = f"%{x}.sum", "%step"
    for n, (size, step) in reversed([*enumerate(zip(outer, operand.outer, strict=True))]):
        lines += [
            f"  %{x}.i{n} = urem i64 {count}, {size}\n  %{x}.n{n} = udiv i64 {count}, {size}",
            f"  %{x}.o{n} = mul i64 %{x}.i{n}, {step}\n  %{x}.s{n} = add i64 {total}, %{x}.o{n}",
        ]
        total, count = f"%{x}.s{n}", f"%{x}.n{n}"
    return [*lines, f"  %{x}.from = getelementptr float, ptr %{x}, i64 {total}"]
