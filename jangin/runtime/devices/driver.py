"""A queued device's maker offers the few calls here. OpenCL, CUDA and WebGPU are drivers of this kind.

`runtime.devices.queued` runs plans over these protocols. It knows no maker's interface, and a driver knows no
plans. Calls that can fail raise a `DriverError` unless a method says another error.

Order of calls that every driver may rely on:

- A kernel is enqueued only after its size and all its arguments were set. Both stay until they are set anew;
  what was enqueued keeps the values of its time.
- A queue works through what was enqueued in order. The host reads no array that a queue fills, and changes
  none that a queue reads, before `finish` returned.
- A buffer, and an array that one uses, lives at least until the queue is finished.
- Objects go back only to the driver that made them: parameters of type `Any` are its own buffers, queues and
  code.
- Only one thread at a time uses a queue or a kernel. `copy` gives another thread its own kernel.
"""

from __future__ import annotations

from typing import Any, Protocol

from jangin.ir.graph import Array


class DriverError(Exception):
    """This error says why a driver's call failed. Its text is for people."""

    @property
    def lost(self) -> bool:
        """Whether nothing made by this driver can be used any more."""
        return False

    @property
    def full(self) -> bool:
        """Whether the device has no memory left."""
        return False


class Buffer(Protocol):
    """Memory of the device, or of the host if the device shares that; it goes with the object."""

    @property
    def size(self) -> int:
        """Bytes, at least 1."""

    def part(self, offset: int, size: int) -> Buffer:
        """The same memory from a byte on. `offset` is a multiple of `Driver.alignment`, and the part keeps
        the whole alive."""


class Queue(Protocol):
    """Work for one device, done in the order in which it was enqueued."""

    def write(self, to: Any, array: Array) -> None:
        """Enqueue a copy of a contiguous array to the beginning of a buffer."""

    def read(self, array: Array, of: Any) -> None:
        """Enqueue a copy of a buffer's beginning to a contiguous array, as many bytes as the array has."""

    def show(self, buffer: Any) -> None:
        """Enqueue what the host needs to see in its own array what kernels wrote to it. Only asked of devices
        that share the host's memory."""

    def finish(self) -> None:
        """Wait until all that was enqueued is done. Failures of kernels may come here first."""


class Kernel(Protocol):
    """A kernel of a program, with arguments and a size of its own."""

    def set_arg(self, number: int, value: Any) -> None:
        """Set an argument: a whole number of 64 bits, or memory. The kernel keeps no buffer alive."""

    def set_size(self, items: int, local: int) -> None:
        """Set how many work-items a launch has, in groups of `local`, which divides `items`."""

    def enqueue(self, queue: Any) -> None:
        """Enqueue a launch by the arguments and the size set before."""

    def seconds(self, queue: Any) -> float:
        """Run a launch on a timed queue, wait for it, and give its time by the device's clock."""

    def copy(self) -> Kernel:
        """The same kernel, with arguments and a size of its own."""


class Packed(Protocol):
    """A kernel's code, unpacked from the bytes that a compiled model has."""

    @property
    def kernel(self) -> str:
        """The kernel's name, which launches call it by."""


class Driver(Protocol):
    """A device that is open. Its text (`str`) is what errors call it."""

    @property
    def units(self) -> int:
        """Groups of work-items that the device runs at one time: their scratch memory is apart."""

    @property
    def alignment(self) -> int:
        """Bytes: values in the arena and parts of buffers begin at multiples. Arrays of the host that do so
        too are used where they lie, if the device shares the host's memory."""

    @property
    def largest(self) -> int:
        """Bytes of the largest buffer."""

    @property
    def shared(self) -> bool:
        """Whether the device's memory is the host's, so that no byte needs to be copied."""

    def unpack(self, code: bytes) -> Packed:
        """A kernel's code. LoadError if it is damaged."""

    def load(self, packed: Any, target: str) -> Kernel:
        """A kernel, made from code that was compiled for a target (a plan's). LoadError says why there is
        none. Called by several threads at once."""

    def buffer(self, size: int, array: Array | None = None, *, written: bool = True) -> Buffer:
        """Memory of `size` bytes, or with an array's bytes.

        If the device shares the host's memory, it is the array's own memory, and the buffer keeps the array
        alive. `written`: kernels write to it.
        """

    def queue(self, *, timed: bool = False) -> Queue:
        """A new queue; a timed one knows when kernels began and ended."""

    def forget(self) -> None:
        """The device is lost: open it anew for whatever asks for it next."""
