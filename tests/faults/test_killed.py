"""The compiler's processes are killed, as by a system or a control group without memory. One error reports it
soon, and no process is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kinds import kind

import jangin
from jangin.compiler.processes import isolated

sys.path.insert(0, str(Path(__file__).parent.parent))
from test_isolated import ENDED, X, children, layers, runs

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="finds processes by Linux's /proc"
)
SAID = "most likely this machine, or the process's control group .* is out of memory.*jangin compile -o"


def own_children(process: int) -> list[int]:
    texts = [p.read_text() for p in Path(f"/proc/{process}/task").glob("*/children")]
    return sorted(int(n) for text in texts for n in text.split())


def victim(server: int, which: str) -> int | None:
    """Return the process to kill.

    "server" is the process that was started. "first" is the first worker that the server forked. "other" is
    another worker, which the first worker forked, or None if there is none yet. "model" is the process that
    was forked for this model, the server's youngest."""
    if which == "server":
        return server
    first, *_, model = own_children(server)
    others = own_children(first)
    return {"first": first, "model": model, "other": others[-1] if others else None}[which]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "which", ["model", *(pytest.param(n, marks=pytest.mark.slow) for n in ("other", "server", "first"))]
)
def test_a_killed_process_is_one_error(which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # other tests' processes use another folder, so that none waits for this one
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made: list[isolated._Started] = []
    start = isolated._start
    monkeypatch.setattr(isolated, "_start", lambda *given: made.append(start(*given)) or made[-1])
    left: set[int] = set()
    killed: list[float] = []

    def tell(done: int, total: int, what: str) -> None:
        server = made[0].process.pid
        process = victim(server, which) if what == "kernels" and not killed else None
        if process is not None:
            left.update({server, *children(server)})
            os.kill(process, signal.SIGKILL)
            killed.append(time.monotonic())

    isolated._end_all()
    with pytest.raises(jangin.CompileError, match=SAID):
        jangin.compile(layers(60), cache=False, isolated=True, progress=tell)
    assert killed, "it was over before"
    assert time.monotonic() - killed[0] < ENDED
    while any(map(runs, left)) and time.monotonic() < killed[0] + ENDED:
        time.sleep(0.01)
    assert not [p for p in left if runs(p)]
    assert not [*tmp_path.iterdir()]
    assert jangin.compile(layers(2), cache=False, isolated=True)(X).shape == (4, 18)
    isolated._end_all()


def test_no_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    isolated._end_all()
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(subprocess, "Popen", refused)
    with pytest.raises(OSError, match="no process starts that compiles; isolated=False compiles in this one"):
        jangin.compile(kind("plan").model, cache=False, isolated=True)
    assert len(os.listdir("/proc/self/fd")) == before


# --- real control groups

COMPILE = """
import sys; sys.path.insert(0, sys.argv[1])
from test_isolated import layers
import jangin, os, time
start = time.monotonic()
try:
    jangin.compile(layers(200), cache=False, threads=1)
    print("compiled")
except (jangin.CompileError, MemoryError, OSError) as error:
    print(type(error).__name__, error)
"""


@contextmanager
def control_group(controller: str, settings: dict[str, int]) -> Iterator[Callable[[], None]]:
    """A control group of version 1 with a limit. Yields a function that moves a process into it."""
    folder = Path(f"/sys/fs/cgroup/{controller}/jangin-test-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        for name, value in settings.items():
            (folder / name).write_text(str(value))
        yield lambda: (folder / "cgroup.procs").write_text("0") and None
    finally:
        end = time.monotonic() + ENDED
        while time.monotonic() < end:
            try:
                folder.rmdir()
                break
            except OSError:  # the group's processes are still ending
                time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("controller", "settings", "said"),
    [
        (
            "memory",
            {"memory.limit_in_bytes": 100 << 20},
            "CompileError .*out of memory|MemoryError|ended by -9",
        ),
        ("pids", {"pids.max": 3}, "Error.*(compiles? in this one|can't go on|process that compiled)"),
    ],
)
def test_a_control_group(controller: str, settings: dict[str, int], said: str) -> None:
    """The control group has less memory than a compilation takes, or few processes. No message is possible if
    memory is so short that the caller itself is killed."""
    with control_group(controller, settings) as enter:
        done = subprocess.run(
            [sys.executable, "-c", COMPILE, str(Path(__file__).parent.parent)],
            capture_output=True, text=True, timeout=300, preexec_fn=enter,
        )  # fmt: skip
    text = done.stdout or f"ended by {done.returncode}"
    assert re.search(said, text), (text, done.stderr[-2000:])
    assert "Traceback" not in done.stdout
