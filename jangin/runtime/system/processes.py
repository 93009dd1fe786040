"""Processes of the compiler: forked, waited for, and ended alone or as a group."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from jangin.runtime.system import lacking

if TYPE_CHECKING:
    import subprocess

FORKS = hasattr(os, "fork")
"""Whether this system can fork processes; the compiler's own process and its workers rely on it."""


class End(NamedTuple):
    """The way a process ended. `status` is its exit code if it `exited`, else the number of the signal that
    ended it."""

    exited: bool
    status: int


def fork() -> int:
    """Fork this process. Return the child's process id here, and 0 in the child. Raises Lacking on a system
    without forks."""
    if not FORKS:
        raise lacking("way to copy a process", "compile with isolated=False")
    return os.fork()


IDLE = 19
"""The niceness of processes in the background, the highest that systems have. Such a process gets hardly any
time while others work."""


def start_group(
    command: Sequence[str], pipes: Sequence[int], env: Mapping[str, str], background: bool = False
) -> subprocess.Popen[bytes]:
    """Start a command as the first process of a new group. It inherits the open files `pipes`. In the
    `background` its processes give way to all others, and have no part in the caller's input and output.
    Raises Lacking on a system without groups."""
    if not FORKS:
        raise lacking("groups of processes", "compile with isolated=False")
    import subprocess

    streams: dict[str, Any] = dict.fromkeys(
        ("stdin", "stdout", "stderr"), subprocess.DEVNULL if background else None
    )
    process = subprocess.Popen(command, pass_fds=pipes, process_group=0, env=env, **streams)
    if background:
        os.setpriority(os.PRIO_PROCESS, process.pid, IDLE)
    return process


def end_of(process: int, *, wait: bool) -> End | None:
    """Return how a child ended, or None if it still runs and `wait` is False. The child isn't reaped, so that
    its process id stays its group's."""
    status = os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT | (0 if wait else os.WNOHANG))
    return None if status is None else End(status.si_code == os.CLD_EXITED, status.si_status)


def reap(process: int) -> int:
    """Wait for a child's end, and return its status as the system encodes it."""
    return os.waitpid(process, 0)[1]


def kill(process: int) -> None:
    """Kill a process at once."""
    os.kill(process, signal.SIGKILL)


def kill_group(process: int) -> None:
    """Kill the remaining processes of the group whose first process this is. It may have no processes
    left."""
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def kill_own_group() -> NoReturn:
    """Kill this process at once, and all others of its group."""
    os.killpg(0, signal.SIGKILL)
    raise AssertionError("the signal ends this process too")


def sleep_until_killed() -> NoReturn:
    """Sleep until another process kills this one."""
    while True:
        signal.pause()


def end_like(status: int) -> NoReturn:
    """End this process in the way in which a child ended. `status` is the result of `reap`."""
    if os.WIFSIGNALED(status):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))
