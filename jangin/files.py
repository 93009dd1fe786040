"""Files that are written whole or not at all: aside, then renamed."""

from __future__ import annotations

import errno
import os
import secrets
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
"""What to do about an error of the system, by its number."""


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file or folder in the system's errors, and say what to do, while the caller writes the path.

    Raises OSError."""
    try:
        yield
    except OSError as error:
        raise _told(error, path) from error


def write_whole(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Write a file aside, then give it its name, so that nobody ever sees half of it, and what was there
    stays where writing fails. A symbolic link goes on pointing at it; what is no file (a device, a pipe) is
    written to as it is. Raises OSError with the file's name and what to do, and what `write` raises."""
    with writing(path):
        mode = os.stat(path).st_mode if os.path.exists(path) else None
        if mode is None or stat.S_ISREG(mode):
            _renamed(os.path.realpath(path), mode, write)
        else:
            with open(path, "wb") as file:
                write(file)


def _renamed(goal: str, mode: int | None, write: Callable[[BinaryIO], object]) -> None:
    """As `write_whole`, of a file that has, if it is there, this mode and keeps it."""
    aside = os.path.join(os.path.dirname(goal), f".{secrets.token_hex(8)}.part")
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
    """As `write_whole`, of text in UTF-8."""
    write_whole(path, lambda file: file.write(text.encode()))


def _told(error: OSError, path: str | os.PathLike[str]) -> OSError:
    """The error of the same kind that says what file it is about, and what to do; one that isn't the
    system's says so itself."""
    if error.errno is None:
        return error
    remedy = _REMEDIES.get(error.errno)
    said = error.strerror or os.strerror(error.errno)
    return OSError(error.errno, f"{said}; {remedy}" if remedy else said, os.fspath(path))
