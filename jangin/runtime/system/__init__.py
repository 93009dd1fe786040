"""The operating system's interface: all functions that Jangin needs from it and that not every system has.

`in_children` and `renew_lock` renew state in forked processes. `processes` starts and ends processes,
`watching` ends them with their caller, and `usage` measures and limits their memory and time. `memory` has
memory for code and other processes' memory, `processor` the processor's features, and `waiting` the system
calls of the thread pool's code.

Importing any of them calls nothing of the system. A function raises `Lacking` if the system lacks something
that it needs."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any

_NAMES = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}
"""The systems' usual names, by Python's names."""
_OF_TRIPLES = {"darwin": "darwin", "macosx": "darwin", "linux": "linux", "windows": "win32"}
"""Python's names of systems, by the beginning of a triple's part for the system."""


class Lacking(OSError):
    """The operating system lacks something that Jangin needs. The message names both and a remedy."""


def lacking(what: str, remedy: str) -> Lacking:
    """Return the exception for something that this system lacks."""
    return Lacking(
        errno.ENOSYS, f"{named(sys.platform)} has no {what} that Jangin knows how to use: {remedy}"
    )


def named(system: str) -> str:
    """Return a system's usual name, given Python's name."""
    return _NAMES.get(system, system)


def system_of(triple: str) -> str:
    """Return the system that code for a triple calls, by Python's name, or "" if the code calls none."""
    for part in triple.split("-")[1:]:
        for beginning, system in _OF_TRIPLES.items():
            if part.startswith(beginning):
                return system
    return ""


def in_children(renew: Callable[[], object]) -> None:
    """Have `renew` called in each process that is forked from this one. Only the forking thread exists there.
    On systems without forks it is never called."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)


def renew_lock(scope: dict[str, Any], name: str, make: Callable[[], object]) -> None:
    """Put a free lock into a module's `scope` by `name` in each process forked from this one. A thread
    that held the old one isn't there."""
    in_children(lambda: scope.update({name: make()}))
