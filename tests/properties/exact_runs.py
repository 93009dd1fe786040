"""Runs an exact model in this process, by native code or a driver, at several numbers of threads, with all
memory guarded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import onnx
from guarded import Memory, watched
from onnx_nets import Array, Item, numpy_type

import jangin
from jangin.runtime.load import Runnable, executable
from jangin.templates import grain

THREADS = (1, 2, 3, 8)
CALLERS = 3
"""Threads that call one executable at once."""
MOST = 128
"""The symbol's largest value."""
REFUSED = ("do not meet", "but may be")
"""Parts of errors that refuse a size for which the model wasn't compiled."""
STRETCHED = re.compile(r"the sizes \w+_n\d+ = 1 do not meet")
"""An error that refuses a size of 1 which data decide, and which a wider operand would stretch. A plan takes
sizes that meet to be equal, so such a model isn't supported."""


@dataclass(frozen=True)
class Run:
    """Inputs for a value of the symbol, and the right results. If the model wasn't `drawn` for this size, it
    may refuse it."""

    size: int
    feeds: Mapping[str, Array]
    wanted: Mapping[str, Item]
    drawn: bool


@dataclass(frozen=True)
class Case:
    """A model to compile, and its runs. `number` decides how memory is guarded, how kernels share their work,
    and how inputs lie in memory."""

    number: int
    model: onnx.ModelProto
    symbolic: bool
    runs: Sequence[Run]

    @property
    def shapes(self) -> dict[str, Any] | None:
        return {"n": (0, MOST)} if self.symbolic else None

    @property
    def pages(self) -> bool:
        """Whether each buffer ends at the end of a page. This holds in a tenth of the cases."""
        return self.number % 10 == 3

    @property
    def apart(self) -> bool:
        """Whether each buffer of an arena has its own place. This holds in most cases; in the others, buffers
        share memory as usual."""
        return self.pages or self.number % 3 != 0

    @property
    def strided(self) -> bool:
        """Whether inputs lie backwards, with other numbers between their rows. This holds in a tenth of the
        cases."""
        return self.number % 10 == 6

    @property
    def outputs(self) -> list[str]:
        return [o.name for o in self.model.graph.output]


class Skipped(Exception):
    """A model can't run in a certain way."""


def differs(name: str, got: Array, want: Item) -> str:
    """Return the fault of a result, or "" if it is right. A zero's sign doesn't matter."""
    if got.dtype != numpy_type(want.dtype) or got.shape != want.shape:
        return f"{name} is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
    same = got.astype(np.float64) == want.exact if want.is_float else got == want.exact
    if same.all():
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(~same)) if got.ndim else ()
    wrong = int(got.size - np.count_nonzero(same))
    return f"{name}: {wrong} of {got.size} differ, at {list(at)} {got[at]} is not {want.exact[at]}"


def shared_out(case: Case) -> AbstractContextManager[Any]:
    """Hand a kernel's tasks to threads one by one in every second case, however small they are."""
    return mock.patch.object(grain, "GRAIN_OPS", 0.0) if case.number % 2 else nullcontext()


def native(target: str, case: Case) -> list[str]:
    """Run a model at several numbers of threads, twice at each, sometimes with several callers at once.
    Return its faults."""
    memory, found = Memory(case.pages), list[str]()
    with watched(memory, lambda _: case.apart), shared_out(case):
        artifact = jangin.build(
            case.model, target, 1, case.shapes, winograd=False, cache=False, isolated=False
        )
        for threads in THREADS:
            exe = executable(artifact, threads)
            for run in case.runs * 2:
                found += [f"{threads} threads, n = {run.size}: {f}" for f in once(exe, case, run, memory)]
            if case.number % 5 == 1:
                found += [f"{threads} threads, at once: {f}" for f in _at_once(exe, case, memory)]
            if found:
                break
    return found


def once(exe: Runnable, case: Case, run: Run, memory: Memory) -> list[str]:
    """Return the faults of one run."""
    held = {n: memory.copy(_backwards(a) if case.strided else a) for n, a in run.feeds.items()}
    before = {n: a.tobytes() for n, a in held.items()}
    given = {n: a[::-2].reshape(run.feeds[n].shape) if case.strided else a for n, a in held.items()}
    try:
        results = exe.run(given)
    except ValueError as error:
        refused = not run.drawn and any(text in str(error) for text in REFUSED)
        refused |= STRETCHED.search(str(error)) is not None
        return [] if refused else [str(error)]
    found = [d for n, y in results.items() if (d := differs(n, y, run.wanted[n]))]
    found += [f"the input {n} is changed" for n, a in held.items() if a.tobytes() != before[n]]
    del results
    return [*found, *memory.faults()]


def _backwards(array: Array) -> Array:
    """Return an array that has the given rows in every second row, from the last one on."""
    return np.repeat(np.atleast_1d(array)[::-1], 2, 0)


def _at_once(exe: Runnable, case: Case, memory: Memory) -> list[str]:
    def call(turn: int) -> list[str]:
        turns = (case.runs[(turn + n) % len(case.runs)] for n in range(4))
        return [fault for run in turns for fault in once(exe, case, run, memory)]

    with ThreadPoolExecutor(CALLERS) as callers:
        return [fault for found in callers.map(call, range(CALLERS)) for fault in found]
