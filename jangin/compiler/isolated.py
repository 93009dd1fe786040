"""Compiling in a process of its own: its memory goes back to the system, and what ends it ends no other."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from jangin.compiler.request import Progress, Request, carry_out
from jangin.ir.graph import CompileError
from jangin.runtime.artifact import Artifact
from jangin.runtime.threads import default_threads
from jangin.runtime.variants_artifact import Compiled, read_artifact

if TYPE_CHECKING:
    from subprocess import Popen

_START = (
    "import sys; sys.path[:] = {path!r}; from jangin.compiler.orphans import end_with; end_with({parent}); "
    "from jangin.compiler.isolated import serve; serve({pipe}, {spare})"
)


def build_apart(request: Request, progress: Progress | None = None) -> Compiled:
    """As `request.carry_out`, by another process. Raises what it raises, and CompileError where it dies.

    That process and those it forks are a group of their own, which the terminal's Ctrl-C doesn't reach and
    which ends with this call; where this process is killed, the system ends them. What they made comes in
    the cache's file or one that never had a name, so that nothing is left of it either."""
    if not isinstance(request.model, (str, os.PathLike, bytes)):
        request = replace(request, model=request.model.SerializeToString())
    ours, theirs = Pipe()
    with ours, tempfile.TemporaryFile() as spare:
        given = {"pipe": theirs.fileno(), "spare": spare.fileno()}
        with theirs:
            start = _START.format(path=sys.path, parent=os.getpid(), **given)
            process = subprocess.Popen(
                [sys.executable, "-c", start], pass_fds=[*given.values()], process_group=0
            )
        try:
            ours.send((request, progress is not None))
            return read_artifact(_result(ours, process, progress) or f"/proc/self/fd/{spare.fileno()}")
        except (EOFError, BrokenPipeError, ConnectionResetError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its number stays that of its group
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    raise CompileError(_epitaph(process.returncode))


def _result(pipe: Connection, process: Popen[bytes], progress: Progress | None) -> Path | None:
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


def _epitaph(code: int) -> str:
    """What the compiler's process died of."""
    why = f"exit code {code}"
    if code < 0:
        why = f"signal {signal.Signals(-code).name}"
    if code == -signal.SIGKILL:
        why += ": the system may be out of memory"
    return f"the process that compiled the model ended early ({why}); isolated=False compiles in this one"


def serve(pipe: int, spare: int) -> None:
    """The other process: build what the pipe asks for, tell how it goes, and end. What the cache doesn't
    keep is written to the file `spare`."""
    with Connection(pipe) as connection:
        request, told = connection.recv()
        try:
            tell = (lambda *step: connection.send(("step", *step))) if told else None
            artifact, path = carry_out(request, tell, processes=default_threads())
            if path is None:
                with open(spare, "wb", closefd=False) as file:
                    if isinstance(artifact, Artifact):
                        artifact.write(file, kept=False)
                    else:
                        artifact.write(file)
            connection.send(("built", path))
        except Exception as error:
            connection.send(("failed", _sendable(error)))


def _sendable(error: Exception) -> Exception:
    """The exception, or, where a pipe can't carry it, one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # any class may refuse, in its own way
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
