"""Compiles in a separate process: its memory returns to the system, and a crash ends no other process.

The process stays for a while, for the next compilation. This module imports little, so that the other process
starts before the caller's own imports.
"""

from __future__ import annotations

import atexit
import errno
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, NamedTuple

from jangin.environment import everything
from jangin.runtime.system import Lacking, in_children
from jangin.runtime.system.processes import End, end_of, kill_group, start_group

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.connection import Connection

    from jangin.compiler.request import Progress, Request
    from jangin.runtime.compiled import Compiled
    from jangin.targets import Target

_START = (
    "import gc, sys; gc.disable(); sys.path[:] = {path!r}; "
    "from jangin.runtime.system.watching import end_group_with; end_group_with({life}); "
    "from jangin.compiler.processes.server import serve; serve({pipe})"
)
"""The program that the compiler's process runs. It turns garbage collection off, because the process and its
forks end soon and hardly any of their garbage is in cycles."""


SLEEPY = "4"
"""The value of OPENBLAS_THREAD_TIMEOUT: idle threads of NumPy's OpenBLAS sleep after two to this power of
cycles. By default they would occupy a core for some 50 ms during the imports."""


class Asked(NamedTuple):
    """The facts about a compilation that the other process needs before it passes the request to a fork.

    `told` says whether the caller wants reports of progress. `lasting` says whether the compilation goes on
    when the caller ends, to fill the cache. `path` is the model's path, if it has one.
    `folder` is the caller's working directory. It is None if it was removed, and in the background, where
    all paths are absolute. `file` says whether the model is in
    an open file, whose descriptor is sent after the request."""

    target: Target
    told: bool
    lasting: bool
    path: str | None
    folder: str | None
    file: bool


class _Started(NamedTuple):
    """A started process. `life` is this process's end of a pipe; the other process ends when it closes.
    `around` is the environment and the module search path that the process started with. `background` tells
    that it yields the processor to others."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    life: int
    around: tuple[Mapping[str, str], Sequence[str]]
    background: bool = False

    def ended(self, *, wait: bool) -> End | None:
        """Return how the process ended, or None if it still runs. With `wait`, wait for its end."""
        return end_of(self.process.pid, wait=wait)

    def end(self) -> None:
        """Kill the process and those that it forked."""
        kill_group(self.process.pid)
        self.process.wait()
        self._close()

    def forget(self) -> None:
        """Close the pipes to the process without ending it, because it belongs to the parent process."""
        self.process.returncode = 0
        self._close()

    def _close(self) -> None:
        for listed in (_running, _waiting):
            if self in listed:
                listed.remove(self)
        self.pipe.close()
        os.close(self.life)


_waiting: list[_Started] = []
"""The processes that wait for this one's next compilation: at most one in the background, and one other."""
_running: list[_Started] = []
"""All processes that this one has started and that haven't ended."""


def _end_all() -> None:
    """End the processes that wait, and all others if Ctrl-C ends this one. Some may go on for the cache."""
    interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
    for started in [*(_running if interrupted else _waiting)]:
        started.end()


def _forget_all() -> None:
    """Forget the processes that compile or wait, in a process forked from this one."""
    while _running:
        _running[-1].forget()


atexit.register(_end_all)
in_children(_forget_all)


class Apart:
    """Another process, which builds models on request. It is a context manager.

    The process that waits since an earlier compilation is used again. Otherwise one starts at the first
    request, or now if `at_once`. After success it stays at the context's end, for the next compilation. After
    an error it is killed with all processes that it forked.

    These processes are in a process group of their own, which the terminal's Ctrl-C doesn't reach. They end
    when this process ends, in any way, and after `server.IDLE` seconds without requests. Results come in the
    cache's file, or from the other process's memory, so that no other file is left over.

    In the `background` these processes only get the time of the processor that no other process needs. They
    also finish a compilation for the cache after this process has ended, unless Ctrl-C ended it. `requested`
    is called when they have the request, which they can then finish without this process."""

    def __init__(
        self, at_once: bool = False, background: bool = False, requested: Callable[[], object] | None = None
    ) -> None:
        self._background, self._requested = background, requested
        self._started = _start(background) if at_once and not self._waiting() else None

    def _waiting(self) -> list[_Started]:
        return [s for s in _waiting if s.background == self._background]

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._started is None:
            return
        if error is None:
            others = self._waiting()
            _waiting.append(self._started)
            self._started = others[0] if others else None
            if self._started is not None:
                _waiting.remove(self._started)
        if self._started is not None:
            self._started.end()

    def build(self, request: Request, progress: Progress | None = None) -> Compiled:
        """Build the model of a request in the other process, as `request.carry_out` does. Raises the errors
        of `carry_out`, and CompileError if the process dies. A `Written` model is passed as an open file,
        which the process maps."""
        from dataclasses import replace
        from multiprocessing.reduction import send_handle

        from jangin.frontends.format import Written
        from jangin.ir.graph import CompileError

        model = request.model.file.fileno() if isinstance(request.model, Written) else None
        request = request if model is None else replace(request, model=b"")
        folder = None if self._background else _folder()
        path = os.fspath(request.model) if isinstance(request.model, (str, os.PathLike)) else None
        if path is not None and folder is None and not os.path.isabs(path):
            raise FileNotFoundError(errno.ENOENT, "the working directory was removed", path)
        path = None if path is None else os.path.join(folder or "", path)
        lasting = self._background and request.entries is not None
        asked = Asked(request.asked.target, progress is not None, lasting, path, folder, model is not None)
        for last in (False, True):
            started = self._started = self._started or self._taken() or _start(self._background)
            try:
                started.pipe.send(asked)
                started.pipe.send(request)
                if model is not None:
                    send_handle(started.pipe, model, None)
                if self._requested is not None:
                    self._requested()
                return _result(started.pipe, progress)
            except (EOFError, BrokenPipeError, ConnectionResetError):
                end = started.ended(wait=True)
                assert end is not None
                if last or not end.exited or end.status:
                    raise CompileError(_epitaph(end)) from None
            started.end()  # it had waited too long, and ended just as it was asked
            self._started = None
        raise AssertionError("the last one's end is an error")

    def _taken(self) -> _Started | None:
        """Return the waiting process if it still runs and has this process's environment, else None. A
        process that doesn't is ended."""
        for started in self._waiting():
            try:
                _waiting.remove(started)
            except ValueError:  # another thread took it
                continue
            if started.ended(wait=False) is None and started.around == _around():
                return started
            started.end()
        return None


def _folder() -> str | None:
    """Return the working directory, or None if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _around() -> tuple[Mapping[str, str], Sequence[str]]:
    return everything(), [*sys.path]


def _start(background: bool = False) -> _Started:
    ours, theirs = socket.socketpair()
    ends, life = os.pipe()
    descriptors = {"pipe": theirs.fileno(), "life": ends}
    inherited = (
        [*descriptors.values(), life] if background else [*descriptors.values()]
    )  # then its group outlives us
    try:
        start = _START.format(path=sys.path, **descriptors)
        env = {"OPENBLAS_THREAD_TIMEOUT": SLEEPY, **everything()}
        process = start_group([sys.executable, "-c", start], inherited, env, background)
    except OSError as error:
        ours.close()
        os.close(life)
        if isinstance(error, Lacking):
            raise
        what = f"{error.strerror}: no process starts that compiles; isolated=False compiles in this one"
        raise OSError(error.errno, what) from error
    finally:
        theirs.close()
        os.close(ends)
    from multiprocessing.connection import Connection  # beside the process, which starts meanwhile

    started = _Started(process, Connection(ours.detach()), life, _around(), background)
    _running.append(started)
    return started


def _result(pipe: Connection, progress: Progress | None) -> Compiled:
    """Wait for the built model, and return it. It comes in the cache's file or from the other process's
    memory. Raises the exception that the other process sent."""
    from jangin.compiler.processes.handed import taken
    from jangin.runtime.compiled import read_artifact

    while True:
        kind, *what = pipe.recv()
        if kind == "failed":
            raise what[0]
        if kind == "built":
            return taken(pipe) if what[0] is None else read_artifact(what[0])
        if progress is not None:
            progress(*what)


def _epitaph(end: End) -> str:
    """Return the error text for the end of the compiler's process, with its cause and a remedy."""
    why = f"exit code {end.status}" if end.exited else f"signal {signal.Signals(end.status).name}"
    what = f"the process that compiled the model ended early ({why})"
    if not end.exited and end.status in (signal.SIGKILL, signal.SIGABRT):  # by the system, or by LLVM itself
        return starved(what)
    return f"{what}; isolated=False compiles in this one"


def starved(what: str) -> str:
    """Return an error text that begins with `what`, names lack of memory as the most likely cause, and gives
    a remedy."""
    return (
        f"{what}: most likely this machine, or the process's control group (a container's limit), is out of "
        "memory; give it more, or compile on a larger machine (jangin compile -o) and load that file here"
    )
