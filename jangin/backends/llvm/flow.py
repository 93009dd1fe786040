"""The flow: one native function that runs branches and loops of a program.

It runs a list of operations, which `runtime.script` describes and makes for given sizes. It returns 0, or the
number of a failure.
"""

from __future__ import annotations

from jangin.backends.llvm.functions import called, head
from jangin.runtime.functions import ENTRY, FLOW
from jangin.runtime.script import OPERATIONS, WORDS


def flow_module(triple: str) -> str:
    """Return the LLVM IR module of `jangin_flow`."""
    cases = "\n".join(f"    i64 {n}, label %{name}" for name, n in OPERATIONS.items())
    return _TEXT.replace("<TRIPLE>", triple).replace("<WORDS>", str(WORDS)).replace("<CASES>", cases)


def _word(index: int, kind: str, name: str) -> str:
    return (
        f"  %{name}.at = getelementptr i64, ptr %op, i64 {index}\n  %{name} = load {kind}, ptr %{name}.at\n"
    )


def _words(prefix: str, *kinds: str) -> str:
    """Return loads of an operation's words as `%prefix1`, `%prefix2` and so on, as LLVM IR text."""
    return "".join(_word(i, kind, f"{prefix}{i}") for i, kind in enumerate(kinds, 1))


_TEXT = f"""
source_filename = "jangin_flow"
target triple = "<TRIPLE>"
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define {head(FLOW)} {{
entry:
  br label %run
run:
  %op = phi ptr [ %ops, %entry ], [ %after, %next ], [ %j1, %jump ], [ %u2, %unless ], [ %p3, %past ]
  %after = getelementptr i64, ptr %op, i64 <WORDS>
  %kind = load i64, ptr %op
  switch i64 %kind, label %end [
<CASES>
  ]
next:
  br label %run
call:
{_words("c", "ptr", *ENTRY.types, "i32")}
  %status = {called(ENTRY, "%c1", "%c2", "%c3", "%c4", "%c5", "%c6")}
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %next, label %wrong
wrong:
  %failure = add i32 %c7, %status
  ret i32 %failure
copy:
{_words("m", "ptr", "i64", "ptr", "i64", "ptr", "i64", "i64", "i64", "i64")}
  %number = load i64, ptr %m5
  %to.offset = mul i64 %number, %m2
  %from.offset = mul i64 %number, %m4
  %to.first = getelementptr i8, ptr %m1, i64 %to.offset
  %from.first = getelementptr i8, ptr %m3, i64 %from.offset
  br label %rows
rows:
  %row = phi i64 [ 0, %copy ], [ %row.next, %row.do ]
  %to = phi ptr [ %to.first, %copy ], [ %to.next, %row.do ]
  %from = phi ptr [ %from.first, %copy ], [ %from.next, %row.do ]
  %more = icmp slt i64 %row, %m6
  br i1 %more, label %row.do, label %next
row.do:
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %m9, i1 false)
  %row.next = add i64 %row, 1
  %to.next = getelementptr i8, ptr %to, i64 %m7
  %from.next = getelementptr i8, ptr %from, i64 %m8
  br label %rows
jump:
{_words("j", "ptr")}
  br label %run
unless:
{_words("u", "ptr", "ptr")}
  %flag = load i8, ptr %u1
  %false = icmp eq i8 %flag, 0
  br i1 %false, label %run, label %next
set:
{_words("s", "ptr", "i64")}
  store i64 %s2, ptr %s1
  br label %next
count:
{_words("n", "ptr")}
  %old = load i64, ptr %n1
  %new = add i64 %old, 1
  store i64 %new, ptr %n1
  br label %next
past:
{_words("p", "ptr", "ptr", "ptr")}
  %done = load i64, ptr %p1
  %limit = load i64, ptr %p2
  %over = icmp sge i64 %done, %limit
  br i1 %over, label %run, label %next
fail:
{_words("f", "i64")}
  %code = trunc i64 %f1 to i32
  ret i32 %code
end:
  ret i32 0
}}
"""
