"""Errors of a queued device name the device, the kernel, the model's nodes and a way out."""

from __future__ import annotations

from jangin.ir.plan import Launch
from jangin.runtime.devices.driver import Driver, DriverError

LESS = "run it on fewer or smaller inputs at once, or compile the model for another device"


def named(launch: Launch) -> str:
    """A kernel with the nodes that it computes."""
    return f"the kernel {launch.kernel}, which computes {launch.sources or 'nothing of the model'}"


def failed(device: object, what: str, error: DriverError) -> Exception:
    """The error for an action that the device failed at."""
    text = f"{device} could not {what}: {error}"
    if error.lost:
        return RuntimeError(
            f"{text}; the device is lost: load the model again, in a new process where that fails too"
        )
    if error.full:
        return MemoryError(f"{text}; the device is out of memory: {LESS}")
    return RuntimeError(f"{text}; compile the model for another device, and tell the maker of the driver")


def too_large(device: Driver, what: str, size: int, uses: str) -> MemoryError:
    """The error for a buffer larger than the device's largest."""
    return MemoryError(
        f"{what} takes {size} bytes, but a buffer of {device} may have {device.largest}{uses}: {LESS}"
    )


def no_memory(device: object, what: str, size: int, uses: str, error: Exception) -> MemoryError:
    """The error for a buffer that the device has no room for now."""
    return MemoryError(f"{device} has no memory for the {size} bytes of {what}: {error}{uses}: {LESS}")
