"""Kernels that models share: made once, with their code, and kept in one SQLite file.

The file is safe under many processes: SQLite's write-ahead log lets them read while one writes. This process
runs the code, so a file that another user could have written isn't read. A kernel that is damaged, or that
can't be read or written, counts as missing. It is made again, and compiling goes on."""

from __future__ import annotations

import json
import os
import pickle
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from typing import NamedTuple

from jangin.compiler.cache import Cache, key, make_folder, own, source_digest
from jangin.ir.parse import parse_expr, parse_func
from jangin.ir.text import print_func
from jangin.schedule.steps import parse_steps
from jangin.templates.scheduled import Packing, Scheduled

FOLDER = "kernels"
"""The folder of the file in the cache's folder, for this user alone."""
FILE = "kernels.sqlite"
LIMIT = 256 << 20
"""The most bytes of kernels and code in the file, some 15,000 kernels. The least recently used are deleted,
so that the file doesn't grow without end."""
WAIT = 5.0
"""Seconds to wait until another process has finished its write. After that the kernels aren't shared, which
costs only time."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS kernels (
    key TEXT PRIMARY KEY, used REAL NOT NULL, bytes INTEGER NOT NULL, digest TEXT NOT NULL,
    kernel TEXT NOT NULL, code BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS by_use ON kernels (used, bytes);
"""
_OLDEST = """
DELETE FROM kernels WHERE rowid IN (
    SELECT rowid FROM (
        SELECT rowid, sum(bytes) OVER (ORDER BY used DESC, rowid DESC) AS total FROM kernels
    ) WHERE total > ?
)
"""


class Made(NamedTuple):
    """A kernel and its code."""

    kernel: Scheduled
    code: bytes


class SharedKernels:
    """Kernels by their identity (see `kernels.Job`).

    They come from three places: this object, the pickled kernels `known`, and a file of at most `limit` bytes
    in the cache's `folder`. Without `folder` no file is read or written. The file has no kernels that call a
    library, because making them takes little time."""

    def __init__(
        self, folder: Path | None = None, limit: int = LIMIT, known: Mapping[str, bytes] | None = None
    ) -> None:
        self.path = None if folder is None else folder / FOLDER / FILE
        self.limit = limit
        self._known = known or {}
        self._made: dict[str, Made] = {}

    @classmethod
    def of(cls, cache: bool | str | Path | None, known: Mapping[str, bytes] | None = None) -> SharedKernels:
        """Return the kernels for the option `cache` (see `Options`)."""
        folder = None if cache is False else Cache(None if isinstance(cache, bool) else cache).folder
        return cls(folder, known=known)

    def get(self, identities: Iterable[str]) -> dict[str, Made]:
        """Return those kernels of the identities that are known, and mark them as the most recently used."""
        wanted = list(identities)
        self._made |= {
            i: Made(*pickle.loads(self._known[i])) for i in wanted if i in self._known and i not in self._made
        }
        self._made |= self._read([i for i in wanted if i not in self._made])
        return {i: self._made[i] for i in wanted if i in self._made}

    def pickled(self) -> tuple[tuple[str, ...], dict[str, bytes]]:
        """Return the identities of all kernels that this object has found or been given. Also return those of
        them that weren't in `known`, pickled."""
        new = {i: pickle.dumps((*kernel,)) for i, kernel in self._made.items() if i not in self._known}
        return tuple(self._made), new

    def put(self, made: Mapping[str, Made]) -> None:
        """Keep kernels in this object, and in the file if there is one. A failed write is ignored."""
        self._made |= made
        if self.path is None:
            return
        now, rows = time.time(), []
        for identity, (kernel, code) in made.items():
            if kernel.call is None:
                name, text = _key(identity), print_kernel(kernel)
                rows.append((name, now, len(text) + len(code), key([name, text, code]), text, code))
        if rows:
            with suppress(OSError, sqlite3.Error):
                self._write(self.path, rows)

    def _read(self, identities: list[str]) -> dict[str, Made]:
        if self.path is None or not identities or not _own(self.path):
            return {}
        kernels: dict[str, Made] = {}
        keys = {identity: _key(identity) for identity in identities}
        with suppress(sqlite3.Error), _opened(self.path) as db:
            for identity, name in keys.items():
                row = db.execute("SELECT digest, kernel, code FROM kernels WHERE key = ?", (name,)).fetchone()
                if row is not None and (kernel := _made(name, *row)) is not None:
                    kernels[identity] = kernel
            now = time.time()
            db.executemany("UPDATE kernels SET used = ? WHERE key = ?", [(now, keys[i]) for i in kernels])
        return kernels

    def _write(self, path: Path, rows: list[tuple[str, float, int, str, str, bytes]]) -> None:
        make_folder(path.parent.parent)
        make_folder(path.parent)
        path.parent.chmod(0o700)
        if path.exists() and not _own(path):
            _remove(path)
        path.touch(0o600)
        try:
            with _opened(path) as db:
                db.executescript(_SCHEMA)
                db.executemany("INSERT OR REPLACE INTO kernels VALUES (?, ?, ?, ?, ?, ?)", rows)
                if db.execute("SELECT total(bytes) FROM kernels").fetchone()[0] > self.limit:
                    db.execute(_OLDEST, (self.limit,))
        except sqlite3.OperationalError:  # locked, or full: the file itself is sound
            raise
        # not a database, or a damaged one: the next compilation makes a new one
        except sqlite3.DatabaseError:
            _remove(path)


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Inside this context, have a connection to a database and one transaction. Writes don't wait for the
    disk, because kernels that a power cut damages are made again."""
    with closing(sqlite3.connect(path, timeout=WAIT)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")
        with db:
            yield db


def _own(path: Path) -> bool:
    """Return whether the file, SQLite's files beside it and their folder belong to this user and aren't
    writable by others. A file that vanishes meanwhile is accepted, because SQLite removes its files when it
    closes them."""
    if not (own(path) and own(path.parent)):
        return False
    return all(own(p) or not os.path.lexists(p) for p in path.parent.iterdir())


def _remove(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink(missing_ok=True)


def _key(identity: str) -> str:
    return key([source_digest(), identity])


def _made(name: str, digest: object, text: object, code: object) -> Made | None:
    """Return the kernel and code of a row, or None if its digest doesn't fit its key and contents."""
    if not (isinstance(text, str) and isinstance(code, bytes) and key([name, text, code]) == digest):
        return None
    return Made(parse_kernel(text), code)


def print_kernel(kernel: Scheduled) -> str:
    """Return a kernel that calls no library as JSON text. Loops, steps and sizes are in their own text
    forms."""
    content = {
        "template": kernel.template,
        "func": print_func(kernel.func),
        "steps": "\n".join(map(str, kernel.steps)),
        "packings": {name: astuple(packing) for name, packing in kernel.packings.items()},
        "params": dict(kernel.params),
        "cost": kernel.cost,
        "work": None if kernel.work is None else str(kernel.work),
        "flops": str(kernel.flops),
        "bytes": str(kernel.bytes),
        "function": kernel.function,
        "updated": kernel.updated,
    }
    return json.dumps(content, separators=(",", ":"))


def parse_kernel(text: str) -> Scheduled:
    """Return the kernel whose text `print_kernel` made."""
    content = json.loads(text)
    packings = {name: Packing(tuple(perm), *others) for name, (perm, *others) in content["packings"].items()}
    return Scheduled(
        content["template"], parse_func(content["func"]), parse_steps(content["steps"]), packings,
        content["params"], content["cost"], None if content["work"] is None else parse_expr(content["work"]),
        parse_expr(content["flops"]), parse_expr(content["bytes"]),
        function=content["function"], updated=tuple(content["updated"]),
    )  # fmt: skip
