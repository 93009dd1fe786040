"""Write files completely or not at all: under a temporary name, then renamed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

_ROOM = "make room there, or write it elsewhere"
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "it would be larger than this process may write: raise that limit (ulimit -f)",
    errno.EACCES: "you may not write there: give another folder",
    errno.EPERM: "you may not write there: give another folder",
    errno.EROFS: "give a folder that can be written",
    errno.EIO: "the disk fails: write it elsewhere",
}
"""Remedies for errors of the system, by the error's number."""


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file or folder in the system's errors, and say what to do, while the caller writes the path.

    Raises OSError."""
    try:
        yield
    except OSError as error:
        raise _told(error, path) from error


def write_whole(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Write a file under a temporary name, then rename it, so that no reader sees half of it. The old file
    stays if writing fails.

    A symbolic link keeps pointing at the file. A device or pipe is written directly. Raises OSError with the
    file's name and a remedy, and the exceptions of `write`."""
    with writing(path):
        mode = os.stat(path).st_mode if os.path.exists(path) else None
        if mode is None or stat.S_ISREG(mode):
            _renamed(os.path.realpath(path), mode, write)
        else:
            with open(path, "wb") as file:
                write(file)


def _renamed(goal: str, mode: int | None, write: Callable[[BinaryIO], object]) -> None:
    """Write a regular file as `write_whole` does. An existing file keeps its `mode`."""
    aside = os.path.join(os.path.dirname(goal), f".{os.urandom(8).hex()}.part")
    try:
        with open(aside, "xb") as file:
            if mode is not None:
                os.chmod(aside, stat.S_IMODE(mode))
            write(file)
        os.replace(aside, goal)
    except BaseException:
        if os.path.lexists(aside):
            os.unlink(aside)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text in UTF-8 as `write_whole` does."""
    write_whole(path, lambda file: file.write(text.encode()))


def _told(error: OSError, path: str | os.PathLike[str]) -> OSError:
    """Return an error of the same kind that names the file and a remedy. An error that isn't the system's is
    returned unchanged."""
    if error.errno is None:
        return error
    remedy = _REMEDIES.get(error.errno)
    said = error.strerror or os.strerror(error.errno)
    return OSError(error.errno, f"{said}; {remedy}" if remedy else said, os.fspath(path))
