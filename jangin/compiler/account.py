"""The account of a compilation: where its seconds go."""

from __future__ import annotations

import time
from typing import NamedTuple


class StepSeconds(NamedTuple):
    """`wall`: until the next step; `own`: of the processor, in this process (forked ones not counted)."""

    wall: float
    own: float


class KernelSeconds(NamedTuple):
    """A new kernel's seconds of the processor, in whichever process it was made: its schedule, its code as
    text, and the object that LLVM makes of that."""

    name: str
    schedule: float
    text: float
    object: float

    @property
    def total(self) -> float:
        return self.schedule + self.text + self.object


class Account:
    """`steps`: the seconds of each, in order, by what the compiler tells of them (`import`: before it first
    does); `kernels`: of those that weren't known before."""

    def __init__(self) -> None:
        self.steps: dict[str, StepSeconds] = {}
        self.kernels: list[KernelSeconds] = []
        self._what, self._since = "import", _now()

    def tell(self, done: int, total: int, what: str) -> None:
        """A step begins or goes on: a compilation's `progress`."""
        now, before = _now(), self.steps.get(self._what, StepSeconds(0.0, 0.0))
        wall, own = (b + n - s for b, n, s in zip(before, now, self._since, strict=True))
        self.steps[self._what] = StepSeconds(wall, own)
        self._what, self._since = what, now


def _now() -> StepSeconds:
    return StepSeconds(time.perf_counter(), time.process_time())
