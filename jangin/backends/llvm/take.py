"""Takes arrays and numbers from Python, as LLVM IR text. It checks that they are as a run wants, and gets the
addresses of arrays and the values of numbers.

It reads the objects directly (`runtime.arrays` has their layout). This takes a few nanoseconds for each
object, while Python's own steps take half a microsecond. `runtime.arrays.wanted` makes the table of
requirements.
"""

from __future__ import annotations

from jangin.backends.llvm.functions import head
from jangin.runtime.functions import TAKE
from jangin.targets.target import Target

TAKEN = "jangin_taken"
"""The name of the function that checks objects in a row, and takes their addresses and numbers."""


def take_module(target: Target) -> str:
    """Return the LLVM IR module of `TAKE`, which checks a tuple of objects and stores the addresses of
    its arrays. It is for machines with 64-bit pointers."""
    return _TEXT.replace("<TRIPLE>", target.triple)


def word(name: str, base: str, index: int | str, kind: str = "i64") -> str:
    """Return the i64 or pointer number `index` at `base`, as %name."""
    return (
        f"  %{name}.at = getelementptr i64, ptr {base}, i64 {index}\n  %{name} = load {kind}, ptr %{name}.at"
    )


_TEXT = f"""
source_filename = "{TAKE.name}"
target triple = "<TRIPLE>"

define {head(TAKE)} {{
entry:
{word("given", "%wanted", 0, "ptr")}
{word("head", "%wanted", 1)}
{word("items", "%wanted", 2)}
{word("count", "%wanted", 3)}
  %length.at = getelementptr i8, ptr %given, i64 %head
  %length = load i64, ptr %length.at
  %first = getelementptr i8, ptr %given, i64 %items
  %all = icmp eq i64 %length, %count
  br i1 %all, label %check, label %no
check:
  %fits = call i1 @{TAKEN}(ptr %first, ptr %table, ptr %wanted)
  %result = zext i1 %fits to i32
  ret i32 %result
no:
  ret i32 0
}}

define internal i1 @{TAKEN}(ptr %first, ptr %table, ptr %wanted) {{
entry:
{word("head", "%wanted", 1)}
{word("count", "%wanted", 3)}
  %first.want = getelementptr i64, ptr %wanted, i64 4
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %taken ]
  %want = phi ptr [ %first.want, %entry ], [ %want.next, %taken ]
  %done = icmp eq i64 %k, %count
  br i1 %done, label %yes, label %each
each:
{word("object", "%first", "%k", "ptr")}
{word("kind", "%want", 0)}
{word("want.id", "%want", 1, "ptr")}
  %fields = getelementptr i8, ptr %object, i64 %head
{word("type", "%fields", -1, "ptr")}
  %is.same = icmp eq i64 %kind, 3
  %compared = select i1 %is.same, ptr %object, ptr %type
  %fit = icmp eq ptr %compared, %want.id
  br i1 %fit, label %fitting, label %no
fitting:
  switch i64 %kind, label %number [ i64 0, label %array  i64 3, label %same ]
same:
  br label %taken
number:
{word("parts", "%want", 2)}
{word("number.to", "%want", 3, "ptr")}
  %is.single = icmp eq i64 %kind, 2
  br label %part
part:
  %n = phi i64 [ 0, %number ], [ %n1, %kept ]
{word("value", "%fields", "%n", "double")}
  %n1 = add i64 %n, 1
  br i1 %is.single, label %single, label %double
single:
  %rounded = fptrunc double %value to float
  %single.to = getelementptr float, ptr %number.to, i64 %n
  store float %rounded, ptr %single.to
  br label %kept
double:
  %double.to = getelementptr double, ptr %number.to, i64 %n
  store double %value, ptr %double.to
  br label %kept
kept:
  %written = icmp eq i64 %n1, %parts
  br i1 %written, label %taken, label %part
array:
{word("data", "%fields", 0, "ptr")}
  %rank.at = getelementptr i64, ptr %fields, i64 1
  %narrow = load i32, ptr %rank.at
  %rank = sext i32 %narrow to i64
{word("dims", "%fields", 2, "ptr")}
{word("dtype", "%fields", 5, "ptr")}
  %flags.at = getelementptr i64, ptr %fields, i64 6
  %flags.narrow = load i32, ptr %flags.at
  %flags = zext i32 %flags.narrow to i64
{word("want.dtype", "%want", 2, "ptr")}
{word("want.flags", "%want", 3)}
{word("want.rank", "%want", 4)}
  %want.dims = getelementptr i64, ptr %want, i64 5
  %own.flags = and i64 %flags, %want.flags
  %same.flags = icmp eq i64 %own.flags, %want.flags
  %same.dtype = icmp eq ptr %dtype, %want.dtype
  %same.rank = icmp eq i64 %rank, %want.rank
  %both = and i1 %same.dtype, %same.rank
  %plain = and i1 %both, %same.flags
  br i1 %plain, label %dim, label %no
dim:
  %d = phi i64 [ 0, %array ], [ %d1, %size ]
  %measured = icmp eq i64 %d, %rank
  br i1 %measured, label %fits, label %size
size:
{word("is", "%dims", "%d")}
{word("should", "%want.dims", "%d")}
  %d1 = add i64 %d, 1
  %equal = icmp eq i64 %is, %should
  br i1 %equal, label %dim, label %no
fits:
{word("places", "%want.dims", "%rank")}
  %p0 = add i64 %rank, 1
  %end = add i64 %p0, %places
  %words = add i64 %end, 5
  br label %place
place:
  %p = phi i64 [ %p0, %fits ], [ %p1, %store ]
  %stored = icmp eq i64 %p, %end
  br i1 %stored, label %taken, label %store
store:
{word("index", "%want.dims", "%p")}
  %to = getelementptr ptr, ptr %table, i64 %index
  store ptr %data, ptr %to
  %p1 = add i64 %p, 1
  br label %place
taken:
  %took = phi i64 [ 2, %same ], [ 4, %kept ], [ %words, %place ]
  %want.next = getelementptr i64, ptr %want, i64 %took
  %k1 = add i64 %k, 1
  br label %next
yes:
  ret i1 true
no:
  ret i1 false
}}
"""
