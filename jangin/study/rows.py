"""The rows of a study, and the file that keeps them: one line of JSON each."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import Any

from jangin.files import writing
from jangin.ir.records import dataclass

FAILED, CROWDED = "failed", "crowded"
"""The kinds of rows that a study measures again if it is asked to: those with a problem, and those beside
which other processes worked."""
BUSY = 0.5
"""A row is crowded if other processes kept more cores busy than this. Half a core slows an engine that uses
all cores by more than most differences between engines."""
CPU = "cpu"
"""The device of all engines. Others are those that Jangin compiles for."""


@dataclass(frozen=True)
class Group:
    """The rows that are measured side by side: one model in one form on one device, in all engines."""

    model: str
    precision: str
    batch: int
    threads: int
    device: str = CPU


@dataclass(frozen=True)
class Row:
    """One engine's figures in one group. Times are milliseconds a call, over the calls of all kept turns.

    `problem` tells why there are none, and `absent` whether it is only because the engine isn't installed.
    `how` tells which file the engine read. `first` is the seconds from the engine's import to its first
    result. `error` is the largest difference to `reference`, as a share of an output's largest value. `crowd`
    is the number of cores that other processes kept busy. `layers` has the seconds of a run by operator, for
    engines that tell them.

    `energy` has the fields of `jangin.energy.Used`, and `no_energy` the reason if it is missing. A row that
    isn't `whole` was interrupted, and is measured again if the study is resumed."""

    model: str
    precision: str
    batch: int
    threads: int
    engine: str
    version: str = ""
    device: str = CPU
    problem: str = ""
    absent: bool = False
    how: str = ""
    median: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    low: float = 0.0
    high: float = 0.0
    calls: int = 0
    kept: int = 0
    turns: int = 0
    crowd: float = 0.0
    first: float = 0.0
    peak_bytes: int = 0
    error: float | None = None
    reference: str = ""
    layers: Mapping[str, float] = field(default_factory=dict)
    energy: Mapping[str, Any] = field(default_factory=dict)
    no_energy: str = ""
    whole: bool = True

    @property
    def group(self) -> Group:
        return Group(self.model, self.precision, self.batch, self.threads, self.device)

    def is_any(self, kinds: Collection[str]) -> bool:
        """Return whether a row is of one of the kinds that `--again` names, such as failed rows."""
        return (FAILED in kinds and bool(self.problem)) or (CROWDED in kinds and self.crowd > BUSY)

    @property
    def joules(self) -> float | None:
        """The joules of a call above rest, or None if they weren't measured."""
        return self.energy.get("joules")


class RowFile:
    """The file of a study's rows. A later row replaces an earlier one of the same engine and group."""

    def __init__(self, path: Path) -> None:
        """Read the file if it exists. A last line that was cut off, by a full disk or a crash, is removed.
        Raises ValueError if another line is no row."""
        self.path, self._rows = path, dict[tuple[Group, str], Row]()
        text = path.read_bytes() if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:
            with writing(path):
                os.truncate(path, len(whole))
        known = {f.name for f in fields(Row)}
        for number, line in enumerate(whole.decode("utf-8", "replace").splitlines(), 1):
            try:
                told = json.loads(line)
                if not isinstance(told, dict) or not told.keys() <= known:
                    raise ValueError
                row = Row(**told)
                self._rows[row.group, row.engine] = row
            except (ValueError, TypeError):
                raise ValueError(f"{path}, line {number}, is no row of a study: remove the line") from None

    def add(self, row: Row) -> None:
        """Keep a row, on the disk too. Raises OSError with a remedy if it can't be written."""
        with writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row), allow_nan=True) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._rows[row.group, row.engine] = row

    def missing(self, group: Group, engines: Iterable[str], again: Collection[str] = ()) -> list[str]:
        """Return the engines that lack a complete row in a group, or whose row is of one of the kinds
        `again`."""
        rows = {e: self._rows.get((group, e)) for e in engines}
        return [e for e, row in rows.items() if row is None or not row.whole or row.is_any(again)]

    @property
    def rows(self) -> list[Row]:
        return [*self._rows.values()]
