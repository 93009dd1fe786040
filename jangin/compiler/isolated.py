"""Compiling in a process of its own: its memory goes back to the system, and what ends it ends no other."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from jangin.compiler.driver import Progress, Request, build
from jangin.ir.graph import CompileError
from jangin.runtime.artifact import Artifact
from jangin.runtime.program_artifact import ProgramArtifact, read_artifact
from jangin.runtime.threads import default_threads

if TYPE_CHECKING:
    from subprocess import Popen

_START = "import sys; sys.path[:] = {path!r}; from jangin.compiler.isolated import serve; serve({pipe})"


def build_apart(request: Request, progress: Progress | None = None) -> Artifact | ProgramArtifact:
    """As `driver.build`, by another process. Raises what it raises, and CompileError where it dies."""
    if not isinstance(request.model, (str, os.PathLike, bytes)):
        request = replace(request, model=request.model.SerializeToString())
    ours, theirs = Pipe()
    with ours, tempfile.TemporaryDirectory(prefix="jangin-") as folder:
        with theirs:
            start = _START.format(path=sys.path, pipe=theirs.fileno())
            process = subprocess.Popen([sys.executable, "-c", start], pass_fds=[theirs.fileno()])
        try:
            ours.send((request, Path(folder, "model.jgn"), progress is not None))
            return read_artifact(_result(ours, process, progress))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise CompileError(_epitaph(process.wait())) from None
        finally:
            process.kill()
            process.wait()


def _result(pipe: Connection, process: Popen[bytes], progress: Progress | None) -> Path:
    """Where the compiled model lies, once it does."""
    while True:
        kind, *what = pipe.recv()
        if kind == "failed":
            raise what[0]
        if kind == "built":
            path: Path = what[0]
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


def serve(pipe: int) -> None:
    """The other process: build what the pipe asks for, tell how it goes, and end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what interrupts the caller ends this process by its hand
    with Connection(pipe) as connection:
        request, spare, told = connection.recv()
        try:
            tell = (lambda *step: connection.send(("step", *step))) if told else None
            artifact, path = build(request, tell, processes=default_threads())
            if path is None:
                artifact.save(spare)
            connection.send(("built", path or spare))
        except Exception as error:
            connection.send(("failed", _sendable(error)))


def _sendable(error: Exception) -> Exception:
    """The exception, or, where a pipe can't carry it, one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # any class may refuse, in its own way
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
