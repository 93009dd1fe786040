"""A model whose segments are placed on several devices, ready to run.

Each device has a thread, which runs its segments in the plan's order, one run after another. It waits if a
segment needs a value that another device hasn't made yet. Branches therefore overlap within one run, and
stages between runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from jangin.ir.graph import Array
from jangin.ir.program import Segment
from jangin.runtime.apart import apart, owners
from jangin.runtime.device_threads import DeviceThread, Later
from jangin.runtime.executable import Executable
from jangin.runtime.program_artifact import ProgramArtifact
from jangin.runtime.sizes import Sizes

Record = Callable[[int, str, float, float], None]
"""A callback for each finished piece of work. It gets the device's number, the work's name, and its begin and
end in seconds."""


class Placed:
    """A model's program whose segments run on several devices. `segments` has, for each plan of the program,
    its device's number and its executable."""

    def __init__(
        self,
        artifact: ProgramArtifact,
        segments: Sequence[tuple[int, Executable]],
        devices: Sequence[DeviceThread],
    ) -> None:
        self._region = artifact.program.region
        self._steps = [s for s in self._region.steps if isinstance(s, Segment)]
        self._segments, self._devices = segments, devices

    def release(self) -> None:
        """Drop the working memory of finished runs, in all segments."""
        for _, segment in self._segments:
            segment.release()

    def submit(
        self, arrays: Sequence[Array], symbols: dict[str, int], record: Record
    ) -> Callable[[], list[Array]]:
        """Begin a run, and return a function that waits for its outputs. `symbols` are the sizes of the run
        by name."""
        later: dict[str, Later[Array]] = {}
        for name, array in zip(self._region.inputs, arrays, strict=True):
            later[name] = Later()
            later[name].set(array)
        for step in self._steps:
            device, exe = self._segments[step.plan]
            sizes = tuple(symbols[v.name] for v, _ in exe.plan.symbols)
            operands = [later[n] for n in step.inputs]
            results: list[Later[Array]] = [self._devices[device].later() for _ in step.outputs]
            later |= zip(step.outputs, results, strict=True)
            work = partial(_carry_out, exe, operands, results, sizes, partial(record, device))
            self._devices[device].submit(work)
        outputs = [later[n] for n in self._region.outputs]
        return lambda: apart([f.result() for f in outputs], owners(arrays))


def _carry_out(
    exe: Executable,
    given: Sequence[Later[Array]],
    results: Sequence[Later[Array]],
    sizes: Sizes,
    record: Callable[[str, float, float], None],
) -> None:
    """Wait for a segment's inputs, run it, and set its results. An exception is set as the result of all its
    outputs."""
    try:
        arrays = [f.result() for f in given]
        start = time.perf_counter()
        outputs = exe.execute(arrays, sizes)
        record(exe.name, start, time.perf_counter())
        for result, array in zip(results, outputs, strict=True):
            result.set(array)
    except BaseException as error:  # whoever asks for a result gets it
        for result in results:
            if not result.done():
                result.fail(error)
