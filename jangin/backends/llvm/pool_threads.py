"""The start, the life and the end of the pool's threads (`pool.py`), as LLVM IR text. `pool_module` replaces
the words in angle brackets.

A worker helps the team that the crowd gives it. It spins for a short time after a job, then it sleeps until a
caller of its team has another. It sleeps at once if the crowd leaves no processor for it. Such a worker
watches the last place, which no caller ever takes.

A caller wakes as many workers as its job can use, on other cores than its own. On the caller's core a worker
would wait until the caller's job is done. The system chooses that core if another program spins on the
others, or if a virtual machine's cores take long to wake. The caller takes its own core out of the worker's
set of cores, and the worker restores its set when it is awake. `narrowed` is 1 while a caller narrows the
set, 2 until the worker has restored it, and 0 else. A forked process wakes nobody, because it has the pool's
memory but not its threads.
"""

from __future__ import annotations

CREATE = """
define internal ptr @pool_of(i32 %asked, i32 %processors) {
entry:
  %many = icmp sgt i32 %asked, <MAX_THREADS>
  %threads = select i1 %many, i32 <MAX_THREADS>, i32 %asked
  %none = icmp slt i32 %threads, 2
  br i1 %none, label %fail, label %allocate
allocate:
  %wide = sext i32 %threads to i64
  %places = mul i64 %wide, <PLACE_BYTES>
  %size = add i64 %places, <PLACES><NARROW>
  %pool = call ptr @aligned_alloc(<L> 64, <L> <BYTES>)
  %null = icmp eq ptr %pool, null
  br i1 %null, label %fail, label %start
start:
  call void @llvm.memset.p0.i64(ptr %pool, i8 0, i64 %size, i1 false)
  %crowd.at
  %threads.at
  %processors.at
  %process.at
  %process = call i32 @getpid()
  %given = sext i32 %processors to i64
  store i32 %process, ptr %process.at
  store i32 1, ptr %crowd.at
  store atomic i64 %wide, ptr %threads.at monotonic, align 8
  store i64 %given, ptr %processors.at
  br label %next
next:
  %k = phi i64 [ 1, %start ], [ %k1, %one ]
  %full = icmp eq i64 %k, %wide
  br i1 %full, label %ready, label %one
one:
  %record = call ptr @place(ptr %pool, i64 %k)
  %record.pool.at
  %record.index.at
  store ptr %pool, ptr %record.pool.at
  store i64 %k, ptr %record.index.at
  %k1 = add i64 %k, 1
  br label %next
ready:
  ret ptr %pool
fail:
  ret ptr null
}
define <CREATE> {
entry:
  %pool = call ptr @pool_of(i32 %asked, i32 %processors)
  %null = icmp eq ptr %pool, null
  br i1 %null, label %out, label %start
start:
  %threads.at
  %threads = load i64, ptr %threads.at
  br label %next
next:
  %k = phi i64 [ 1, %start ], [ %k1, %spawn ]
  %full = icmp eq i64 %k, %threads
  br i1 %full, label %out, label %spawn
spawn:
  %record = call ptr @place(ptr %pool, i64 %k)
  %record.handle.at
  %error = call i32 @pthread_create(ptr %record.handle.at, ptr null, ptr @worker, ptr %record)
  %k1 = add i64 %k, 1
  %started = icmp eq i32 %error, 0
  br i1 %started, label %next, label %fewer
fewer:
  store atomic i64 %k, ptr %threads.at monotonic, align 8
  br label %out
out:
  ret ptr %pool
}
"""

DESTROY = """
define <DESTROY> {
entry:
  %null = icmp eq ptr %pool, null
  br i1 %null, label %out, label %stop
stop:
  %stop.at
  %threads.at
  store atomic i32 1, ptr %stop.at seq_cst, align 4
  %count = load i64, ptr %threads.at
  br label %next
next:
  %k = phi i64 [ 1, %stop ], [ %k1, %join ]
  %all = icmp uge i64 %k, %count
  br i1 %all, label %release, label %join
join:
  %record = call ptr @place(ptr %pool, i64 %k)
  %record.handle.at
  call void @dismiss(ptr %record)
  %handle = load <L>, ptr %record.handle.at
  %e = call i32 @pthread_join(<L> %handle, ptr null)
  %k1 = add i64 %k, 1
  br label %next
release:
  call void @free(ptr %pool)
  br label %out
out:
  ret void
}
define internal void @dismiss(ptr %record) {
  %record.asleep.at
  store atomic i32 0, ptr %record.asleep.at seq_cst, align 4
  call void @wake_up(ptr %record.asleep.at, i32 1)
  ret void
}
"""

# Wakes the sleeping workers of a team. `%threads` counts the caller too.
WAKE = """
define internal void @wake(ptr %record, i32 %here) {
entry:
  %record.asleep.at
  %record.narrowed.at
  %record.number.at
  %record.cores.at
  %was = atomicrmw xchg ptr %record.asleep.at, i32 0 seq_cst
  %sleeping = icmp ne i32 %was, 0
  br i1 %sleeping, label %narrow, label %out
narrow:
  %swap = cmpxchg ptr %record.narrowed.at, i32 0, i32 1 seq_cst seq_cst
  %whole = extractvalue { i32, i1 } %swap, 1
  br i1 %whole, label %keep, label %rouse
keep:
  %tid = load atomic i32, ptr %record.number.at monotonic, align 4
  %kept = call i1 @keep_off(i32 %tid, i32 %here, ptr %record.cores.at)
  %state = select i1 %kept, i32 2, i32 0
  store atomic i32 %state, ptr %record.narrowed.at seq_cst, align 4
  br label %rouse
rouse:
  call void @wake_up(ptr %record.asleep.at, i32 1)
  br label %out
out:
  ret void
}
define internal void @widen(ptr %record) {
entry:
  %record.narrowed.at
  %record.cores.at
  %state = load atomic i32, ptr %record.narrowed.at seq_cst, align 4
  %narrow = icmp eq i32 %state, 2
  br i1 %narrow, label %restore, label %out
restore:
  call void @restore(ptr %record.cores.at)
  store atomic i32 0, ptr %record.narrowed.at seq_cst, align 4
  br label %out
out:
  ret void
}
define internal void @wake_team(ptr %pool, i64 %team, i64 %threads, i64 %teams) {
entry:
  %process.at
  %process = load i32, ptr %process.at
  %mine = call i32 @getpid()
  %parent = icmp eq i32 %process, %mine
  br i1 %parent, label %begin, label %out
begin:
  %here = <HERE>
  br label %next
next:
  %k = phi i64 [ 1, %begin ], [ %k1, %done ]
  %number = phi i64 [ %team, %begin ], [ %following, %done ]
  %more = icmp ult i64 %k, %threads
  br i1 %more, label %look, label %out
look:
  %index = add i64 %number, 1
  %record = call ptr @place(ptr %pool, i64 %index)
  %record.asleep.at
  %asleep = load atomic i32, ptr %record.asleep.at seq_cst, align 4
  %sleeping = icmp ne i32 %asleep, 0
  br i1 %sleeping, label %rouse, label %done
rouse:
  call void @wake(ptr %record, i32 %here)
  br label %done
done:
  %k1 = add i64 %k, 1
  %following = add i64 %number, %teams
  br label %next
out:
  ret void
}
"""

WORKER = """
define internal { ptr, i1, i32 } @helped(ptr %pool, i64 %index, i32 %crowd) {
entry:
  %divided = call { i64, i64 } @teams(ptr %pool, i32 %crowd)
  %helpers = extractvalue { i64, i64 } %divided, 0
  %teams = extractvalue { i64, i64 } %divided, 1
  %spare = icmp ugt i64 %index, %helpers
  br i1 %spare, label %none, label %one
one:
  %number = sub i64 %index, 1
  %team = urem i64 %number, %teams
  %turn = udiv i64 %number, %teams
  %odd = trunc i64 %turn to i1
  %back = xor i1 %odd, true
  %place = call ptr @place(ptr %pool, i64 %team)
  %a = insertvalue { ptr, i1, i32 } { ptr null, i1 false, i32 0 }, ptr %place, 0
  %b = insertvalue { ptr, i1, i32 } %a, i1 %back, 1
  ret { ptr, i1, i32 } %b
none:
  %threads.at
  %threads = load atomic i64, ptr %threads.at monotonic, align 8
  %last = sub i64 %threads, 1
  %unused = call ptr @place(ptr %pool, i64 %last)
  %c = insertvalue { ptr, i1, i32 } { ptr null, i1 false, i32 <TIRED> }, ptr %unused, 0
  ret { ptr, i1, i32 } %c
}
define internal ptr @worker(ptr %record) {
entry:
  %record.pool.at
  %record.index.at
  %record.number.at
  %record.asleep.at
  %pool = load ptr, ptr %record.pool.at
  %index = load i64, ptr %record.index.at
  %tid = call i32 @own_number()
  store atomic i32 %tid, ptr %record.number.at monotonic, align 4
  %crowd.at
  %stop.at
  %sleepers.at
  br label %assign
assign:
  call void @widen(ptr %record)
  %crowd = load atomic i32, ptr %crowd.at seq_cst, align 4
  %help = call { ptr, i1, i32 } @helped(ptr %pool, i64 %index, i32 %crowd)
  %place = extractvalue { ptr, i1, i32 } %help, 0
  %back = extractvalue { ptr, i1, i32 } %help, 1
  %spun = extractvalue { ptr, i1, i32 } %help, 2
  %ticket.at
  br label %spin
spin:
  %n = phi i32 [ %spun, %assign ], [ %n1, %again ], [ 0, %busy ]
  %crowd1 = load atomic i32, ptr %crowd.at monotonic, align 4
  %same = icmp eq i32 %crowd1, %crowd
  br i1 %same, label %look, label %assign
look:
  %ticket = load atomic i64, ptr %ticket.at seq_cst, align 8
  %left = and i64 %ticket, 65535
  %work = icmp ne i64 %left, 0
  br i1 %work, label %busy, label %idle
busy:
  call void @take_units(ptr %place, i64 %index, i1 %back)
  br label %spin
idle:
  %stop = load atomic i32, ptr %stop.at seq_cst, align 4
  %stopped = icmp ne i32 %stop, 0
  br i1 %stopped, label %out, label %patient
patient:
  %tired = icmp sgt i32 %n, <SPINS>
  br i1 %tired, label %sleep, label %again
again:
  <PAUSE>
  %n1 = add i32 %n, 1
  br label %spin
sleep:
  call void @widen(ptr %record)
  store atomic i32 1, ptr %record.asleep.at seq_cst, align 4
  %s0 = atomicrmw add ptr %sleepers.at, i32 1 seq_cst
  %ticket2 = load atomic i64, ptr %ticket.at seq_cst, align 8
  %left2 = and i64 %ticket2, 65535
  %stop2 = load atomic i32, ptr %stop.at seq_cst, align 4
  %wide2 = zext i32 %stop2 to i64
  %crowd2 = load atomic i32, ptr %crowd.at seq_cst, align 4
  %moved = xor i32 %crowd2, %crowd
  %other = zext i32 %moved to i64
  %reason = or i64 %left2, %wide2
  %reasons = or i64 %reason, %other
  %calm = icmp eq i64 %reasons, 0
  br i1 %calm, label %wait, label %sleep.end
wait:
  call void @sleep_on(ptr %record.asleep.at, i32 1)
  br label %sleep.end
sleep.end:
  store atomic i32 0, ptr %record.asleep.at seq_cst, align 4
  %s1 = atomicrmw sub ptr %sleepers.at, i32 1 seq_cst
  br label %assign
out:
  call void @widen(ptr %record)
  ret ptr null
}
"""
