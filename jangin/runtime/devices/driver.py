"""The protocols of a queued device's driver, for OpenCL, CUDA and WebGPU.

`runtime.devices.queued` runs plans by these protocols. It knows no vendor's interface, and a driver knows no
plans. Calls that can fail raise a `DriverError` unless a method says another error.

Order of calls that every driver may rely on:

- A kernel is enqueued only after its size and all its arguments were set. Both stay until they are set anew.
  An enqueued launch keeps the values that were set before it.
- A queue runs its commands in the order in which they were enqueued. The host reads no array that a queue
  fills, and changes none that a queue reads, before `finish` returned.
- A buffer, and an array that one uses, lives at least until the queue is finished.
- Objects go back only to the driver that made them: parameters of type `Any` are its own buffers, queues and
  code.
- Only one thread at a time uses a queue or a kernel. `copy` gives another thread its own kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from jangin.ir.graph import Array

WAITING = 8
"""Bytes of memory with which groups of a launch wait for one another: a count and a turn of 32 bits."""


class DriverError(Exception):
    """A driver's call failed. The text gives the reason."""

    @property
    def lost(self) -> bool:
        """Whether everything that this driver made has become unusable."""
        return False

    @property
    def fault(self) -> bool:
        """Whether a kernel's fault made everything on the device unusable. `lost` is true then too. The
        device can be used again after `Driver.forget`."""
        return False

    @property
    def full(self) -> bool:
        """Whether the device has no memory left."""
        return False


class Buffer(Protocol):
    """Memory of the device, or the host's memory if the device shares it. The memory is freed with the
    object."""

    @property
    def size(self) -> int:
        """The number of bytes, at least 1."""

    def part(self, offset: int, size: int) -> Buffer:
        """Return the same memory from a byte on. `offset` is a multiple of `Driver.alignment`, and the part
        keeps the whole alive."""


class Queue(Protocol):
    """Work for one device, done in the order in which it was enqueued."""

    def write(self, to: Any, array: Array) -> None:
        """Enqueue a copy of a contiguous array to the beginning of a buffer."""

    def read(self, array: Array, of: Any) -> None:
        """Enqueue a copy of a buffer's beginning to a contiguous array, as many bytes as the array has."""

    def show(self, buffer: Any) -> None:
        """Enqueue the commands after which the host sees what kernels wrote to its own array.

        It is only called for devices that share the host's memory.
        """

    def recorded(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Return a function that enqueues everything that `enqueue` enqueues now, with the same arguments.
        The function is called once for each run. A device that can start many launches at once records the
        launches here."""

    def finish(self) -> None:
        """Wait until all commands are done. Failures of kernels may appear here first."""


class Kernel(Protocol):
    """A kernel of a program, with arguments and a size of its own."""

    def set_arg(self, number: int, value: Any) -> None:
        """Set an argument: a whole number of 64 bits, or memory. The kernel keeps no buffer alive."""

    def set_size(self, items: int, local: int) -> None:
        """Set how many work-items a launch has, in groups of `local`, which divides `items`."""

    def enqueue(self, queue: Any) -> None:
        """Enqueue a launch with the arguments and the size that were set before."""

    def seconds(self, queue: Any) -> float:
        """Run a launch on a timed queue and wait for it. Return its seconds by the device's clock."""

    def copy(self) -> Kernel:
        """Return the same kernel, with its own arguments and size."""


class Packed(Protocol):
    """A kernel's code, unpacked from a compiled model's bytes."""

    @property
    def kernel(self) -> str:
        """The kernel's name, as in launches."""


class Driver(Protocol):
    """An open device. Its text (`str`) is its name in errors."""

    @property
    def units(self) -> int:
        """Groups of work-items that the device runs at one time. Each has its own scratch memory."""

    @property
    def alignment(self) -> int:
        """The alignment in bytes of values in the arena and of parts of buffers.

        If the device shares the host's memory, the host's arrays with this alignment are used in place.
        """

    @property
    def largest(self) -> int:
        """Bytes of the largest buffer."""

    @property
    def shared(self) -> bool:
        """Whether the device shares the host's memory, so that no byte needs to be copied."""

    def unpack(self, code: bytes) -> Packed:
        """Unpack a kernel's code from its bytes. Raises LoadError if it is damaged."""

    def load(self, packed: Any, target: str) -> Kernel:
        """Make a kernel from code that was compiled for a plan's target. Raises LoadError with the reason.

        Several threads may call it at once."""

    def waiting(self, kernel: Any, local: int) -> tuple[Kernel, int] | None:
        """Return a kernel that does all rounds of another in one launch, and how many groups of `local`
        work-items it may have. Return None if there is none. Its groups wait for one another. Its last
        argument is memory of `WAITING` bytes, which are 0 at first."""

    def buffer(self, size: int, array: Array | None = None, *, written: bool = True) -> Buffer:
        """Make a buffer of `size` bytes, with the contents of `array` if it is given.

        If the device shares the host's memory, the buffer uses the array's own memory and keeps the array
        alive. `written` tells whether kernels write to it."""

    def queue(self, *, timed: bool = False) -> Queue:
        """Make a new queue. A timed queue measures when kernels begin and end."""

    def forget(self) -> None:
        """Drop the lost device, so that the next caller opens it anew."""
