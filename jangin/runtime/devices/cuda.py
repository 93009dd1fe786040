"""NVIDIA's GPUs: the driver for queued devices (`runtime.devices.driver`)."""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
from typing import Any

from jangin.ir.graph import Array
from jangin.ir.library import Sgemm
from jangin.runtime.device import LoadError
from jangin.runtime.devices.cublas import Cublas
from jangin.runtime.devices.cuda_code import ROUNDS, Built
from jangin.runtime.devices.cuda_devices import PREFIX, Found, of_target, select
from jangin.runtime.devices.cuda_host import Mapped
from jangin.runtime.devices.cuda_library import Error
from jangin.runtime.devices.cuda_objects import Buffer, Context, Kernel, Module, Queue
from jangin.runtime.devices.cuda_tensors import CudaCode
from jangin.runtime.devices.cudnn import Cudnn
from jangin.runtime.devices.driver import DriverError
from jangin.runtime.devices.products import Product, unpacked
from jangin.runtime.devices.queued import Code, QueuedDevice
from jangin.runtime.system import renew_lock

ALIGNMENT = 256
"""Values in the arena begin at multiples of this number of bytes, as the driver's own allocations do."""

NO_LIBRARY = 'compile the model with libraries="never"'
_OPENED: dict[int, Context] = {}
_LOCK = Lock()
"""Held while a device is opened."""
renew_lock(globals(), "_LOCK", Lock)


def _context(device: Found) -> Context:
    """Return a device's context in this process, and open it if necessary. Raises LoadError if it can't be
    opened."""
    with _LOCK:
        if device.number not in _OPENED:
            try:
                _OPENED[device.number] = Context(device.handle)
            except Error as error:
                raise LoadError(f"{device} can't be opened: {error}") from error
        return _OPENED[device.number]


class CudaDriver:
    """See `runtime.devices.driver.Driver`. `shared` is False, because a device has memory of its own, and
    tensors lie there. Jetsons with `maps` access the host's arrays too (`mapped`)."""

    shared, alignment = False, ALIGNMENT

    def __init__(self, device: Found) -> None:
        self.device, self._in = device, _context(device)
        self._uploads: Queue | None = None
        self._uploading = Lock()
        self.units, self.largest, self.maps = device.units, device.memory, device.maps

    def __str__(self) -> str:
        return str(self.device)

    def unpack(self, code: bytes) -> Built:
        return Built.of(code)

    def load(self, packed: Built, target: str) -> Kernel | Product:
        if packed.product:
            rest = self.load(replace(packed, product=b""), target) if packed.cubin else None
            product = unpacked(packed.product)
            name = "cuBLASLt" if isinstance(product, Sgemm) else "cuDNN"
            try:
                if isinstance(product, Sgemm):
                    return Cublas(self._in, product, rest)
                return Cudnn(self._in, product, rest)
            except DriverError as error:
                raise LoadError(f"{self} can't call {name}: {error}; {NO_LIBRARY}") from error
        own = self.device.takes(packed.architecture)
        try:
            return Kernel(Module(self._in, packed.cubin if own else packed.ptx), packed.kernel, packed.shared)
        except Error as error:
            raise LoadError(f"{self} doesn't take the code: {error}{self._remedy(packed)}") from error

    def _remedy(self, packed: Built) -> str:
        """Return the remedy for code that the driver refuses, if the driver is older than the code, else
        ""."""
        if packed.version <= self.device.version:
            return ""
        (compiler, minor), (had, its_minor) = packed.version, self.device.version
        return (
            f"; the code was made by NVRTC {compiler}.{minor}, and the driver has CUDA {had}.{its_minor}: "
            f"install a newer driver, or compile the model again with NVRTC {had} (pip install "
            f"nvidia-cuda-nvrtc-cu{had})"
        )

    def waiting(self, kernel: Kernel | Product, local: int) -> tuple[Kernel, int] | None:
        if not self.device.cooperates or not isinstance(kernel, Kernel):
            return None
        found = kernel.waiting(ROUNDS)
        most = found.resident(local) * self.units if found is not None else 0
        return (found, most) if found is not None and most else None

    def buffer(self, size: int, array: Array | None = None, *, written: bool = True) -> Buffer:
        buffer = Buffer(self._in, size)
        if array is not None:
            self._upload(buffer, array)
        return buffer

    def mapped(self, size: int, array: Array | None = None) -> Mapped:
        """Make memory of the host that the device accesses in place: an array, or `size` bytes."""
        return Mapped(self._in, size, array)

    def _upload(self, to: Buffer, array: Array) -> None:
        """Copy an array, and wait until it is copied. Any stream may use the memory next."""
        with self._uploading:
            self._uploads = self._uploads or self.queue()
            self._uploads.write(to, array)
            self._uploads.finish()

    def download(self, array: Array, of: Buffer) -> None:
        """Copy the beginning of a buffer to an array of the host, and wait for it."""
        with self._uploading:
            self._uploads = self._uploads or self.queue()
            self._uploads.read(array, of)
            self._uploads.finish()

    def copy(self, to: Buffer, of: Buffer) -> None:
        """Copy a buffer to another of its size on the device, and wait for it."""
        with self._uploading:
            self._uploads = self._uploads or self.queue()
            self._in.call("cuMemcpyDtoDAsync_v2", to.handle, of.handle, of.size, self._uploads.handle)
            self._uploads.finish()

    def queue(self, *, timed: bool = False) -> Queue:
        return Queue(self._in)

    def forget(self) -> None:
        with _LOCK:
            if _OPENED.get(self.device.number) is self._in:
                del _OPENED[self.device.number]
            self._in.end()


class Cuda(QueuedDevice):
    """NVIDIA's GPUs, as in `runtime.device.Device`. `which` selects the GPU that runs all code. If it is "",
    code runs on the first GPU that can run it."""

    name = PREFIX

    def __init__(self, which: str = "") -> None:
        self._which = which

    def device(self, target: str) -> Found:
        """Return the GPU that runs code for a target. Raises LoadError if there is none."""
        return select(self._which) if self._which else of_target(target)

    def why_not(self, target: str) -> str:
        architecture = target.split("/")[1] if target.count("/") >= 2 else ""
        try:
            device = self.device(target)
            runs = device.runs(architecture)
        except LoadError as error:
            return str(error)
        capability = f"{device.major}.{device.minor}"
        return "" if runs else f"{device} is of compute capability {capability}, older than {architecture}"

    def is_processor(self, target: str) -> bool:
        return False

    def made(self, *given: Any) -> Code:
        return CudaCode(*given)

    def driver(self, target: str) -> CudaDriver:
        return CudaDriver(self.device(target))


DEVICE = Cuda()


def of(which: str) -> Cuda:
    """Return the device that a device name's second part selects (see `select`)."""
    return Cuda(which)
