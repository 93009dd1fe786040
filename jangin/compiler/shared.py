"""Kernels that models share: made once, with their code, and kept in one SQLite file.

Safe under many processes: SQLite's write-ahead log lets them read while one writes. The code is run by
this process, so that a file which another user could have written is not read. What is damaged, or can't be
read or written for any reason, counts as not kept: kernels are made again, and compiling goes on.
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
"""Of the cache's folder the one, for this user alone, that has the file."""
FILE = "kernels.sqlite"
LIMIT = 256 << 20
"""Bytes of kernels and code that are kept, those used last: some 15,000 kernels."""
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
    """Kernels by identity (`kernels.Job`): those of this object, those `known` (as `pickled` gave them), and
    with a `folder` (a cache's) those that its file has, at most `limit` bytes. Those that call a library are
    not in the file: little is theirs."""

    def __init__(
        self, folder: Path | None = None, limit: int = LIMIT, known: Mapping[str, bytes] | None = None
    ) -> None:
        self.path = None if folder is None else folder / FOLDER / FILE
        self.limit = limit
        self._known = known or {}
        self._made: dict[str, Made] = {}

    def get(self, identities: Iterable[str]) -> dict[str, Made]:
        """Those that are known, each now the most recently used."""
        wanted = list(identities)
        self._made |= {
            i: Made(*pickle.loads(self._known[i])) for i in wanted if i in self._known and i not in self._made
        }
        self._made |= self._read([i for i in wanted if i not in self._made])
        return {i: self._made[i] for i in wanted if i in self._made}

    def pickled(self) -> tuple[tuple[str, ...], dict[str, bytes]]:
        """The identities of those that were asked for or kept, and of these, pickled, what wasn't known."""
        new = {i: pickle.dumps((*made,)) for i, made in self._made.items() if i not in self._known}
        return tuple(self._made), new

    def put(self, made: Mapping[str, Made]) -> None:
        """Keep kernels."""
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
        except sqlite3.DatabaseError:  # no database, or a damaged one: the next compilation makes a new one
            _remove(path)


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection and one transaction. Nothing waits for the disk: what a power cut damages is made anew."""
    with closing(sqlite3.connect(path, timeout=WAIT)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")
        with db:
            yield db


def _own(path: Path) -> bool:
    """Whether the file, those beside it, and their folder are this user's, and no other's to write. SQLite's
    files beside it go when no process has it open any more: one that is gone is nobody's."""
    if not (own(path) and own(path.parent)):
        return False
    return all(own(p) or not os.path.lexists(p) for p in path.parent.iterdir())


def _remove(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink(missing_ok=True)


def _key(identity: str) -> str:
    return key([source_digest(), identity])


def _made(name: str, digest: object, text: object, code: object) -> Made | None:
    """What a row says, or None where it isn't as `put` wrote it under that key."""
    if not (isinstance(text, str) and isinstance(code, bytes) and key([name, text, code]) == digest):
        return None
    return Made(parse_kernel(text), code)


def print_kernel(kernel: Scheduled) -> str:
    """A kernel that calls no library as JSON, loops, steps and sizes in their text forms."""
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
    """What `print_kernel` printed."""
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
