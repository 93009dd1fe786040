"""The host's arrays as memory of a GPU that shares the host's memory, as Jetsons do.

Kernels write outputs to memory of the host, and read large inputs where they lie. Small inputs are copied by
the processor, which takes less time than telling the driver their pages."""

from __future__ import annotations

import ctypes
import math
from contextlib import suppress
from typing import Any, cast

import numpy as np

from jangin.ir.graph import Array
from jangin.runtime.arrays import address
from jangin.runtime.devices.cuda_objects import PAGE, STAGED, Buffer, Context
from jangin.runtime.devices.driver import Buffer as AnyBuffer
from jangin.runtime.devices.driver import DriverError
from jangin.runtime.devices.queued import Code
from jangin.runtime.devices.queued_faults import no_memory
from jangin.runtime.devices.queued_memory import Memory
from jangin.runtime.layout import Layout
from jangin.runtime.outputs import aligned

MAPPED = 2
"""The flag for memory of the host that the device accesses (`CU_MEMHOSTREGISTER_DEVICEMAP`)."""
SPARE = 2
"""The most pieces of memory that are kept for an output. Callers that compute the next output before they
release the last one use two in turn."""
ALIGNED = 16
"""The alignment in bytes of the widest loads and stores of CUDA C kernels, those of float4. Other arrays are
copied first."""


class Mapped(Buffer):
    """Memory of the host that the device accesses in place: an array, or `size` bytes of its own. The driver
    is told whole pages."""

    def __init__(self, context: Context, size: int, array: Array | None = None) -> None:
        own = aligned((-(-size // PAGE) * PAGE,), np.dtype(np.uint8), PAGE) if array is None else array
        self.context, self.size, self.bytes = context, size, own
        self._first = address(own) // PAGE * PAGE
        end = -(-(address(own) + own.nbytes) // PAGE) * PAGE
        context.call("cuMemHostRegister_v2", self._first, end - self._first, MAPPED)
        self._registered, there = True, ctypes.c_uint64()
        context.call("cuMemHostGetDevicePointer_v2", ctypes.byref(there), self._first, 0)
        self.handle = there.value + address(own) - self._first

    def __del__(self) -> None:
        if getattr(self, "_registered", False) and self.context.alive:
            with suppress(DriverError):
                self.context.call("cuMemHostUnregister", self._first)


class _Lent:
    """The base of arrays that share an output's memory. When the last of them is released, the memory is kept
    for a later run."""

    def __init__(self, block: Mapped, spare: list[Mapped]) -> None:
        self.__array_interface__ = block.bytes.__array_interface__
        self.block, self._spare = block, spare

    def __del__(self) -> None:
        if len(self._spare) < SPARE:
            self._spare.append(self.block)


def _block_of(array: Array, like: Any) -> Mapped | None:
    """Return the memory that an array of an earlier run's output lies in, if it is of the same context."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    block = base.block if isinstance(base, _Lent) else None
    return block if block is not None and block.context is like.context else None


class HostMemory(Memory):
    """See `Memory`. If the device shares the host's memory (`maps`), inputs and outputs lie there."""

    def __init__(self, code: Code) -> None:
        super().__init__(code)
        self._maps: bool = code.driver.maps  # type: ignore[attr-defined]
        self._lent: list[Mapped] = []  # a run's input arrays, which the device reads where they lie
        self._spare: dict[str, list[Mapped]] = {}  # memory of outputs that no array uses, by name

    def _end(self, name: str, size: int) -> AnyBuffer:
        if not self._maps:
            return super()._end(name, size)
        block = self._mapped(name, size)
        if name in self._code.plan.outputs:
            self._spare[name] = [block]
        return block

    def _mapped(self, name: str, size: int) -> Mapped:
        """Make memory for an input or output. Raises MemoryError."""
        driver: Any = self._code.driver
        try:
            block: Mapped = driver.mapped(max(1, size))
        except (DriverError, MemoryError, ValueError) as error:
            if isinstance(error, DriverError) and error.lost:
                raise self._failed(f"hold the {size} bytes of {name}", error) from error
            raise no_memory(driver, name, size, "", error) from error
        return block

    def _in_place(self, name: str, array: Array) -> Buffer:
        """Return an input where it lies if it is large or an output of a run, or else a copy that the
        processor makes. A copy serves too if a run changes the input, or if the array's pages can't be
        registered."""
        updated = name in self._code.plan.updates.values()
        if not updated and address(array) % ALIGNED == 0 and (block := _block_of(array, self._ends[name])):
            return block.part(address(array) - address(block.bytes), array.nbytes)
        if array.nbytes > STAGED and not updated and address(array) % ALIGNED == 0:
            driver: Any = self._code.driver
            with suppress(DriverError):
                self._lent.append(driver.mapped(array.nbytes, array.reshape(-1).view(np.uint8)))
                return self._lent[-1]
        own: Any = self._ends[name]
        own.bytes[: array.nbytes] = array.reshape(-1).view(np.uint8)
        self._code.copied += array.nbytes
        return cast(Buffer, own)

    def _bind_outputs(self, layout: Layout) -> dict[str, Array]:
        """Return arrays for the outputs. Kernels write to their memory."""
        outputs = dict[str, Array]()
        for name, shape, dtype in layout.outputs:
            kind = np.dtype(dtype)
            size, spare = math.prod(shape) * kind.itemsize, self._spare[name]
            fitting = [block for block in spare if block.size >= size]
            if fitting:
                spare.remove(fitting[-1])
            block = fitting[-1] if fitting else self._mapped(name, size)
            self._give(name, block)
            outputs[name] = np.asarray(_Lent(block, spare))[:size].view(kind).reshape(shape)
        return outputs
