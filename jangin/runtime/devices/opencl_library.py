"""OpenCL's functions by ctypes, and its objects.

pyopencl is used only for the OpenCL library in its package, which finds the drivers. It isn't imported,
because that takes longer than loading a small model. It also holds Python's lock while a driver builds a
kernel, and adds a line for each kernel to a file of the user's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jangin.environment import tell_drivers
from jangin.ir.graph import Array
from jangin.runtime.arrays import address
from jangin.runtime.device import LoadError
from jangin.runtime.devices.driver import DriverError

_HANDLE, _INT, _COUNT, _FLAGS = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_uint64
_SIZE = ctypes.c_size_t
_INFO = _HANDLE, _COUNT, _SIZE, _HANDLE, _HANDLE
_AFTER = _COUNT, _HANDLE, _HANDLE
"""Arguments for events: how many to wait for, which ones, and where the new event goes."""
_STATUS: dict[str, tuple[Any, ...]] = {
    "clGetPlatformIDs": (_COUNT, _HANDLE, _HANDLE),
    "clGetPlatformInfo": _INFO,
    "clGetDeviceIDs": (_HANDLE, _FLAGS, _COUNT, _HANDLE, _HANDLE),
    "clGetDeviceInfo": _INFO,
    "clFinish": (_HANDLE,),
    "clBuildProgram": (_HANDLE, _COUNT, _HANDLE, ctypes.c_char_p, _HANDLE, _HANDLE),
    "clGetProgramInfo": _INFO,
    "clGetProgramBuildInfo": (_HANDLE, *_INFO),
    "clSetKernelArg": (_HANDLE, _COUNT, _SIZE, _HANDLE),
    "clEnqueueNDRangeKernel": (*(_HANDLE,) * 2, _COUNT, *(_HANDLE,) * 3, *_AFTER),
    "clEnqueueReadBuffer": (_HANDLE, _HANDLE, _COUNT, _SIZE, _SIZE, _HANDLE, *_AFTER),
    "clEnqueueWriteBuffer": (_HANDLE, _HANDLE, _COUNT, _SIZE, _SIZE, _HANDLE, *_AFTER),
    "clEnqueueUnmapMemObject": (_HANDLE, _HANDLE, _HANDLE, *_AFTER),
    "clEnqueueMarker": (_HANDLE, _HANDLE),
    "clWaitForEvents": (_COUNT, _HANDLE),
    "clGetEventProfilingInfo": _INFO,
    **{f"clRelease{n}": (_HANDLE,) for n in ("Context", "CommandQueue", "MemObject")},
    **{f"clRelease{n}": (_HANDLE,) for n in ("Program", "Kernel", "Event")},
}
"""Functions that return a status, with their arguments' types."""
_MADE: dict[str, tuple[Any, ...]] = {
    "clCreateContext": (_HANDLE, _COUNT, _HANDLE, _HANDLE, _HANDLE),
    "clCreateCommandQueue": (_HANDLE, _HANDLE, _FLAGS),
    "clCreateBuffer": (_HANDLE, _FLAGS, _SIZE, _HANDLE),
    "clCreateSubBuffer": (_HANDLE, _FLAGS, _COUNT, _HANDLE),
    "clCreateProgramWithSource": (_HANDLE, _COUNT, _HANDLE, _HANDLE),
    "clCreateProgramWithBinary": (_HANDLE, _COUNT, _HANDLE, _HANDLE, _HANDLE, _HANDLE),
    "clCreateKernel": (_HANDLE, ctypes.c_char_p),
    "clEnqueueMapBuffer": (_HANDLE, _HANDLE, _COUNT, _FLAGS, _SIZE, _SIZE, *_AFTER),
}
"""Functions that return an object or a pointer, and the status through their last argument."""

ALL_DEVICES = 0xFFFFFFFF
READ_WRITE, READ_ONLY, USE_HOST, COPY_HOST = 1, 4, 8, 32
_PROFILED, _MAP_READ, _REGION = 2, 1, 0x1220
_BINARY_SIZES, _BINARIES, _LOG = 0x1165, 0x1166, 0x1183
_START, _END = 0x1282, 0x1283
"""OpenCL's codes: kinds of devices, flags of memory and queues, and queries of programs and events (cl.h)."""

_Extent = _SIZE * 1
"""The C type of a number of work-items."""

_ERRORS = {
    -1: "DEVICE_NOT_FOUND DEVICE_NOT_AVAILABLE COMPILER_NOT_AVAILABLE MEM_OBJECT_ALLOCATION_FAILURE "
    "OUT_OF_RESOURCES OUT_OF_HOST_MEMORY PROFILING_INFO_NOT_AVAILABLE MEM_COPY_OVERLAP "
    "IMAGE_FORMAT_MISMATCH IMAGE_FORMAT_NOT_SUPPORTED BUILD_PROGRAM_FAILURE MAP_FAILURE "
    "MISALIGNED_SUB_BUFFER_OFFSET EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST COMPILE_PROGRAM_FAILURE "
    "LINKER_NOT_AVAILABLE LINK_PROGRAM_FAILURE DEVICE_PARTITION_FAILED KERNEL_ARG_INFO_NOT_AVAILABLE",
    -30: "INVALID_VALUE INVALID_DEVICE_TYPE INVALID_PLATFORM INVALID_DEVICE INVALID_CONTEXT "
    "INVALID_QUEUE_PROPERTIES INVALID_COMMAND_QUEUE INVALID_HOST_PTR INVALID_MEM_OBJECT "
    "INVALID_IMAGE_FORMAT_DESCRIPTOR INVALID_IMAGE_SIZE INVALID_SAMPLER INVALID_BINARY "
    "INVALID_BUILD_OPTIONS INVALID_PROGRAM INVALID_PROGRAM_EXECUTABLE INVALID_KERNEL_NAME "
    "INVALID_KERNEL_DEFINITION INVALID_KERNEL INVALID_ARG_INDEX INVALID_ARG_VALUE INVALID_ARG_SIZE "
    "INVALID_KERNEL_ARGS INVALID_WORK_DIMENSION INVALID_WORK_GROUP_SIZE INVALID_WORK_ITEM_SIZE "
    "INVALID_GLOBAL_OFFSET INVALID_EVENT_WAIT_LIST INVALID_EVENT INVALID_OPERATION INVALID_GL_OBJECT "
    "INVALID_BUFFER_SIZE INVALID_MIP_LEVEL INVALID_GLOBAL_WORK_SIZE INVALID_PROPERTY",
}
"""OpenCL's error names. Each key is the error code of the first name in its text. Every further name belongs
to the next lower code."""
_NAMES = {first - n: name for first, names in _ERRORS.items() for n, name in enumerate(names.split())}


_LOST = ("DEVICE_NOT_AVAILABLE", "INVALID_DEVICE", "INVALID_CONTEXT", "INVALID_COMMAND_QUEUE")
_FULL = ("MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", "INVALID_BUFFER_SIZE")
"""The errors of a device without free memory. `_LOST` has the errors of a lost device."""


class Error(DriverError):
    """An OpenCL function failed. The text has the function's name and the error's name."""

    @property
    def lost(self) -> bool:
        return any(name in str(self) for name in _LOST)

    @property
    def full(self) -> bool:
        return any(name in str(self) for name in _FULL)


class _Functions:
    """OpenCL's functions as attributes, with their argument types."""

    def __init__(self, opened: ctypes.CDLL) -> None:
        for name, types in _STATUS.items():
            function = opened[name]
            function.argtypes, function.restype = types, _INT
            setattr(self, name, function)
        for name, types in _MADE.items():
            function = opened[name]
            function.argtypes, function.restype = (*types, _HANDLE), _HANDLE
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:  # for the type checker: all are set
        raise AttributeError(name)


@cache
def functions() -> Any:
    """Return the OpenCL functions. Raises LoadError if no OpenCL library is found."""
    told = []
    for place in _places():
        try:
            return _Functions(ctypes.CDLL(place))
        except (OSError, AttributeError) as error:
            told.append(str(error))
    raise LoadError(
        f"OpenCL devices need pyopencl, or the system's library of OpenCL ({'; '.join(told)}): pip install "
        "'jangin[opencl]', and a driver: your system's, or for processors pip install "
        "pocl-binary-distribution or intel-opencl-rt"
    )


def _places() -> list[str]:
    """Return the paths at which the library is looked for: in pyopencl's folder, then the system's."""
    brought = find_spec("pyopencl")
    folders = (brought.submodule_search_locations or ()) if brought else ()
    own = [
        file for folder in folders for file in Path(folder).glob("_cl.*") if file.suffix in (".so", ".pyd")
    ]
    for file in own:
        tell_drivers({"PYOPENCL_HOME": str(file.parent)})  # without this, its library ends the process
    return [*map(str, own), "libOpenCL.so.1", "OpenCL"]


def _require(call: str, status: int, more: str = "") -> None:
    if status:
        raise Error(f"{call} failed: {_NAMES.get(status, f'error {status}')}{more}")


def call(name: str, *given: Any) -> None:
    """Call a function that returns a status. Raises Error."""
    _require(name, getattr(functions(), name)(*given))


def _made(name: str, *given: Any) -> int:
    """Call a function that makes an object, and return the object's handle. Raises Error."""
    status = ctypes.c_int()
    handle: int | None = getattr(functions(), name)(*given, ctypes.byref(status))
    _require(name, status.value)
    return handle or 0


# --- platforms and devices


def _listed(name: str, *given: Any) -> list[int]:
    """Return the handles that a function lists. The list is empty if there are none, even if the function
    reports this as an error."""
    count = ctypes.c_uint()
    if getattr(functions(), name)(*given, 0, None, ctypes.byref(count)) or not count.value:
        return []
    handles = (_HANDLE * count.value)()
    call(name, *given, count, handles, None)
    return [handle for handle in handles if handle]


def platforms() -> list[int]:
    return _listed("clGetPlatformIDs")


def devices(platform: int) -> list[int]:
    return _listed("clGetDeviceIDs", platform, ALL_DEVICES)


def info(name: str, *of: int) -> bytes:
    """Return the bytes that one of OpenCL's query functions answers about an object. The last number is the
    query's code."""
    size, function = _SIZE(), getattr(functions(), name)
    _require(name, function(*of, 0, None, ctypes.byref(size)))
    said = ctypes.create_string_buffer(max(1, size.value))
    _require(name, function(*of, size, said, None))
    return said.raw[: size.value]


def text(name: str, *of: int) -> str:
    return info(name, *of).rstrip(b"\0").decode(errors="replace").strip()


def number(name: str, *of: int) -> int:
    return int.from_bytes(info(name, *of), "little")


# --- objects


class _Object:
    """An OpenCL object, which is released with this Python object. `handle`: OpenCL's handle."""

    _release = ""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._let_go = getattr(functions(), self._release)

    def __del__(self) -> None:
        if hasattr(self, "_let_go"):
            self._let_go(self.handle)


class Context(_Object):
    """The context of one device."""

    _release = "clReleaseContext"

    def __init__(self, device: int) -> None:
        super().__init__(_made("clCreateContext", None, 1, ctypes.byref(_HANDLE(device)), None, None))
        self.device = device


class Queue(_Object):
    """An in-order queue of a context's device. If it is `timed`, its events have times."""

    _release = "clReleaseCommandQueue"

    def __init__(self, context: Context, *, timed: bool = False) -> None:
        flags = _PROFILED if timed else 0
        super().__init__(_made("clCreateCommandQueue", context.handle, context.device, flags))

    def finish(self) -> None:
        call("clFinish", self.handle)

    def write(self, to: Buffer, array: Array) -> None:
        """Enqueue a copy of an array to a buffer. The array must live until the queue is finished."""
        arguments = self.handle, to.handle, 0, 0, array.nbytes, address(array), 0, None, None
        call("clEnqueueWriteBuffer", *arguments)

    def read(self, array: Array, of: Buffer) -> None:
        """Enqueue a copy of a buffer to an array. The array must live until the queue is finished."""
        arguments = self.handle, of.handle, 0, 0, array.nbytes, address(array), 0, None, None
        call("clEnqueueReadBuffer", *arguments)

    def show(self, buffer: Buffer) -> None:
        """Let the host see what kernels wrote to shared memory."""
        after = 0, None, None
        at = _made("clEnqueueMapBuffer", self.handle, buffer.handle, 0, _MAP_READ, 0, buffer.size, *after)
        call("clEnqueueUnmapMemObject", self.handle, buffer.handle, at, *after)

    def recorded(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Return `enqueue` itself. OpenCL has no graphs of launches, so that each launch is enqueued anew."""
        return enqueue

    def marker(self) -> Event:
        event = _HANDLE()
        call("clEnqueueMarker", self.handle, ctypes.byref(event))
        return Event(event.value or 0)


class Event(_Object):
    """The event of an enqueued command on a timed queue."""

    _release = "clReleaseEvent"

    def span(self) -> tuple[int, int]:
        """Wait for the command, and return its start and end in nanoseconds of the device's clock."""
        call("clWaitForEvents", 1, ctypes.byref(_HANDLE(self.handle)))
        name = "clGetEventProfilingInfo"
        return number(name, self.handle, _START), number(name, self.handle, _END)


class Buffer(_Object):
    """Memory of `size` bytes, or an array's memory (see USE_HOST and COPY_HOST)."""

    _release = "clReleaseMemObject"

    def __init__(self, context: Context, flags: int, size: int, array: Array | None = None) -> None:
        at = None if array is None else address(array)
        super().__init__(_made("clCreateBuffer", context.handle, flags, size, at))
        self.size = size
        self._kept: Array | Buffer | None = array

    def part(self, offset: int, size: int) -> Buffer:
        """Return a part of the same memory, which keeps the whole alive."""
        region, part = (_SIZE * 2)(offset, size), Buffer.__new__(Buffer)
        handle = _made("clCreateSubBuffer", self.handle, 0, _REGION, ctypes.byref(region))
        _Object.__init__(part, handle)
        part.size, part._kept = size, self
        return part


class Program(_Object):
    """A program from OpenCL C, or from a driver's binary. `build` makes its kernels available."""

    _release = "clReleaseProgram"

    def __init__(self, context: Context, source: bytes = b"", binary: bytes = b"") -> None:
        code, size = ctypes.c_char_p(binary or source), _SIZE(len(binary or source))
        one = ctypes.byref(code), ctypes.byref(size)
        if binary:
            device = ctypes.byref(_HANDLE(context.device))
            handle = _made("clCreateProgramWithBinary", context.handle, 1, device, one[1], one[0], None)
        else:
            handle = _made("clCreateProgramWithSource", context.handle, 1, *one)
        super().__init__(handle)
        self._context = context

    def build(self, options: Sequence[str] = ()) -> Program:
        """Build the program, and return it. Raises Error with the compiler's messages."""
        flags = " ".join(options).encode()
        status = functions().clBuildProgram(self.handle, 0, None, flags, None, None)
        if status:
            log = text("clGetProgramBuildInfo", self.handle, self._context.device, _LOG)
            _require("clBuildProgram", status, f": {log}")
        return self

    def binary(self) -> bytes:
        """Return the driver's binary, or empty bytes if the driver gives none."""
        size = number("clGetProgramInfo", self.handle, _BINARY_SIZES)
        content = ctypes.create_string_buffer(max(1, size))
        place = _HANDLE(ctypes.addressof(content))
        call("clGetProgramInfo", self.handle, _BINARIES, ctypes.sizeof(place), ctypes.byref(place), None)
        return content.raw[:size]


class Kernel(_Object):
    """A program's kernel, with arguments and a size of its own."""

    _release = "clReleaseKernel"

    def __init__(self, program: Program, name: str) -> None:
        super().__init__(_made("clCreateKernel", program.handle, name.encode()))
        self._program, self._name = program, name
        self._set, self._run = functions().clSetKernelArg, functions().clEnqueueNDRangeKernel
        self._items = self._local = _Extent(1)

    def copy(self) -> Kernel:
        return Kernel(self._program, self._name)

    def set_arg(self, number: int, value: int | Buffer) -> None:
        """Set an argument: an integer, passed as 64 bits, or memory, which the kernel doesn't keep alive."""
        word = ctypes.c_int64(value if isinstance(value, int) else value.handle)
        _require("clSetKernelArg", self._set(self.handle, number, 8, ctypes.byref(word)))

    def set_size(self, items: int, local: int) -> None:
        """Set how many work-items a launch has, in groups of `local`."""
        self._items, self._local = _Extent(items), _Extent(local)

    def enqueue(self, queue: Queue) -> None:
        status = self._run(queue.handle, self.handle, 1, None, self._items, self._local, 0, None, None)
        if status:
            _require("clEnqueueNDRangeKernel", status)

    def seconds(self, queue: Queue) -> float:
        """Run a launch, and return its seconds by the device's clock. `queue` must be timed."""
        event = _HANDLE()
        arguments = self.handle, 1, None, self._items, self._local, 0, None, ctypes.byref(event)
        call("clEnqueueNDRangeKernel", queue.handle, *arguments)
        start, end = Event(event.value or 0).span()
        return (end - start) / 1e9
