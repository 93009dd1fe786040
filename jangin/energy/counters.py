"""RAPL's counters where powercap doesn't show them: by perf events, and by the processor's registers (MSR).

Functions take the folder of device classes, beside which the system has its other folders."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

from jangin.energy.source import Rail, Source, number, polled
from jangin.energy.sysfs import RAPL_INTERVAL, RAPL_PERIOD, Found, text_of
from jangin.runtime.system.sensors import performance_event

EVENTS = ("pkg", "ram", "cores", "gpu", "psys")
"""The names of RAPL's events. Cores and graphics are inside the package, and all is inside the platform."""
REGISTERS = ((0x606, 0x611), (0xC0010299, 0xC001029B))
"""The registers of the energy's unit and of a package's energy, for Intel and for AMD. Intel's Software
Developer's Manual calls them MSR_RAPL_POWER_UNIT and MSR_PKG_ENERGY_STATUS. AMD's are in its Processor
Programming Reference."""
UNIT_SHIFT, UNIT_MASK = 8, 0x1F
"""Bits 8 to 12 of the unit's register have the negative binary exponent of a joule (Intel's Software
Developer's Manual, MSR_RAPL_POWER_UNIT)."""


def perf(root: Path) -> Found:
    """Return RAPL's counters as perf events. They are readable with CAP_PERFMON, or if
    kernel.perf_event_paranoid is below 1."""
    folder = root.parent / "bus" / "event_source" / "devices" / "power"
    if not folder.is_dir():
        return [], ["perf: the kernel has no events of energy"]
    kind, mask = number(text_of(folder / "type")), text_of(folder / "cpumask")
    processors = [int(word.partition("-")[0]) for word in mask.split(",") if word] or [0]
    rails, readers = [], []
    there = {name: text for name in EVENTS if (text := text_of(folder / "events" / f"energy-{name}"))}
    try:
        for name, event in there.items():
            scale = number(text_of(folder / "events" / f"energy-{name}.scale"))
            inside = name in ("cores", "gpu") or (name == "psys" and "pkg" in there)
            for processor in processors:
                config = int(event.partition("=")[2], 16)
                readers.append(_scaled(performance_event(int(kind), config, processor), scale))
                title = f"{name} of processor {processor}"
                rails.append(Rail(title, True, 0.0, scale, RAPL_PERIOD, inside))
    except OSError as error:
        return [], [f"perf: events of energy can't be read: {error.strerror}; run as root"]
    if not rails:
        return [], ["perf: the kernel has no events of energy"]
    return [Source("RAPL by perf", tuple(rails), polled(_all(readers), RAPL_INTERVAL))], []


def msr(root: Path) -> Found:
    """Return the packages' counters in the processor's registers. The kernel's module msr shows them to root.
    Memory isn't among them."""
    processors = _one_of_each_package(root.parent.parent / "dev" / "cpu", root.parent)
    rails, readers = [], []
    for package, file in processors.items():
        counter = next((r for unit, energy in REGISTERS if (r := _register(file, unit, energy))), None)
        if counter is not None:
            joules, read = counter
            rails.append(Rail(f"package-{package}", True, joules * 2**32, joules, RAPL_PERIOD))
            readers.append(read)
    if not rails:
        return [], ["MSR: /dev/cpu/*/msr can't be read: `modprobe msr`, and run as root"]
    return [Source("RAPL by MSR", tuple(rails), polled(_all(readers), RAPL_INTERVAL))], []


def _register(file: Path, unit: int, energy: int) -> tuple[float, Callable[[], float]] | None:
    """Return the joules of one step of a counter in the processor's registers, and the function that reads
    the counter. Return None if the processor lacks these registers."""

    def read(register: int) -> int | None:
        try:
            with open(file, "rb", buffering=0) as opened:
                value = os.pread(opened.fileno(), 8, register)
        except OSError:
            return None
        return int.from_bytes(value, "little") if len(value) == 8 else None

    told = read(unit)
    if not told or read(energy) is None:
        return None
    joules = 2.0 ** -(told >> UNIT_SHIFT & UNIT_MASK)

    def counter() -> float:
        value = read(energy)
        return math.nan if value is None else (value & 0xFFFFFFFF) * joules

    return joules, counter


def _one_of_each_package(devices: Path, system: Path) -> dict[str, Path]:
    """Return, for each package of processors, the file of one processor's registers."""
    packages: dict[str, Path] = {}
    for file in sorted(devices.glob("[0-9]*/msr"), key=lambda f: int(f.parent.name)):
        topology = system / "devices" / "system" / "cpu" / f"cpu{file.parent.name}" / "topology"
        packages.setdefault(text_of(topology / "physical_package_id") or "0", file)
    return packages


def _scaled(read: Callable[[], int], scale: float) -> Callable[[], float]:
    return lambda: read() * scale


def _all(readers: list[Callable[[], float]]) -> Callable[[], list[float]]:
    return lambda: [read() for read in readers]
