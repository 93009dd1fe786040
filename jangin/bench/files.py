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
    """Return a model's file for an engine, and how it was made. Converted files lie in `folder`.

    TensorFlow Lite's converted files are for one set of sizes, and have `sized` in their names. Raises
    Unprepared."""
    wanted = reads(engine)
    if wanted in ("", model.suffix):
        return model, ""
    if wanted in (".pt2", ".gguf"):
        beside = file_beside(model, wanted)
        if beside is None:
            kind = "an exported program" if wanted == ".pt2" else "a language model"
            raise Unprepared(
                f"it takes {kind} ({wanted}), which can't be made of another format: put "
                f"{model.stem}{wanted} beside the model"
            )
        return beside, f"from {beside.name}, beside the model"
    fixed = sizes if wanted == ".tflite" else {}
    made = folder / f"float32{sized if fixed else ''}{wanted}"
    make(made, ["convert", str(model), str(made), *shape_words(fixed)])
    return made, f"made by jangin convert from {model.suffix or 'a folder'}"


@dataclass(frozen=True)
class Found:
    """An engine's file and how it was made, or why there is none."""

    path: Path
    how: str = ""
    problem: str = ""


def files_for(
    engines: Sequence[str], model: Path, sizes: Mapping[str, int], folder: Path, before: Sequence[str]
) -> dict[str, Found]:
    """Return the files of some engines. Each is made once. `before` are options before a command."""
    make = Maker(before)
    files = {}
    for engine in engines:
        try:
            files[engine] = Found(*file_for(engine, model, sizes, folder, make))
        except Unprepared as error:
            files[engine] = Found(model, problem=str(error))
    return files


def file_beside(model: Path, ending: str) -> Path | None:
    """Return the file with another ending that has a model's name and lies beside it, or None."""
    beside = model.with_suffix(ending)
    return beside if beside != model and beside.is_file() else None


def shape_words(sizes: Mapping[str, int]) -> list[str]:
    """Return the words of a command that fix sizes."""
    return [word for name, size in sizes.items() for word in ("--shape", f"{name}={size}")]


class Maker:
    """Runs commands that make files, each once. `before` are options before the command. A command may take
    `limit` seconds."""

    def __init__(self, before: Sequence[str] = (), limit: float | None = None) -> None:
        self._before, self._limit = before, limit
        self._failed: dict[Path, str] = {}

    def __call__(self, made: Path, command: Sequence[str], before: Sequence[str] = ()) -> None:
        """Have a command make a file, unless the file exists. Raises Unprepared with the last line of its
        error if it fails, at every further call too."""
        if not made.exists() and made not in self._failed:
            self._failed[made] = self._said([*self._before, *before, *command])
        if not made.exists():
            told = self._failed[made].strip()[:300] or "it made no file"
            raise Unprepared(f"jangin {command[0]} failed: {told}")

    def _said(self, command: Sequence[str]) -> str:
        """Run a command, and return the line of its error."""
        words = [sys.executable, "-m", "jangin", *command]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=self._limit, check=False)
        except subprocess.TimeoutExpired:
            return f"it took more than {self._limit:g} s"
        lines = (done.stderr.strip() or f"status {done.returncode}").splitlines()
        return next((line for line in lines if "error:" in line), lines[-1])
