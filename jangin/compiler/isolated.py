"""Compiling in a process of its own: its memory goes back to the system, and what ends it ends no other.

What this imports is little, so that the other process starts before the caller's own imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import replace
from multiprocessing import Pipe
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

    from jangin.compiler.request import Progress, Request
    from jangin.runtime.compiled import Compiled

_START = (
    "import gc, sys; gc.disable(); sys.path[:] = {path!r}; "
    "from jangin.compiler.orphans import end_with; end_with({parent}); "
    "from jangin.compiler.server import serve; serve({pipe}, {spare})"
)
"""Nothing is collected in a process that ends soon: hardly anything that it makes is in a circle."""


class _Started(NamedTuple):
    """`spare`: the descriptor of the file for what the cache doesn't keep."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    spare: int


class Apart:
    """Another process, which builds what it is asked for; a context, at whose end it and those that it forks
    end. It starts when it is first asked, or `at_once`.

    They are a group of their own, which the terminal's Ctrl-C doesn't reach; where this process is killed,
    the system ends them. What they made comes in the cache's file or one that never had a name, so that
    nothing is left of it either."""

    def __init__(self, at_once: bool = False) -> None:
        self._stack = ExitStack()
        self._started = self._start() if at_once else None

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> _Started:
        pipe, theirs = Pipe()
        self._stack.enter_context(pipe)
        spare = tempfile.TemporaryFile()  # noqa: SIM115 (the context's end closes it)
        self._stack.callback(spare.close)
        given = {"pipe": theirs.fileno(), "spare": spare.fileno()}
        with theirs:
            start = _START.format(path=sys.path, parent=os.getpid(), **given)
            process = subprocess.Popen(
                [sys.executable, "-c", start], pass_fds=[*given.values()], process_group=0
            )
        self._stack.callback(_end, process)
        return _Started(process, pipe, spare.fileno())

    def build(self, request: Request, progress: Progress | None = None) -> Compiled:
        """As `request.carry_out`, by that process. Raises what it raises, and CompileError where it dies."""
        from jangin.ir.graph import CompileError
        from jangin.runtime.compiled import read_artifact

        serialize = getattr(request.model, "SerializeToString", None)
        if serialize is not None:
            request = replace(request, model=serialize())
        process, pipe, spare = self._started or self._start()
        try:
            pipe.send((request, progress is not None))
            return read_artifact(_result(pipe, progress) or f"/proc/self/fd/{spare}")
        except (EOFError, BrokenPipeError, ConnectionResetError):
            end = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays its group's number
            assert end is not None
            raise CompileError(_epitaph(end.si_status, end.si_code == os.CLD_EXITED)) from None


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _result(pipe: Connection, progress: Progress | None) -> Path | None:
    """Where the cache has the compiled model, once it is made; None where that has been handed over."""
    while True:
        kind, *what = pipe.recv()
        if kind == "failed":
            raise what[0]
        if kind == "built":
            path: Path | None = what[0]
            return path
        if progress is not None:
            progress(*what)


def _epitaph(status: int, exited: bool) -> str:
    """What the compiler's process died of: `status` is its exit code, or the signal that ended it."""
    why = f"exit code {status}" if exited else f"signal {signal.Signals(status).name}"
    if not exited and status == signal.SIGKILL:
        why += ": the system may be out of memory"
    return f"the process that compiled the model ended early ({why}); isolated=False compiles in this one"
