"""The compiler's own process (see `compiler.processes.isolated`).

It compiles no model itself. It imports everything that compilations share, and starts the workers. A forked
process compiles each model, and its memory is released when it ends. This process keeps only a model's
kernels, which the next model may share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from jangin.compiler.build import prepared, start_workers
from jangin.compiler.processes.forked import Workers, fork, sendable
from jangin.compiler.processes.isolated import Asked, starved
from jangin.ir.errors import CompileError
from jangin.ir.limits import ALLOWS, Place, within
from jangin.runtime.system.processes import end_like, kill_own_group, reap, sleep_until_killed

if TYPE_CHECKING:
    from jangin.compiler.request import Request

IDLE = 30.0
"""Seconds for which the process waits for a request before it ends. Its memory is then free for other
programs."""
KEPT = 64 << 20
"""The most bytes of kernels that the process keeps for the next models. The most recently used are kept. A
process without work shouldn't hold more."""


class _Done(NamedTuple):
    """The report of a finished compilation. It has the number of running workers, the identities of the
    kernels that it used, and the kernels that it made, pickled."""

    running: int
    used: tuple[str, ...]
    made: Mapping[str, bytes]


def serve(pipe: int) -> None:
    """Build the models that the caller requests by the pipe, one after another. End after `IDLE` seconds
    without a request, when the caller is gone, or after an error."""
    with Connection(pipe) as caller:
        try:
            _serve(caller)
        except OSError as error:  # the system may refuse to start more processes, for example
            with suppress(OSError):
                caller.send(("failed", OSError(error.errno, f"the compiler's process can't go on: {error}")))


def _serve(caller: Connection) -> None:
    with start_workers() as workers:
        for module in ("jangin.compiler.pipeline", "jangin.compiler.request", "jangin.frontends.table"):
            import_module(module)
        asked = _asked(caller) if caller.poll(IDLE) else None
        if asked is not None:
            prepared(workers, asked.target)
            known: Mapping[str, bytes] = {}
            while asked is not None:
                _import(asked)
                done, asked = _in_a_fork(caller, asked, workers, known)
                workers.running = done.running
                known = _last({**known, **done.made}, done.used)
                if asked is None and caller.poll(IDLE):
                    asked = _asked(caller)


def _import(asked: Asked) -> None:
    """Import the modules of the requested model's format, so that later forks have them too."""
    from jangin.frontends.format import opened
    from jangin.frontends.table import format_of

    if asked.path is not None:
        with suppress(CompileError, OSError):  # the compilation will report it
            for module in format_of(opened(asked.path)).modules:
                import_module(module)


def _in_a_fork(
    caller: Connection, asked: Asked, workers: Workers, known: Mapping[str, bytes]
) -> tuple[_Done, Asked | None]:
    """Have a forked process compile. Return its report, and the request that the caller has made meanwhile,
    if any.

    If the forked process dies, this process ends in the same way. If the caller is gone, this process ends
    with its whole group, after the compilation if it is `lasting`."""
    ours, theirs = Pipe(duplex=False)
    place = Place()
    child = fork(partial(_compile, caller, theirs, asked, workers, known, place), [ours])
    theirs.close()
    following: Asked | None = None
    with ours:
        try:
            ours.recv()  # The forked process reads the request; the messages after it are for this process.
            listened = [ours, caller]
            while ours not in (ready := wait(listened, place.left)):
                if caller in ready:
                    listened = [ours]
                    following = _asked(caller, asked.lasting)
                elif not ready and place.left <= 0:
                    _end_late(caller, place)
            done: _Done = ours.recv()
        except EOFError:
            end_like(reap(child))
    reap(child)
    return done, following


def _end_late(caller: Connection, place: Place) -> NoReturn:
    """Tell the caller that the time is over, for a compilation that doesn't check its budget itself. The
    caller then kills this process."""
    caller.send(
        (
            "failed",
            CompileError(f"{place.node}: compiling takes longer than its limit; {ALLOWS.format('seconds')}"),
        )
    )
    sleep_until_killed()


def _asked(caller: Connection, lasting: bool = False) -> Asked | None:
    """Receive the caller's next request. If the caller is gone, kill this process and its whole group, or
    return None if a `lasting` compilation isn't done."""
    try:
        asked: Asked = caller.recv()
    except (EOFError, OSError):
        if lasting:
            return None
        kill_own_group()
    return asked


def _compile(
    caller: Connection, done: Connection, asked: Asked, workers: Workers, known: Mapping[str, bytes],
    place: Place,
) -> None:  # fmt: skip
    """Compile the caller's next request in the forked process, and send progress and result to the caller.
    After success, also send the report by `done`. After a failure there is none, because the workers' state
    isn't known."""
    from jangin.compiler.processes.handed import hand, pickled
    from jangin.compiler.request import carry_out
    from jangin.mapped import map_opened

    if asked.folder is not None:
        os.chdir(asked.folder)
    request: Request = caller.recv()
    if asked.file:
        with os.fdopen(recv_handle(caller), "rb") as file:
            request = replace(request, model=map_opened(file))
    kernels = request.kernels(known)
    tell = partial(_tell, caller) if asked.told else None
    try:
        with within(request.asked.limits, request.budget or 0.0, place):
            done.send(None)
            artifact, path = carry_out(request, tell, workers=workers, shared=kernels)
        data, arrays = pickled(artifact) if path is None else (b"", [])
        del artifact
        caller.send(("built", path))
        if path is None:
            hand(caller, data, arrays)
    except ChildProcessError as error:
        caller.send(("failed", CompileError(starved(str(error)))))
    except Exception as error:  # the caller raises it
        caller.send(("failed", sendable(error)))
    else:
        done.send(_Done(workers.running, *kernels.pickled()))


def _tell(caller: Connection, *step: Any) -> None:
    """Send a report of progress. A lasting compilation may have no caller any more."""
    with suppress(BrokenPipeError, ConnectionResetError):
        caller.send(("step", *step))


def _last(known: Mapping[str, bytes], used: Sequence[str]) -> dict[str, bytes]:
    """Return the most recently used kernels that fit in `KEPT` bytes, the least recently used first."""
    order = [*(k for k in known if k not in used), *used]
    room, kept = KEPT, list[str]()
    for identity in reversed(order):
        room -= len(known[identity])
        if room < 0:
            break
        kept.append(identity)
    return {identity: known[identity] for identity in reversed(kept)}
