"""Queued devices run a plan's kernels in order, with one wait for each run.

The code that all queued devices share is here and in `queued_memory`, over a driver of few calls
(`runtime.devices.driver`). A launch's tasks are divided among work-items, each in a group of its own. There
are as many work-items as threads, or a small multiple. If a device shares the host's memory, arrays are used
in place.

A kernel's first arguments are the buffers of its launch and its symbols. The number of tasks, the first round
and the number of rounds follow. The last are the scratch memory and its bytes for each group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jangin.ir.graph import Array
from jangin.ir.plan import Plan
from jangin.runtime.device import LoadError, NativeCall, Transfer
from jangin.runtime.devices.driver import Buffer, Driver, DriverError, Kernel, Packed
from jangin.runtime.devices.queued_faults import failed, named, no_memory, too_large
from jangin.runtime.devices.queued_memory import Memory
from jangin.runtime.devices.transfers import transfer
from jangin.runtime.layout import Layout
from jangin.runtime.outputs import aligned
from jangin.runtime.threads import side_by_side

SPREAD = 4
"""The number of work-items for each thread. More than one spreads uneven tasks more evenly."""
PAGE = 4096
"""The alignment in bytes at which drivers use the host's memory in place, a page of the system. At any other
place they copy."""


class QueuedDevice(ABC):
    """A device with a queue, as in `runtime.device.Device`. Subclasses add the device's name and find its
    drivers."""

    @abstractmethod
    def driver(self, target: str) -> Driver:
        """Return the open device that runs code for a target. Raises LoadError."""

    @abstractmethod
    def is_processor(self, target: str) -> bool:
        """Return whether the device for a target is the processor (see
        `runtime.device.Device.is_processor`)."""

    def transfer(self, target: str) -> Transfer:
        return transfer(self.driver(target))

    def load(self, plan: Plan, codes: Sequence[bytes], threads: int, beside: object) -> Code:
        driver = self.driver(plan.target)
        packed = [driver.unpack(code) for code in codes]
        launches = {launch.function: launch for launch in reversed(plan.launches)}

        def load(one: Packed) -> Kernel:
            try:
                return driver.load(one, plan.target)
            except LoadError as error:
                raise LoadError(f"{named(launches[one.kernel])}: {error}") from error

        kernels = dict(zip([p.kernel for p in packed], side_by_side(load, packed), strict=True))
        own = threads if self.is_processor(plan.target) else driver.units
        return self.made(plan, driver, kernels, own, lambda: self.load(plan, codes, threads, beside))

    def made(self, *given: Any) -> Code:
        """Return a plan's code on this device, given what `Code` is made of."""
        return Code(*given)

    def flow(self, code: bytes) -> None:
        return None


class Code:
    """Kernels on a device, by name, and the constants, which are uploaded once or used in place. `loaded` is
    a function that loads the same code again."""

    def __init__(
        self,
        plan: Plan,
        driver: Driver,
        kernels: Mapping[str, Kernel],
        threads: int,
        loaded: Callable[[], Code],
    ) -> None:
        self.plan, self.driver, self.kernels, self.loaded = plan, driver, kernels, loaded
        self._unused = dict(kernels)
        self.threads = min(threads, driver.units)
        self.items = self.threads * (SPREAD if threads >= driver.units else 1)
        self.alignment = driver.alignment
        self.users: dict[str, list[tuple[int, int]]] = {b.name: [] for b in plan.buffers}
        base = {b.name: b.base if b.kind == "alias" else b.name for b in plan.buffers}
        for n, launch in enumerate(plan.launches):
            for i, name in enumerate(launch.args):
                self.users[base[name]].append((n, i))
        self.copied = 0
        self.constants = {n: self.buffer(n, a, write=False) for n, a in plan.constants.items() if n in base}
        self.copied = 0

    @property
    def copies(self) -> bool:
        return not self.driver.shared

    def kernel(self, function: str) -> Kernel:
        """Return a kernel whose arguments no other memory sets."""
        unused = self._unused.pop(function, None)
        return self.kernels[function].copy() if unused is None else unused

    def memory(self) -> Memory:
        return Memory(self)

    def native_call(self, layout: Layout) -> NativeCall:
        raise NotImplementedError("branches and loops on queued devices are Python's")

    def buffer(self, name: str, array: Array, *, write: bool, launch: int | None = None) -> Buffer:
        """Make a buffer with an array's contents. If the device shares the host's memory, it is the array's
        own memory. For `launch` see `room`."""
        raw = array.reshape(-1).view(np.uint8)
        if not raw.nbytes:
            return self.room(name, 1)
        if not self.driver.shared:
            self.copied += raw.nbytes
        return self._made(name, launch, raw.nbytes, raw, write=write)

    def room(self, name: str, size: int, launch: int | None = None) -> Buffer:
        """Make a buffer of `size` bytes. If the device shares the host's memory, it is host memory in large
        pages.

        `launch` is for errors: the number of the launch that needs most of the memory, if `name` isn't a
        buffer's."""
        size = max(1, size)
        if not self.driver.shared:
            return self._made(name, launch, size)
        self._require(name, size, launch)
        try:
            raw = aligned((size,), np.dtype(np.uint8), PAGE)
        # NumPy raises ValueError for more bytes than an address can hold
        except (MemoryError, ValueError) as error:
            raise no_memory(self.driver, name, size, self._uses(name, launch), error) from error
        return self._made(name, launch, size, raw)

    def _made(
        self, name: str, launch: int | None, size: int, array: Array | None = None, *, write: bool = True
    ) -> Buffer:
        self._require(name, size, launch)
        try:
            return self.driver.buffer(size, array, written=write)
        except DriverError as error:
            if error.lost:
                self.driver.forget()
                raise failed(self.driver, f"hold the {size} bytes of {name}", error) from error
            raise no_memory(self.driver, name, size, self._uses(name, launch), error) from error

    def _require(self, name: str, size: int, launch: int | None) -> None:
        """Raise MemoryError if `size` exceeds the device's largest buffer."""
        if size > self.driver.largest:
            raise too_large(self.driver, name, size, self._uses(name, launch))

    def _uses(self, name: str, launch: int | None) -> str:
        """Return the end of an error's text, which names the first kernel that uses a buffer."""
        numbers = [n for n, _ in self.users.get(name, ())] if launch is None else [launch]
        return f"; it is for {named(self.plan.launches[numbers[0]])}" if numbers else ""
