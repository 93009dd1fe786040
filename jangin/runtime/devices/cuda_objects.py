"""The objects of NVIDIA's driver: contexts, memory, streams, graphs, events, modules and kernels.

All work is done in a device's primary context, which other libraries in the process use too. Each call makes
this context current for its thread, and then restores the previous context. A kernel's fault ends the
context. Objects that were made in an ended context no longer exist, and aren't released in a later one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from jangin.ir.graph import Array
from jangin.runtime.arrays import address
from jangin.runtime.devices.cuda_library import HANDLE, INT, SIZE, Error, call, functions, made
from jangin.runtime.outputs import aligned

PAGE = 4096
"""Pinned memory, which a device accesses by itself, begins at a multiple of this number of bytes. The system
pins whole pages."""
STAGED = 1 << 20
"""Arrays of at most this many bytes are copied through pinned memory. Larger ones gain nothing, because the
driver itself copies them through pinned memory in pieces."""
WORKSPACE = 32 << 20
"""Bytes of memory that a library's launch may use. NVIDIA's manual of cuBLAS recommends them for Hopper."""
MOST_SHARED = 8
"""The attribute of a kernel that allows its launches to ask for so many bytes of shared memory
(`CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`)."""
MOST_GROUPS = (1 << 31) - 1
"""The most groups of a launch (CUDA C++ Programming Guide, technical specifications)."""
ENDED = "a kernel's fault, or a loss, has ended it"
"""The text of errors of calls in a context that was ended."""


class Context:
    """A device's primary context. `alive` is true until the context is ended. `libraries` has the handles of
    other libraries in it."""

    def __init__(self, device: int) -> None:
        self._device, self.alive = device, True
        self.libraries: dict[str, Any] = {}
        self.handle = made("cuDevicePrimaryCtxRetain", device)

    def end(self) -> None:
        """End the context after a fault, with all that was made in it. The next context of the device begins
        anew."""
        if self.alive:
            self.alive = False
            functions().cuDevicePrimaryCtxReset_v2(self._device)

    def call(self, name: str, *given: Any) -> None:
        """Call a function of the driver in this context. Raises Error if it fails. Once the context has
        ended, the driver isn't called any more."""
        if not self.alive:
            raise Error(name, "CUDA_ERROR_CONTEXT_IS_DESTROYED", ENDED)
        call("cuCtxPushCurrent_v2", self.handle)
        try:
            call(name, *given)
        finally:
            functions().cuCtxPopCurrent_v2(ctypes.byref(HANDLE()))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside this context manager, the context is this thread's current one. Raises Error."""
        if not self.alive:
            raise Error("cuCtxPushCurrent_v2", "CUDA_ERROR_CONTEXT_IS_DESTROYED", ENDED)
        call("cuCtxPushCurrent_v2", self.handle)
        try:
            yield
        finally:
            functions().cuCtxPopCurrent_v2(ctypes.byref(HANDLE()))

    def made(self, name: str, *given: Any) -> int:
        """Call a function that makes an object in this context, and return the object's handle. Raises
        Error."""
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *given)
        return handle.value or 0

    def free(self) -> tuple[int, int]:
        """Return the device's free memory and all of its memory, in bytes."""
        free, whole = SIZE(), SIZE()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(whole))
        return free.value, whole.value


class _Object:
    """An object of the driver. It is released with this Python object, unless its context has ended."""

    _release = ""

    def __init__(self, context: Context, handle: int) -> None:
        self.context, self.handle = context, handle

    def __del__(self) -> None:
        if getattr(self, "handle", 0) and self.context.alive:
            with suppress(Error):
                self.context.call(self._release, self.handle)


class Buffer(_Object):
    """Memory of the device. `handle` is its address."""

    _release = "cuMemFree_v2"

    def __init__(self, context: Context, size: int) -> None:
        self.size = size
        try:
            super().__init__(context, context.made("cuMemAlloc_v2", size))
        except Error as error:
            if not error.full:
                raise
            free, whole = context.free()
            text = f"{size} bytes were asked for, and {free} of the device's {whole} are free"
            raise Error("cuMemAlloc_v2", error.name, text) from error

    def part(self, offset: int, size: int) -> Buffer:
        return _Part(self, offset, size)


class _Part(Buffer):
    """A part of a buffer, which it keeps alive."""

    def __init__(self, whole: Buffer, offset: int, size: int) -> None:
        self.context, self.size, self._whole = whole.context, size, whole
        self.handle = whole.handle + offset

    def __del__(self) -> None:
        pass  # the whole lets go of the memory


class _Pinned(_Object):
    """Pinned memory: an array of bytes in this process that the device accesses by itself. The array remains
    valid when the context ends, because other threads may still use it."""

    _release = "cuMemHostUnregister"

    def __init__(self, context: Context, size: int) -> None:
        self.bytes = aligned((size,), np.dtype(np.uint8), PAGE)
        context.call("cuMemHostRegister_v2", address(self.bytes), size, 0)
        super().__init__(context, address(self.bytes))


class Queue(_Object):
    """A stream. Small arrays are copied through pinned memory, where they stay until the stream is
    finished."""

    _release = "cuStreamDestroy_v2"

    def __init__(self, context: Context) -> None:
        waits_for_no_other = 1
        super().__init__(context, context.made("cuStreamCreate", waits_for_no_other))
        self._blocks: list[_Pinned] = []
        self._used = 0
        self._wanted: list[tuple[Array, Array]] = []
        self._workspace: Buffer | None = None

    def _staged(self, size: int) -> Array:
        """Return pinned memory that nothing else uses before the stream is finished."""
        block, at = divmod(self._used, STAGED)
        if at + size > STAGED:
            block, at = block + 1, 0
        if block == len(self._blocks):
            self._blocks.append(_Pinned(self.context, STAGED))
        self._used = block * STAGED + at + -(-size // 64) * 64
        return self._blocks[block].bytes[at : at + size]

    def workspace(self) -> Buffer:
        """Return memory that libraries may use for their launches on this stream. Recorded launches keep its
        address, so it stays the same."""
        if self._workspace is None:
            self._workspace = Buffer(self.context, WORKSPACE)
        return self._workspace

    def write(self, to: Buffer, array: Array) -> None:
        if array.nbytes <= STAGED:
            staged = self._staged(array.nbytes)
            staged[:] = array.reshape(-1).view(np.uint8)
            array = staged
        self.context.call("cuMemcpyHtoDAsync_v2", to.handle, address(array), array.nbytes, self.handle)

    def read(self, array: Array, of: Buffer) -> None:
        if array.nbytes <= STAGED:
            staged = self._staged(array.nbytes)
            self._wanted.append((array, staged))
            array = staged
        self.context.call("cuMemcpyDtoHAsync_v2", address(array), of.handle, array.nbytes, self.handle)

    def show(self, buffer: Buffer) -> None:
        """Do nothing, because the device's memory isn't the host's."""

    def finish(self) -> None:
        wanted, self._wanted, self._used = self._wanted, [], 0
        self.context.call("cuStreamSynchronize", self.handle)
        for array, staged in wanted:
            array.reshape(-1).view(np.uint8)[:] = staged

    def recorded(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Record launches as one graph, and return a function that launches the graph. The capture has the
        relaxed mode, because this thread may release memory during it."""
        relaxed = 2
        self.context.call("cuStreamBeginCapture_v2", self.handle, relaxed)
        try:
            enqueue()
        except BaseException:
            with suppress(Error):
                _Graph(self.context, self._captured())
            raise
        graph = _Graph(self.context, self._captured())
        runs = _GraphExec(self.context, graph)
        return lambda: self.context.call("cuGraphLaunch", runs.handle, self.handle)

    def _captured(self) -> int:
        graph = ctypes.c_void_p()
        self.context.call("cuStreamEndCapture", self.handle, ctypes.byref(graph))
        return graph.value or 0


class _Graph(_Object):
    _release = "cuGraphDestroy"


class _GraphExec(_Object):
    """An instantiated graph, which can be launched."""

    _release = "cuGraphExecDestroy"

    def __init__(self, context: Context, graph: _Graph) -> None:
        super().__init__(context, context.made("cuGraphInstantiateWithFlags", graph.handle, 0))


class Event(_Object):
    """An event, which marks a moment of a stream."""

    _release = "cuEventDestroy_v2"

    def __init__(self, context: Context, flags: int = 0) -> None:
        super().__init__(context, context.made("cuEventCreate", flags))


class Module(_Object):
    """Loaded code: machine code, or PTX that the driver compiles."""

    _release = "cuModuleUnload"
    LOG = 2000
    """The most characters of the compiler's messages that an error repeats."""

    def __init__(self, context: Context, code: bytes) -> None:
        log, error_log, log_size = ctypes.create_string_buffer(self.LOG), 5, 6
        options = (INT * 2)(error_log, log_size)
        values = (HANDLE * 2)(ctypes.addressof(log), self.LOG)
        try:
            handle = context.made("cuModuleLoadDataEx", code, 2, options, values)
        except Error as error:
            said = log.value.decode(errors="replace").strip()
            raise Error("cuModuleLoadDataEx", error.name, said or str(error)) from error
        super().__init__(context, handle)


class Kernel:
    """A module's kernel, with arguments and a size of its own. Each launch asks for `shared` bytes of shared
    memory."""

    def __init__(self, module: Module, name: str, shared: int = 0) -> None:
        self._module, self._name, self._shared = module, name, shared
        self._function = module.context.made("cuModuleGetFunction", module.handle, name.encode())
        if shared:
            module.context.call("cuFuncSetAttribute", self._function, MOST_SHARED, shared)
        self._values: dict[int, ctypes.c_int64] = {}
        self._given: Any = None
        self._groups = self._local = 1

    def copy(self) -> Kernel:
        return Kernel(self._module, self._name, self._shared)

    def set_arg(self, number: int, value: int | Buffer) -> None:
        word = value if isinstance(value, int) else value.handle
        kept = self._values.get(number)
        if kept is None:
            self._values[number], self._given = ctypes.c_int64(word), None
        else:
            kept.value = word

    def set_size(self, items: int, local: int) -> None:
        self._local = max(1, local)
        self._groups = min(items // self._local, MOST_GROUPS)

    def enqueue(self, queue: Queue) -> None:
        if self._given is None:
            places = (ctypes.addressof(self._values[n]) for n in range(len(self._values)))
            self._given = (HANDLE * len(self._values))(*places)
        size = self._groups, 1, 1, self._local, 1, 1, self._shared
        self._launch(self._function, *size, queue.handle, self._given)

    def _launch(self, *given: Any) -> None:
        self._module.context.call("cuLaunchKernel", *given, None)

    def waiting(self, suffix: str) -> Waiting | None:
        """Return the module's kernel with this end of the name, or None if it has none. Its groups wait for
        one another."""
        try:
            return Waiting(self._module, self._name + suffix, self._shared)
        except Error as error:
            if error.name != "CUDA_ERROR_NOT_FOUND":
                raise
            return None

    def seconds(self, queue: Queue) -> float:
        return timed(self._module.context, queue, lambda: self.enqueue(queue))


def timed(context: Context, queue: Queue, enqueue: Callable[[], None]) -> float:
    """Return the seconds of what `enqueue` enqueues, by the device's clock."""
    events = [Event(context) for _ in range(2)]
    context.call("cuEventRecord", events[0].handle, queue.handle)
    enqueue()
    context.call("cuEventRecord", events[1].handle, queue.handle)
    context.call("cuEventSynchronize", events[1].handle)
    taken = ctypes.c_float()
    context.call("cuEventElapsedTime", ctypes.byref(taken), events[0].handle, events[1].handle)
    return taken.value / 1e3


class Waiting(Kernel):
    """A kernel whose groups wait for one another, so that the device must run all at one time."""

    def copy(self) -> Waiting:
        return Waiting(self._module, self._name, self._shared)

    def resident(self, local: int) -> int:
        """Return how many groups of `local` work-items a multiprocessor runs at one time."""
        most, name = ctypes.c_int(), "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        self._module.context.call(name, ctypes.byref(most), self._function, local, self._shared)
        return most.value

    def _launch(self, *given: Any) -> None:
        self._module.context.call("cuLaunchCooperativeKernel", *given)
