"""Let allocations of a process fail in turn. The process has the environment of `failing.environment`.

Its input has a job in each line, as JSON, and its output has `Campaign.counts` for each job. A failed
allocation must end in the correct result or in an error that says so. The call that follows must be right."""

from __future__ import annotations

import json
import os
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
    # The messages of CPython 3.11, NumPy and OpenSSL if their own small allocations fail:
    r"|os\.PathLike|without exception set|without setting an exception"
    r"|digital envelope routines",
    re.IGNORECASE,
)
"""A pattern of the errors that a failed allocation causes."""
RUNS = ("first", "again", "addressed")
FATAL = ("llvmlite", "libstdc++", "_upb", "pocl", "LLVM", "clang", "OpenCL")
"""Libraries that end the process if they have no memory, so their allocations don't fail: LLVM, protobuf and
OpenCL's driver."""
TOLD = 5
"""The most wrong endings that are described in full."""


class Campaign:
    """The failed allocations of one `action` on one kind of executable. The results are stored in a `file`.

    The actions are `load`, `save`, `compile` for a target, and three runs. `first` is the first run after
    loading, `addressed` is a run with given addresses, and `again` is a run for other sizes."""

    def __init__(self, file: Path, name: str, action: str, target: str) -> None:
        self.kind, self.action, self.target, self.file = kind(name), action, target, file
        self.failing = Failing()
        if action == "load" and target == "opencl":
            # On several processors, Python's executor builds the programs. If its lock's `__exit__` finds no
            # memory, the lock stays closed, and all threads wait for ever.
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        self.exe = self.kind.loaded(file)
        for feeds in self.kind.feeds:
            self.kind.check(self.exe, feeds)
        if action == "compile":
            self._compiled()
        self.failing.spare(*FATAL)

    def _compiled(self) -> Any:
        return self.kind.compiled(target=self.target, isolated=False)

    def _act(self) -> Callable[[], Any]:
        """Return the function during which an allocation fails."""
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
        """Raise if the action's result is wrong, or if the next call is. `made` is the result or the
        error."""
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
        """Return how the action ended with allocation number `n` failing. Raises AssertionError if the ending
        is wrong.

        Only this thread's allocations fail in a compilation, whose kernels are made in threads of Python's.
        CPython's `Thread.start` waits for ever if the new thread finds no memory before it has said that it
        runs."""
        act = self._act()
        alone = self.action == "compile"
        made: Any
        try:
            with self.failing.at(n, forever=forever, least=least, alone=alone):
                made = act()
        except MemoryError as error:
            made = error
        except Exception as error:
            assert CLEAR.search(str(error)), f"{type(error).__name__}: {error}"
            made = error
        self._confirm(made)
        return type(made).__name__ if isinstance(made, Exception) else "right"

    def counts(self, *, forever: bool, least: int, some: int, seed: int) -> Mapping[str, Any]:
        """Return the number of the action's allocations, and how it ended with each of them failing.

        `some` is the number of allocations that fail, drawn by the seed; 0 means all."""
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
