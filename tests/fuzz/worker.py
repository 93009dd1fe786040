"""Runs mutants in a process of its own: `python -m tests.fuzz.worker KIND SEED FIRST COUNT FOLDER`.

The process writes a line when it begins a mutant ("N compile"), and a line when it runs one ("N run"). A
third line says how the mutant ended ("N fine", "N refused", "N over", "N WRONG error"). The mutant lies in
the folder before the work on it begins.

A mutant may be refused by the documented errors. Any other error is wrong, and a crash is wrong. A byte that
a run writes beyond its buffers is wrong, too. In a tenth of the processes the buffers end at a page that
can't be read.
"""

from __future__ import annotations

import math
import random
import resource
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

import jangin
from jangin import CompileError, IndexOutOfRange
from jangin.runtime.artifact import ArtifactError
from jangin.runtime.device import LoadError
from jangin.runtime.load import Runnable
from tests.guarded import Memory, watched

from . import formats, mutants, seeds, values

MOST_BYTES = 4 << 30
"""The most memory that a process may take for itself, in bytes."""
LIMITS = jangin.Limits(seconds=20, memory=2 << 30)
"""The limits of a compilation. They are well within the limit that ends the process (see `run.SECONDS`)."""
MOST_ELEMENTS = 1 << 20
"""The most elements of an input with which a model is run. A model with larger inputs is only compiled."""
IN_PAGES = 0.1
"""Share of processes whose buffers end at a page that can't be read."""
RUN_ERRORS = (ValueError, TypeError, IndexOutOfRange, MemoryError)
LOAD_ERRORS = (ArtifactError, LoadError)


def refusal(error: CompileError) -> str:
    """Return the outcome for a model that isn't compiled: `over` if it reached a limit, else `refused`."""
    return "over" if "limits=" in str(error) else "refused"


def say(number: int, what: str) -> None:
    print(number, what, flush=True)


class Worker:
    """The mutants of one kind. `folder` has what they are made of (see `run.prepare`)."""

    def __init__(self, kind: str, folder: Path) -> None:
        other = kind in formats.FORMATS
        self.do: Callable[[int, random.Random, Path], str] = (
            self._format if other else getattr(self, f"_{kind}")
        )
        self.folder = folder
        self.others = [formats.saved(p.parent) for p in sorted((folder / kind).glob("*/order"))]
        self.models = [p.read_bytes() for p in sorted((folder / "models").glob("*.onnx"))]
        self.files = [p.read_bytes() for p in sorted((folder / "files").glob("*.jgn"))]
        self.ready: list[Runnable] = []
        self.memory = Memory()

    def mutant(self, number: int, seed: str, current: Path) -> str:
        """Compile and run the mutant of a number, and return its outcome."""
        try:
            return self.do(number, random.Random(f"{seed}/{number}"), current)
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            return f"WRONG {text[:300]}"

    def _fields(self, number: int, rng: random.Random, current: Path) -> str:
        return self._model(number, seeds.fields(rng.choice(self.models), rng), rng, current)

    def _huge(self, number: int, rng: random.Random, current: Path) -> str:
        return self._model(number, seeds.huge(rng.choice(self.models), rng), rng, current)

    def _bytes(self, number: int, rng: random.Random, current: Path) -> str:
        return self._model(number, seeds.damage(rng.choice(self.models), rng), rng, current)

    def _model(self, number: int, data: bytes, rng: random.Random, current: Path) -> str:
        current.write_bytes(data)
        say(number, "compile")
        try:
            exe = jangin.compile(data, threads=1, cache=False, isolated=False, limits=LIMITS)
        except CompileError as error:
            return refusal(error)
        return self._run(number, exe, rng)

    def _format(self, number: int, rng: random.Random, current: Path) -> str:
        """Compile and run a mutant of another format. The kernel cache is kept, because most mutants share
        kernels with the original."""
        shutil.rmtree(current, ignore_errors=True)
        path = formats.save(formats.mutant(rng.choice(self.others), rng), current)
        say(number, "compile")
        try:
            cache = self.folder / "cache"
            exe = jangin.compile(path, threads=1, cache=cache, isolated=False, limits=LIMITS)
        except CompileError as error:
            return refusal(error)
        return self._run(number, exe, rng)

    def _run(self, number: int, exe: Runnable, rng: random.Random) -> str:
        sizes = [math.prod(d for d in s.shape if isinstance(d, int)) for s in exe.inputs]
        if max(sizes, default=0) > MOST_ELEMENTS:
            return "fine"
        say(number, "run")
        given = values.feeds(exe.inputs, rng)
        ended = "fine"
        try:
            exe.run(given)
        except RUN_ERRORS:
            ended = "refused"
        faults = self.memory.faults()
        return f"WRONG {'; '.join(faults)}" if faults else ended

    def _values(self, number: int, rng: random.Random, current: Path) -> str:
        if not self.ready:
            self.ready = [
                jangin.compile(m.SerializeToString(), threads=1, cache=False, isolated=False)
                for m in values.models().values()
            ]
        current.write_text(f"{number}\n")
        return self._run(number, rng.choice(self.ready), rng)

    def _damage(self, number: int, rng: random.Random, current: Path) -> str:
        return self._file(number, mutants.damage(rng.choice(self.files), rng), current)

    def _rewrite(self, number: int, rng: random.Random, current: Path) -> str:
        plain = [f for f in self.files if mutants.is_plain(f)]
        return self._file(number, mutants.rewrite(rng.choice(plain), rng), current)

    def _file(self, number: int, data: bytes, current: Path) -> str:
        current.write_bytes(data)
        say(number, "compile")
        try:
            exe: Any = jangin.load(current, threads=1, mapped=bool(number % 2))
            exe.artifact.save(current.with_suffix(".again"))  # saving waits until constants are checked
        except LOAD_ERRORS:
            return "refused"
        return "fine"


def main(kind: str, seed: str, first: int, count: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    onnx.ModelProto()  # this loads protobuf before the first mutant is timed
    worker, current = Worker(kind, folder), folder / f"current-{kind}-{first}"
    worker.memory.pages = random.Random(f"{seed}/{first}").random() < IN_PAGES
    with watched(worker.memory):
        for number in range(first, first + count):
            ended = worker.mutant(number, seed, current)
            say(number, ended)
            if ended.startswith("WRONG"):
                return  # the mutant stays in the folder until it is kept
    print("peak", peak(), flush=True)


def peak() -> int:
    """Return the peak memory of this process, in KiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
