"""The thread pool, as LLVM IR text. It uses pthreads and atomics, and needs no C compiler.

A job is cut into at most `UNITS_PER_THREAD` units a thread, the same number for each thread. A free thread
takes a run of units, so a thread takes fewer units if its core has another tenant. The runs grow shorter
towards the end, because threads would otherwise wait for the last run (guided self-scheduling,
Polychronopoulos and Kuck, 1987).

A caller's first helper takes units from the back, the second from the front, and so on. If there are two
threads, each finds in its own cache the data that it made in the job before.

The ticket is one 64-bit word, `job sequence << 32 | first unit left << 16 | units left`. A thread takes units
by compare-and-swap of the ticket. The job is live and its fields are stable while the ticket has units left.
A swap that succeeds therefore proves that the fields read before the swap belong to the same job. A late
worker finds the ticket empty or changed, and touches nothing. The caller waits only for units that were
taken.

`pool_callers.py` divides the workers among callers. `pool_threads.py` says how threads start, wait, wake and
end, and `pool_lent.py` takes another library's threads instead. `runtime.system.waiting` has the system's
calls for this.

The pool has a place for each thread, after three cache lines of its own. Line 0 counts the callers. Line 1
has the stop flag and the sleeping workers, and line 2 the numbers of threads, processors and the process. A
place serves a caller and a worker, which have nothing to do with each other. Its lines 0 and 1 hold the
fields and the ticket of a caller's job. Line 2 holds the units done and the caller's sleep flag, and line 3
the flag that the place is taken. Line 4 is the record of the worker with the place's number. The worker's
sets of cores follow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from jangin.backends.llvm.functions import called, head
from jangin.backends.llvm.pool_callers import CALLERS, PATIENCE
from jangin.backends.llvm.pool_lent import LENT
from jangin.backends.llvm.pool_threads import CREATE, DESTROY, WAKE, WORKER
from jangin.runtime.functions import (
    ENTRY,
    KERNEL,
    POOL_CREATE,
    POOL_DESTROY,
    POOL_ENTER,
    POOL_LEAVE,
    POOL_ROUNDS,
    POOL_RUN,
    POOL_TEAM,
)
from jangin.runtime.system.waiting import CORES, waiting
from jangin.runtime.threads import MOST
from jangin.targets.target import Target

UNITS_PER_THREAD = 31
"""Units of a job for each thread. The units of all threads are counted in 16 bits, and 31 * 2,048 is the
largest multiple of `MOST` threads below 2^16."""
RUNS_PER_THREAD = 4
"""Fewest runs of a thread, so that no run is long."""
SPINS = 1500
"""Spin-loop pauses before a thread sleeps: 20 to 60 µs on x86 processors. Waking a thread takes about as
long, so a wait costs at most twice what it must."""
YIELDS = 16
"""How often a caller that waits yields its core to a worker before it sleeps. A worker may need that core to
finish."""

_POOL = {
    "callers": 0, "crowd": 4, "since": 8, "until": 16, "stop": 64, "sleepers": 68, "threads": 128,
    "processors": 136, "process": 144,
}  # fmt: skip
_PLACE = {
    "task": 0, "args": 8, "sizes": 16, "scratch": 24, "stride": 32, "tasks": 40, "unit": 48, "count": 56,
    "ticket": 64, "longest": 72, "parts": 80, "done": 128, "waiting": 132, "busy": 192,
}  # fmt: skip
_RECORD = {
    "handle": 256, "pool": 264, "index": 272, "asleep": 280, "number": 284, "narrowed": 288,
    "cores": 320,
}  # fmt: skip
_PLACES = 192
"""The offset in bytes of a pool's places, behind its own fields and at a cache line of its own."""
_PLACE_BYTES = 320 + 2 * CORES // 8
_FIELDS: Mapping[str, tuple[str, int]] = {
    **{name: ("pool", at) for name, at in _POOL.items()},
    **{name: ("place", at) for name, at in _PLACE.items()},
    **{f"record.{name}": ("record", at) for name, at in _RECORD.items()},
}
"""The base and the offset of each field, by name. A place and its worker's record have the same address."""


def pool_module(target: Target) -> str:
    """Return the LLVM IR module of the pool's functions (see `runtime.functions`).

    A `long`, a `size_t` and a thread's handle must be as wide as a pointer. Raises ValueError if the system's
    calls aren't known.
    """
    abi, system = target.abi, waiting(target.triple)
    narrow = abi.pointer_bytes < 8
    declare = f"declare void @{re.sub(r' [^,)]+', '', abi.pause)}" if abi.pause else ""
    pause = f"call void @{abi.pause}" if abi.pause else ""
    threads = CALLERS + CREATE + DESTROY + WAKE + _TAKE + WORKER + LENT
    text = _HEAD + system.functions + threads + _RUN + _ROUNDS
    text = re.sub(r"(?m)^  (%([\w.]+)\.at)$", _field_address, text)
    words = {
        "DECLARE_WAITING": system.declarations,  # first, because it has words too
        "HERE": system.here,
        "TRIPLE": target.triple,
        "L": f"i{8 * abi.pointer_bytes}",
        "NARROW": "\n  %bytes = trunc i64 %size to i32" if narrow else "",
        "BYTES": "%bytes" if narrow else "%size",
        "WIDEN": "sext i32" if narrow else "freeze i64",
        "WIDENED": " to i64" if narrow else "",
        "DECLARE_PAUSE": declare,
        "PAUSE": pause,
        "SPINS": SPINS,
        "SPINS_AND_YIELDS": SPINS + YIELDS,
        "TIRED": SPINS + 1,
        "PATIENCE": PATIENCE,
        "UNITS": UNITS_PER_THREAD,
        "LONGEST_RUNS": RUNS_PER_THREAD,
        "MAX_THREADS": MOST,
        "CREATE": head(POOL_CREATE),
        "DESTROY": head(POOL_DESTROY),
        "ENTER": head(POOL_ENTER),
        "LEAVE": head(POOL_LEAVE),
        "RUN": head(POOL_RUN),
        "ROUNDS": head(POOL_ROUNDS),
        "TEAM": head(POOL_TEAM),
        "ENTRY": called(ENTRY, "%entry", *(f"%{n}" for n in ENTRY.names)),
        "ENTRY_ALONE": called(ENTRY, "%entry", "%bufs", "%symbols", "null", "%scratch", "%stride"),
        "PIECE": called(KERNEL, "%task", "%args", "%sizes", "%lo", "%hi", "%own"),
        "ALL": called(KERNEL, "%task", "%args", "%sizes", 0, "%tasks", "%scratch"),
        "ROUND": called(POOL_RUN, "@jangin_pool_run", *(f"%{n}" for n in POOL_RUN.names)),
        "PLACES": _PLACES,
        "PLACE_BYTES": _PLACE_BYTES,
    }
    for word, value in words.items():
        text = text.replace(f"<{word}>", str(value))
    return text


def _field_address(line: re.Match[str]) -> str:
    base, offset = _FIELDS[line[2]]
    return f"  {line[1]} = getelementptr i8, ptr %{base}, i64 {offset}"


# `%field.at` on a line of its own computes a field's address.
_HEAD = """
source_filename = "jangin_pool"
target triple = "<TRIPLE>"
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(<L>, ptr)
declare i32 @sched_yield()
<DECLARE_WAITING>
declare ptr @aligned_alloc(<L>, <L>)
declare void @free(ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i32 @llvm.umax.i32(i32, i32)
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
<DECLARE_PAUSE>
define internal ptr @place(ptr %pool, i64 %number) {
  %skip = mul i64 %number, <PLACE_BYTES>
  %offset = add i64 %skip, <PLACES>
  %place = getelementptr i8, ptr %pool, i64 %offset
  ret ptr %place
}
"""

# Takes runs of units of a place's job until none is left. Fields are read before the swap that proves them
# stable.
_TAKE = """
define internal void @take_units(ptr %place, i64 %index, i1 %back) {
entry:
  %ticket.at
  %task.at
  %args.at
  %sizes.at
  %scratch.at
  %stride.at
  %tasks.at
  %unit.at
  %count.at
  %parts.at
  %longest.at
  %done.at
  %waiting.at
  br label %look
look:
  %ticket = load atomic i64, ptr %ticket.at seq_cst, align 8
  %left = and i64 %ticket, 65535
  %none = icmp eq i64 %left, 0
  br i1 %none, label %out, label %read
read:
  %task = load atomic ptr, ptr %task.at monotonic, align 8
  %args = load atomic ptr, ptr %args.at monotonic, align 8
  %sizes = load atomic ptr, ptr %sizes.at monotonic, align 8
  %scratch = load atomic ptr, ptr %scratch.at monotonic, align 8
  %stride = load atomic i64, ptr %stride.at monotonic, align 8
  %tasks = load atomic i64, ptr %tasks.at monotonic, align 8
  %unit = load atomic i64, ptr %unit.at monotonic, align 8
  %count = load atomic i64, ptr %count.at monotonic, align 8
  %parts = load atomic i64, ptr %parts.at monotonic, align 8
  %longest = load atomic i64, ptr %longest.at monotonic, align 8
  %share = udiv i64 %left, %parts
  %short = call i64 @llvm.umin.i64(i64 %share, i64 %longest)
  %run = call i64 @llvm.umax.i64(i64 %short, i64 1)
  %shifted = lshr i64 %ticket, 16
  %front = and i64 %shifted, 65535
  %behind = add i64 %front, %left
  %last.run = sub i64 %behind, %run
  %number = select i1 %back, i64 %last.run, i64 %front
  %fewer = sub i64 %ticket, %run
  %step = shl i64 %run, 16
  %later = add i64 %fewer, %step
  %new = select i1 %back, i64 %fewer, i64 %later
  %swap = cmpxchg ptr %ticket.at, i64 %ticket, i64 %new seq_cst seq_cst
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %work, label %look
work:
  %lo = mul i64 %number, %unit
  %length = mul i64 %run, %unit
  %end = add i64 %lo, %length
  %hi = call i64 @llvm.umin.i64(i64 %end, i64 %tasks)
  %skip = mul i64 %stride, %index
  %own = getelementptr i8, ptr %scratch, i64 %skip
  <PIECE>
  %units = trunc i64 %run to i32
  %before = atomicrmw add ptr %done.at, i32 %units seq_cst
  %now = add i32 %before, %units
  %goal = trunc i64 %count to i32
  %last = icmp eq i32 %now, %goal
  br i1 %last, label %finish, label %look
finish:
  %asleep = load atomic i32, ptr %waiting.at seq_cst, align 4
  %awake = icmp eq i32 %asleep, 0
  br i1 %awake, label %look, label %rouse
rouse:
  call void @wake_up(ptr %done.at, i32 1)
  br label %look
out:
  ret void
}
"""

_RUN = """
define <RUN> {
entry:
  %empty = icmp slt i64 %tasks, 1
  br i1 %empty, label %out, label %some
some:
  %null = icmp eq ptr %pool, null
  %one = icmp sle i64 %tasks, %grain
  %serial = icmp eq i64 %grain, 0
  %small = or i1 %one, %serial
  %alone = or i1 %null, %small
  br i1 %alone, label %inline, label %claim
claim:
  %team = call { i64, i64, i64 } @claim(ptr %pool, ptr %scratch)
  %number = extractvalue { i64, i64, i64 } %team, 0
  %threads = extractvalue { i64, i64, i64 } %team, 1
  %teams = extractvalue { i64, i64, i64 } %team, 2
  %helped = icmp ugt i64 %threads, 1
  br i1 %helped, label %publish, label %inline
inline:
  <ALL>
  br label %out
publish:
  %place = call ptr @place(ptr %pool, i64 %number)
  %pieces = mul i64 %threads, <UNITS>
  %up = add i64 %tasks, %pieces
  %up1 = sub i64 %up, 1
  %share = udiv i64 %up1, %pieces
  %least = call i64 @llvm.umax.i64(i64 %share, i64 %grain)
  %even = add i64 %tasks, %threads
  %even1 = sub i64 %even, 1
  %fair = udiv i64 %even1, %threads
  %whole = udiv i64 %fair, %least
  %each = call i64 @llvm.umax.i64(i64 %whole, i64 1)
  %fair.up = add i64 %fair, %each
  %fair.up1 = sub i64 %fair.up, 1
  %evened = udiv i64 %fair.up1, %each
  %unit = call i64 @llvm.umax.i64(i64 %evened, i64 %least)
  %round = add i64 %tasks, %unit
  %round1 = sub i64 %round, 1
  %count = udiv i64 %round1, %unit
  %runs = mul i64 %threads, <LONGEST_RUNS>
  %longest = udiv i64 %count, %runs
  %parts = shl i64 %threads, 1
  %task.at
  %args.at
  %sizes.at
  %scratch.at
  %stride.at
  %tasks.at
  %unit.at
  %count.at
  %longest.at
  %parts.at
  %done.at
  %waiting.at
  %busy.at
  %ticket.at
  store atomic ptr %task, ptr %task.at monotonic, align 8
  store atomic ptr %args, ptr %args.at monotonic, align 8
  store atomic ptr %sizes, ptr %sizes.at monotonic, align 8
  store atomic ptr %scratch, ptr %scratch.at monotonic, align 8
  store atomic i64 %stride, ptr %stride.at monotonic, align 8
  store atomic i64 %tasks, ptr %tasks.at monotonic, align 8
  store atomic i64 %unit, ptr %unit.at monotonic, align 8
  store atomic i64 %count, ptr %count.at monotonic, align 8
  store atomic i64 %longest, ptr %longest.at monotonic, align 8
  store atomic i64 %parts, ptr %parts.at monotonic, align 8
  store atomic i32 0, ptr %done.at monotonic, align 4
  %old = load atomic i64, ptr %ticket.at monotonic, align 8
  %sequence = lshr i64 %old, 32
  %following = add i64 %sequence, 1
  %next = shl i64 %following, 32
  %ticket = or i64 %next, %count
  store atomic i64 %ticket, ptr %ticket.at seq_cst, align 8
  %sleepers.at
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %sleeping = icmp ne i32 %sleepers, 0
  br i1 %sleeping, label %rouse, label %share.in
rouse:
  %useful = call i64 @llvm.umin.i64(i64 %threads, i64 %count)
  call void @wake_team(ptr %pool, i64 %number, i64 %useful, i64 %teams)
  br label %share.in
share.in:
  call void @take_units(ptr %place, i64 0, i1 false)
  %goal = trunc i64 %count to i32
  br label %wait
wait:
  %n = phi i32 [ 0, %share.in ], [ %n1, %pause ], [ %n1, %yield ], [ %n, %sleep ], [ %n, %doze ]
  %done = load atomic i32, ptr %done.at seq_cst, align 4
  %finished = icmp eq i32 %done, %goal
  br i1 %finished, label %release, label %unfinished
unfinished:
  %n1 = add i32 %n, 1
  %fresh = icmp slt i32 %n, <SPINS>
  br i1 %fresh, label %pause, label %weary
pause:
  <PAUSE>
  br label %wait
weary:
  %polite = icmp slt i32 %n, <SPINS_AND_YIELDS>
  br i1 %polite, label %yield, label %sleep
yield:
  %y = call i32 @sched_yield()
  br label %wait
sleep:
  store atomic i32 1, ptr %waiting.at seq_cst, align 4
  %seen = load atomic i32, ptr %done.at seq_cst, align 4
  %late = icmp eq i32 %seen, %goal
  br i1 %late, label %wait, label %doze
doze:
  call void @sleep_on(ptr %done.at, i32 %seen)
  br label %wait
release:
  store atomic i32 0, ptr %waiting.at monotonic, align 4
  store atomic i32 0, ptr %busy.at release, align 4
  br label %out
out:
  ret void
}
"""

_ROUNDS = """
define <ROUNDS> {
entry:
  br label %head
head:
  %round = phi i64 [ 0, %entry ], [ %next, %run ]
  %more = icmp slt i64 %round, %rounds
  br i1 %more, label %run, label %out
run:
  store i64 %round, ptr %round.at
  <ROUND>
  %next = add i64 %round, 1
  br label %head
out:
  ret void
}
"""
