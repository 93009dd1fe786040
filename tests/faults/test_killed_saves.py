"""The process is killed at each system call of a save. The file is the old one or the new one, and a later
save works."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kinds import kind, model

import jangin

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts calls by Linux's ptrace")
TRACE_ME, NEXT_CALL = 0, 24
"""Requests of `ptrace`: the parent traces this process; go on until a system call begins or ends."""
UNTRACED = 3
"""The exit status of a child that its parent may not trace. Python's own errors end with 1 or 2."""
KILLS = 24
"""The most deaths in a quick test. A save has some hundred places to die at."""


def _traced(request: int, process: int) -> int:
    trace: Any = ctypes.CDLL(None, use_errno=True).ptrace
    trace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    trace.restype = ctypes.c_long
    result: int = trace(request, process, None, None)
    return result


def ended_at(act: Callable[[], object], place: int | None) -> int:
    """Run a function in a child process, and kill the child at the stop number `place`. It stops at the
    begin and at the end of each system call. Return the number of its stops. None lets it end."""
    child = os.fork()
    if not child:
        if _traced(TRACE_ME, 0):
            os._exit(UNTRACED)
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            act()
        except BaseException:  # the child must not go on as a second run of the tests
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == UNTRACED:
        pytest.skip("this system lets no process trace its child")
    assert os.WIFSTOPPED(status), status
    count = 0
    while count != place:
        assert not _traced(NEXT_CALL, child)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            assert place is None and os.WEXITSTATUS(status) == 0, (place, status)
            return count
        count += 1
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return count


def trainer() -> Any:
    w = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    net = model("g (float[4,6] x) => (float[4,5] y) { y = MatMul(x, w) }", w=w)
    batch = np.ones((4, 6), np.float32), np.arange(4)
    made = jangin.train(net, "cross_entropy", "adam", batch, trainable=["w"], threads=1)
    made.step(batch)
    return made


def checkpoint() -> tuple[Callable[[Path], object], Callable[[Path], object]]:
    made = trainer()
    return made.save, made.load


def executable() -> tuple[Callable[[Path], object], Callable[[Path], object]]:
    made = kind("plan").compiled(isolated=False)
    return made.save, kind("plan").loaded


def export() -> tuple[Callable[[Path], object], Callable[[Path], object]]:
    import onnx

    return trainer().export, onnx.load


FILES = {"checkpoint.npz": checkpoint, "model.jgn": executable, "trained.onnx": export}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("most", [KILLS, pytest.param(sys.maxsize, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FILES)
def test_a_save_that_is_killed(name: str, most: int, tmp_path: Path) -> None:
    save, load = FILES[name]()
    path = tmp_path / name
    save(path)
    content = path.read_bytes()
    old = b"the old file"
    path.write_bytes(old)
    count = ended_at(lambda: save(path), None)
    assert path.read_bytes() == content
    seen = set()
    for place in range(0, count, -(-count // most)):
        path.write_bytes(old)
        ended_at(lambda: save(path), place)
        assert path.read_bytes() in (old, content), f"killed at place {place} of {count}"
        seen.add(path.read_bytes())
    assert old in seen
    save(path)
    load(path)
    assert path.read_bytes() == content
