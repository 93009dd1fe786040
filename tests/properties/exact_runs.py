"""An exact model and its runs in this process: native code, or a driver's, at several numbers of threads,
with all memory guarded."""

from __future__ import annotations

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
from jangin.compiler import kernels
from jangin.runtime.load import Runnable, executable

THREADS = (1, 2, 3, 8)
CALLERS = 3
"""Threads that call one executable at once."""
MOST = 128
"""The symbol's largest value."""
REFUSED = ("do not meet", "but may be")
"""What says that a size is not one the model was compiled for."""


@dataclass(frozen=True)
class Run:
    """Inputs, for a value of the symbol, and what the model gives. `drawn`: the model was drawn for this
    size; others may be refused."""

    size: int
    feeds: Mapping[str, Array]
    wanted: Mapping[str, Item]
    drawn: bool


@dataclass(frozen=True)
class Case:
    """A model to compile, and its runs. `number` decides how: what of memory is guarded, how kernels share
    their work, and how inputs lie."""

    number: int
    model: onnx.ModelProto
    symbolic: bool
    runs: Sequence[Run]

    @property
    def shapes(self) -> dict[str, Any] | None:
        return {"n": (0, MOST)} if self.symbolic else None

    @property
    def pages(self) -> bool:
        """In a tenth of the cases each buffer ends where memory does."""
        return self.number % 10 == 3

    @property
    def apart(self) -> bool:
        """In most cases each buffer of an arena has a place of its own; in the others, as users have it."""
        return self.pages or self.number % 3 != 0

    @property
    def strided(self) -> bool:
        """In a tenth of the cases inputs lie backwards, with other numbers between their rows."""
        return self.number % 10 == 6

    @property
    def outputs(self) -> list[str]:
        return [o.name for o in self.model.graph.output]


class Skipped(Exception):
    """A way isn't for a model."""


def differs(name: str, got: Array, want: Item) -> str:
    """What is wrong with a result, or "" where nothing is. A zero's sign is no difference."""
    if got.dtype != numpy_type(want.dtype) or got.shape != want.shape:
        return f"{name} is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
    same = got.astype(np.float64) == want.exact if want.is_float else got == want.exact
    if same.all():
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(~same)) if got.ndim else ()
    wrong = int(got.size - np.count_nonzero(same))
    return f"{name}: {wrong} of {got.size} differ, at {list(at)} {got[at]} is not {want.exact[at]}"


def shared_out(case: Case) -> AbstractContextManager[Any]:
    """In every second case a kernel's tasks are handed to threads one by one, however small they are."""
    return mock.patch.object(kernels, "GRAIN_OPS", 0.0) if case.number % 2 else nullcontext()


def native(target: str, case: Case) -> list[str]:
    """At several numbers of threads, twice at each, and sometimes by several callers at once."""
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
    """What is wrong with one run."""
    held = {n: memory.copy(_backwards(a) if case.strided else a) for n, a in run.feeds.items()}
    before = {n: a.tobytes() for n, a in held.items()}
    given = {n: a[::-2].reshape(run.feeds[n].shape) if case.strided else a for n, a in held.items()}
    try:
        results = exe.run(given)
    except ValueError as error:
        refused = not run.drawn and any(text in str(error) for text in REFUSED)
        return [] if refused else [str(error)]
    found = [d for n, y in results.items() if (d := differs(n, y, run.wanted[n]))]
    found += [f"the input {n} is changed" for n, a in held.items() if a.tobytes() != before[n]]
    del results
    return [*found, *memory.faults()]


def _backwards(array: Array) -> Array:
    """An array whose every second row, from the last one on, are those given."""
    return np.repeat(np.atleast_1d(array)[::-1], 2, 0)


def _at_once(exe: Runnable, case: Case, memory: Memory) -> list[str]:
    def call(turn: int) -> list[str]:
        turns = (case.runs[(turn + n) % len(case.runs)] for n in range(4))
        return [fault for run in turns for fault in once(exe, case, run, memory)]

    with ThreadPoolExecutor(CALLERS) as callers:
        return [fault for found in callers.map(call, range(CALLERS)) for fault in found]
