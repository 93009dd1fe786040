"""The quickest candidates found so far, by kernel, device and threads, in one SQLite file.

Two processes may tune at once: SQLite's write-ahead log lets readers go on while one writes, and the
last result for a kernel stands.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from jangin.runtime.cpu import processor_name
from jangin.targets.target import Target
from jangin.templates.template import Candidate

FILE = "tuned.sqlite"
WAIT = 30.0
"""Seconds to wait for another process's write."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS winners (
    device TEXT NOT NULL, threads INTEGER NOT NULL, kernel TEXT NOT NULL,
    template TEXT NOT NULL, params TEXT NOT NULL, seconds REAL NOT NULL, untuned REAL NOT NULL,
    PRIMARY KEY (device, threads, kernel)
) WITHOUT ROWID
"""


@dataclass(frozen=True)
class Winner:
    """`seconds` of a launch with the candidate, `untuned` without."""

    candidate: Candidate
    seconds: float
    untuned: float


def device(target: Target) -> str:
    """What timings belong to: this machine's processor, and how its code is made."""
    return f"{processor_name()} {target} {target.l1}/{target.l2}/{target.l3}"


class Store:
    """`folder`: where the file lies (by default the user's cache folder)."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(folder if folder is not None else platformdirs.user_cache_dir("jangin")) / FILE

    def winners(self, device: str, threads: int) -> dict[str, Winner]:
        """By kernel digest. Empty where there is no file, or none that can be read: what is lost is time,
        and compiling goes on."""
        if not self.path.is_file():
            return {}
        query = (
            "SELECT kernel, template, params, seconds, untuned FROM winners WHERE device = ? AND threads = ?"
        )
        try:
            with self._open() as db:
                rows = db.execute(query, (device, threads)).fetchall()
        except sqlite3.Error:
            return {}
        return {k: Winner(Candidate(t, json.loads(p)), s, u) for k, t, p, s, u in rows}

    def put(self, device: str, threads: int, winners: Mapping[str, Winner]) -> None:
        """Keep winners, each in the place of an older one. Raises OSError or sqlite3.Error where the
        file can't be written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            (
                device,
                threads,
                k,
                w.candidate.template,
                json.dumps(dict(w.candidate.params)),
                w.seconds,
                w.untuned,
            )
            for k, w in winners.items()
        ]
        with self._open() as db:
            db.execute(_SCHEMA)
            db.executemany("INSERT OR REPLACE INTO winners VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=WAIT)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            with db:
                yield db
