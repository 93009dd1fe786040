"""The sampler: `python -m jangin.energy.sampler WANTED FILE PARENT` reads all sources in its own process.

It writes its samples to a file, so that the measuring process does nothing meanwhile. The first line tells
the sources. Each further line is a source's number, a time and the rails' values. An error is a line too."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from jangin.energy.series import Series
from jangin.energy.source import EnergyError, Rail, Source
from jangin.energy.sources import find
from jangin.ir.records import dataclass
from jangin.runtime.system.processes import FORKS, kill_group
from jangin.runtime.system.usage import busy_seconds
from jangin.runtime.system.watching import end_with

START_SECONDS = 30.0
"""The most seconds that the sampler may take to start. It imports Python's packages, which takes long on a
small board."""
LATE_SECONDS = 20.0
"""A source that gives no sample for so long has died. Wall meters give one in ten seconds or less."""
LOOK_SECONDS = 0.02
"""Seconds between two looks at what the sampler has written. A look costs little, and a wait ends at most so
much late."""
SAME_CLOCK = 0.02
"""Timestamps that are later or earlier than their arrival by more seconds than this are of another clock. On
this machine a sample arrives within a few milliseconds."""
APART, TOGETHER = "apart", "together"
"""Lines that say whether a source's timestamps are of another clock."""
APART_SECONDS = 0.001
"""Samples that are closer than this to the last one are left out, so that a quick meter fills no memory."""


@dataclass(frozen=True)
class Wanted:
    """The sources to sample: external meters, and the sensors below `root`, by default the system's."""

    meters: tuple[str, ...] = ()
    root: str = ""

    def find(self) -> tuple[list[Source], list[str]]:
        return find(self.meters, Path(self.root) if self.root else None)


class Sampler:
    """A running sampler process. It ends with the context.

    Raises EnergyError if there is no source, with a reason for each kind."""

    def __init__(self, wanted: Wanted) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name, "samples")
        self._started, self._read = time.monotonic(), 0
        self._times: list[list[float]] = []
        self._values: list[list[list[float]]] = []
        self._errors: dict[int, str] = {}
        self._shifts: dict[int, float] = {}
        self._apart: set[int] = set()
        told = [json.dumps(asdict(wanted)), str(self._path), str(os.getpid())]
        command = [sys.executable, "-m", "jangin.energy.sampler", *told]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            self.names, self._rails = self._head()
        except BaseException:  # the process ends with a constructor that fails, then the error is raised
            self.close()
            raise

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if FORKS and self._process.returncode is None:
            kill_group(self._process.pid)  # a meter's command is in the group
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    @property
    def cost(self) -> float:
        """The share of one core that sampling has used so far."""
        return busy_seconds(self._process.pid) / (time.monotonic() - self._started)

    def is_apart(self, source: int) -> bool:
        """Return whether a source's timestamps are those of another clock, and weren't shifted so far."""
        self._take()
        return source in self._apart and source not in self._shifts

    def shift(self, source: int, seconds: float) -> None:
        """Add seconds to the times of a source's samples."""
        self._shifts[source] = seconds

    def pause(self, seconds: float) -> tuple[float, float]:
        """Sleep for `seconds`. Return the monotonic times of the beginning and the end."""
        start = time.monotonic()
        time.sleep(seconds)
        return start, time.monotonic()

    def series(self, source: int) -> list[Series]:
        """Return the samples of a source so far, one series for each rail."""
        self._take()
        columns = zip(*self._values[source], strict=True) if self._values[source] else [()] * len(self._rails)
        pairs = zip(self._rails[source], columns, strict=False)
        times = np.asarray(self._times[source]) + self._shifts.get(source, 0.0)
        return [Series(rail, times, column) for rail, column in pairs]

    def wait(self, source: int, until: float) -> None:
        """Wait until a source has a sample after the time `until`. Raises EnergyError if the source or the
        sampler process ends first."""
        waited = 0.0  # not by the clock, which goes on while all processes are stopped
        while True:
            self._take()
            if self._times[source] and self._times[source][-1] + self._shifts.get(source, 0.0) >= until:
                return
            if source in self._errors:
                raise EnergyError(f"{self.names[source]}: {self._errors[source]}")
            if self._process.poll() is not None:
                raise EnergyError(f"the sampler ended with status {self._process.returncode}")
            if waited > LATE_SECONDS:
                raise EnergyError(f"{self.names[source]}: no sample for {LATE_SECONDS:.0f} s")
            time.sleep(LOOK_SECONDS)
            waited += LOOK_SECONDS

    def _head(self) -> tuple[list[str], list[list[Rail]]]:
        waited = 0.0  # not by the clock, as in `wait`
        while waited < START_SECONDS:
            ended = self._process.poll() is not None
            text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
            if "\n" in text:
                line = text[: text.index("\n") + 1]
                self._read = len(line.encode())
                told: dict[str, Any] = json.loads(line)
                if "error" in told:
                    raise EnergyError(told["error"])
                self._times = [[] for _ in told["sources"]]
                self._values = [[] for _ in told["sources"]]
                return (
                    [name for name, _ in told["sources"]],
                    [[Rail(**rail) for rail in rails] for _, rails in told["sources"]],
                )
            if ended:
                words = self._process.communicate()[1].strip().splitlines()[-1:]
                raise EnergyError(f"the sampler ended at once: {''.join(words)}")
            time.sleep(LOOK_SECONDS)
            waited += LOOK_SECONDS
        raise EnergyError(f"the sampler gave no sample within {START_SECONDS:.0f} s")

    def _take(self) -> None:
        """Read the lines that the sampler has written since the last call."""
        with open(self._path, "rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode().splitlines():
            number, rest = line.split(" ", 1)
            if rest.startswith("error "):
                self._errors[int(number)] = rest.removeprefix("error ")
                continue
            if rest in (APART, TOGETHER):
                (self._apart.add if rest == APART else self._apart.discard)(int(number))
                continue
            at, *values = map(float, rest.split())
            self._times[int(number)].append(at)
            self._values[int(number)].append(values)


def main(arguments: Sequence[str]) -> None:
    """Sample the wanted sources into a file until this process is killed."""
    wanted, path, parent = arguments
    end_with(int(parent))
    told = json.loads(wanted)
    with open(path, "w", buffering=1, encoding="utf-8") as file:
        try:
            sources, reasons = Wanted(tuple(told["meters"]), told["root"]).find()
            if not sources:
                raise EnergyError(f"no source of energy figures. {'. '.join(reasons)}")
        except EnergyError as error:
            print(json.dumps({"error": str(error)}), file=file)
            return
        heads = [(s.name, [asdict(rail) for rail in s.rails]) for s in sources]
        print(json.dumps({"sources": heads}), file=file)
        lock = threading.Lock()
        threads = [threading.Thread(target=_write, args=(n, s, file, lock)) for n, s in enumerate(sources)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _write(number: int, source: Source, file: TextIO, lock: threading.Lock) -> None:
    """Write a source's samples until it ends, and then its error."""
    last, told = -math.inf, ""
    try:
        for at, values in source.samples():
            if source.lag is not None and told != TOGETHER:
                clock = APART if source.lag() > SAME_CLOCK else TOGETHER
                if clock != told:
                    with lock:
                        print(number, clock, file=file)
                told = clock
            if abs(at - last) < APART_SECONDS:
                continue
            last = at
            with lock:
                print(number, f"{at:.6f}", *(f"{v:.9g}" for v in values), file=file)
    except Exception as error:  # a meter's own errors become a line, and other sources go on
        with lock:
            print(number, "error", " ".join(str(error).split()) or type(error).__name__, file=file)


if __name__ == "__main__":
    main(sys.argv[1:])
