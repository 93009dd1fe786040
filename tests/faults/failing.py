"""A library that lets the n-th allocation of a process fail. It is loaded before all others."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMPILER = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), "")

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static long seen, fails_at;
static int all_after, alone;
static pthread_t armed;
static size_t least;
static int spared;
static uintptr_t starts[64], ends[64];

void failing_spare_none(void) { spared = 0; }
void failing_spare(uintptr_t from, uintptr_t to) {
    if (spared == 64) abort();
    starts[spared] = from; ends[spared++] = to;
}
void failing_arm(long n, int forever, size_t bytes, int one_thread) {
    least = bytes; all_after = forever; alone = one_thread; armed = pthread_self(); seen = 0;
    __atomic_store_n(&fails_at, n, __ATOMIC_SEQ_CST);
}
long failing_disarm(void) { __atomic_store_n(&fails_at, 0, __ATOMIC_SEQ_CST); return seen; }

static int fails(size_t size, void *caller) {
    long at = __atomic_load_n(&fails_at, __ATOMIC_RELAXED), n;
    uintptr_t from = (uintptr_t)caller;
    if (!at || size < least || (alone && !pthread_equal(armed, pthread_self()))) return 0;
    for (int i = 0; i < spared; i++) if (from >= starts[i] && from < ends[i]) return 0;
    n = __atomic_add_fetch(&seen, 1, __ATOMIC_RELAXED);
    if (n != at && !(all_after && n > at)) return 0;
    errno = ENOMEM;
    return 1;
}
#define FAILS(size) fails(size, __builtin_return_address(0))

void *malloc(size_t size) { return FAILS(size) ? 0 : __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return FAILS(n * size) ? 0 : __libc_calloc(n, size); }
void *realloc(void *p, size_t size) { return size && FAILS(size) ? 0 : __libc_realloc(p, size); }
void *aligned_alloc(size_t to, size_t size) { return FAILS(size) ? 0 : __libc_memalign(to, size); }
void *memalign(size_t to, size_t size) { return FAILS(size) ? 0 : __libc_memalign(to, size); }
int posix_memalign(void **p, size_t to, size_t size) {
    if (FAILS(size)) return ENOMEM;
    return (*p = __libc_memalign(to, size)) ? 0 : ENOMEM;
}
void *mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset) {
    if (FAILS(size)) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, size, prot, flags, fd, offset);
}
void *mmap64(void *at, size_t size, int prot, int flags, int fd, off_t offset) {
    if (FAILS(size)) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, size, prot, flags, fd, offset);
}
static int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
__attribute__((constructor)) static void find(void) {
    *(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
}
int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x) {
    return FAILS(1 << 20) ? EAGAIN : create(t, a, f, x);
}
"""


def library(folder: Path) -> Path:
    """Build the library in a folder."""
    source, built = folder / "failing.c", folder / "failing.so"
    if not built.exists():
        source.write_text(SOURCE)
        subprocess.run(
            [COMPILER, "-O2", "-shared", "-fPIC", "-fno-builtin", "-o", built, source, "-ldl"], check=True
        )
    return built


def environment(built: Path) -> dict[str, str]:
    """Return the environment of a process whose allocations can fail. Each of Python's objects is an
    allocation of its own."""
    return {**os.environ, "LD_PRELOAD": str(built), "PYTHONMALLOC": "malloc"}


class Failing:
    """The control, in such a process, of the allocations that fail."""

    def __init__(self) -> None:
        self._own = ctypes.CDLL(None)
        self._own.failing_disarm.restype = ctypes.c_long
        self._own.failing_arm.argtypes = ctypes.c_long, ctypes.c_int, ctypes.c_size_t, ctypes.c_int
        self._own.failing_spare.argtypes = ctypes.c_size_t, ctypes.c_size_t
        self.seen = 0

    def spare(self, *libraries: str) -> None:
        """Let the allocations of libraries succeed that would end the process."""
        self._own.failing_spare_none()
        for line in Path("/proc/self/maps").read_text().splitlines():
            ends, mode, *_, path = line.split()
            if "x" in mode and any(name in path for name in libraries):
                self._own.failing_spare(*(int(n, 16) for n in ends.split("-")))

    @contextmanager
    def at(self, n: int, *, forever: bool, least: int, alone: bool) -> Iterator[None]:
        """Let allocation number `n` of at least `least` bytes fail, or with `forever` all that follow too.

        `alone` counts only this thread. `seen` is then the number of allocations requested."""
        self._own.failing_arm(n, forever, least, alone)
        try:
            yield
        finally:
            self.seen = self._own.failing_disarm()
