"""The compile cache: compiled models kept on disk, safe under many processes. The least recently used are
removed first.

An entry appears whole or not at all, because it is written to another file, which is then renamed. There are
no locks: two processes that make one entry both write it, and the last rename wins. Entries are machine code
that this process will run. Therefore an entry that another user wrote, or could have written, isn't
loaded."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TypeVar

from jangin.environment import cache_folder

TUNED = "tuned.sqlite"
"""The file, beside the entries, of tuning's results (see `tune.store`)."""
LIMIT = 2 << 30
"""The most bytes that all entries together may take: some twenty models of 100 MB. A cache shouldn't fill a
small disk unasked."""
_SUFFIX = ".jgn"
_STALE_SECONDS = 3600
"""Seconds after which an unfinished file is taken for one that a dead process left. Writing the largest entry
takes a minute at most, even on a slow disk."""

T = TypeVar("T")


def key(parts: Iterable[bytes | str]) -> str:
    """Return the SHA-256 digest of a sequence of parts, in hexadecimal. The parts' lengths are hashed too, so
    that ("ab", "c") and ("a", "bc") have different keys."""
    from hashlib import sha256  # which loads OpenSSL

    digest = sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


@cache
def source_digest() -> str:
    """Return the SHA-256 digest of the compiler's own source and of its packages' versions, in hexadecimal.
    Keys contain it, so that another version of the code doesn't find this version's entries."""
    folder = os.path.dirname(os.path.dirname(__file__))  # for hundreds of files, Path takes twice the time
    files = sorted(
        os.path.join(at, f) for at, _, names in os.walk(folder) for f in names if f.endswith(".py")
    )
    parts: list[bytes] = []
    for path in files:
        with open(path, "rb", buffering=0) as file:
            parts += path[len(folder) :].encode(), file.read()
    parts += (installed(package).encode() for package in ("llvmlite", "numpy", "onnx"))
    return key(parts)


def installed(package: str) -> str:
    """Return the version of an installed package, or "" if it isn't found. The name is in lower case, and has
    neither points nor dashes.

    The version is read from the name of the folder with the package's metadata. The standard library's
    function imports thirty modules, which takes longer than hashing the whole compiler."""
    for place in sys.path:
        try:
            names = os.listdir(place or ".")
        except OSError:  # a file of modules, or a folder that is gone
            continue
        for name in names:
            stem, dot, kind = name.rpartition(".")
            distribution, _, number = stem.partition("-")
            if dot and kind in ("dist-info", "egg-info") and distribution.lower() == package:
                return number.partition("-")[0]
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:  # compiling reports a package that it needs
        return ""


class Cache:
    """Files by key in `folder`, at most `limit` bytes in all. The default folder is
    `environment.cache_folder`'s."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, limit: int = LIMIT) -> None:
        self.folder = cache_folder() if folder is None else Path(folder)
        self.limit = limit

    def path(self, name: str) -> Path:
        return self.folder / name[:2] / (name + _SUFFIX)

    def get(self, name: str) -> Path | None:
        """Return the path of an entry, and mark it as the most recently used. Return None if there is no such
        entry, or if another user owns it or could write to it."""
        path = self.path(name)
        if not (own(path.parent) and own(path)):
            return None
        try:
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError:  # an entry in a read-only folder still serves
            return path if path.is_file() else None
        return path

    def load(self, name: str, read: Callable[[Path], T]) -> T | None:
        """Return the result of `read(path)` for an entry. Return None if there is no entry, or if `read`
        raises an exception. The entry is then deleted, except after a MemoryError."""
        path = self.get(name)
        if path is None:
            return None
        try:
            return read(path)
        except MemoryError:
            return None
        except Exception:  # whatever a damaged file makes a reader raise, the entry is made again
            self.discard(name)
            return None

    def put(self, name: str, write: Callable[[Path], object]) -> Path | None:
        """Store the file that `write(path)` writes, and return its path.

        Return None after an OSError, for example because the disk is full or the folder is read-only. The
        work goes on without the entry. Other exceptions of `write` are raised."""
        path = self.path(name)
        unfinished = path.with_name(f"{name}.{os.getpid()}.{os.urandom(4).hex()}.part")
        try:
            make_folder(self.folder)
            make_folder(path.parent)
            path.parent.chmod(0o700)
            write(unfinished)
            unfinished.chmod(0o600)
            os.replace(unfinished, path)
        except OSError:
            return None
        finally:
            _remove(unfinished)
        self.trim(keep=path)
        return path

    def discard(self, name: str) -> None:
        _remove(self.path(name))

    def size(self) -> int:
        """Return the bytes that all entries together take."""
        return sum(size for _, size, _ in self._entries())

    def is_empty(self) -> bool:
        """Return whether the cache has no entry."""
        return next(self.folder.glob(f"??/*{_SUFFIX}"), None) is None

    def trim(self, keep: Path | None = None) -> None:
        """Delete the least recently used entries until the others fit the limit. The file `keep` is never
        deleted."""
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= self.limit:
                break
            if path != keep:
                _remove(path)
                total -= size

    def clear(self) -> None:
        for _, _, path in self._entries():
            _remove(path)

    def _entries(self) -> list[tuple[float, int, Path]]:
        """Return (time of last use, bytes, path) of each entry. Unfinished files of dead processes are
        removed."""
        entries = []
        for path in self.folder.glob("??/*"):
            try:
                status = path.stat()
            except OSError:  # another process dropped it
                continue
            if path.suffix == _SUFFIX:
                entries.append((status.st_mtime, status.st_size, path))
            elif path.suffix == ".part" and status.st_mtime < time.time() - _STALE_SECONDS:
                _remove(path)
        return entries


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents. The folder itself, if it is new, is accessible to this user
    alone. Raises OSError."""
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)


def own(path: Path) -> bool:
    """Return whether a file or folder exists, belongs to this user, and isn't writable by others. A symbolic
    link is judged itself, not its target."""
    try:
        status = path.lstat()
    except OSError:
        return False
    user = os.getuid() if hasattr(os, "getuid") else status.st_uid
    return status.st_uid == user and not status.st_mode & 0o022


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
