"""Sensors that Linux shows as files: RAPL counters, hwmon and INA sensors, and batteries.

All functions take the folder of device classes, and return sources and the reasons why others can't be
read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from jangin.energy.source import Rail, Sample, Source, number, polled

Found = tuple[list[Source], list[str]]
"""Sources, and a reason for each kind of source that isn't there or can't be read."""

RAPL_INTERVAL, RAPL_PERIOD = 0.01, 0.001
"""Seconds between two readings of RAPL's counters, and between two updates of them by the processor (Intel's
Software Developer's Manual). Reading at each update would itself cost energy."""
SAME_COUNTER = 1.0
"""Two dies' counters show one counter if they differ by fewer joules than this. A package takes less between
two readings, and dies that count apart differ by thousands."""
HWMON_INTERVAL = 0.05
"""Seconds between two readings of a sensor on a board's bus. A register of 16 bits takes half a millisecond
of a bus of 100 kHz, so twenty readings a second take a hundredth of it. The number counts if the driver
doesn't tell the sensor's own interval, or tells a shorter one."""
BATTERY_INTERVAL, BATTERY_PERIOD = 1.0, 5.0
"""Seconds between two readings of a battery, and a usual time between two updates by its controller. More
readings would give the same number again."""
TOTALS = ("VDD_IN", "POM_5V_IN")
"""Labels of rails that feed all other rails of a Jetson board."""


def rapl(root: Path) -> Found:
    """Return the processor's energy counters (Running Average Power Limit, by Intel and AMD). A package's
    counter includes its cores. Its memory has another counter, which is added. The whole platform's counter
    includes the packages, and is used only if there are no others."""
    zones = sorted((root / "powercap").glob("intel-rapl:*"))
    names = [text_of(zone / "name") for zone in zones]
    if not zones:
        return [], ["RAPL: this machine shows no counters (powercap), as is usual in virtual machines"]
    needed = [zone / name for zone in zones for name in ("energy_uj", "max_energy_range_uj")]
    shut = [file for file in needed if math.isnan(_number(file))]
    if shut:
        told = f"run as root, or `sudo chmod a+r` the files {shut[0].name}"
        return [], [f"RAPL: {shut[0]} can't be read: {told}"]
    packages = any(name.startswith("package") for name in names)
    mirrored = _mirrored(zones, names)
    rails = []
    for zone, name in zip(zones, names, strict=True):
        inside = name in ("core", "uncore") or (name == "psys" and packages) or zone in mirrored
        parent = text_of(zone.with_name(zone.name.rpartition(":")[0]) / "name")
        title = f"{parent} {name}" if zone.name.count(":") > 1 else name
        wraps = (_number(zone / "max_energy_range_uj") + 1) / 1e6  # the largest value before 0
        rails.append(Rail(title, True, wraps, 1e-6, RAPL_PERIOD, inside))
    counters = [_micro(zone / "energy_uj") for zone in zones]
    return [Source("RAPL", tuple(rails), _reading(counters, RAPL_INTERVAL))], []


def _mirrored(zones: Sequence[Path], names: Sequence[str]) -> set[Path]:
    """Return the counters of dies that show the counter of an earlier die of their package. AMD's first EPYC
    and Threadripper processors show each package's counter once a die."""
    known: dict[str, list[float]] = {}
    mirrored = set()
    for zone, name in zip(zones, names, strict=True):
        package, die, _ = name.partition("-die-")
        if die:
            joules = _number(zone / "energy_uj") / 1e6
            earlier = known.setdefault(package, [])
            if any(abs(joules - other) < SAME_COUNTER for other in earlier):
                mirrored.add(zone)
            earlier.append(joules)
    return mirrored


def hwmon(root: Path) -> Found:
    """Return the sensors of boards and devices that report watts or joules, or volts and amperes, such as
    INA219, INA226 and INA3221 do. Each chip is a source."""
    sources = []
    for chip in sorted((root / "hwmon").glob("hwmon*")):
        rails: list[Rail] = []
        readers: list[Callable[[], float]] = []
        period = _number(chip / "update_interval") / 1e3
        period = HWMON_INTERVAL if math.isnan(period) else period
        powers = _numbered(chip, "energy") or _numbered(chip, "power")
        for file in powers:
            counts = file.name.startswith("energy")
            rails.append(Rail(_label(file), counts, resolution=1e-6, period=period))
            readers.append(_micro(file))
        for file in [] if powers else _numbered(chip, "curr"):
            volts = chip / file.name.replace("curr", "in")
            if volts.is_file():
                rails.append(Rail(_label(volts), resolution=1e-6, period=period))
                readers.append(_product(file, volts, 1e-6))
        if rails:
            total = any(r.name in TOTALS for r in rails)
            rails = [_within(r) if total and r.name not in TOTALS else r for r in rails]
            name = f"{text_of(chip / 'name') or chip.name} ({chip.name})"
            sources.append(Source(name, tuple(rails), _reading(readers, max(period, HWMON_INTERVAL))))
    return sources, [] if sources else ["hwmon: no sensor of this machine reports watts"]


def battery(root: Path) -> Found:
    """Return the batteries that feed the machine. Each is a source. A battery that isn't discharging gives no
    samples, because it doesn't feed the machine then."""
    sources = []
    for folder in sorted((root / "power_supply").glob("*")):
        ours = text_of(folder / "type") == "Battery" and text_of(folder / "scope") != "Device"
        power, current, volts = (folder / n for n in ("power_now", "current_now", "voltage_now"))
        if not ours or not (power.is_file() or (current.is_file() and volts.is_file())):
            continue
        watts = _micro(power) if power.is_file() else _product(current, volts, 1e-12)

        def discharging(folder: Path = folder, watts: Callable[[], float] = watts) -> float:
            return abs(watts()) if text_of(folder / "status") == "Discharging" else math.nan

        rail = Rail(folder.name, resolution=1e-6, period=BATTERY_PERIOD)
        sources.append(Source(f"battery {folder.name}", (rail,), _reading([discharging], BATTERY_INTERVAL)))
    return sources, [] if sources else ["batteries: this machine has none that reports its power"]


def _reading(readers: Sequence[Callable[[], float]], interval: float) -> Callable[[], Iterator[Sample]]:
    return polled(lambda: [read() for read in readers], interval)


def _micro(file: Path) -> Callable[[], float]:
    return lambda: _number(file) / 1e6


def _product(one: Path, other: Path, unit: float) -> Callable[[], float]:
    return lambda: _number(one) * _number(other) * unit


def _within(rail: Rail) -> Rail:
    return Rail(rail.name, rail.counts, rail.wraps, rail.resolution, rail.period, inside=True)


def _numbered(chip: Path, kind: str) -> list[Path]:
    """Return a chip's files of a kind of value. They are the present values, or the averages if there are no
    present values."""
    files = sorted(chip.glob(f"{kind}[0-9]*_input")) or sorted(chip.glob(f"{kind}[0-9]*_average"))
    return [file for file in files if not math.isnan(_number(file))]


def _label(file: Path) -> str:
    """Return the name of a sensor, given the file of its value. The name is its label, or else the first
    part of the file's name, such as "power1"."""
    sensor = file.name.rpartition("_")[0]
    return text_of(file.with_name(f"{sensor}_label")) or sensor


def _number(file: Path) -> float:
    return number(text_of(file))


def text_of(file: Path) -> str:
    """Return a file's text, or "" if it can't be read. Sensors may disappear at any moment."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
