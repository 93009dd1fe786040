"""OpenCL devices: the driver for queued devices (`runtime.devices.driver`)."""

from __future__ import annotations

from typing import Any

from jangin.ir.graph import Array
from jangin.runtime.device import LoadError
from jangin.runtime.devices.clblast import Clblast
from jangin.runtime.devices.opencl_devices import PREFIX, Found, of_target, select
from jangin.runtime.devices.opencl_library import (
    COPY_HOST,
    READ_ONLY,
    READ_WRITE,
    USE_HOST,
    Buffer,
    Kernel,
    Queue,
)
from jangin.runtime.devices.opencl_programs import Built, forget, load_kernel, opened
from jangin.runtime.devices.queued import QueuedDevice


class OpenCLDriver:
    """See `runtime.devices.driver.Driver`."""

    def __init__(self, device: Found) -> None:
        self.device, self.opened = device, opened(device)
        self.units, self.alignment = device.units, device.alignment
        self.largest, self.shared = device.largest, device.unified

    def __str__(self) -> str:
        return str(self.device)

    def unpack(self, code: bytes) -> Built:
        return Built.of(code)

    def load(self, packed: Built, target: str) -> Kernel | Clblast:
        return load_kernel(self.device, packed, same=target == self.device.target)

    def waiting(self, kernel: Any, local: int) -> None:
        return None

    def buffer(self, size: int, array: Array | None = None, *, written: bool = True) -> Buffer:
        access = READ_WRITE if written else READ_ONLY
        source = 0 if array is None else USE_HOST if self.shared else COPY_HOST
        return Buffer(self.opened.context, access | source, size, array)

    def queue(self, *, timed: bool = False) -> Queue:
        return Queue(self.opened.context, timed=timed)

    def forget(self) -> None:
        forget(self.opened)


class OpenCL(QueuedDevice):
    """OpenCL devices, as in `runtime.device.Device`. `which` selects the device that runs all code. If it is
    "", code runs on the device that it was compiled for."""

    name = PREFIX

    def __init__(self, which: str = "") -> None:
        self._which = which

    def device(self, target: str) -> Found:
        """Return the device that runs code for a target. Raises LoadError if there is none."""
        return select(self._which) if self._which else of_target(target)

    def why_not(self, target: str) -> str:
        try:
            device = self.device(target)
        except LoadError as error:
            return str(error)
        wanted = target.rpartition("/")[2]
        missing = [f[1:] for f in wanted.split(",") if f and f[1:] not in device.features]
        return f"{device} lacks {', '.join(missing)}" if missing else ""

    def is_processor(self, target: str) -> bool:
        return self.device(target).kind == "CPU"

    def driver(self, target: str) -> OpenCLDriver:
        return OpenCLDriver(self.device(target))


DEVICE = OpenCL()


def of(which: str) -> OpenCL:
    """Return the OpenCL device that a device name's second part selects (see `select`)."""
    return OpenCL(which)
