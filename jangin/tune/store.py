"""Store the findings of tuning by kernel and place, in one SQLite file.

Two processes may tune at once. SQLite's write-ahead log lets readers continue while one process writes, and
the last finding of a kernel counts. Findings of another place aren't used. A place is a processor with its
caches, a number of threads, an objective, and a version of the compiler.

The costs of whole models are stored too, by model and objective, for each device and number of threads."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import NoneType
from typing import Any

from jangin.compiler.cache import TUNED, make_folder, own, source_digest
from jangin.environment import cache_folder
from jangin.ir.records import dataclass
from jangin.runtime.device import LoadError
from jangin.runtime.devices import webgpu_adapters
from jangin.runtime.system.processor import processor_name
from jangin.targets import resolve
from jangin.targets.target import Target
from jangin.templates.template import Candidate
from jangin.tune.joules import Cost

LIMIT = 20_000
"""The most kernels that are kept, those of some hundred models, so that the file doesn't grow without end.
The latest findings stay."""
WAIT = 30.0
"""Seconds to wait until another process has finished its write. A write takes milliseconds, but a busy disk
may take seconds."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS kernels (
    place TEXT NOT NULL, kernel TEXT NOT NULL, template TEXT NOT NULL, params TEXT NOT NULL,
    seconds REAL NOT NULL, untuned REAL NOT NULL, tried TEXT NOT NULL, written REAL NOT NULL,
    PRIMARY KEY (place, kernel)
) WITHOUT ROWID
"""
_PROOFS = """
CREATE TABLE IF NOT EXISTS proofs (
    place TEXT NOT NULL, kernel TEXT NOT NULL, signer TEXT NOT NULL, message TEXT NOT NULL,
    signature TEXT NOT NULL, PRIMARY KEY (place, kernel, message)
) WITHOUT ROWID
"""
_OLDEST = """
DELETE FROM kernels WHERE (place, kernel) IN (
    SELECT place, kernel FROM kernels ORDER BY written DESC LIMIT -1 OFFSET ?
)
"""
_OLDEST_POINTS = """
DELETE FROM points WHERE (model, target, threads) IN (
    SELECT model, target, threads FROM points ORDER BY written DESC LIMIT -1 OFFSET ?
)
"""
_POINTS = """
CREATE TABLE IF NOT EXISTS points (
    model TEXT NOT NULL, target TEXT NOT NULL, threads INTEGER NOT NULL, seconds REAL NOT NULL,
    joules REAL, bytes INTEGER, written REAL NOT NULL, PRIMARY KEY (model, target, threads)
) WITHOUT ROWID
"""


@dataclass(frozen=True)
class Finding:
    """The best candidate of a kernel by an objective.

    `seconds` is the time of a launch with it, and `untuned` the time with the candidate that is taken without
    tuning. By another objective, `seconds` is `untuned` times the ratio of the figures. `tried` has the
    candidates measured so far, as texts."""

    candidate: Candidate
    seconds: float
    untuned: float
    tried: frozenset[str] = frozenset()

    @property
    def better(self) -> bool:
        """Whether the candidate is better than the untuned one."""
        return self.seconds < self.untuned


@dataclass(frozen=True)
class Point:
    """The cost of a call of a model on a device, which its target's name gives, with some threads.

    `joules` are those above rest, or None if no source measured them. `bytes` are those of the weights and of
    the working memory, or None if sizes are open."""

    target: str
    threads: int
    seconds: float
    joules: float | None = None
    bytes: int | None = None

    def figure(self, objective: str) -> float:
        """Return what the objective makes least. It is infinite if joules are needed and unknown."""
        if objective == "latency":
            return self.seconds
        return math.inf if self.joules is None else Cost(self.seconds, self.joules).figure(objective)


def place_of(target: Target, threads: int, libraries: str, objective: str) -> str:
    """Return the text that identifies where figures are valid. It names this machine's processor, the target
    with its memories, the adapter, the threads, the libraries, the objective and the compiler's version."""
    return f"{processor_name()} {_compiled_for(target, threads, libraries, objective)}"


def _compiled_for(target: Target, threads: int, libraries: str, objective: str) -> str:
    """Return a place's text without the processor's name."""
    sizes = target.machine.memories
    return f"{target}{_adapter(target)} {sizes} threads={threads} {libraries} {objective} {source_digest()}"


def _adapter(target: Target) -> str:
    """Return the WebGPU adapter that runs a target's code here, with its driver.

    Return "" without one, and for other targets, whose names say where figures are valid."""
    if target.device != webgpu_adapters.PREFIX:
        return ""
    with suppress(LoadError):
        adapter = webgpu_adapters.of_target(str(target))
        return f" on {adapter.identity}, {adapter.driver}"
    return ""


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
        return self._select("place = ?", place)

    def valid_for(self, target: Target, threads: int, libraries: str, objective: str) -> dict[str, Finding]:
        """Return the findings for a target, as `get` does: this machine's, or a farm's if the target is a
        processor of another architecture. If several processors measured a kernel, the latest finding
        counts."""
        architecture, here = (t.triple.partition("-")[0] for t in (target, resolve("cpu")))
        if target.device != "cpu" or architecture == here:
            return self.get(place_of(target, threads, libraries, objective))
        where = _compiled_for(target, threads, libraries, objective)
        return self._select("substr(place, -length(?1) - 1) = ' ' || ?1", where)

    def _select(self, condition: str, value: str) -> dict[str, Finding]:
        if not own(self.path):
            return {}
        columns = "kernel, template, params, seconds, untuned, tried"
        try:
            with self._open() as db:
                select = f"SELECT {columns} FROM kernels WHERE {condition} ORDER BY written"
                rows = db.execute(select, (value,)).fetchall()
        except (sqlite3.Error, ValueError):
            return {}
        return {row[0]: finding for row in rows if (finding := _finding(*row[1:])) is not None}

    def put(self, place: str, found: Mapping[str, Finding]) -> None:
        """Store findings by kernel digest, in place of older ones. Raises OSError or sqlite3.Error if the
        file can't be written."""
        self._make()
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
        return _tried(lambda: self.put(place, found))

    def points(self, model: str) -> list[Point]:
        """Return the costs of a model, given the key under which they were put. There are none if the file is
        missing, unreadable or another user's."""
        if not own(self.path):
            return []
        columns = "target, threads, seconds, joules, bytes"
        try:
            with self._open() as db:
                rows = db.execute(f"SELECT {columns} FROM points WHERE model = ?", (model,)).fetchall()
        except (sqlite3.Error, ValueError):
            return []
        kinds: tuple[Any, ...] = (str, int, float, (float, NoneType), (int, NoneType))
        return [Point(*r) for r in rows if all(isinstance(v, k) for v, k in zip(r, kinds, strict=True))]

    def put_points(self, model: str, points: Sequence[Point]) -> None:
        """Store the costs of a model, in place of older ones. Raises OSError or sqlite3.Error if the file
        can't be written."""
        self._make()
        now = time.time()
        rows = [(model, p.target, p.threads, p.seconds, p.joules, p.bytes, now) for p in points]
        with self._open() as db:
            db.execute(_POINTS)
            db.executemany("INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            db.execute(_OLDEST_POINTS, (self.limit,))

    def try_put_points(self, model: str, points: Sequence[Point]) -> str:
        """Put points as `put_points` does; return why this failed, or ""."""
        return _tried(lambda: self.put_points(model, points))

    def _make(self) -> None:
        make_folder(self.path.parent)
        self.path.touch()
        self.path.chmod(0o600)

    def try_prove(self, place: str, proofs: Sequence[tuple[str, str, str, str]]) -> str:
        """Store what machines of a farm have measured and signed: kernel, signer, message and signature.
        Earlier proofs of the kernels are dropped. Return why this failed, or ""."""
        try:
            with self._open() as db:
                db.execute(_PROOFS)
                kernels = {(place, kernel) for kernel, *_ in proofs}
                db.executemany("DELETE FROM proofs WHERE place = ? AND kernel = ?", kernels)
                rows = ((place, *proof) for proof in proofs)
                db.executemany("INSERT OR REPLACE INTO proofs VALUES (?, ?, ?, ?, ?)", rows)
        except (OSError, sqlite3.Error) as error:
            return str(error)
        return ""

    def proofs(self, place: str) -> list[tuple[str, str, str, str]]:
        """Return what `try_prove` stored for a place."""
        if not own(self.path):
            return []
        columns = "kernel, signer, message, signature"
        with self._open() as db:
            db.execute(_PROOFS)
            return db.execute(f"SELECT {columns} FROM proofs WHERE place = ?", (place,)).fetchall()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=WAIT)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            with db:
                yield db


def _tried(write: Callable[[], None]) -> str:
    """Write to a store, and return why this failed, or ""."""
    try:
        write()
    except (OSError, sqlite3.Error) as error:
        return str(error)
    return ""


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
