"""Takes arrays from Python, as LLVM IR text: checks that they are as a run wants, and gets their addresses.

It reads the objects directly (`runtime.arrays` has their layout). This takes a few nanoseconds for each
array, while Python's own steps take half a microsecond. `runtime.arrays.wanted` makes the table of
requirements.
"""

from __future__ import annotations

from jangin.backends.llvm.functions import head
from jangin.runtime.functions import TAKE
from jangin.targets.target import Target


def take_module(target: Target) -> str:
    """Return the LLVM IR module of `jangin_take`, which checks a tuple of NumPy arrays and stores their
    addresses. It is for machines with 64-bit pointers."""
    return _TEXT.replace("<TRIPLE>", target.triple)


def _word(name: str, base: str, index: int | str, kind: str = "i64") -> str:
    """Return the i64 or pointer number `index` at `base`, as %name."""
    return (
        f"  %{name}.at = getelementptr i64, ptr {base}, i64 {index}\n  %{name} = load {kind}, ptr %{name}.at"
    )


_TEXT = f"""
source_filename = "jangin_take"
target triple = "<TRIPLE>"

define {head(TAKE)} {{
entry:
{_word("given", "%wanted", 0, "ptr")}
{_word("head", "%wanted", 1)}
{_word("items", "%wanted", 2)}
{_word("array.type", "%wanted", 3, "ptr")}
{_word("count", "%wanted", 4)}
  %first.want = getelementptr i64, ptr %wanted, i64 5
  %length.at = getelementptr i8, ptr %given, i64 %head
  %length = load i64, ptr %length.at
  %first = getelementptr i8, ptr %given, i64 %items
  %all = icmp eq i64 %length, %count
  br i1 %all, label %next, label %no
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %place ]
  %want = phi ptr [ %first.want, %entry ], [ %want.next, %place ]
  %done = icmp eq i64 %k, %count
  br i1 %done, label %yes, label %object
object:
{_word("array", "%first", "%k", "ptr")}
  %fields = getelementptr i8, ptr %array, i64 %head
{_word("type", "%fields", -1, "ptr")}
  %is.array = icmp eq ptr %type, %array.type
  br i1 %is.array, label %kind, label %no
kind:
{_word("data", "%fields", 0, "ptr")}
  %rank.at = getelementptr i64, ptr %fields, i64 1
  %narrow = load i32, ptr %rank.at
  %rank = sext i32 %narrow to i64
{_word("dims", "%fields", 2, "ptr")}
{_word("dtype", "%fields", 5, "ptr")}
  %flags.at = getelementptr i64, ptr %fields, i64 6
  %flags = load i32, ptr %flags.at
{_word("want.dtype", "%want", 0, "ptr")}
{_word("want.rank", "%want", 1)}
  %want.dims = getelementptr i64, ptr %want, i64 2
  %lowest = and i32 %flags, 1
  %contiguous = icmp ne i32 %lowest, 0
  %same.dtype = icmp eq ptr %dtype, %want.dtype
  %same.rank = icmp eq i64 %rank, %want.rank
  %both = and i1 %same.dtype, %same.rank
  %plain = and i1 %both, %contiguous
  br i1 %plain, label %dim, label %no
dim:
  %d = phi i64 [ 0, %kind ], [ %d1, %size ]
  %measured = icmp eq i64 %d, %rank
  br i1 %measured, label %fits, label %size
size:
{_word("is", "%dims", "%d")}
{_word("should", "%want.dims", "%d")}
  %d1 = add i64 %d, 1
  %equal = icmp eq i64 %is, %should
  br i1 %equal, label %dim, label %no
fits:
{_word("places", "%want.dims", "%rank")}
  %p0 = add i64 %rank, 1
  %end = add i64 %p0, %places
  br label %place
place:
  %p = phi i64 [ %p0, %fits ], [ %p1, %store ]
  %want.next = getelementptr i64, ptr %want.dims, i64 %end
  %k1 = add i64 %k, 1
  %stored = icmp eq i64 %p, %end
  br i1 %stored, label %next, label %store
store:
{_word("number", "%want.dims", "%p")}
  %to = getelementptr ptr, ptr %table, i64 %number
  store ptr %data, ptr %to
  %p1 = add i64 %p, 1
  br label %place
yes:
  ret i32 1
no:
  ret i32 0
}}
"""
