"""Sensors of power and energy that the system shows: their list, performance events, serial lines."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Callable
from pathlib import Path

PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
"""The numbers of Linux's system call perf_event_open, by processor."""


def sensor_classes() -> Path:
    """Return the folder in which Linux lists devices by class. It doesn't exist on other systems."""
    return Path("/sys/class")


class _Event(ctypes.Structure):
    """The first version of Linux's perf_event_attr."""

    _fields_ = (
        ("type", ctypes.c_uint32), ("size", ctypes.c_uint32), ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64), ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64), ("flags", ctypes.c_uint64), ("wakeup", ctypes.c_uint32),
        ("breakpoint", ctypes.c_uint32), ("config1", ctypes.c_uint64),
    )  # fmt: skip


def performance_event(kind: int, config: int, processor: int) -> Callable[[], int]:
    """Return the function that reads one of Linux's performance events on a processor. Raises OSError if the
    system refuses it."""
    call = PERF_EVENT_OPEN.get(platform.machine())
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    event = _Event(type=kind, size=ctypes.sizeof(_Event), config=config)
    file = ctypes.CDLL(None, use_errno=True).syscall(call, ctypes.byref(event), -1, processor, -1, 0)
    if file < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return lambda: int.from_bytes(os.read(file, 8), "little")


def serial_line(device: str, speed: int) -> int:
    """Return a serial line's file, which passes bytes as they are. Raises OSError if it can't be opened, and
    ValueError for a speed in bits a second that it can't have."""
    try:
        import termios
        import tty
    except ImportError:
        raise OSError(errno.ENOSYS, "serial lines are read on Linux and macOS alone") from None
    rate = getattr(termios, f"B{speed}", None)
    if rate is None:
        raise ValueError(f"a serial line has no speed of {speed} bits a second: give another one after @")
    file = os.open(device, os.O_RDONLY | os.O_NOCTTY)
    try:
        tty.setraw(file)
        settings = termios.tcgetattr(file)
        settings[4] = settings[5] = rate
        termios.tcsetattr(file, termios.TCSANOW, settings)
    except termios.error as error:
        os.close(file)
        raise OSError(*error.args) from None
    return file
