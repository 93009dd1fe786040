"""The functions of NVIDIA's driver by ctypes, with its errors, version and devices."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from typing import Any

from jangin.runtime.device import LoadError
from jangin.runtime.devices.driver import DriverError

OLDEST = 12, 0
"""The oldest version of CUDA that a driver may have. The oldest code of NVRTC that Jangin takes is of this
version."""

INT, SIZE, HANDLE = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
_UINT = ctypes.c_uint
_WORD = ctypes.c_uint64
"""The C type of an address in the device's memory."""
_TYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_UINT,),
    "cuDriverGetVersion": (HANDLE,),
    "cuGetErrorName": (INT, HANDLE),
    "cuGetErrorString": (INT, HANDLE),
    "cuDeviceGetCount": (HANDLE,),
    "cuDeviceGet": (HANDLE, INT),
    "cuDeviceGetName": (HANDLE, INT, INT),
    "cuDeviceGetAttribute": (HANDLE, INT, INT),
    "cuDeviceTotalMem_v2": (HANDLE, INT),
    "cuDevicePrimaryCtxRetain": (HANDLE, INT),
    "cuDevicePrimaryCtxReset_v2": (INT,),
    "cuCtxPushCurrent_v2": (HANDLE,),
    "cuCtxPopCurrent_v2": (HANDLE,),
    "cuMemGetInfo_v2": (HANDLE, HANDLE),
    "cuMemAlloc_v2": (HANDLE, SIZE),
    "cuMemFree_v2": (_WORD,),
    "cuMemHostRegister_v2": (HANDLE, SIZE, _UINT),
    "cuMemHostUnregister": (HANDLE,),
    "cuMemHostGetDevicePointer_v2": (HANDLE, HANDLE, _UINT),
    "cuMemcpyHtoDAsync_v2": (_WORD, HANDLE, SIZE, HANDLE),
    "cuMemcpyDtoHAsync_v2": (HANDLE, _WORD, SIZE, HANDLE),
    "cuMemcpyDtoDAsync_v2": (_WORD, _WORD, SIZE, HANDLE),
    "cuMemcpy2DAsync_v2": (HANDLE, HANDLE),
    "cuPointerGetAttribute": (HANDLE, INT, _WORD),
    "cuStreamCreate": (HANDLE, _UINT),
    "cuStreamDestroy_v2": (HANDLE,),
    "cuStreamSynchronize": (HANDLE,),
    "cuStreamWaitEvent": (HANDLE, HANDLE, _UINT),
    "cuStreamBeginCapture_v2": (HANDLE, INT),
    "cuStreamEndCapture": (HANDLE, HANDLE),
    "cuGraphInstantiateWithFlags": (HANDLE, HANDLE, ctypes.c_ulonglong),
    "cuGraphLaunch": (HANDLE, HANDLE),
    "cuGraphExecDestroy": (HANDLE,),
    "cuGraphDestroy": (HANDLE,),
    "cuEventCreate": (HANDLE, _UINT),
    "cuEventRecord": (HANDLE, HANDLE),
    "cuEventSynchronize": (HANDLE,),
    "cuEventElapsedTime": (HANDLE, HANDLE, HANDLE),
    "cuEventDestroy_v2": (HANDLE,),
    "cuModuleLoadDataEx": (HANDLE, ctypes.c_char_p, _UINT, HANDLE, HANDLE),
    "cuModuleGetFunction": (HANDLE, HANDLE, ctypes.c_char_p),
    "cuModuleUnload": (HANDLE,),
    "cuFuncSetAttribute": (HANDLE, INT, INT),
    "cuLaunchKernel": (HANDLE, *(_UINT,) * 7, HANDLE, HANDLE, HANDLE),
    "cuLaunchCooperativeKernel": (HANDLE, *(_UINT,) * 7, HANDLE, HANDLE),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (HANDLE, HANDLE, INT, SIZE),
}
"""The driver's functions, with their arguments' types. Each returns a status."""

_FAULTS = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "ILLEGAL_ADDRESS", "MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE", "INVALID_PC", "LAUNCH_FAILED",
        "ILLEGAL_INSTRUCTION", "HARDWARE_STACK_ERROR", "ASSERT", "LAUNCH_TIMEOUT",
    )
)  # fmt: skip
"""The errors of kernels' faults, which end the context."""
_LOST = _FAULTS | {
    f"CUDA_ERROR_{name}"
    for name in (
        "DEINITIALIZED", "INVALID_CONTEXT", "CONTEXT_IS_DESTROYED", "ECC_UNCORRECTABLE",
        "NVLINK_UNCORRECTABLE", "DEVICE_UNAVAILABLE", "EXTERNAL_DEVICE", "UNKNOWN",
    )
}  # fmt: skip


class Error(DriverError):
    """One of the driver's functions failed. `name` is the error's name."""

    def __init__(self, call: str, name: str, text: str) -> None:
        super().__init__(f"{call} failed: {name}, {text}")
        self.name = name

    @property
    def lost(self) -> bool:
        return self.name in _LOST

    @property
    def fault(self) -> bool:
        return self.name in _FAULTS

    @property
    def full(self) -> bool:
        return self.name == "CUDA_ERROR_OUT_OF_MEMORY"


def _opened() -> ctypes.CDLL:
    """Load the driver's library. Raises OSError if there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        with suppress(OSError):
            return ctypes.CDLL("nvcuda.dll")
        raise error


@cache
def functions() -> Any:
    """Start the driver, and return its functions. Raises LoadError if there is no driver, or if it is too
    old."""
    try:
        library = _opened()
    except OSError as error:
        raise LoadError(
            f"NVIDIA's driver isn't here ({error}): install the driver of your GPU, of CUDA "
            f"{_text(OLDEST)} or later"
        ) from None
    had = _version(library)
    if had < OLDEST:
        raise LoadError(
            f"NVIDIA's driver is too old: it has CUDA {_text(had)}, and Jangin needs {_text(OLDEST)}: "
            "install a newer one"
        )
    for name, types in _TYPES.items():
        try:
            function = getattr(library, name)  # which keeps it, unlike an index
        except AttributeError:
            raise LoadError(f"NVIDIA's driver has no function {name}: install a newer one") from None
        function.argtypes, function.restype = types, INT
    status = library.cuInit(0)
    if status:
        name, text = _said(library, status)
        raise LoadError(f"NVIDIA's driver doesn't start: {name}, {text}{_REMEDIES.get(name, '')}")
    return library


_REMEDIES = {
    "CUDA_ERROR_NO_DEVICE": "; there is no NVIDIA GPU here, or CUDA_VISIBLE_DEVICES hides it",
    "CUDA_ERROR_NOT_INITIALIZED": "; a process that was forked from one that used the GPU can't use it",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "; restart the machine after installing a driver",
}


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _version(library: ctypes.CDLL) -> tuple[int, int]:
    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)):
        return 0, 0
    return number.value // 1000, number.value % 1000 // 10


def driver_version() -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver supports, without starting the driver. Return None if
    there is no driver."""
    try:
        return _version(_opened())
    except (OSError, AttributeError):
        return None


def version() -> tuple[int, int]:
    return _version(functions())


def _said(library: Any, status: int) -> tuple[str, str]:
    """Return the driver's name and description of an error."""
    texts = []
    for function in (library.cuGetErrorName, library.cuGetErrorString):
        text = ctypes.c_char_p()
        known = function(status, ctypes.byref(text)) == 0 and text.value
        texts.append(text.value.decode() if known and text.value else f"error {status}")
    return texts[0], texts[1]


def call(name: str, *given: Any) -> None:
    """Call a function of the driver. Raises Error if it fails."""
    status = getattr(functions(), name)(*given)
    if status:
        raise Error(name, *_said(functions(), status))


def made(name: str, *given: Any) -> int:
    """Call a function that makes an object, and return the object's handle. Raises Error."""
    handle = ctypes.c_void_p()
    call(name, ctypes.byref(handle), *given)
    return handle.value or 0


# --- devices


def _number(name: str, *given: Any) -> int:
    number = ctypes.c_size_t()
    call(name, ctypes.byref(number), *given)
    return number.value


def count() -> int:
    return _number("cuDeviceGetCount")


def device(number: int) -> int:
    return _number("cuDeviceGet", number)


def device_name(handle: int) -> str:
    text = ctypes.create_string_buffer(256)
    call("cuDeviceGetName", text, len(text), handle)
    return text.value.decode(errors="replace")


def device_memory(handle: int) -> int:
    return _number("cuDeviceTotalMem_v2", handle)


def attribute(handle: int, question: int) -> int:
    return _number("cuDeviceGetAttribute", question, handle)
