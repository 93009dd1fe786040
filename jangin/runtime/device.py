"""What a compiled model asks of the device that runs it. Nothing here imports the compiler."""

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
    """Code that can't be loaded on this machine, and why."""


class Memory(Protocol):
    """The working memory of one run at a time on a device: arena, scratch, and what else it takes."""

    def prepare(self, layout: Layout) -> None:
        """Allocate what runs of these sizes need, where there is less than that."""

    def run(self, layout: Layout, inputs: Sequence[Array]) -> dict[str, Array]:
        """One run. `inputs` are contiguous arrays in the plan's order, which are uploaded or mapped; what
        comes back are `layout.outputs` by name, fresh arrays of the host's. All is done when it returns.
        Raises IndexOutOfRange where one of the plan's `checks` fails (see `ir.checks`)."""

    def again(self, given: Sequence[Any]) -> dict[str, Array] | None:
        """As `run`, where its last layout fits: a quick way for inputs that are just what that takes,
        contiguous arrays of the right dtypes and sizes. None, and nothing is run, for any others, or where a
        device has no quicker way."""

    def read(self, layout: Layout, buffer: PlanBuffer) -> Array:
        """What an arena buffer holds after a run, as bytes of the host's."""

    def launches(self, layout: Layout, inputs: Sequence[Array]) -> Launches:
        """A run on these inputs that can be made launch by launch. ValueError where a device can't."""


@dataclass(frozen=True)
class NativeCall:
    """What native code needs to run a plan: the `words` of the call, the `table` where pointers to inputs and
    outputs go, and their places in it. `sources`: for each output, the buffer that it lies in, and its
    address if that is no input or output. `failure`: what to raise where the
    entry gave the number of a check. `held` keeps alive what they point at."""

    words: tuple[int, ...]
    table: Any
    inputs: Sequence[Sequence[int]]
    outputs: Mapping[str, Sequence[int]]
    sources: Mapping[str, tuple[str, int]]
    failure: Callable[[int], Exception]
    held: Any


@dataclass(frozen=True)
class Transfer:
    """What it takes that a value goes from one device to another: seconds for anything at all, which are
    those of waking a thread and being done, and seconds for each byte."""

    startup: float
    byte: float


class Module(Protocol):
    """A plan's code and constants on a device; both go with the object. `threads`: how many work on a run;
    `alignment`: bytes that the place of each value in the arena is a multiple of."""

    @property
    def threads(self) -> int: ...

    @property
    def alignment(self) -> int: ...

    def memory(self) -> Memory: ...

    def native_call(self, layout: Layout) -> NativeCall:
        """With memory that nothing else uses. Only asked of devices whose `flow` gives a driver."""


class Device(Protocol):
    """A kind of machine that runs plans. `name`: what saved models call it."""

    @property
    def name(self) -> str: ...

    def why_not(self, target: str) -> str:
        """Why code for a target (a plan's `target`) can't run here; "" where it can."""

    def is_processor(self, target: str) -> bool:
        """Whether code for a target runs on this machine's processor, whose threads others may need too."""

    def transfer(self, target: str) -> Transfer:
        """What it takes to give this device a value that another made, or the other way: measured now."""

    def load(self, plan: Plan, codes: Sequence[bytes], threads: int, beside: Module | None) -> Module:
        """A plan's code, as its back end's `finish` put it together. `beside`: another module of the device,
        whose threads this one uses. Raises LoadError."""

    def flow(self, code: bytes) -> Callable[[int], int] | None:
        """What runs the operations of a script at an address (see `runtime.script`), given the code of the
        back end's `flow`; None where branches and loops are left to Python."""


DEVICES = {"cpu": "jangin.runtime.devices.cpu", "opencl": "jangin.runtime.devices.opencl"}
"""By the name that targets and saved models have for a device, the module whose `DEVICE` it is: imported
when needed."""
STARTED = {"opencl": "jangin.runtime.devices.opencl_programs"}
"""By the names that targets begin with, modules that can `begin` before a device is needed."""


def device_of(device: str | Device) -> Device:
    """The device of a name, or one that is brought along; after a ":", which one of several. Raises LoadError
    for a name that isn't known."""
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
    """Let the device of a target's name start beside what the caller does, where that takes long."""
    kind, _, which = target.partition(":")
    if kind in STARTED:
        importlib.import_module(STARTED[kind]).begin(which.partition("@")[0])


def threads_of(devices: Sequence[tuple[str, str]], threads: int) -> list[int]:
    """How many threads each device has, by its name and its target's text. Raises LoadError where there is
    no such device."""
    own = [device_of(name).is_processor(target) for name, target in devices]
    return [max(1, threads // sum(own)) if processor else threads for processor in own]
