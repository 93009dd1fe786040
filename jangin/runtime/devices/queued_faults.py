"""Errors of a queued device. Each names the device, the kernel, the model's nodes and a remedy."""

from __future__ import annotations

from jangin.ir.plan import Launch
from jangin.runtime.devices.driver import Driver, DriverError

LESS = "run it on fewer or smaller inputs at once, or compile the model for another device"


def named(launch: Launch) -> str:
    """Return a text that names a kernel and the model's nodes that it computes."""
    return f"the kernel {launch.kernel}, which computes {launch.sources or 'nothing of the model'}"


def failed(device: object, what: str, error: DriverError) -> Exception:
    """Return the exception for an action `what` that the device failed at. It is MemoryError if the device is
    out of memory, else RuntimeError."""
    text = f"{device} could not {what}: {error}"
    if error.lost:
        return RuntimeError(
            f"{text}; the device is lost: load the model again, in a new process where that fails too"
        )
    if error.full:
        return MemoryError(f"{text}; the device is out of memory: {LESS}")
    return RuntimeError(f"{text}; compile the model for another device, and tell the maker of the driver")


def too_large(device: Driver, what: str, size: int, uses: str) -> MemoryError:
    """Return the exception for a buffer that exceeds the largest size of the device's buffers."""
    return MemoryError(
        f"{what} takes {size} bytes, but a buffer of {device} may have {device.largest}{uses}: {LESS}"
    )


def no_memory(device: object, what: str, size: int, uses: str, error: Exception) -> MemoryError:
    """Return the exception for a buffer for which the device has no free memory now."""
    return MemoryError(f"{device} has no memory for the {size} bytes of {what}: {error}{uses}: {LESS}")
