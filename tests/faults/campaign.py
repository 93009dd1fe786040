"""Lets allocations of a process fail in turn; the process is one that `failing.environment` is for.

Its input has a job a line, as JSON, and its output what `Campaign.counts` gives for each: a failed allocation
must end in what the call should give, or in an error that says so, and what follows it must be right.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from failing import Failing
from kinds import kind

from jangin.runtime.arrays import address

CLEAR = re.compile(
    r"memory|allocate|can't start new thread"
    # What CPython 3.11, NumPy and OpenSSL say where it is their own allocation that fails, of a few bytes:
    r"|os\.PathLike|without exception set|without setting an exception"
    r"|digital envelope routines",
    re.IGNORECASE,
)
"""What an error says that comes of a failed allocation."""
RUNS = ("first", "again", "addressed")
FATAL = ("llvmlite", "libstdc++", "_upb", "pocl", "LLVM", "clang", "OpenCL")
"""LLVM, protobuf and OpenCL's driver end the process where they have no memory: theirs doesn't fail."""
TOLD = 5
"""Wrong ends that are told in full."""


class Campaign:
    """Of one kind of executable, which a `file` has, and one `action`: the `first` run after loading, one
    that is told where arrays lie (`addressed`), a run for other sizes `again`, to `load`, to `save`, to
    `compile` for a target."""

    def __init__(self, file: Path, name: str, action: str, target: str) -> None:
        self.kind, self.action, self.target, self.file = kind(name), action, target, file
        self.failing = Failing()
        self.exe = self.kind.loaded(file)
        for feeds in self.kind.feeds:
            self.kind.check(self.exe, feeds)
        if action == "compile":
            self._compiled()
        self.failing.spare(*FATAL)

    def _compiled(self) -> Any:
        return self.kind.compiled(target=self.target, isolated=False)

    def _act(self) -> Callable[[], Any]:
        """What is done while an allocation fails."""
        kind, feeds = self.kind, self.kind.feeds
        if self.action == "load":
            return lambda: kind.loaded(self.file)
        if self.action == "compile":
            return self._compiled
        if self.action == "save":
            return lambda: self.exe.save(self.file)
        if self.action == "again":
            kind.check(self.exe, feeds[0])
        else:
            self.exe = kind.loaded(self.file)
        if kind.keeps:
            self.exe.reset()
        return self._by_address if self.action == "addressed" else lambda: self.exe.run(feeds[1])

    def _by_address(self) -> Mapping[str, Any]:
        x = self.kind.feeds[1]["x"]
        y = np.empty_like(x)
        run = self.exe.addressed()
        run([address(x), address(y)])
        return {"y": y}

    def _confirm(self, made: Any) -> None:
        """Raises where the act's result is wrong, or what follows it: `made` is the result, or its error."""
        kind, failed = self.kind, isinstance(made, Exception)
        if self.action in RUNS:
            if not failed:
                kind.confirm(made, kind.feeds[1])
        elif self.action == "save":
            assert [*self.file.parent.iterdir()] == [self.file], "a file is left"
        exe = made if self.action in ("load", "compile") and not failed else self.exe
        for feeds in kind.feeds:
            kind.check(exe, feeds)
        if failed and self.action not in RUNS:
            repeated = self._compiled() if self.action == "compile" else kind.loaded(self.file)
            kind.check(repeated, kind.feeds[1])

    def once(self, n: int, *, forever: bool, least: int) -> str:
        """How the act ended with allocation number `n` failing. Raises AssertionError where that is wrong."""
        act = self._act()
        made: Any
        try:
            with self.failing.at(n, forever=forever, least=least, alone=self.action == "compile"):
                made = act()
        except MemoryError as error:
            made = error
        except Exception as error:
            assert CLEAR.search(str(error)), f"{type(error).__name__}: {error}"
            made = error
        self._confirm(made)
        return type(made).__name__ if isinstance(made, Exception) else "right"

    def counts(self, *, forever: bool, least: int, some: int, seed: int) -> Mapping[str, Any]:
        """How many allocations the act makes, and how it ended with each of them failing, or with `some` of
        them (0: all), drawn by the seed."""
        for _ in range(2):  # the first may import modules
            self.once(1 << 40, forever=forever, least=least)
        count = self.failing.seen
        points = range(1, count + 1)
        chosen = sorted(random.Random(seed).sample(points, some)) if 0 < some < count else points
        ended: Counter[str] = Counter()
        wrong = []
        for n in chosen:
            try:
                ended[self.once(n, forever=forever, least=least)] += 1
            except Exception:
                wrong.append(f"allocation {n}: {traceback.format_exc()}")
        return {"allocations": count, "failed": len(chosen), "ended": ended, "wrong": wrong[:TOLD]}


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "model.jgn")
            shutil.copyfile(asked["file"], file)
            campaign = Campaign(file, asked["kind"], asked["action"], asked["target"])
            counts = campaign.counts(
                forever=asked["forever"], least=asked["least"], some=asked["some"], seed=asked["seed"]
            )
        print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
