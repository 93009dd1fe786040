"""The division of the pool's threads among its callers, as LLVM IR text. `pool_module` replaces the words in
angle brackets.

A caller keeps one processor busy by itself. Workers get the processors that are left: with P processors and C
callers, the first P - C workers help, and the others sleep. The helpers form teams, one for each caller as
long as there are enough, and each caller takes a team for a launch. A caller that finds no team runs its
launch alone. Without this, a worker would take its core from another caller.

The crowd is the number of callers by which the workers are divided. It rises as soon as a caller comes. It
falls when fewer callers have run for `PATIENCE`, because a caller is soon back for its next run. A caller
that was there for a shorter time than that is waited for only as long as it was there. Rare and short runs
thus don't keep workers from another caller.
"""

from __future__ import annotations

PATIENCE = 1_000_000
"""Nanoseconds for which a caller's place is kept. Python takes 20 to 100 µs between two runs."""

CALLERS = """
define <ENTER> {
entry:
  %none = icmp eq ptr %pool, null
  br i1 %none, label %out, label %count
count:
  %callers.at
  %crowd.at
  %others = atomicrmw add ptr %callers.at, i32 1 seq_cst
  %callers = add i32 %others, 1
  br label %compare
compare:
  %crowd = load atomic i32, ptr %crowd.at seq_cst, align 4
  %larger = icmp ugt i32 %callers, %crowd
  br i1 %larger, label %raise, label %out
raise:
  %set = call i1 @set_crowd(ptr %pool, i32 %crowd, i32 %callers)
  br label %compare
out:
  ret void
}
define <LEAVE> {
entry:
  %none = icmp eq ptr %pool, null
  br i1 %none, label %out, label %count
count:
  %callers.at
  %crowd.at
  %callers = load atomic i32, ptr %callers.at monotonic, align 4
  %crowd = load atomic i32, ptr %crowd.at monotonic, align 4
  %several = icmp ugt i32 %crowd, 1
  %whole = icmp uge i32 %callers, %crowd
  %parting = and i1 %several, %whole
  br i1 %parting, label %part, label %leave
part:
  %until.at
  %now = call i64 @now()
  store atomic i64 %now, ptr %until.at monotonic, align 8
  br label %leave
leave:
  %before = atomicrmw sub ptr %callers.at, i32 1 seq_cst
  br label %out
out:
  ret void
}
define internal i1 @set_crowd(ptr %pool, i32 %old, i32 %new) {
  %crowd.at
  %since.at
  %until.at
  %now = call i64 @now()
  store atomic i64 %now, ptr %since.at monotonic, align 8
  store atomic i64 %now, ptr %until.at monotonic, align 8
  %swap = cmpxchg ptr %crowd.at, i32 %old, i32 %new seq_cst seq_cst
  %set = extractvalue { i32, i1 } %swap, 1
  ret i1 %set
}
define internal i32 @settled_crowd(ptr %pool) {
entry:
  %callers.at
  %crowd.at
  %since.at
  %until.at
  %counted = load atomic i32, ptr %callers.at monotonic, align 4
  %callers = call i32 @llvm.umax.i32(i32 %counted, i32 1)
  %crowd = load atomic i32, ptr %crowd.at seq_cst, align 4
  %fewer = icmp ult i32 %callers, %crowd
  br i1 %fewer, label %ask, label %keep
ask:
  %now = call i64 @now()
  %since = load atomic i64, ptr %since.at monotonic, align 8
  %until = load atomic i64, ptr %until.at monotonic, align 8
  %present = sub i64 %until, %since
  %absent = sub i64 %now, %until
  %patience = call i64 @llvm.smin.i64(i64 %present, i64 <PATIENCE>)
  %over = icmp sgt i64 %absent, %patience
  br i1 %over, label %lower, label %keep
lower:
  %set = call i1 @set_crowd(ptr %pool, i32 %crowd, i32 %callers)
  ret i32 %callers
keep:
  ret i32 %crowd
}
define internal { i64, i64 } @teams(ptr %pool, i32 %crowd) {
  %threads.at
  %processors.at
  %threads = load atomic i64, ptr %threads.at monotonic, align 8
  %processors = load i64, ptr %processors.at
  %callers = zext i32 %crowd to i64
  %workers = sub i64 %threads, 1
  %left = sub i64 %processors, %callers
  %some = call i64 @llvm.smax.i64(i64 %left, i64 0)
  %helpers = call i64 @llvm.umin.i64(i64 %some, i64 %workers)
  %teams = call i64 @llvm.umin.i64(i64 %helpers, i64 %callers)
  %first = insertvalue { i64, i64 } poison, i64 %helpers, 0
  %both = insertvalue { i64, i64 } %first, i64 %teams, 1
  ret { i64, i64 } %both
}
define internal { i64, i64, i64 } @claim(ptr %pool, ptr %scratch) {
entry:
  %crowd = call i32 @settled_crowd(ptr %pool)
  %divided = call { i64, i64 } @teams(ptr %pool, i32 %crowd)
  %helpers = extractvalue { i64, i64 } %divided, 0
  %teams = extractvalue { i64, i64 } %divided, 1
  %none = icmp eq i64 %teams, 0
  br i1 %none, label %out, label %choose
choose:
  %address = ptrtoint ptr %scratch to i64
  %page = lshr i64 %address, 12
  %first = urem i64 %page, %teams
  br label %look
look:
  %team = phi i64 [ %first, %choose ], [ %next, %taken ]
  %tries = phi i64 [ 1, %choose ], [ %tries1, %taken ]
  %place = call ptr @place(ptr %pool, i64 %team)
  %busy.at
  %swap = cmpxchg ptr %busy.at, i32 0, i32 1 seq_cst seq_cst
  %free = extractvalue { i32, i1 } %swap, 1
  br i1 %free, label %mine, label %more
more:
  %again = icmp ult i64 %tries, %teams
  br i1 %again, label %taken, label %out
taken:
  %tries1 = add i64 %tries, 1
  %after = add i64 %team, 1
  %end = icmp eq i64 %after, %teams
  %next = select i1 %end, i64 0, i64 %after
  br label %look
mine:
  %from = sub i64 %helpers, %team
  %up = add i64 %from, %teams
  %up1 = sub i64 %up, 1
  %own = udiv i64 %up1, %teams
  %size = add i64 %own, 1
  %a = insertvalue { i64, i64, i64 } poison, i64 %team, 0
  %b = insertvalue { i64, i64, i64 } %a, i64 %size, 1
  %c = insertvalue { i64, i64, i64 } %b, i64 %teams, 2
  ret { i64, i64, i64 } %c
out:
  ret { i64, i64, i64 } { i64 0, i64 1, i64 1 }
}
"""
"""`@claim` returns the number of the caller's place, the threads of its team with itself, and the number of
teams. Each run begins to look at the place that its scratch memory chooses, so that it meets the same workers
from launch to launch."""
