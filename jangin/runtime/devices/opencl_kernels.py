"""Kernels of OpenCL programs, by OpenCL's own functions.

pyopencl's do more than is needed here: it writes Python for each one's name, which it keeps for ever in a
file of the user's cache folder, and it holds Python's lock while a driver makes one, which is half of what
loading a program takes in some drivers.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

from jangin.runtime.devices.opencl_devices import library

_HANDLE, _COUNT = ctypes.c_void_p, ctypes.c_uint
_TYPES = {
    "clCreateKernel": (_HANDLE, ctypes.c_char_p, _HANDLE),
    "clReleaseKernel": (_HANDLE,),
    "clSetKernelArg": (_HANDLE, _COUNT, ctypes.c_size_t, _HANDLE),
    "clEnqueueNDRangeKernel": (*(_HANDLE,) * 2, _COUNT, *(_HANDLE,) * 3, _COUNT, *(_HANDLE,) * 2),
}
Extent = ctypes.c_size_t * 1
"""Of work-items."""


@cache
def _functions() -> dict[str, Any]:
    """OpenCL's, of the library that pyopencl has loaded."""
    opened = ctypes.CDLL(sys.modules[library().Buffer.__module__].__file__)
    found = {}
    for name, types in _TYPES.items():
        found[name] = function = opened[name]
        function.argtypes = types
        function.restype = _HANDLE if name == "clCreateKernel" else ctypes.c_int
    return found


class Kernel:
    """A program's kernel, with arguments of its own. Raises pyopencl's errors."""

    def __init__(self, program: Any, name: str) -> None:
        self._program, self._name = program, name
        self._handle = None
        functions, status = _functions(), ctypes.c_int()
        self._set, self._run = functions["clSetKernelArg"], functions["clEnqueueNDRangeKernel"]
        self._release = functions["clReleaseKernel"]
        self._handle = functions["clCreateKernel"](program.int_ptr, name.encode(), ctypes.byref(status))
        _require("clCreateKernel", status.value)

    def __del__(self) -> None:
        if self._handle is not None:
            self._release(self._handle)

    def copy(self) -> Kernel:
        return Kernel(self._program, self._name)

    def set_arg(self, number: int, value: Any) -> None:
        """A whole number, as one of 64 bits, or memory, which isn't kept alive by this."""
        word = ctypes.c_int64(value if isinstance(value, int) else value.int_ptr)
        _require("clSetKernelArg", self._set(self._handle, number, 8, ctypes.byref(word)))

    def enqueue(self, queue: Any, items: Any, local: Any) -> None:
        """So many work-items (an `Extent`), in groups of `local`."""
        status = self._run(queue.int_ptr, self._handle, 1, None, items, local, 0, None, None)
        if status:
            _require("clEnqueueNDRangeKernel", status)

    def timed(self, queue: Any, items: Any, local: Any) -> Any:
        """As `enqueue`; gives the event."""
        event = _HANDLE()
        status = self._run(queue.int_ptr, self._handle, 1, None, items, local, 0, None, ctypes.byref(event))
        _require("clEnqueueNDRangeKernel", status)
        return library().Event.from_int_ptr(event.value, retain=False)


def _require(call: str, status: int) -> None:
    if status:
        cl = library()
        raise cl.RuntimeError(f"{call} failed: {cl.status_code.to_string(status, 'error %d')}")
