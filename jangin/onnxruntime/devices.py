"""Devices and memory by ONNX Runtime's names. There are only the CPU and its memory."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from jangin.onnxruntime.enums import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from jangin.onnxruntime.providers import PROVIDER
from jangin.version import __version__

_TYPES = {"cpu": 0, "gpu": 1, "cuda": 1, "dml": 1, "webgpu": 1, "fpga": 2, "npu": 3, "cann": 3}
"""ONNX Runtime's numbers of the kinds of devices."""
_VENDORS = {
    "cuda": OrtDeviceVendorId.NVIDIA,
    "dml": OrtDeviceVendorId.MICROSOFT,
    "cann": OrtDeviceVendorId.HUAWEI,
}
NO_MEMORY = "Can't allocate memory on the device using this package: Jangin's sessions run on the CPU alone"
_MEMORY: Mapping[str, int] = {"max_mem": 0, "arena_extend_strategy": -1, "initial_chunk_size_bytes": -1}


class OrtDevice:
    """A device and its kind of memory. `kind` is a number such as `OrtDevice.cpu()`."""

    def __init__(self, kind: int, memory: int = 0, vendor: int = 0, device_id: int | None = None) -> None:
        self._kind, self._memory = kind, memory
        self._vendor, self._id = (0, vendor) if device_id is None else (vendor, device_id)

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int | OrtDeviceVendorId = -1) -> OrtDevice:
        name = ort_device_name.lower()
        if name not in _TYPES:
            raise ValueError(f"Unsupported device type: {ort_device_name}")
        vendor = _VENDORS.get(name, OrtDeviceVendorId.NONE) if vendor_id < 0 else vendor_id
        return OrtDevice(_TYPES[name], 0, int(vendor), device_id)

    def _get_c_device(self) -> OrtDevice:
        return self

    def device_id(self) -> int:
        return self._id

    def device_type(self) -> int:
        return self._kind

    def device_vendor_id(self) -> int:
        return self._vendor

    vendor_id = device_vendor_id

    def device_mem_type(self) -> int:
        return self._memory

    mem_type = device_mem_type

    @staticmethod
    def default_memory() -> int:
        return 0

    @staticmethod
    def cpu() -> int:
        return _TYPES["cpu"]

    @staticmethod
    def gpu() -> int:
        return _TYPES["gpu"]

    @staticmethod
    def cuda() -> int:
        return _TYPES["cuda"]

    @staticmethod
    def dml() -> int:
        return _TYPES["dml"]

    @staticmethod
    def webgpu() -> int:
        return _TYPES["webgpu"]

    @staticmethod
    def fpga() -> int:
        return _TYPES["fpga"]

    @staticmethod
    def npu() -> int:
        return _TYPES["npu"]

    @staticmethod
    def cann() -> int:
        return _TYPES["cann"]


def on_cpu(name: str, device_id: int = 0, vendor_id: int = -1) -> None:
    """Raise RuntimeError for memory of another device, and ValueError for an unknown device."""
    if OrtDevice.make(name, device_id, vendor_id).device_type() != OrtDevice.cpu():
        raise RuntimeError(NO_MEMORY)


class OrtMemoryInfo:
    """This describes a kind of memory: its name, its allocator and its device."""

    name: str
    allocator_type: OrtAllocatorType
    device_id: int
    mem_type: OrtMemType
    device_mem_type: OrtDeviceMemoryType
    device_vendor_id: int

    def __init__(
        self,
        name: str,
        allocator_type: OrtAllocatorType,
        device_id: int,
        mem_type: OrtMemType,
        device_mem_type: OrtDeviceMemoryType = OrtDeviceMemoryType.DEFAULT,
        device_vendor_id: int = 0,
    ) -> None:
        self.name, self.allocator_type, self.device_id = name, allocator_type, device_id
        self.mem_type, self.device_mem_type = mem_type, device_mem_type
        self.device_vendor_id = device_vendor_id

    @staticmethod
    def create_v2(
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        device_mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
    ) -> OrtMemoryInfo:
        if device_type != OrtMemoryInfoDeviceType.CPU:
            raise RuntimeError(NO_MEMORY)
        return OrtMemoryInfo(name, allocator_type, device_id, OrtMemType.DEFAULT, device_mem_type, vendor_id)


class OrtArenaCfg:
    """Settings of memory allocation. They are stored without an effect, because Jangin plans memory
    itself."""

    max_mem: int
    arena_extend_strategy: int
    initial_chunk_size_bytes: int
    max_dead_bytes_per_chunk: int
    initial_growth_chunk_size_bytes: int
    max_power_of_two_extend_bytes: int

    def __init__(self, *settings: Any, **named: int) -> None:
        """Takes the first four settings by position, or any by name, or a dictionary of them."""
        names = [*OrtArenaCfg.__annotations__]
        figures = dict(settings[0]) if settings and isinstance(settings[0], Mapping) else {}
        figures |= dict(zip(names, settings, strict=False)) if not figures else {}
        for name in {**figures, **named}:
            if name not in names:
                raise ValueError(f"Invalid OrtArenaCfg option: {name}")
        for name in names:
            setattr(self, name, {**_MEMORY, **figures, **named}.get(name, -1))


class OrtHardwareDevice:
    """This machine's processor."""

    type = OrtHardwareDeviceType.CPU
    vendor_id = device_id = 0

    @property
    def vendor(self) -> str:
        return platform.processor() or platform.machine()

    @property
    def metadata(self) -> dict[str, str]:
        return {}


class OrtSyncStream:
    """A device's queue of work. The CPU has none."""

    def get_handle(self) -> int:
        return 0


class OrtEpDevice:
    """A provider on a device, which is Jangin on the CPU."""

    ep_name, ep_vendor = PROVIDER, "Jangin"

    @property
    def ep_metadata(self) -> dict[str, str]:
        return {"version": __version__}

    @property
    def ep_options(self) -> dict[str, str]:
        return {}

    @property
    def device(self) -> OrtHardwareDevice:
        return OrtHardwareDevice()

    def memory_info(self, kind: OrtDeviceMemoryType) -> OrtMemoryInfo:
        return cpu_memory() if kind == OrtDeviceMemoryType.DEFAULT else cpu_memory(kind)

    def create_sync_stream(self) -> OrtSyncStream:
        raise RuntimeError("the CPU has no streams")


def cpu_memory(kind: OrtDeviceMemoryType = OrtDeviceMemoryType.DEFAULT) -> OrtMemoryInfo:
    return OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_DEVICE_ALLOCATOR, 0, OrtMemType.DEFAULT, kind)


def get_ep_devices() -> list[OrtEpDevice]:
    """Return the available providers with their devices: Jangin's CPU provider."""
    return [OrtEpDevice()]


def get_hardware_devices() -> list[OrtHardwareDevice]:
    return [OrtHardwareDevice()]
