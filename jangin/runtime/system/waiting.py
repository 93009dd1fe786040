"""The operating system's calls of the thread pool, as LLVM IR text.

The calls wait for a word to change, wake threads that wait for it, keep threads off a core, and read the
clock.
`backends.llvm.pool` replaces the words in angle brackets. <L> is the type of a C `long`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from jangin.runtime.system import named, system_of

CORES = 1024
"""The number of bits in a set of processors, as many as in the C library's cpu_set_t."""
FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "armv7": 240}
"""The number of Linux's system call futex, by the first part of a triple (Linux's syscall tables)."""
GETTID = {"x86_64": 186, "aarch64": 178, "riscv64": 178, "armv7": 224}
"""The number of Linux's system call gettid."""


class Waiting(NamedTuple):
    """The thread pool's calls of the system, as text. `declarations` declares the system's functions. `here`
    is a call that returns the number of the current core. `functions` defines:

    - `@own_number()` returns the thread's number.
    - `@now()` returns the nanoseconds of a clock that never goes back.
    - `@sleep_on(word, seen)` waits while the word is `seen`.
    - `@wake_up(word, most)` wakes threads that wait for the word.
    - `@keep_off(thread, core, cores)` takes a core out of a thread's set of cores. It returns false if
      nothing changed, and else `cores` says what `@restore` needs.
    - `@restore(cores)` gives the calling thread its set of cores again."""

    declarations: str
    here: str
    functions: str


# A thread's number is the lower half of a long. All processors of `GETTID` store the lower half first.
# FUTEX_WAIT_PRIVATE is 128, FUTEX_WAKE_PRIVATE 129, and CLOCK_MONOTONIC 1.
_LINUX_WAITS = """
define internal i32 @own_number() {
  %at = alloca <L>, align 8
  %number = call <L> (<L>, ...) @syscall(<L> <GETTID>)
  store <L> %number, ptr %at
  %low = load i32, ptr %at
  ret i32 %low
}
define internal void @sleep_on(ptr %word, i32 %seen) {
  %r = call <L> (<L>, ...) @syscall(<L> <FUTEX>, ptr %word, i32 128, i32 %seen, ptr null, ptr null, i32 0)
  ret void
}
define internal void @wake_up(ptr %word, i32 %most) {
  %r = call <L> (<L>, ...) @syscall(<L> <FUTEX>, ptr %word, i32 129, i32 %most, ptr null, ptr null, i32 0)
  ret void
}
define internal i64 @now() {
  %time = alloca [2 x <L>], align 8
  %r = call i32 @clock_gettime(i32 1, ptr %time)
  %rest = getelementptr <L>, ptr %time, i64 1
  %s = load <L>, ptr %time
  %ns = load <L>, ptr %rest
  %seconds = <WIDEN> %s<WIDENED>
  %nanoseconds = <WIDEN> %ns<WIDENED>
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %nanoseconds
  ret i64 %sum
}
"""

# `cores` has room for two sets: the thread's set, and the set without the core. If somebody else changed the
# thread's set meanwhile, it stays so. A set of all cores of the process's control group is restored as the
# set of all cores. It thus grows with the group. The system refuses an empty set of cores.
_LINUX_MOVES = """
define internal i1 @keep_off(i32 %thread, i32 %core, ptr %cores) {
entry:
  %small = icmp ult i32 %core, <CORES>
  br i1 %small, label %ask, label %no
ask:
  call void @llvm.memset.p0.i64(ptr %cores, i8 0, i64 <SET_BYTES>, i1 false)
  %size = call i32 @sched_getaffinity(i32 %thread, <L> <SET_BYTES>, ptr %cores)
  %said = icmp sgt i32 %size, -1
  br i1 %said, label %move, label %no
move:
  %others = getelementptr i8, ptr %cores, i64 <SET_BYTES>
  call void @llvm.memcpy.p0.p0.i64(ptr %others, ptr %cores, i64 <SET_BYTES>, i1 false)
  %byte = lshr i32 %core, 3
  %place = zext i32 %byte to i64
  %of.core = getelementptr i8, ptr %others, i64 %place
  %within = and i32 %core, 7
  %bit = shl i32 1, %within
  %narrow = trunc i32 %bit to i8
  %rest = xor i8 %narrow, -1
  %all = load i8, ptr %of.core
  %left = and i8 %all, %rest
  store i8 %left, ptr %of.core
  %refused = call i32 @sched_setaffinity(i32 %thread, <L> <SET_BYTES>, ptr %others)
  %moved = icmp eq i32 %refused, 0
  ret i1 %moved
no:
  ret i1 false
}
define internal i1 @has_cores(ptr %expected) {
  %set = alloca [<SET_BYTES> x i8], align 8
  call void @llvm.memset.p0.i64(ptr %set, i8 0, i64 <SET_BYTES>, i1 false)
  %size = call i32 @sched_getaffinity(i32 0, <L> <SET_BYTES>, ptr %set)
  %differs = call i32 @memcmp(ptr %set, ptr %expected, <L> <SET_BYTES>)
  %same = icmp eq i32 %differs, 0
  ret i1 %same
}
define internal void @restore(ptr %cores) {
entry:
  %every = alloca [<SET_BYTES> x i8], align 8
  %others = getelementptr i8, ptr %cores, i64 <SET_BYTES>
  %ours = call i1 @has_cores(ptr %others)
  br i1 %ours, label %widen, label %out
widen:
  call void @llvm.memset.p0.i64(ptr %every, i8 -1, i64 <SET_BYTES>, i1 false)
  %r = call i32 @sched_setaffinity(i32 0, <L> <SET_BYTES>, ptr %every)
  %whole = call i1 @has_cores(ptr %cores)
  br i1 %whole, label %out, label %exactly
exactly:
  %n = call i32 @sched_setaffinity(i32 0, <L> <SET_BYTES>, ptr %cores)
  br label %out
out:
  ret void
}
"""

_LINUX = Waiting(
    "declare <L> @syscall(<L>, ...)\n"
    "declare i32 @getpid()\n"
    "declare i32 @memcmp(ptr, ptr, <L>)\n"
    "declare i32 @sched_getcpu()\n"
    "declare i32 @clock_gettime(i32, ptr)\n"
    "declare i32 @sched_getaffinity(i32, <L>, ptr)\n"
    "declare i32 @sched_setaffinity(i32, <L>, ptr)\n"
    "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
    "call i32 @sched_getcpu()",
    _LINUX_WAITS + _LINUX_MOVES,
)
_WAITING: Mapping[str, Waiting] = {"linux": _LINUX}
"""The calls of each system, by Python's name."""


def waiting(triple: str) -> Waiting:
    """Return the calls for code of a triple. Raises ValueError for an unknown system or processor."""
    system, architecture = system_of(triple), triple.split("-")[0]
    if system not in _WAITING or architecture not in FUTEX:
        where = named(system) or "code without a system"
        raise ValueError(
            f"{triple}: no thread pool is known for {where} on {architecture}; compile with threads=1"
        )
    calls = _WAITING[system]
    words = {
        "FUTEX": FUTEX[architecture],
        "GETTID": GETTID[architecture],
        "CORES": CORES,
        "SET_BYTES": CORES // 8,
    }
    functions = calls.functions
    for word, value in words.items():
        functions = functions.replace(f"<{word}>", str(value))
    return Waiting(calls.declarations, calls.here, functions)
