"""What goes wrong on an OpenCL device, told with the device, the kernel, the model's nodes and a way out."""

from __future__ import annotations

from jangin.ir.plan import Launch
from jangin.runtime.devices.opencl_devices import Found

LOST = ("DEVICE_NOT_AVAILABLE", "INVALID_DEVICE", "INVALID_CONTEXT", "INVALID_COMMAND_QUEUE")
FULL = ("MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", "INVALID_BUFFER_SIZE")
"""OpenCL's names of errors, as pyopencl's messages have them."""
LESS = "run it on fewer or smaller inputs at once, or compile the model for another device"


def is_lost(error: Exception) -> bool:
    """Whether nothing can be run any more in the context that the error is of."""
    return any(name in str(error) for name in LOST)


def named(launch: Launch) -> str:
    """A kernel with the nodes that it computes."""
    return f"the kernel {launch.kernel}, which computes {'; '.join(launch.sources) or 'nothing of the model'}"


def failed(device: Found, what: str, error: Exception) -> Exception:
    """Of what a device couldn't do."""
    text = f"{device} could not {what}: {error}"
    if is_lost(error):
        return RuntimeError(
            f"{text}; the device is lost: load the model again, in a new process where that fails too"
        )
    if any(name in str(error) for name in FULL):
        return MemoryError(f"{text}; the device is out of memory: {LESS}")
    return RuntimeError(f"{text}; compile the model for another device, and tell the maker of the driver")


def too_large(device: Found, what: str, size: int, uses: str) -> MemoryError:
    """Of a buffer larger than a device has any."""
    return MemoryError(
        f"{what} takes {size} bytes, but a buffer of {device} may have {device.largest}{uses}: {LESS}"
    )


def no_memory(device: Found, what: str, size: int, uses: str, error: Exception) -> MemoryError:
    return MemoryError(f"{device} has no memory for the {size} bytes of {what}: {error}{uses}: {LESS}")
