"""The settings of a study, and its folder, which belongs to one study."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from jangin.bench.engines import DEVICE_MULTIPLIERS, MULTIPLIERS
from jangin.bench.files import file_beside
from jangin.bench.report import machine
from jangin.files import write_text, writing
from jangin.frontends.format import opened
from jangin.frontends.table import format_of
from jangin.ir.graph import CompileError
from jangin.ir.records import dataclass
from jangin.study.host import machine_of
from jangin.study.products import Product, by_name
from jangin.study.rows import CPU, CROWDED, FAILED, Group, RowFile
from jangin.version import __version__

RECORD, ROWS, MODELS, LOCK = "settings.json", "rows.jsonl", "models", ".lock"
"""A study's settings, its rows, its folder of prepared models, and its lock, in the report's folder."""
PRECISIONS = ("float32", "float16", "int8")
PARTS = ("engines", "threads", "batches", "precisions", "products", "devices")
"""The settings whose values have rows of their own. A study may be measured by values that its folder hasn't
had before."""


@dataclass(frozen=True)
class Settings:
    """The models, engines and other settings of a study.

    `batch_symbol` names the size of a model that is the batch, by default the first of its first input.
    `limit` is the most seconds that an engine may take to compile or to run once. `meters` are external
    meters. `data` is what models are quantized with, random inputs if it is empty."""

    models: tuple[Path, ...]
    engines: tuple[str, ...]
    threads: tuple[int, ...] = (1,)
    batches: tuple[int, ...] = (1,)
    precisions: tuple[str, ...] = ("float32",)
    batch_symbol: str = ""
    shapes: Mapping[str, int] = field(default_factory=dict)
    energy: bool = False
    meters: tuple[str, ...] = ()
    rounds: int = 15
    seconds: float = 0.2
    limit: float = 600.0
    data: str = ""
    before: tuple[str, ...] = ()
    """Options that stand before a command."""
    products: tuple[Product, ...] = ()
    """Matrix products whose models are among `models`."""
    devices: tuple[str, ...] = (CPU,)
    tune: float = 0.0
    """Seconds of tuning for each group of the engine `tuned`."""
    host: str = ""
    """The address of the machine that measures, if it isn't this one."""
    target: str = ""
    """The target of that machine."""
    about: Mapping[str, str] = field(default_factory=dict)
    """The description that this machine gives of itself."""
    quiet: str = ""
    """A command that runs around what is timed, as `study.quiet` tells."""
    again: tuple[str, ...] = ()
    """The kinds of rows that are measured again, FAILED and CROWDED."""

    def groups(self) -> Iterator[Group]:
        """Yield all groups. Matrix products have one precision and no batch. A device other than the
        processor has one group for all numbers of threads."""
        for model in self.models:
            single = self.is_product(model.stem)
            for precision in ("float32",) if single else self.precisions:
                for batch in (1,) if single else self.batches:
                    for threads in self.threads:
                        yield Group(model.stem, precision, batch, threads)
                    for device in self.devices:
                        if device != CPU:
                            yield Group(model.stem, precision, batch, max(self.threads), device)

    def left(self, file: RowFile) -> list[tuple[Group, list[str]]]:
        """Return the groups with missing rows in a file, each with the engines whose rows are missing."""
        lacking = ((g, file.missing(g, self.engines_of(g), self.again)) for g in self.groups())
        return [(group, engines) for group, engines in lacking if engines]

    def engines_of(self, group: Group) -> tuple[str, ...]:
        """Return the engines that measure a group. Matrix products are also measured with libraries of
        products. On a device other than the processor, only Jangin and these are measured."""
        kind, engines, more = group.device.partition(":")[0], self.engines, MULTIPLIERS
        if group.device != CPU:
            engines = tuple(e for e in engines if e in ("jangin", "tuned"))
            more = DEVICE_MULTIPLIERS.get(kind, ())
        added = more if self.is_product(group.model) and not self.host else ()
        return tuple(dict.fromkeys((*engines, *added)))

    def is_product(self, model: str) -> bool:
        return model in by_name(self.products)

    def model(self, name: str) -> Path:
        return next(m for m in self.models if m.stem == name)

    def check(self) -> None:
        """Raise ValueError for settings that are unknown or contradict each other."""
        names = [m.stem for m in self.models]
        twice = next((n for n in names if names.count(n) > 1), None)
        if twice is not None:
            raise ValueError(f"two models are called {twice!r}: rename one, so that rows can be told apart")
        unknown = next((p for p in self.precisions if p not in PRECISIONS), None)
        odd = next((k for k in self.again if k not in (FAILED, CROWDED)), None)
        if odd is not None:
            raise ValueError(f"--again {odd!r} is unknown: there are {FAILED} and {CROWDED}")
        if "tuned" in self.engines and not self.tune:
            raise ValueError("the engine tuned needs the time to tune in: give --tune 60s")
        if unknown is not None:
            raise ValueError(f"--precision {unknown!r} is unknown: there are {', '.join(PRECISIONS)}")


def open_folder(folder: Path, settings: Settings, on: Mapping[str, Any] | None = None) -> bool:
    """Make the folder of a new study, or continue the study in it. Return whether there was a study.

    `on` describes the machine, by default this one. Further models and engines, and other values of `PARTS`,
    are added to the study. Raises ValueError if the folder has a study of other settings, or other files.
    """
    record = folder / RECORD
    now = {**_record(settings), **({} if on is None else {"machine": {**on}})}
    if record.is_file():
        try:
            before = json.loads(record.read_text(encoding="utf-8"))
            whole, differing = _joined(before, now)
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{record} is no record of a study: give another folder") from None
        if differing:
            raise ValueError(
                f"{folder} holds a study of other settings: {'; '.join(differing)}. "
                "Give the same settings to go on with it, or another folder"
            )
        if whole != before:
            write_text(record, json.dumps(whole, indent=1) + "\n")
        return True
    there = sorted(p for p in folder.iterdir() if p.name != LOCK) if folder.is_dir() else []
    if there:
        other = there[0]
        raise ValueError(f"{folder} holds {other.name} and no study: give a new or an empty folder")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_text(record, json.dumps(now, indent=1) + "\n")
    return False


def _joined(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the record of a study with the values of both records, and the names of the settings by which
    they can't be joined."""
    models = before["models"] | {n: d for n, d in now["models"].items() if n not in before["models"]}
    whole = {n: before[n] for n in now} | {"models": models}
    for name in PARTS:
        whole[name] = [*before[name], *(v for v in now[name] if v not in before[name])]
    alone = [n for n in now if n not in (*PARTS, "models") and before[n] != now[n]]
    differing = [f"{n} was {before[n]!r} and is {now[n]!r}" for n in alone]
    changed = [name for name, digest in now["models"].items() if models[name] != digest]
    return whole, differing + [f"the model {name!r} has other bytes" for name in changed]


def recorded_engines(folder: Path) -> tuple[str, ...]:
    """Return the engines of the study in a folder."""
    return tuple(json.loads((folder / RECORD).read_text(encoding="utf-8"))["engines"])


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other studies out of a folder inside this context. The system ends the lock with the process.

    Raises ValueError if another study is in the folder, and ModuleNotFoundError with a remedy if the library
    of locks isn't installed."""
    try:
        from filelock import FileLock, Timeout
    except ModuleNotFoundError:
        raise ModuleNotFoundError("a study needs filelock: pip install 'jangin[study]'") from None
    lock = FileLock(folder / LOCK, blocking=False)
    try:
        with writing(folder / LOCK):
            lock.acquire()
    except Timeout:
        raise ValueError(
            f"{folder} is in use by another study: wait for its end, or give another folder"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _record(settings: Settings) -> dict[str, Any]:
    """Return all settings on which a study's figures depend, with the machine and digests of the models, as
    plain data."""
    told = asdict(settings)
    for name in ("models", "limit", "about", "quiet", "again"):
        del told[name]
    there = machine_of(settings.about, settings.target) if settings.host else machine()
    plain: dict[str, Any] = json.loads(json.dumps(told))
    models = {m.stem: _digest(m) for m in settings.models}
    return {**plain, "models": models, "machine": there, "jangin": __version__}


def _beside(model: Path) -> list[Path]:
    """Return the paths of the other files that a model's file names. The list is empty if the model can't be
    read."""
    try:
        contents = opened(model)
        return sorted({p for p in format_of(contents).beside(contents).values() if p is not None})
    except (CompileError, ValueError, OSError):
        return []


def _digest(model: Path) -> str:
    """Return a digest of a model's bytes, of the other files that it names, and of the program beside it. A
    folder's is that of its files."""
    inside = sorted(p for p in model.rglob("*") if p.is_file())
    files = inside if model.is_dir() else [model, *_beside(model)]
    program = file_beside(model, ".pt2")
    files += [program] if program is not None else []
    hashed = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            hashed.update(hashlib.file_digest(file, "sha256").digest())
    return hashed.hexdigest()[:16]
