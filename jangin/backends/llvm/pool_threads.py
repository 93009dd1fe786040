"""The start and end of the pool's threads (`pool.py`), as LLVM IR text. `pool_module` replaces the words in
angle brackets."""

from __future__ import annotations

CREATE = """
define <CREATE> {
entry:
  %many = icmp sgt i32 %asked, <MAX_THREADS>
  %threads = select i1 %many, i32 <MAX_THREADS>, i32 %asked
  %none = icmp slt i32 %threads, 2
  br i1 %none, label %fail, label %allocate
allocate:
  %wide = sext i32 %threads to i64
  %records = mul i64 %wide, <HANDLE_BYTES>
  %unrounded = add i64 %records, <HANDLES>
  %bumped = add i64 %unrounded, 63
  %size = and i64 %bumped, -64<NARROW>
  %pool = call ptr @aligned_alloc(<L> 64, <L> <BYTES>)
  %null = icmp eq ptr %pool, null
  br i1 %null, label %fail, label %start
start:
  call void @llvm.memset.p0.i64(ptr %pool, i8 0, i64 %size, i1 false)
  %handles.at
  br label %next
next:
  %k = phi i64 [ 1, %start ], [ %k1, %spawn ]
  %full = icmp eq i64 %k, %wide
  br i1 %full, label %ready, label %spawn
spawn:
  %skip = mul i64 %k, <HANDLE_BYTES>
  %record = getelementptr i8, ptr %handles.at, i64 %skip
  %record.pool = getelementptr i8, ptr %record, i64 8
  store ptr %pool, ptr %record.pool
  %record.index = getelementptr i8, ptr %record, i64 16
  store i64 %k, ptr %record.index
  %error = call i32 @pthread_create(ptr %record, ptr null, ptr @worker, ptr %record)
  %k1 = add i64 %k, 1
  %started = icmp eq i32 %error, 0
  br i1 %started, label %next, label %ready
ready:
  %have = phi i64 [ %wide, %next ], [ %k, %spawn ]
  %workers.at
  store i64 %have, ptr %workers.at
  ret ptr %pool
fail:
  ret ptr null
}
"""

DESTROY = """
define <DESTROY> {
entry:
  %null = icmp eq ptr %pool, null
  br i1 %null, label %out, label %stop
stop:
  %stop.at
  store atomic i32 1, ptr %stop.at seq_cst, align 4
  %wake.at
  %w = atomicrmw add ptr %wake.at, i32 1 seq_cst
  call void @wake_up(ptr %wake.at, i32 2147483647)
  %workers.at
  %count = load i64, ptr %workers.at
  %handles.at
  br label %next
next:
  %k = phi i64 [ 1, %stop ], [ %k1, %join ]
  %all = icmp uge i64 %k, %count
  br i1 %all, label %release, label %join
join:
  %skip = mul i64 %k, <HANDLE_BYTES>
  %record = getelementptr i8, ptr %handles.at, i64 %skip
  %handle = load <L>, ptr %record
  %e = call i32 @pthread_join(<L> %handle, ptr null)
  %k1 = add i64 %k, 1
  br label %next
release:
  call void @free(ptr %pool)
  br label %out
out:
  ret void
}
"""
