"""Processes that end with the process that started them, however it ends."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""The request to prctl(2) that sets the signal a process gets when the thread that started it ends (Linux's
prctl.h)."""


def end_with(parent: int | None = None) -> None:
    """Have the system kill this process as soon as `parent`, which started it, is gone. Only Linux has such a
    call. On other systems the process ends when it next writes to its parent. Without `parent`, the process
    must notice by itself that its parent was gone before."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:  # the parent was gone before
        os._exit(1)


def end_group_with(other: int) -> None:
    """Have the system end this process and its group once the other end of the pipe `other` is closed
    everywhere.

    Nothing is ever written to the pipe. It closes when the caller ends, even if the thread that started this
    process ended long before."""
    import fcntl

    fcntl.fcntl(other, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(other, fcntl.F_SETFL, fcntl.fcntl(other, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([other], [], [], 0)[0]:  # the caller was gone before
        os._exit(1)
