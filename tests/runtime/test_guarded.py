"""The guarded memory of tests finds writes beyond a buffer, and prevents reads there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from guarded import GUARD, PLACES, Memory, watched
from plans import buffer, compiled, kernel, launch, plan

from jangin.runtime import outputs
from jangin.runtime.executable import Executable

N, SIZE, SCRATCH = 10, 40, 64
"""Elements of each buffer, its bytes, and the bytes of a worker's scratch memory."""
pytestmark = pytest.mark.usefixtures("plain_memory")


def shifted(name: str, read: int = 0, written: int = 0, scratch: int = 0) -> tuple[str, str]:
    """Return the kernel y[i + written] = x[i + read]. The number passes through a byte of scratch memory."""
    return kernel(
        name,
        f"""
  %x.at = getelementptr float, ptr %x.i, i64 {read}
  %y.to = getelementptr float, ptr %y.i, i64 {written}
  %s = getelementptr i8, ptr %scratch, i64 {scratch}
  store i8 1, ptr %s, align 1
  %v = load float, ptr %x.at, align 4
  store float %v, ptr %y.to, align 4""",
    )


def run(memory: Memory, first: tuple[str, str], second: tuple[str, str], threads: int = 1) -> np.ndarray:
    """Run two kernels: from x to t in the arena, and from t to y."""
    buffers = [
        buffer("x", "input", N),
        buffer("t", "arena", N, live=(0, 1), offset=0),
        buffer("u", "arena", N, live=(0, 1), offset=64),
        buffer("y", "output", N),
    ]
    launches = [launch("first", ["x", "t"], N, scratch=SCRATCH), launch("second", ["t", "y"], N)]
    with watched(memory):
        exe = Executable(compiled(plan(buffers, launches), [first, second]), threads)
        result: np.ndarray = exe(memory.copy(np.arange(N, dtype=np.float32)))
    return result


def test_nothing_is_told_of_what_is_right() -> None:
    for memory in (Memory(), Memory(pages=True)):
        for threads in (1, 3):
            got = run(memory, shifted("first", scratch=SCRATCH - 1), shifted("second"), threads)
            np.testing.assert_array_equal(got, np.arange(N))
            assert not memory.faults()


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ({}, {"written": 1}, f"float32[{N}] of {SIZE} bytes: 4 more written, at {SIZE} to {SIZE + 3}"),
        ({}, {"written": -1}, f"float32[{N}] of {SIZE} bytes: 4 more written, at -4 to -1"),
        ({"written": 1}, {}, f"4 more written, at {SIZE} to {SIZE + 3}"),
        ({"written": -1}, {}, "4 more written, at -4 to -1"),
        ({"scratch": SCRATCH}, {}, f"1 more written, at {SCRATCH} to {SCRATCH}"),
        ({"scratch": SCRATCH + GUARD - 1}, {}, f"at {SCRATCH + GUARD - 1} to {SCRATCH + GUARD - 1}"),
    ],
)
def test_what_is_written_beyond(first: dict[str, int], second: dict[str, int], told: str) -> None:
    memory = Memory()
    run(memory, shifted("first", **first), shifted("second", **second))
    (fault,) = memory.faults()
    assert told in fault
    assert not memory.faults()


def test_arrays_are_looked_at_when_they_go() -> None:
    memory = Memory()
    array = memory.fresh((3,), np.dtype(np.int16))
    assert array.view(np.uint8).tolist() == [255] * 6, "no number"
    behind = np.lib.stride_tricks.as_strided(array, (4,), (2,))
    behind[3] = 7
    del array, behind
    assert memory.faults() == ["int16[3] of 6 bytes: 2 more written, at 6 to 7"]


@pytest.mark.parametrize("which", ["input", "arena"])
@pytest.mark.parametrize("read", [0, 1])
def test_what_is_read_beyond_ends_the_process(which: str, read: int) -> None:
    """A read beyond an input, or beyond a buffer of the arena, crashes the process."""
    kernels = f"shifted('first', {read}), shifted('second')"
    if which == "arena":
        kernels = f"shifted('first'), shifted('second', {read})"
    tests = Path(__file__).parents[1]
    code = f"from test_guarded import *; run(Memory(pages=True), {kernels})"
    paths = os.pathsep.join([str(tests), str(tests / "runtime"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, timeout=600)
    assert done.returncode == (-signal.SIGSEGV if read else 0)


def test_all_memory_of_kernels_is_watched() -> None:
    """A module that makes memory by `aligned` is one of those that are watched. Pinned memory for copies is
    the exception: kernels have no address of it."""
    root = Path(outputs.__file__).parent
    makers = {p.stem for p in root.rglob("*.py") if re.search(r"\baligned\(", p.read_text())}
    assert makers - {"cuda_objects"} == {m.__name__.rpartition(".")[2] for m in PLACES}
