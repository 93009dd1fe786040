"""The operating system's calls of the thread pool, as LLVM IR text.

The calls wait for a word to change, wake the threads that wait for it, and move a thread to another core.
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


class Waiting(NamedTuple):
    """The thread pool's calls of the system, as text. `declarations` declares the system's functions. `here`
    is a call that returns the number of the current core. `functions` defines `@sleep_on(word, seen)`,
    `@wake_up(word, most)` and `@step_aside(core)`."""

    declarations: str
    here: str
    functions: str


# FUTEX_WAIT_PRIVATE is 128 and FUTEX_WAKE_PRIVATE 129.
_LINUX_WAITS = """
define internal void @sleep_on(ptr %word, i32 %seen) {
  %r = call <L> (<L>, ...) @syscall(<L> <FUTEX>, ptr %word, i32 128, i32 %seen, ptr null, ptr null, i32 0)
  ret void
}
define internal void @wake_up(ptr %word, i32 %most) {
  %r = call <L> (<L>, ...) @syscall(<L> <FUTEX>, ptr %word, i32 129, i32 %most, ptr null, ptr null, i32 0)
  ret void
}
"""

# The thread moves to another core that it may use, and may use this one again afterwards. The system refuses
# an empty set of cores.
_LINUX_STEPS_ASIDE = """
define internal void @step_aside(i32 %core) {
entry:
  %mask = alloca [<MASK_BYTES> x i8], align 8
  %small = icmp ult i32 %core, <CORES>
  br i1 %small, label %ask, label %out
ask:
  %size = call i32 @sched_getaffinity(i32 0, <L> <MASK_BYTES>, ptr %mask)
  %said = icmp sgt i32 %size, -1
  br i1 %said, label %move, label %out
move:
  %byte = lshr i32 %core, 3
  %place = zext i32 %byte to i64
  %of.core = getelementptr i8, ptr %mask, i64 %place
  %within = and i32 %core, 7
  %bit = shl i32 1, %within
  %narrow = trunc i32 %bit to i8
  %others = xor i8 %narrow, -1
  %all = load i8, ptr %of.core
  %left = and i8 %all, %others
  store i8 %left, ptr %of.core
  %refused = call i32 @sched_setaffinity(i32 0, <L> <MASK_BYTES>, ptr %mask)
  %moved = icmp eq i32 %refused, 0
  br i1 %moved, label %restore, label %out
restore:
  store i8 %all, ptr %of.core
  %r = call i32 @sched_setaffinity(i32 0, <L> <MASK_BYTES>, ptr %mask)
  br label %out
out:
  ret void
}
"""

_LINUX = Waiting(
    "declare <L> @syscall(<L>, ...)\n"
    "declare i32 @sched_getcpu()\n"
    "declare i32 @sched_getaffinity(i32, <L>, ptr)\n"
    "declare i32 @sched_setaffinity(i32, <L>, ptr)",
    "call i32 @sched_getcpu()",
    _LINUX_WAITS + _LINUX_STEPS_ASIDE,
)
_WAITING: Mapping[str, Waiting] = {"linux": _LINUX}
"""The calls of each system, by Python's name."""


def waiting(triple: str) -> Waiting:
    """Return the calls for code of a triple. Raises ValueError for an unknown system or processor."""
    system, architecture = system_of(triple), triple.split("-")[0]
    if system not in _WAITING or architecture not in FUTEX:
        where = named(system) or "code without a system"
        raise ValueError(f"{triple}: no thread pool is known for {where} on {architecture}")
    found = _WAITING[system]
    words = {"FUTEX": FUTEX[architecture], "CORES": CORES, "MASK_BYTES": CORES // 8}
    functions = found.functions
    for word, value in words.items():
        functions = functions.replace(f"<{word}>", str(value))
    return Waiting(found.declarations, found.here, functions)
