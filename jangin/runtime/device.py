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
    """A device's working memory for one run at a time: the arena, scratch memory, and all else that the
    device needs."""

    def prepare(self, layout: Layout) -> None:
        """Make the memory ready for runs of these sizes. It is enlarged if there isn't enough."""

    def run(self, layout: Layout, inputs: Sequence[Array]) -> dict[str, Array]:
        """Run once, and return `layout.outputs` by name as fresh arrays of the host.

        `inputs` are contiguous arrays in the plan's order, which are uploaded or mapped. The run is complete
        when this returns. Raises IndexOutOfRange if one of the plan's `checks` fails (see `ir.checks`)."""

    def again(self, given: Sequence[Any]) -> dict[str, Array] | None:
        """Run as `run` does, but quicker, with the last layout. The inputs must be contiguous and have
        exactly the layout's dtypes and sizes.

        Return None, without running, for any other inputs, or if the device has no quicker way."""

    def read(self, layout: Layout, buffer: PlanBuffer) -> Array:
        """Return the bytes of an arena buffer after a run, as an array of the host."""

    def launches(self, layout: Layout, inputs: Sequence[Array]) -> Launches:
        """Prepare a run on these inputs, whose launches can then be made one by one. Raises ValueError if the
        device can't do this."""


@dataclass(frozen=True)
class NativeCall:
    """Everything that native code needs to run a plan.

    - `words` are the arguments of the call.
    - `table` is the table of pointers to buffers. `inputs` and `outputs` are the indices in it that get the
      addresses of each input and output.
    - `sources` has for each output its buffer, and the buffer's address if it is neither input nor output.
    - `failure` makes the exception for the number of a failed check.
    - `caller` is the address of `functions.CALL`, or 0 if the code lacks it. `team` is that of
      `functions.POOL_TEAM`, or 0 if the code lacks it or if the run needs no other thread.
    - `threads` is the number of threads that work on a run.
    - `held` keeps the memory alive."""

    words: tuple[int, ...]
    table: Any
    inputs: Sequence[Sequence[int]]
    outputs: Mapping[str, Sequence[int]]
    sources: Mapping[str, tuple[str, int]]
    failure: Callable[[int], Exception]
    caller: int
    team: int
    threads: int
    held: Any


@dataclass(frozen=True)
class Transfer:
    """The cost of moving a value between devices. `startup` is the seconds of any move, in which a thread is
    woken and answers. `byte` is the additional seconds for each byte."""

    startup: float
    byte: float


class Module(Protocol):
    """A plan's code and constants on a device. Both are released with the object. `threads` is the number of
    threads that work on a run. `alignment` is the alignment of each value in the arena, in bytes."""

    @property
    def threads(self) -> int: ...

    @property
    def alignment(self) -> int: ...

    @property
    def copies(self) -> bool:
        """Return whether the device has copies of the constants, so that the host's aren't read again."""

    def memory(self) -> Memory: ...

    def native_call(self, layout: Layout) -> NativeCall:
        """Return a native call with its own working memory. It is only called for devices whose `flow`
        returns a function."""


class Device(Protocol):
    """A kind of machine that runs plans. `name` is its name in saved models."""

    @property
    def name(self) -> str: ...

    def why_not(self, target: str) -> str:
        """Return the reason why code for a target (a plan's `target`) can't run here, or "" if it can."""

    def is_processor(self, target: str) -> bool:
        """Return whether code for a target runs on this machine's processor. Its threads may then be needed
        by other devices' work too."""

    def transfer(self, target: str) -> Transfer:
        """Measure the cost of moving a value to or from this device, and return it."""

    def load(self, plan: Plan, codes: Sequence[bytes], threads: int, beside: Module | None) -> Module:
        """Load a plan's code, in the form that its back end's `finish` returned. If the module `beside` is
        given, the new module uses its threads. Raises LoadError."""

    def flow(self, code: bytes) -> Callable[[int], int] | None:
        """Return a function that runs a script's operations at an address (see `runtime.script`). It is
        loaded from the code that the back end's `flow` made. Return None if Python runs branches and
        loops."""


DEVICES = {
    "cpu": "jangin.runtime.devices.cpu",
    "opencl": "jangin.runtime.devices.opencl",
    "cuda": "jangin.runtime.devices.cuda",
    "webgpu": "jangin.runtime.devices.webgpu",
}
"""The modules of Jangin's devices, by the device's name in targets and saved models. Each has a device
`DEVICE`. They are imported when needed."""
STARTED = {"opencl": "jangin.runtime.devices.opencl_programs"}
"""Modules that can start a device in advance by their `begin`, by the beginning of a target's name."""


def device_of(device: str | Device) -> Device:
    """Return the device of a name, or a caller's own device unchanged. In a name, text after ":" chooses one
    of several devices. Raises LoadError for an unknown name."""
    if not isinstance(device, str):
        return device
    kind, _, which = device.partition(":")
    if kind not in DEVICES:
        raise LoadError(
            f"the model was compiled for the device {device!r}, which isn't Jangin's: give device= with it"
        )
    module = importlib.import_module(DEVICES[kind])
    chosen: Device = module.of(which) if which else module.DEVICE
    return chosen


def begin(target: str) -> None:
    """Start the device of a target's name in the background if it takes long to start. Return at once."""
    kind, _, which = target.partition(":")
    if kind in STARTED:
        importlib.import_module(STARTED[kind]).begin(which.partition("@")[0])


def threads_of(devices: Sequence[tuple[str, str]], threads: int) -> list[int]:
    """Return the number of threads of each device, given its name and its target's text. Devices that are the
    processor share `threads` equally. Raises LoadError for a missing device."""
    own = [device_of(name).is_processor(target) for name, target in devices]
    return [max(1, threads // sum(own)) if processor else threads for processor in own]
