"""The account of a compilation: the seconds of its steps and kernels."""

from __future__ import annotations

import time
from typing import NamedTuple


class StepSeconds(NamedTuple):
    """`wall`: seconds until the next step. `own`: processor seconds in this process, without forked ones."""

    wall: float
    own: float


class KernelSeconds(NamedTuple):
    """Processor seconds of a new kernel, in whichever process it was made. They are for its schedule, its
    code as text, and the object that LLVM makes of the text."""

    name: str
    schedule: float
    text: float
    object: float

    @property
    def total(self) -> float:
        return self.schedule + self.text + self.object


class Account:
    """`steps`: the seconds of each step, in order, by the texts that the compiler reports. The step `import`
    is the time before the first report. `kernels`: seconds of the kernels that weren't known before."""

    def __init__(self) -> None:
        self.steps: dict[str, StepSeconds] = {}
        self.kernels: list[KernelSeconds] = []
        self._what, self._since = "import", _now()

    def tell(self, done: int, total: int, what: str) -> None:
        """Records that a step begins or continues; used as a compilation's `progress`."""
        now, before = _now(), self.steps.get(self._what, StepSeconds(0.0, 0.0))
        wall, own = (b + n - s for b, n, s in zip(before, now, self._since, strict=True))
        self.steps[self._what] = StepSeconds(wall, own)
        self._what, self._since = what, now


def _now() -> StepSeconds:
    return StepSeconds(time.perf_counter(), time.process_time())
