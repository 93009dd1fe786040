"""`SessionOptions.enable_profiling` writes a trace in ONNX Runtime's format, which Perfetto reads too."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from jangin.files import write_text
from jangin.ir.graph import Array
from jangin.onnxruntime.providers import PROVIDER
from jangin.runtime.executable import Executable
from jangin.runtime.load import Runnable
from jangin.runtime.variants import VariantsExecutable

Event = dict[str, Any]


class Profile:
    """A profile collects the events of a session.

    Each run is an event "model_run". If one plan runs the inputs, its kernels are then run once more, one by
    one. Each of them is an event of category "Node", named after its node. A run before the model is compiled
    says that NumPy computed it."""

    def __init__(self, prefix: str, began: int) -> None:
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        self.path = f"{prefix}_{stamp}_{time.time_ns() // 1_000_000 % 1000}.json"
        self.began = began
        self._events: list[Event] = []

    def session(self, name: str, start: int, end: int) -> None:
        self._add("Session", name, start, end, {})

    def run(self, executable: Runnable, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run the executable, record the events of the run, and return its outputs by name."""
        ready, start = executable.ready, time.monotonic_ns()
        outputs: dict[str, Any] = executable.run(feeds)
        by = "the compiled model" if ready else "NumPy, as long as the model wasn't compiled"
        self._add("Session", "model_run", start, time.monotonic_ns(), {"run_by": by})
        plan = _one_plan(executable.wait(), feeds) if ready else None
        if plan is not None:
            self._kernels(plan, feeds)
        return outputs

    def write(self) -> str:
        """Write the trace and return its path. The file is in the working directory, unless the prefix has a
        folder."""
        write_text(self.path, "[\n" + ",\n".join(map(json.dumps, self._events)) + "\n]\n")
        return self.path

    def _kernels(self, plan: Executable, feeds: Mapping[str, Array]) -> None:
        launches = plan.launches(feeds)
        value = launches.layout.value
        for launch, call in zip(launches.plan.launches, launches.calls, strict=True):
            start = time.monotonic_ns()
            launches.run(*call)
            end = time.monotonic_ns()
            node = launch.sources[0] if launch.sources else launch.kernel
            about = {
                "op_name": launch.kernel, "provider": PROVIDER, "nodes": list(launch.sources),
                "flops": value(launch.flops), "bytes": value(launch.bytes),
            }  # fmt: skip
            self._add("Node", f"{node}_kernel_time", start, end, about)

    def _add(self, category: str, name: str, start: int, end: int, about: Mapping[str, Any]) -> None:
        place = {"pid": os.getpid(), "tid": threading.get_native_id()}
        times = {"ts": (start - self.began) / 1e3, "dur": (end - start) / 1e3}
        self._events.append({"cat": category, **place, **times, "ph": "X", "name": name, "args": {**about}})


def _one_plan(executable: Runnable, feeds: Mapping[str, Any]) -> Executable | None:
    """Return the single plan that runs these inputs, or None if several do."""
    if isinstance(executable, VariantsExecutable):
        executable = executable.variant(feeds)
    return executable if isinstance(executable, Executable) else None
