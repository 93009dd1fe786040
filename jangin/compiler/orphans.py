"""Processes that end with the one that started them, however that ends."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that Linux sends a process when the thread that started it ends."""


def end_with(parent: int) -> None:
    """Have the system kill this process as soon as `parent`, which started it, is gone. Other systems than
    Linux have no such call: there it ends when it next writes to its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before
        os._exit(1)


def end_group_with(other: int) -> None:
    """Have the system end this process and its group as soon as nobody has the other end of a pipe open, in
    which nothing is ever written: whoever started them is gone, while the thread that did may have ended."""
    fcntl.fcntl(other, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(other, fcntl.F_SETFL, fcntl.fcntl(other, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([other], [], [], 0)[0]:  # it was gone before
        os._exit(1)
