"""A compiled program, loaded and ready to run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jangin.host.table import HostFunction
from jangin.host.table import functions as host_functions
from jangin.ir.program import Program
from jangin.runtime.apart import apart, owners
from jangin.runtime.called import Called, joined, ordered
from jangin.runtime.compiled import signature
from jangin.runtime.device import Device, device_of
from jangin.runtime.executable import Executable, as_array
from jangin.runtime.pickled import Loaded
from jangin.runtime.program_artifact import ProgramArtifact
from jangin.runtime.sizes import TensorSpec, converting, told
from jangin.runtime.steps import RegionRunner, Resources
from jangin.runtime.threads import counted


class ProgramExecutable(Called, Loaded[ProgramArtifact]):
    """Runs a compiled program, as `Executable` runs a single plan: `exe(x)` or `exe.run({"x": x})`.

    Besides arrays it takes and gives lists (sequences), None (an empty optional), dictionaries (maps) and
    arrays of Python strings. The caller owns the results and may change them. `functions` are the host
    functions of a caller's own operators. For `share` and `device` see `Executable`."""

    def __init__(
        self,
        artifact: ProgramArtifact,
        threads: int | None = None,
        functions: Mapping[str, HostFunction] | None = None,
        device: Device | None = None,
        share: Executable | None = None,
    ) -> None:
        known = {**host_functions(), **(functions or {})}
        missing = sorted(artifact.host_functions() - known.keys())
        if missing:
            raise ValueError(f"the model calls {', '.join(missing)}: give operators=[...] with them")
        self._artifact, self._given = artifact, (threads, functions, device)
        self._threads = counted(threads)
        self.segments = segments = list[Executable]()
        for part in artifact.parts:
            segments.append(Executable(part, self._threads, segments[0] if segments else share, device))
        runs = device or device_of(artifact.device)
        program = artifact.program
        region = program.region
        driver = runs.flow(artifact.code) if artifact.code else None
        resources = Resources(segments, known, program.constants, program.symbols, driver)
        self._region = RegionRunner(region, resources, joined=program.joined)
        self._flows = resources.flows
        self._constants = owners(program.constants.values())
        self.inputs, self.outputs = signature(artifact)

    @property
    def program(self) -> Program:
        return self._artifact.program

    @property
    def name(self) -> str:
        return self._artifact.program.name

    @property
    def threads(self) -> int:
        return self._threads

    def release(self) -> None:
        """Drop the working memory of finished runs, in all segments and flows."""
        for segment in self.segments:
            segment.release()
        for flow in self._flows:
            flow.release()

    def __call__(self, /, *values: Any, **named: Any) -> Any:
        """Run the program. Return the output, or a tuple if there are several. Raises TypeError for a value
        of another kind. Raises ValueError for a wrong count or shape, or a step that can't run on its
        values."""
        if named:
            values = tuple(joined(self.inputs, values, named))
        if len(values) != len(self.inputs):
            raise ValueError(f"expected {len(self.inputs)} inputs, got {len(values)}; {told(self.inputs)}")
        arrays = [_accepted(v, s) for v, s in zip(values, self.inputs, strict=True)]
        results = apart(self._region(arrays, {}), self._constants | owners(arrays))
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run the program with inputs and outputs by name."""
        results = self(*ordered(self.inputs, feeds))
        outputs = results if len(self.outputs) != 1 else (results,)
        return {s.name: r for s, r in zip(self.outputs, outputs, strict=True)}


def _accepted(value: Any, want: TensorSpec) -> Any:
    """Return a caller's input as the program needs it. Raises TypeError if it is of another kind."""
    if not want.type:
        array = as_array(value, want)
        if array.dtype != want.dtype:
            raise TypeError(f"input {want} got dtype {array.dtype}: {converting(want)}")
        return array
    if want.type.startswith("string"):
        array = np.asarray(value)
        if array.dtype.kind not in "OUS":
            raise TypeError(f"input {want} got dtype {array.dtype}, not text")
        return array.astype(object)
    if want.type.startswith("seq") and not isinstance(value, (list, tuple)):
        raise TypeError(f"input {want} should be a list, not a {type(value).__name__}")
    return list(value) if isinstance(value, tuple) else value
