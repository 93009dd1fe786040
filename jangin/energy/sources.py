"""Find all sources of energy figures on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jangin.energy import counters, sysfs
from jangin.energy.meter import meter
from jangin.energy.nvml import nvml
from jangin.energy.source import Source
from jangin.runtime.system.sensors import sensor_classes


def find(meters: Sequence[str] = (), root: Path | None = None) -> sysfs.Found:
    """Return the sources that can be read, and the reasons why others can't.

    External meters, by command or entry point, come first. The processor's counters, board sensors, batteries
    and GPUs follow. `root` is the folder of device classes, by default the system's."""
    at = root or sensor_classes()
    sources: list[Source] = [meter(text) for text in meters]
    reasons: list[str] = []
    for available, missing in (_rapl(at), sysfs.hwmon(at), sysfs.battery(at), nvml()):
        sources += available
        reasons += missing
    return sources, reasons


def _rapl(root: Path) -> sysfs.Found:
    """Return the processor's counters by the first way that shows them."""
    reasons: list[str] = []
    for way in (sysfs.rapl, counters.perf, counters.msr):
        available, missing = way(root)
        if available:
            return available, []
        reasons += missing
    return [], reasons
