"""Store the findings of tuning by kernel and place, in one SQLite file.

Two processes may tune at once. SQLite's write-ahead log lets readers continue while one process writes, and
the last finding of a kernel counts. Findings of another place aren't used. A place is a processor with its
caches, a number of threads, and a version of the compiler."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from jangin.compiler.cache import TUNED, make_folder, own, source_digest
from jangin.environment import cache_folder
from jangin.ir.records import dataclass
from jangin.runtime.system.processor import processor_name
from jangin.targets.target import Target
from jangin.templates.template import Candidate

LIMIT = 20_000
"""The most kernels that are kept. The latest findings stay."""
WAIT = 30.0
"""Seconds to wait for another process's write."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS kernels (
    place TEXT NOT NULL, kernel TEXT NOT NULL, template TEXT NOT NULL, params TEXT NOT NULL,
    seconds REAL NOT NULL, untuned REAL NOT NULL, tried TEXT NOT NULL, written REAL NOT NULL,
    PRIMARY KEY (place, kernel)
) WITHOUT ROWID
"""
_OLDEST = """
DELETE FROM kernels WHERE (place, kernel) IN (
    SELECT place, kernel FROM kernels ORDER BY written DESC LIMIT -1 OFFSET ?
)
"""


@dataclass(frozen=True)
class Finding:
    """The quickest candidate of a kernel.

    `seconds` is the time of a launch with it, and `untuned` the time with the candidate that is taken without
    tuning. `tried` has the candidates measured so far, as texts."""

    candidate: Candidate
    seconds: float
    untuned: float
    tried: frozenset[str] = frozenset()

    @property
    def better(self) -> bool:
        """Whether the candidate is quicker than the untuned one."""
        return self.seconds < self.untuned


def place_of(target: Target, threads: int, libraries: str) -> str:
    """Return the text that identifies where timings are valid. It names this machine's processor, the target
    with its memories, the threads, the libraries and the compiler's version."""
    sizes = target.machine.memories
    return f"{processor_name()} {target} {sizes} threads={threads} {libraries} {source_digest()}"


class Store:
    """Findings of tuning, in a file in `folder`. The default folder is `environment.cache_folder`'s. At most
    `limit` findings are kept."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, limit: int = LIMIT) -> None:
        self.path = (cache_folder() if folder is None else Path(folder)) / TUNED
        self.limit = limit

    def get(self, place: str) -> dict[str, Finding]:
        """Return the findings that are valid at `place`, by the kernel's digest.

        The result is empty if the file is missing, unreadable or another user's. A damaged row is left out.
        Compiling then continues without it and loses only time."""
        if not own(self.path):
            return {}
        columns = "kernel, template, params, seconds, untuned, tried"
        try:
            with self._open() as db:
                rows = db.execute(f"SELECT {columns} FROM kernels WHERE place = ?", (place,)).fetchall()
        except (sqlite3.Error, ValueError):
            return {}
        return {row[0]: found for row in rows if (found := _finding(*row[1:])) is not None}

    def put(self, place: str, found: Mapping[str, Finding]) -> None:
        """Store findings by kernel digest, in place of older ones. Raises OSError or sqlite3.Error if the
        file can't be written."""
        make_folder(self.path.parent)
        self.path.touch()
        self.path.chmod(0o600)
        now = time.time()
        rows = [
            (place, k, f.candidate.template, json.dumps(dict(f.candidate.params)), f.seconds, f.untuned,
             json.dumps(sorted(f.tried)), now)
            for k, f in found.items()
        ]  # fmt: skip
        with self._open() as db:
            db.execute(_SCHEMA)
            db.executemany("INSERT OR REPLACE INTO kernels VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            db.execute(_OLDEST, (self.limit,))

    def try_put(self, place: str, found: Mapping[str, Finding]) -> str:
        """Put findings as `put` does; return why this failed, or "".

        The measured results count even if they can't be stored."""
        try:
            self.put(place, found)
        except (OSError, sqlite3.Error) as error:
            return str(error)
        return ""

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=WAIT)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            with db:
                yield db


def _finding(
    template: object, params: object, seconds: object, untuned: object, tried: object
) -> Finding | None:
    """Return the finding in a row, or None if `put` didn't write the row."""
    try:
        if not (isinstance(template, str) and isinstance(seconds, float) and isinstance(untuned, float)):
            return None
        values, texts = json.loads(str(params)), json.loads(str(tried))
        if not all(isinstance(v, int) for v in values.values()) or not all(isinstance(t, str) for t in texts):
            return None
        return Finding(Candidate(template, values), seconds, untuned, frozenset(texts))
    except (ValueError, TypeError, AttributeError):
        return None
