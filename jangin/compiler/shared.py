"""Kernels that models share: made once, with their code, and kept in one SQLite file.

The file is safe under many processes: SQLite's write-ahead log lets them read while one writes. This process
runs the code, so a file that another user could have written isn't read. A kernel that is damaged, or that
can't be read or written, counts as missing. It is made again, and compiling goes on.
"""

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

from jangin.compiler.cache import key, make_folder, own, source_digest
from jangin.ir.parse import parse_expr, parse_func
from jangin.ir.text import print_func
from jangin.schedule.steps import parse_steps
from jangin.templates.scheduled import Packing, Scheduled

FOLDER = "kernels"
"""The folder of the file in the cache's folder, for this user alone."""
FILE = "kernels.sqlite"
LIMIT = 256 << 20
"""Bytes of kernels and code that are kept, the last used first: some 15,000 kernels."""
WAIT = 5.0
"""Seconds to wait for another process's write."""
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
    """Kernels by identity (`kernels.Job`).

    They come from this object, from `known` (the results of `pickled`), and with a `folder` (a cache's) from
    its file of at most `limit` bytes. Kernels that call a library aren't in the file, because making them
    takes little.
    """

    def __init__(
        self, folder: Path | None = None, limit: int = LIMIT, known: Mapping[str, bytes] | None = None
    ) -> None:
        self.path = None if folder is None else folder / FOLDER / FILE
        self.limit = limit
        self._known = known or {}
        self._made: dict[str, Made] = {}

    def get(self, identities: Iterable[str]) -> dict[str, Made]:
        """The known kernels of these identities; each becomes the most recently used."""
        wanted = list(identities)
        self._made |= {
            i: Made(*pickle.loads(self._known[i])) for i in wanted if i in self._known and i not in self._made
        }
        self._made |= self._read([i for i in wanted if i not in self._made])
        return {i: self._made[i] for i in wanted if i in self._made}

    def pickled(self) -> tuple[tuple[str, ...], dict[str, bytes]]:
        """The identities of the kernels that were asked for or kept, and the new ones among these kernels,
        pickled."""
        new = {i: pickle.dumps((*made,)) for i, made in self._made.items() if i not in self._known}
        return tuple(self._made), new

    def put(self, made: Mapping[str, Made]) -> None:
        """Keeps kernels."""
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
        found: dict[str, Made] = {}
        keys = {identity: _key(identity) for identity in identities}
        with suppress(sqlite3.Error), _opened(self.path) as db:
            for identity, name in keys.items():
                row = db.execute("SELECT digest, kernel, code FROM kernels WHERE key = ?", (name,)).fetchone()
                if row is not None and (made := _made(name, *row)) is not None:
                    found[identity] = made
            now = time.time()
            db.executemany("UPDATE kernels SET used = ? WHERE key = ?", [(now, keys[i]) for i in found])
        return found

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
    """A connection and one transaction. Nothing waits for the disk, because kernels that a power cut damages
    are made again."""
    with closing(sqlite3.connect(path, timeout=WAIT)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")
        with db:
            yield db


def _own(path: Path) -> bool:
    """Whether the file, SQLite's files beside it, and their folder belong to this user and can't be written
    by others. SQLite removes its files when no process has the database open. A file that vanishes meanwhile
    is accepted."""
    if not (own(path) and own(path.parent)):
        return False
    return all(own(p) or not os.path.lexists(p) for p in path.parent.iterdir())


def _remove(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink(missing_ok=True)


def _key(identity: str) -> str:
    return key([source_digest(), identity])


def _made(name: str, digest: object, text: object, code: object) -> Made | None:
    """The kernel and code of a row; None unless `put` wrote the row under this key."""
    if not (isinstance(text, str) and isinstance(code, bytes) and key([name, text, code]) == digest):
        return None
    return Made(parse_kernel(text), code)


def print_kernel(kernel: Scheduled) -> str:
    """A kernel that calls no library as JSON, with loops, steps and sizes in their text forms."""
    content = {
        "template": kernel.template,
        "func": print_func(kernel.func),
        "steps": "\n".join(map(str, kernel.steps)),
        "packings": {name: astuple(packing) for name, packing in kernel.packings.items()},
        "params": dict(kernel.params),
        "cost": kernel.cost,
        "flops": str(kernel.flops),
        "bytes": str(kernel.bytes),
        "function": kernel.function,
    }
    return json.dumps(content, separators=(",", ":"))


def parse_kernel(text: str) -> Scheduled:
    """The kernel of a text that `print_kernel` made."""
    content = json.loads(text)
    packings = {
        name: Packing(tuple(perm), axis, groups, width)
        for name, (perm, axis, groups, width) in content["packings"].items()
    }
    return Scheduled(
        content["template"], parse_func(content["func"]), parse_steps(content["steps"]), packings,
        content["params"], content["cost"], parse_expr(content["flops"]), parse_expr(content["bytes"]),
        function=content["function"],
    )  # fmt: skip
