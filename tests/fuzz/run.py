"""Runs thousands of mutants in child processes, counts the outcomes, and ends processes that hang."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import onnx

import jangin

from . import formats, values

OTHERS = tuple(name for name, kind in formats.FORMATS.items() if kind.here)
KINDS = ("fields", "huge", "bytes", "damage", "rewrite", "values", *OTHERS)
BATCH = {
    "fields": 100,
    "huge": 100,
    "bytes": 200,
    "damage": 300,
    "rewrite": 300,
    "values": 1000,
    **dict.fromkeys(OTHERS, 100),
}
"""The mutants that each process gets, by kind: some seconds of work."""
SECONDS = 60.0
"""The most seconds that a mutant may compile or load. A run that takes longer is ended without a fault,
because a model may ask for any number of iterations."""
ROOT = Path(__file__).parents[2]


@dataclass
class Tally:
    """The outcomes of the mutants of one kind. `wrong` has each error, and how to make its mutant again."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    peak: int = 0
    """Memory of the largest process, in KiB."""

    @property
    def count(self) -> int:
        return self.ends.total()


def prepare(folder: Path, whole: bool) -> None:
    """Write what mutants are made of: a few models and files. If `whole`, ONNX's node tests are added."""
    for name in ("models", "files"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, model in values.models().items():
        onnx.save(model, folder / "models" / f"{name}.onnx")
        built = jangin.build(model.SerializeToString(), cache=False, isolated=False)
        built.save(folder / "files" / f"{name}.jgn")
    formats.prepare(folder)
    if whole:
        from onnx.backend.test.loader import load_model_tests

        for case in load_model_tests(kind="node"):
            if case.model is not None and case.model.ByteSize() < 1 << 16:
                onnx.save(case.model, folder / "models" / f"{case.name}.onnx")


def batch(kind: str, seed: str, first: int, count: int, folder: Path, tally: Tally) -> None:
    """Run the mutants `first` to `first + count`, in as many processes as needed."""
    end = first + count
    while first < end:
        first = _process(kind, seed, first, end - first, folder, tally)


def _process(kind: str, seed: str, first: int, count: int, folder: Path, tally: Tally) -> int:
    """Run one process, and return the number of the next mutant."""
    command = [sys.executable, "-m", "tests.fuzz.worker", kind, seed, str(first), str(count), str(folder)]
    paths = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    start, at, doing, errors = time.monotonic(), first, "compile", folder / f"errors-{kind}-{first}"
    given = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": paths}, "text": True}
    with (
        open(errors, "w+b") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, **given) as process,  # type: ignore[call-overload]
    ):
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_read, args=(process, lines), daemon=True).start()
        while True:
            try:
                line = lines.get(timeout=SECONDS)
            except queue.Empty:
                process.kill()
                line = f"{at} long" if doing == "run" else f"{at} WRONG nothing for {SECONDS:.0f} s"
            number, _, said = line.partition(" ")
            if number == "peak":
                tally.peak = max(tally.peak, int(said))
                break
            if not line:
                log.seek(0)
                last = b" ".join(log.read()[-300:].split()).decode(errors="replace")
                said = f"WRONG the process ended with {process.wait()} ({doing}): {last}"
            if said in ("compile", "run"):
                at, doing = int(number), said
                continue
            tally.ends[said.split()[0]] += 1
            if said.startswith("WRONG"):
                saved = _saved(folder, kind, seed, first, at)
                tally.wrong.append(f"{kind} seed {seed} number {at}: {said[6:]} [{saved}]")
            at, doing = at + 1, "compile"
            if said == "long" or said.startswith("WRONG"):
                break
    errors.unlink()
    tally.seconds += time.monotonic() - start
    return first + count if number == "peak" else at


def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line.strip())
    lines.put("")


def _saved(folder: Path, kind: str, seed: str, first: int, number: int) -> Path:
    """Keep a mutant under a name of its own."""
    kept = folder / "wrong" / f"{kind}-{seed}-{number}"
    kept.parent.mkdir(exist_ok=True)
    current = folder / f"current-{kind}-{first}"
    if current.is_dir():
        shutil.copytree(current, kept, dirs_exist_ok=True)
    elif current.exists():
        shutil.copyfile(current, kept)
    return kept


def campaign(
    folder: Path,
    seed: str,
    seconds: float,
    tell: Callable[[float, dict[str, Tally]], None],
    whole: bool = True,
) -> dict[str, Tally]:
    """Run mutants of all kinds in turn for `seconds`. `tell` is called with the seconds so far and the
    tallies."""
    prepare(folder, whole)
    tallies = {kind: Tally() for kind in KINDS}
    begin = time.monotonic()
    while (past := time.monotonic() - begin) < seconds:
        kind = min(KINDS, key=lambda k: tallies[k].seconds)
        tell(past, tallies)
        batch(kind, seed, tallies[kind].count, BATCH[kind], folder, tallies[kind])
    tell(time.monotonic() - begin, tallies)
    return tallies
