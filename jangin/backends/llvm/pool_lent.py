"""A run of a plan on the threads of an OpenMP library, as LLVM IR text. `pool_module` replaces the words in
angle brackets.

After work of its own, such a library lets its threads spin for milliseconds. Threads of another pool would
find no free core. `<TEAM>` therefore asks the library for one parallel region, in which the whole plan runs.
The region's thread 0 is the caller, which runs the entry. Each other thread is a worker until the entry is
done. The run has a pool of its own, whose workers may come late or never, because the caller takes all units
that nobody else takes.
"""

from __future__ import annotations

WORDS = ("pool", "number", "entry", "bufs", "symbols", "scratch", "stride", "status")
"""The words that a region's threads read, 8 bytes each. The caller stores the entry's result in `status`."""

_STORES = "\n".join(
    f"  %{name}.at = getelementptr i64, ptr %words, i64 {i}\n  store {kind} %{name}, ptr %{name}.at, align 8"
    for i, name in enumerate(WORDS[:-1])
    for kind in ["i64" if name == "stride" else "ptr"]
)
_LOADS = "\n".join(
    f"  %{name}.word = getelementptr i64, ptr %words, i64 {i}\n"
    f"  %{name} = load {kind}, ptr %{name}.word, align 8"
    for i, name in enumerate(WORDS[:-1])
    for kind in ["i64" if name == "stride" else "ptr"]
)

LENT = f"""
define <TEAM> {{
begin:
  %words = alloca [{len(WORDS)} x i64], align 8
  %status.at = getelementptr i64, ptr %words, i64 {WORDS.index("status")}
  %pool = call ptr @pool_of(i32 %threads, i32 %threads)
  %null = icmp eq ptr %pool, null
  br i1 %null, label %alone, label %some
alone:
  %own = <ENTRY_ALONE>
  ret i32 %own
some:
{_STORES}
  call void %parallel(ptr @attend, ptr %words, i32 %threads, i32 0)
  call void @free(ptr %pool)
  %status = load i32, ptr %status.at
  ret i32 %status
}}
define internal void @attend(ptr %words) {{
begin:
{_LOADS}
  %thread = call i32 %number()
  %index = sext i32 %thread to i64
  %caller = icmp eq i32 %thread, 0
  br i1 %caller, label %lead, label %follow
follow:
  %record = call ptr @place(ptr %pool, i64 %index)
  %r = call ptr @worker(ptr %record)
  ret void
lead:
  %status = <ENTRY>
  %status.at = getelementptr i64, ptr %words, i64 {WORDS.index("status")}
  store i32 %status, ptr %status.at
  %stop.at
  %sleepers.at
  %threads.at
  store atomic i32 1, ptr %stop.at seq_cst, align 4
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %sleeping = icmp ne i32 %sleepers, 0
  %threads = load i64, ptr %threads.at
  br i1 %sleeping, label %next, label %out
next:
  %k = phi i64 [ 1, %lead ], [ %k1, %rouse ]
  %all = icmp uge i64 %k, %threads
  br i1 %all, label %out, label %rouse
rouse:
  %sleeper = call ptr @place(ptr %pool, i64 %k)
  %k1 = add i64 %k, 1
  call void @dismiss(ptr %sleeper)
  br label %next
out:
  ret void
}}
"""
