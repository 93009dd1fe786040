"""The account of a compilation: the seconds of its steps and kernels."""

from __future__ import annotations

import time
from typing import NamedTuple


class StepSeconds(NamedTuple):
    """`wall`: seconds until the next step. `own`: processor seconds in this process, without forked ones."""

    wall: float
    own: float


class KernelSeconds(NamedTuple):
    """Processor seconds spent on a kernel that wasn't shared yet, summed over the processes that worked on
    it. `schedule` is for choosing and scheduling its loops, `text` for writing its code as text, and `object`
    for compiling the text to machine code."""

    name: str
    schedule: float
    text: float
    object: float

    @property
    def total(self) -> float:
        return self.schedule + self.text + self.object


class Account:
    """The seconds of a compilation. `steps` holds them for each step, in order, under the names that the
    compiler reports. The step `import` is the time before the first report. `kernels` holds them for each
    kernel that wasn't shared yet."""

    def __init__(self) -> None:
        self.steps: dict[str, StepSeconds] = {}
        self.kernels: list[KernelSeconds] = []
        self._what, self._since = "import", _now()

    def tell(self, done: int, total: int, what: str) -> None:
        """Record that the step `what` begins or continues. The method serves as a compilation's `progress`
        callback."""
        now, before = _now(), self.steps.get(self._what, StepSeconds(0.0, 0.0))
        wall, own = (b + n - s for b, n, s in zip(before, now, self._since, strict=True))
        self.steps[self._what] = StepSeconds(wall, own)
        self._what, self._since = what, now


def _now() -> StepSeconds:
    return StepSeconds(time.perf_counter(), time.process_time())
