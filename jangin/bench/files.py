"""The files of a model that engines read.

Jangin converts models by its own commands, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jangin.bench.engines import reads
from jangin.ir.records import dataclass

Make = Callable[[Path, Sequence[str]], None]
"""A function that has a command of Jangin, given as words, make a file. Raises Unprepared."""


class Unprepared(Exception):
    """A model can't be had in the form that an engine needs. The message tells why."""


def file_for(
    engine: str, model: Path, sizes: Mapping[str, int], folder: Path, make: Make, sized: str = ""
) -> tuple[Path, str]:
    """Return the file of a model for an engine, and how the file was made ("" if it is the model's own).

    `make` runs a command that converts the model. Converted files are in `folder`. Files for TensorFlow Lite
    are for one set of sizes, and have `sized` in their names. Raises Unprepared if there is no file in a
    format that the engine reads.
    """
    wanted = reads(engine)
    if wanted in ("", model.suffix):
        return model, ""
    if wanted in (".pt2", ".gguf"):
        beside = file_beside(model, wanted)
        if beside is None:
            kind = "an exported program" if wanted == ".pt2" else "a language model"
            raise Unprepared(
                f"{engine} takes {kind} ({wanted}), which can't be made of another format: put "
                f"{model.stem}{wanted} beside the model"
            )
        return beside, f"from {beside.name}, beside the model"
    fixed = sizes if wanted == ".tflite" else {}
    converted = folder / f"float32{sized if fixed else ''}{wanted}"
    make(converted, ["convert", str(model), str(converted), *shape_words(fixed)])
    return converted, f"made by jangin convert from {model.suffix or 'a folder'}"


@dataclass(frozen=True)
class Found:
    """An engine's file and how it was made, or why there is none."""

    path: Path
    how: str = ""
    problem: str = ""


def files_for(
    engines: Sequence[str], model: Path, sizes: Mapping[str, int], folder: Path, before: Sequence[str]
) -> dict[str, Found]:
    """Return the file of a model for each of some engines. Equal files are made once. `before` are options of
    `jangin` that stand before the converting command."""
    make = Maker(before)
    files = {}
    for engine in engines:
        try:
            files[engine] = Found(*file_for(engine, model, sizes, folder, make))
        except Unprepared as error:
            files[engine] = Found(model, problem=str(error))
    return files


def file_beside(model: Path, ending: str) -> Path | None:
    """Return the file with the model's name and another ending in the same folder, or None if there is
    none."""
    beside = model.with_suffix(ending)
    return beside if beside != model and beside.is_file() else None


def shape_words(sizes: Mapping[str, int]) -> list[str]:
    """Return the command-line options that fix sizes."""
    return [word for name, size in sizes.items() for word in ("--shape", f"{name}={size}")]


class Maker:
    """Runs `jangin` commands that make files, each at most once. `before` are options before each command. A
    command may take `limit` seconds."""

    def __init__(self, before: Sequence[str] = (), limit: float | None = None) -> None:
        self._before, self._limit = before, limit
        self._failed: dict[Path, str] = {}

    def __call__(self, made: Path, command: Sequence[str], before: Sequence[str] = ()) -> None:
        """Run a command that makes the file `made`, unless the file exists. If the command fails, raise
        Unprepared with the last line of its error. Later calls for the same file raise it again."""
        if not made.exists() and made not in self._failed:
            self._failed[made] = self._said([*self._before, *before, *command])
        if not made.exists():
            told = self._failed[made].strip()[:300] or "it made no file"
            raise Unprepared(f"jangin {command[0]} failed: {told}")

    def _said(self, command: Sequence[str]) -> str:
        """Run a `jangin` command, and return the line of its output that tells its error."""
        words = [sys.executable, "-m", "jangin", *command]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=self._limit, check=False)
        except subprocess.TimeoutExpired:
            return f"it took more than {self._limit:g} s"
        lines = (done.stderr.strip() or f"status {done.returncode}").splitlines()
        return next((line for line in lines if "error:" in line), lines[-1])
