"""The thread pool that is shipped as C: every part of a job is done once, with and without spinning."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from built import STRICT, layers

import jangin

PROGRAM = r"""
#include <stdio.h>
#include <stdint.h>
#include "net.h"
int32_t net_start_threads(int32_t count);
void net_stop_threads(void);
void net_parallel(net_task function, void *context, int32_t count);
static int64_t done[8];
static void task(void *context, int32_t worker) { done[worker] += *(int64_t *)context; }
int main(void) {
  for (int32_t round = 0; round < 3; ++round) {
    if (net_start_threads(2 + round)) return 2;
    for (int64_t job = 1; job <= 3000; ++job) net_parallel(task, &job, (int32_t)(job % 8 + 1));
    net_stop_threads();
  }
  int64_t wanted[8] = {0};
  for (int64_t job = 1; job <= 3000; ++job)
    for (int64_t worker = 0; worker < job % 8 + 1; ++worker) wanted[worker] += 3 * job;
  for (int32_t worker = 0; worker < 8; ++worker)
    if (done[worker] != wanted[worker]) return 1;
  puts("right");
  return 0;
}
"""
"""Jobs of 1 to 8 parts, one right after another, on 2 to 4 threads. A part that is done twice or never, or
with the context of another job, changes a sum."""


@pytest.mark.parametrize("flags", [["-O2"], ["-O2", "-DNET_SPINS=0"], ["-O1", "-g", "-fsanitize=thread"]])
def test_each_part_of_a_job_is_done_once(flags: list[str], tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("not installed here: gcc")
    jangin.emit(layers(), "c", name="net").save(tmp_path)
    (tmp_path / "jobs.c").write_text(PROGRAM)
    command = ["gcc", *STRICT, *flags, "jobs.c", "net_threads.c", "-lpthread", "-o", "jobs"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(["./jobs"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
