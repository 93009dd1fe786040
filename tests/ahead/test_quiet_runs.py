"""Deadlines: a run on one thread allocates nothing, calls no system and takes no lock."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from built import STRICT, small_network

import jangin
from jangin.ahead.source import compiler_flags

PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "net.h"
static long asked;
static char arena[1 << 20];
static float x[3 * 19 * 23], y[1 << 16];
extern int __real_pthread_mutex_lock(pthread_mutex_t *at);
int __wrap_pthread_mutex_lock(pthread_mutex_t *at) { ++asked; return __real_pthread_mutex_lock(at); }
extern void *__real_malloc(size_t bytes), *__real_calloc(size_t count, size_t bytes);
extern void *__real_aligned_alloc(size_t to, size_t bytes);
void *__wrap_malloc(size_t bytes) { ++asked; return __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { ++asked; return __real_calloc(count, bytes); }
void *__wrap_aligned_alloc(size_t to, size_t bytes) { ++asked; return __real_aligned_alloc(to, bytes); }
int main(int count, char **given) {
  const void *inputs[] = {x};
  void *outputs[] = {y};
  long runs = count > 1 ? atol(given[1]) : 0;
  if (net_arena_bytes(NULL, 1) > (int64_t)sizeof arena) return 3;
  for (long n = 0; n < runs; ++n)
    if (net_run((void *)inputs, (void *)outputs, NULL, arena, sizeof arena, 1)) return 2;
  return asked > 0;
}
"""
"""Any number of runs in static memory. It fails if a lock was taken or memory was allocated."""


def calls(folder: Path, runs: int) -> Counter[str]:
    """Return how often the program makes each system call."""
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", "calls.txt", "./program", str(runs)], cwd=folder, timeout=60
    )
    assert done.returncode == 0
    lines = (folder / "calls.txt").read_text().splitlines()
    return Counter(line.split(maxsplit=1)[1].split("(")[0] for line in lines)


@pytest.mark.sampled(2)
def test_runs_make_no_system_calls(tmp_path: Path) -> None:
    """A hundred runs make the same system calls as none: those of a program that starts and ends."""
    for tool in ("gcc", "strace"):
        if shutil.which(tool) is None:
            pytest.skip(f"not installed here: {tool}")
    made = jangin.emit(small_network(), "c", name="net")
    made.save(tmp_path)
    (tmp_path / "program.c").write_text(PROGRAM)
    sources = ["program.c", "net.c", "net_weights.c", "net_threads.c"]
    wrapped = [f"-Wl,--wrap={f}" for f in ("pthread_mutex_lock", "malloc", "calloc", "aligned_alloc")]
    flags = [*STRICT, *compiler_flags(made.model.target), *wrapped]
    command = ["gcc", *flags, *sources, "-o", "program", "-lm", "-lpthread"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    if subprocess.run(["strace", "-o", "calls.txt", "true"], cwd=tmp_path, capture_output=True).returncode:
        pytest.skip("strace may trace no process here")
    assert calls(tmp_path, 100) == calls(tmp_path, 0)
