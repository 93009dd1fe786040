"""The interface between a compiled model and the device that runs it. It imports nothing of the compiler."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from jangin.ir.graph import Array
from jangin.ir.plan import Plan, PlanBuffer
from jangin.ir.records import dataclass
from jangin.runtime.layout import Layout
from jangin.runtime.profile import Launches


class LoadError(Exception):
    """Code can't be loaded on this machine. The message says why."""


class Memory(Protocol):
    """A device's working memory for one run at a time: arena, scratch, and whatever else the device needs."""

    def prepare(self, layout: Layout) -> None:
        """Allocates the memory that runs of these sizes need, unless there is enough."""

    def run(self, layout: Layout, inputs: Sequence[Array]) -> dict[str, Array]:
        """Runs once, and returns `layout.outputs` by name as fresh arrays of the host.

        `inputs` are contiguous arrays in the plan's order, which are uploaded or mapped. The run is complete
        when this returns. Raises IndexOutOfRange if one of the plan's `checks` fails (see `ir.checks`).
        """

    def again(self, given: Sequence[Any]) -> dict[str, Array] | None:
        """A quicker `run` with the last layout, for contiguous inputs of exactly its dtypes and sizes.
        Returns None, without running, for any other inputs, or if the device has no quicker way."""

    def read(self, layout: Layout, buffer: PlanBuffer) -> Array:
        """The contents of an arena buffer after a run, as bytes of the host."""

    def launches(self, layout: Layout, inputs: Sequence[Array]) -> Launches:
        """A run on these inputs that can be made launch by launch. ValueError if the device can't."""


@dataclass(frozen=True)
class NativeCall:
    """Everything that native code needs to run a plan.

    - `words`: the arguments of the call.
    - `table`: the table of pointers to inputs and outputs; `inputs` and `outputs` are their places in it.
    - `sources`: for each output its buffer, and the buffer's address if it is neither input nor output.
    - `failure`: makes the exception for the number of a failed check.
    - `held`: keeps the memory alive.
    """

    words: tuple[int, ...]
    table: Any
    inputs: Sequence[Sequence[int]]
    outputs: Mapping[str, Sequence[int]]
    sources: Mapping[str, tuple[str, int]]
    failure: Callable[[int], Exception]
    held: Any


@dataclass(frozen=True)
class Transfer:
    """The cost of moving a value between devices, in seconds. `startup`: for any move, which is the time of
    waking a thread and its answer. `byte`: for each byte."""

    startup: float
    byte: float


class Module(Protocol):
    """A plan's code and constants on a device. Both are released with the object. `threads`: threads that
    work on a run. `alignment`: bytes to which each value in the arena is aligned."""

    @property
    def threads(self) -> int: ...

    @property
    def alignment(self) -> int: ...

    def memory(self) -> Memory: ...

    def native_call(self, layout: Layout) -> NativeCall:
        """A native call with memory of its own. It is only asked of devices whose `flow` gives a driver."""


class Device(Protocol):
    """A kind of machine that runs plans. `name`: its name in saved models."""

    @property
    def name(self) -> str: ...

    def why_not(self, target: str) -> str:
        """Why code for a target (a plan's `target`) can't run here; "" if it can."""

    def is_processor(self, target: str) -> bool:
        """Whether code for a target runs on this machine's processor, whose threads others may need too."""

    def transfer(self, target: str) -> Transfer:
        """The cost of moving a value to or from this device, measured now."""

    def load(self, plan: Plan, codes: Sequence[bytes], threads: int, beside: Module | None) -> Module:
        """Loads a plan's code, as its back end's `finish` put it together. The module uses the threads of the
        module `beside`, if given. Raises LoadError."""

    def flow(self, code: bytes) -> Callable[[int], int] | None:
        """A function that runs a script's operations at an address (see `runtime.script`), made from the code
        of the back end's `flow`. None if Python runs branches and loops."""


DEVICES = {
    "cpu": "jangin.runtime.devices.cpu",
    "opencl": "jangin.runtime.devices.opencl",
    "cuda": "jangin.runtime.devices.cuda",
    "webgpu": "jangin.runtime.devices.webgpu",
}
"""Modules whose `DEVICE` is a device, by the device's name in targets and saved models. They are imported
when needed."""
STARTED = {"opencl": "jangin.runtime.devices.opencl_programs"}
"""Modules that can `begin` before a device is needed, by the beginning of a target's name."""


def device_of(device: str | Device) -> Device:
    """The device of a name, or a caller's own device. Text after a ":" chooses one of several. Raises
    LoadError for an unknown name."""
    if not isinstance(device, str):
        return device
    kind, _, which = device.partition(":")
    if kind not in DEVICES:
        raise LoadError(
            f"the model was compiled for the device {device!r}, which isn't Jangin's: give device= with it"
        )
    module = importlib.import_module(DEVICES[kind])
    found: Device = module.of(which) if which else module.DEVICE
    return found


def begin(target: str) -> None:
    """Starts the device of a target's name in the background, if starting takes long."""
    kind, _, which = target.partition(":")
    if kind in STARTED:
        importlib.import_module(STARTED[kind]).begin(which.partition("@")[0])


def threads_of(devices: Sequence[tuple[str, str]], threads: int) -> list[int]:
    """The number of threads of each device, given its name and its target's text. Raises LoadError for a
    missing device."""
    own = [device_of(name).is_processor(target) for name, target in devices]
    return [max(1, threads // sum(own)) if processor else threads for processor in own]
