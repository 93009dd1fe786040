"""WebGPU's adapters: the driver for queued devices (`runtime.devices.driver`)."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from jangin.ir.graph import Array
from jangin.runtime.device import LoadError
from jangin.runtime.devices.driver import DriverError
from jangin.runtime.devices.queued import QueuedDevice
from jangin.runtime.devices.webgpu_adapters import (
    BINDING,
    BUFFER,
    GROUP,
    PREFIX,
    ROOM,
    STORAGE,
    Adapter,
    of_target,
    select,
)
from jangin.runtime.devices.wgsl import ALIGNMENT, Shader
from jangin.runtime.system import renew_lock

if TYPE_CHECKING:
    from jangin.runtime.devices.webgpu_objects import Buffer, Kernel, Opened, Queue

LIMITS = (STORAGE, BINDING, BUFFER, ROOM, GROUP)
"""The limits for which a device gets its adapter's values instead of WebGPU's defaults."""
UNITS = 32
"""The number of groups that have their own scratch memory. WebGPU doesn't tell how many groups run at a
time."""

_OPENED: dict[int, Opened] = {}
_LOCK = Lock()
"""Held while a device is opened."""
renew_lock(globals(), "_LOCK", Lock)


def opened(adapter: Adapter) -> Opened:
    """Return the device of an adapter in this process. It is opened if it isn't open, or was lost.

    Raises LoadError if it can't be opened."""
    from jangin.runtime.devices.webgpu_objects import Opened

    with _LOCK:
        if adapter.number not in _OPENED or _OPENED[adapter.number].lost:
            try:
                _OPENED[adapter.number] = Opened(adapter, LIMITS)
            except DriverError as error:
                raise LoadError(f"{adapter} can't be opened: {error}") from error
        return _OPENED[adapter.number]


class WebGPUDriver:
    """See `runtime.devices.driver.Driver`."""

    units, shared = UNITS, False

    def __init__(self, adapter: Adapter) -> None:
        self.adapter, self.opened = adapter, opened(adapter)
        self.alignment, self.largest = ALIGNMENT, adapter.limit(BUFFER)

    def __str__(self) -> str:
        return str(self.adapter)

    def unpack(self, code: bytes) -> Shader:
        return Shader.of(code)

    def load(self, packed: Shader, target: str) -> Kernel:
        from jangin.runtime.devices.webgpu_objects import Error, Kernel, told

        for what, wanted, limit in (
            ("work-items in a group", packed.threads, GROUP),
            ("bytes that a group shares", packed.room, ROOM),
        ):
            if wanted > self.adapter.limit(limit):
                raise LoadError(f"{self} has {self.adapter.limit(limit)} {what}, and {wanted} are needed")
        if len(packed.memories) <= self.opened.most_buffers:
            try:
                with told():
                    self.opened.pipeline(self.opened.text(packed), len(packed.memories))
            except Error as error:
                why = "is lost: load the model again" if error.lost else f"refuses the shader: {error}"
                raise LoadError(f"{self} {why}") from error
        return Kernel(self.opened, packed)

    def waiting(self, kernel: Any, local: int) -> None:
        return None

    def buffer(self, size: int, array: Array | None = None, *, written: bool = True) -> Buffer:
        from jangin.runtime.devices.webgpu_objects import made

        return made(self.opened, size, array)

    def queue(self, *, timed: bool = False) -> Queue:
        from jangin.runtime.devices.webgpu_objects import Queue

        return Queue(self.opened)

    def forget(self) -> None:
        if _OPENED.get(self.adapter.number) is self.opened:
            del _OPENED[self.adapter.number]


class WebGPU(QueuedDevice):
    """WebGPU's adapters, as in `runtime.device.Device`. `which` selects the adapter that runs all code. If it
    is "", code runs on the adapter that it was compiled for."""

    name = PREFIX

    def __init__(self, which: str = "") -> None:
        self._which = which

    def adapter(self, target: str) -> Adapter:
        """Return the adapter that runs code for a target. Raises LoadError if there is none."""
        return select(self._which) if self._which else of_target(target)

    def why_not(self, target: str) -> str:
        try:
            self.adapter(target)
        except LoadError as error:
            return str(error)
        return ""

    def is_processor(self, target: str) -> bool:
        return self.adapter(target).kind == "CPU"

    def driver(self, target: str) -> WebGPUDriver:
        return WebGPUDriver(self.adapter(target))


DEVICE = WebGPU()


def of(which: str) -> WebGPU:
    """Return the device that a device name's second part selects (see `select`)."""
    return WebGPU(which)
