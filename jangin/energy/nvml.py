"""NVIDIA's GPUs, by the package `nvidia-ml-py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jangin.energy.source import Rail, Source, polled

INTERVAL, PERIOD = 0.05, 0.1
"""Seconds between two readings, and the longest usual time between two updates by the driver. Readings come
twice as often, so that no update is missed."""


def nvml() -> tuple[list[Source], list[str]]:
    """Return NVIDIA's GPUs as one source with a rail for each GPU, or the reason why there is none. GPUs
    since Volta count joules, and older ones report watts."""
    try:
        import pynvml as library
    except ModuleNotFoundError:
        return [], ["NVML: the package nvidia-ml-py is not installed: pip install 'jangin[study]'"]
    try:
        library.nvmlInit()
        devices = [library.nvmlDeviceGetHandleByIndex(n) for n in range(library.nvmlDeviceGetCount())]
        rails, readers = [], []
        for n, device in enumerate(devices):
            name = library.nvmlDeviceGetName(device)
            named = name.decode() if isinstance(name, bytes) else name
            reader, counts = _reader(library, device)
            rails.append(Rail(f"GPU {n} ({named})", counts, resolution=1e-3, period=PERIOD))
            readers.append(reader)
    except library.NVMLError as error:
        return [], [f"NVML: {error}"]
    if not rails:
        return [], ["NVML: the driver knows no GPU"]
    return [Source("NVML", tuple(rails), polled(lambda: [read() for read in readers], INTERVAL))], []


def _reader(library: Any, device: Any) -> tuple[Callable[[], float], bool]:
    """Return the function that reads a GPU's joules or watts, and whether they are joules. Raises the
    library's error if the GPU reports neither."""
    try:
        library.nvmlDeviceGetTotalEnergyConsumption(device)
        read, counts = library.nvmlDeviceGetTotalEnergyConsumption, True
    except library.NVMLError:
        library.nvmlDeviceGetPowerUsage(device)
        read, counts = library.nvmlDeviceGetPowerUsage, False

    def reader() -> float:
        try:
            return float(read(device)) / 1e3
        except library.NVMLError:  # a GPU may be busy with a reset
            return math.nan

    return reader, counts
