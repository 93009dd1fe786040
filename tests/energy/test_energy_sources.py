"""Sources of energy in a fake tree of devices, and external meters."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import EntryPoint
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest
from fake import chip, meter, zone

from jangin.energy import EnergyError, Sampler, Wanted, find, plugs
from jangin.energy import meter as meters
from jangin.energy.counters import msr, perf
from jangin.energy.meter import _aligned
from jangin.energy.nvml import nvml
from jangin.energy.source import Source
from jangin.energy.sysfs import battery, hwmon, rapl


def values(source: Source) -> dict[str, float]:
    _, found = next(source.samples())
    return dict(zip((r.name for r in source.rails), found, strict=True))


def counted(source: Source) -> set[str]:
    return {r.name for r in source.rails if not r.inside}


def test_rapl_counts_packages_and_memory_once(tmp_path: Path) -> None:
    """Cores are inside their package, memory isn't. The platform's counter includes everything."""
    zone(tmp_path, "intel-rapl:0", "package-0", 100)
    zone(tmp_path, "intel-rapl:0:0", "core", 60)
    zone(tmp_path, "intel-rapl:0:1", "dram", 20, most=65532.610987)
    zone(tmp_path, "intel-rapl:1", "package-1", 90)
    zone(tmp_path, "intel-rapl:2", "psys", 300)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 100)
    ((source,), reasons) = rapl(tmp_path)
    names = {"package-0": 100, "package-0 core": 60, "package-0 dram": 20, "package-1": 90, "psys": 300}
    assert values(source) == names and not reasons
    assert counted(source) == {"package-0", "package-0 dram", "package-1"}
    wraps = {r.name: r.wraps for r in source.rails}
    assert wraps["package-0 dram"] == pytest.approx(65532.610988) and all(r.counts for r in source.rails)


@pytest.mark.parametrize(("second", "counts"), [(100.2, {"package-0-die-0"}), (104.0, None)])
def test_dies_that_show_one_counter_count_once(
    tmp_path: Path, second: float, counts: set[str] | None
) -> None:
    """AMD's processors of several dies show their package's counter once a die, and Intel's have one each."""
    names = ["package-0-die-0", "package-0-die-1", "package-1-die-0"]
    for n, (name, joules) in enumerate(zip(names, (100, second, 100), strict=True)):
        zone(tmp_path, f"intel-rapl:{n}", name, joules)
    assert counted(rapl(tmp_path)[0][0]) == (counts or {names[0], names[1]}) | {names[2]}


def test_the_platform_counts_if_it_is_alone(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "psys", 300)
    assert counted(rapl(tmp_path)[0][0]) == {"psys"}


def test_counters_that_only_root_may_read_are_told_with_a_remedy(tmp_path: Path) -> None:
    """The file is a folder here, because tests may run as root, who reads every file."""
    (zone(tmp_path, "intel-rapl:0", "package-0", 1) / "energy_uj").unlink()
    (tmp_path / "powercap" / "intel-rapl:0" / "energy_uj").mkdir()
    sources, (reason,) = rapl(tmp_path)
    assert not sources and "chmod a+r" in reason


def test_a_counter_without_a_range_is_no_source(tmp_path: Path) -> None:
    """Nobody could tell how far it counted before it started again."""
    (zone(tmp_path, "intel-rapl:0", "package-0", 1) / "max_energy_range_uj").unlink()
    sources, (reason,) = rapl(tmp_path)
    assert not sources and "max_energy_range_uj can't be read" in reason


def test_sensors_of_boards(tmp_path: Path) -> None:
    """Watts, joules, averages, and volts times amperes. A rail that feeds all others counts alone."""
    chip(tmp_path, "ina226", power1_input=1_500_000, curr1_input=300, in1_input=5000, update_interval=100)
    chip(tmp_path, "amdgpu", power1_average=30_000_000, power1_label="PPT")
    chip(tmp_path, "amd_energy", energy1_input=5_000_000, energy1_label="Ecore000")
    chip(
        tmp_path, "ina3221", in1_input=5000, curr1_input=1000, in1_label="VDD_IN", in2_input=1000,
        curr2_input=2000, in2_label="VDD_CPU",
    )  # fmt: skip
    chip(tmp_path, "coretemp", temp1_input=40000)
    sources, reasons = hwmon(tmp_path)
    found = [values(s) for s in sources]
    assert found == [{"power1": 1.5}, {"PPT": 30.0}, {"Ecore000": 5.0}, {"VDD_IN": 5.0, "VDD_CPU": 2.0}]
    assert [s.rails[0].counts for s in sources] == [False, False, True, False]
    assert sources[0].rails[0].period == 0.1 and counted(sources[3]) == {"VDD_IN"} and not reasons


def test_a_battery_counts_while_it_discharges(tmp_path: Path) -> None:
    folder = tmp_path / "power_supply" / "BAT0"
    folder.mkdir(parents=True)
    (folder / "type").write_text("Battery\n")
    (folder / "status").write_text("Discharging\n")
    (folder / "current_now").write_text("2000000\n")
    (folder / "voltage_now").write_text("12000000\n")
    ((source,), _) = battery(tmp_path)
    assert values(source) == {"BAT0": 24.0}
    (folder / "status").write_text("Charging\n")
    assert math.isnan(values(source)["BAT0"])
    (folder / "scope").write_text("Device\n")  # a mouse's battery
    assert battery(tmp_path)[0] == []


@pytest.mark.parametrize("counts", [True, False])
def test_gpus(monkeypatch: pytest.MonkeyPatch, counts: bool) -> None:
    library = types.ModuleType("pynvml")

    class Error(Exception):
        pass

    def energy(device: int) -> int:
        if not counts:
            raise Error("Not Supported")
        return 5000 + device

    library.NVMLError, library.nvmlInit = Error, lambda: None  # type: ignore[attr-defined]
    library.nvmlDeviceGetCount, library.nvmlDeviceGetHandleByIndex = lambda: 2, int  # type: ignore[attr-defined]
    library.nvmlDeviceGetName = lambda device: "H100"  # type: ignore[attr-defined]
    library.nvmlDeviceGetTotalEnergyConsumption = energy  # type: ignore[attr-defined]
    library.nvmlDeviceGetPowerUsage = lambda device: 70_000  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", library)
    ((source,), _) = nvml()
    want = (5.0, 5.001) if counts else (70.0, 70.0)
    assert tuple(values(source).values()) == want and source.rails[0].counts == counts


def test_without_a_source_each_kind_tells_why(tmp_path: Path) -> None:
    sources, reasons = find(root=tmp_path)
    if not any(s.name == "NVML" for s in sources):
        assert not sources and [r.split(":")[0] for r in reasons] == [
            "RAPL", "perf", "MSR", "hwmon", "batteries", "NVML",
        ]  # fmt: skip
        with pytest.raises(EnergyError, match=r"no source.*RAPL:.*hwmon:.*batteries:.*NVML:"):
            Sampler(Wanted(root=str(tmp_path)))


@pytest.mark.parametrize(
    ("shift", "allowed"), [(0.0, 1e-3), (3600.0, 0.2)], ids=["this machine's clock", "another clock"]
)
def test_a_meter_of_another_clock_is_shifted(
    monkeypatch: pytest.MonkeyPatch, shift: float, allowed: float
) -> None:
    """Stamps of this machine stay, also if they arrive late. Others begin at their arrival."""
    monkeypatch.setattr(meters.time, "time", lambda: 1000.5)
    monkeypatch.setattr(meters.time, "monotonic", lambda: 7.5)
    stamped = [(1000.0 + shift + n, 5.0) for n in range(3)]
    lags = [0.0]
    at = [t for t, _ in islice(_aligned(stamped, lags), 3)]
    assert lags == [abs(1000.5 - stamped[2][0])]
    begins = 7.0 if not shift else 7.5
    assert at == pytest.approx([begins, begins + 1, begins + 2])


def test_a_meter_by_entry_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def wall() -> Iterator[tuple[float, float]]:
        yield 5.0, 42.0

    class Point(EntryPoint):
        def load(self) -> object:
            return wall

    monkeypatch.setattr(meters, "entry_points", lambda group: [Point("wall", "a:b", group)])
    sources, _ = find(["wall"], tmp_path)
    assert sources[0].name == "meter wall" and values(sources[0]) == {"wall": 42.0}
    with pytest.raises(EnergyError, match="no more values"):
        [*sources[0].samples()]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("no-such-meter-here", "'no-such-meter-here' can't be started: No such file"),
        (f"{sys.executable} -c \"print('hello')\"", "printed 'hello', which isn't a timestamp and watts"),
        (f"{sys.executable} -c 'import sys; sys.exit(\"no device\")'", "ended with status 1: no device"),
        ("printf '5 inf\\n'", "printed '5 inf', which isn't a timestamp and watts"),
        ("printf '5 1e308\\n'", "printed '5 1e308', which isn't a timestamp and watts"),
        ("printf 'nan 5\\n'", "printed 'nan 5', which isn't a timestamp and watts"),
        (r"printf '\377 5\n'", "printed '\ufffd 5', which isn't a timestamp and watts"),
        (f"{sys.executable} -c \"while True: print(end='x' * 99999)\"", "printed 'xxx"),
    ],
)
def test_a_meter_that_fails_is_told(tmp_path: Path, command: str, message: str) -> None:
    with (
        Sampler(Wanted((command,), str(tmp_path))) as sampler,
        pytest.raises(EnergyError, match=message),
    ):
        sampler.wait(0, 1e9)


def test_a_quick_meter_fills_no_memory(tmp_path: Path) -> None:
    """One sample a millisecond is kept."""
    quick = "for n in range(2000): print(1000 + n * 1e-5, n)"
    with Sampler(Wanted((f'{sys.executable} -c "{quick}"',), str(tmp_path))) as sampler:
        with pytest.raises(EnergyError, match="ended with status 0"):
            sampler.wait(0, 1e9)
        series = sampler.series(0)[0]
    assert 2 <= series.times.size <= 100


def test_a_meter_by_entry_point_that_gives_no_number() -> None:
    with pytest.raises(ValueError, match=r"the meter gave 1\.0 inf"):
        [*_aligned([(1.0, float("inf"))], [0.0])]


def test_a_meter_that_dies_in_the_middle(tmp_path: Path) -> None:
    """Its samples until then stay, and waiting for more is an error with its last words."""
    with Sampler(Wanted((meter(tmp_path, lines=5),), str(tmp_path))) as sampler:
        with pytest.raises(EnergyError, match="ended with status 3: out of battery"):
            sampler.wait(0, 1e9)
        assert sampler.series(0)[0].values.tolist() == [10.0] * 5


def test_rapl_by_the_processors_registers(tmp_path: Path) -> None:
    """Two packages of an Intel processor, whose registers are files with holes. The counter has 32 bits."""
    root = tmp_path / "sys" / "class"
    root.mkdir(parents=True)
    for processor, package in enumerate((0, 0, 1)):
        topology = tmp_path / "sys" / "devices" / "system" / "cpu" / f"cpu{processor}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
        registers = tmp_path / "dev" / "cpu" / str(processor) / "msr"
        registers.parent.mkdir(parents=True)
        with open(registers, "wb") as file:
            for register, value in ((0x606, 0xA0E03), (0x611, (7 << 32) + (16384 << package))):
                file.seek(register)
                file.write(value.to_bytes(8, "little"))
    ((source,), reasons) = msr(root)
    assert not reasons and values(source) == {"package-0": 1.0, "package-1": 2.0}  # a step is 2**-14 joules
    assert source.rails[0].wraps == 2**32 / 16384 and source.rails[0].resolution == 2.0**-14
    assert find(root=root)[0][0].name == "RAPL by MSR"


@pytest.mark.skipif(sys.platform != "linux", reason="perf events are Linux's")
def test_rapl_by_perf_events(tmp_path: Path) -> None:
    """An event that counts a processor's nanoseconds stands in for the energy: it gives a watt."""
    root, power = tmp_path / "class", tmp_path / "bus" / "event_source" / "devices" / "power"
    root.mkdir()
    (power / "events").mkdir(parents=True)
    files = {"type": "1", "cpumask": "0"}
    for event in ("pkg", "cores", "psys"):
        files |= {f"events/energy-{event}": "event=0x00", f"events/energy-{event}.scale": "1e-9"}
    for name, text in files.items():
        (power / name).write_text(text + "\n")
    sources, reasons = perf(root)
    if not sources:
        pytest.skip(f"this system refuses perf events: {reasons[0]}")
    assert counted(sources[0]) == {"pkg of processor 0"}
    times, counts = zip(*islice(sources[0].samples(), 100), strict=True)
    watts, _ = np.polyfit(times, [count[0] for count in counts], 1)  # a sample may be late on a busy machine
    assert watts == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(
    ("page", "answer"),
    [
        ("/rpc/Switch.GetStatus?id=0", {"id": 0, "apower": 41.5}),
        ("/rpc/PM1.GetStatus?id=0", {"id": 0, "apower": 41.5}),
        ("/rpc/EM.GetStatus?id=0", {"a_act_power": 1.5, "total_act_power": 41.5}),
        ("/status", {"meters": [{"power": 41.5, "is_valid": True}]}),
        ("/status", {"emeters": [{"power": 41.5, "pf": 0.9}]}),
        ("/cm?cmnd=Status%208", {"StatusSNS": {"ENERGY": {"Power": 41.5}}}),
        ("/cm?cmnd=Status%208", {"StatusSNS": {"ENERGY": {"Power": [40, 1.5]}}}),
    ],
    ids=[
        "Shelly 2",
        "Shelly PM",
        "Shelly Pro EM",
        "Shelly 1",
        "Shelly EM",
        "Tasmota",
        "Tasmota, two sockets",
    ],
)
def test_plugs_by_http(page: str, answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer that is lost is a gap. A plug that is gone is told."""
    monkeypatch.setattr(plugs, "PLUG_INTERVAL", 0.01)
    asked = count()

    class Plug(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            lost = self.path == page and next(asked) == 2
            self.send_response(503 if lost else 200 if self.path == page else 404)
            self.end_headers()
            self.wfile.write(json.dumps(answer if self.path == page else {}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Plug) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = meters.meter(f"http://127.0.0.1:{server.server_port}/")
        begun = time.monotonic()
        samples = source.samples()
        (first, watts), (second, _) = islice(samples, 2)
        server.shutdown()
    assert watts == (41.5,) and begun <= first < second <= time.monotonic()
    with pytest.raises(EnergyError, match="answers no more"):
        next(samples)
    with pytest.raises(EnergyError, match="neither as a plug of Shelly nor as one of Tasmota"):
        next(source.samples())


def test_powermetrics_of_macos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of its name prints what a Mac's does."""
    program = tmp_path / "powermetrics"
    text = "*** Sampled system activity ***\nCPU Power: 900 mW\nCombined Power (CPU + GPU + ANE): {} mW\n"
    program.write_text(f"#!{sys.executable}\nprint({text!r}.format(1250), {text!r}.format(2500))\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    samples = meters.meter("powermetrics").samples()
    assert [watts for _, watts in islice(samples, 2)] == [(1.25,), (2.5,)]
    with pytest.raises(EnergyError, match="the meter ended with status 0"):
        next(samples)


def test_a_meter_on_a_serial_line() -> None:
    """Watts, and volts and amperes. The line's first text may have been cut off."""
    pty = pytest.importorskip("pty", reason="there are pseudo-terminals on Unix alone")
    ours, theirs = pty.openpty()
    samples = meters.meter(f"serial:{os.ttyname(theirs)}@9600").samples()
    writer = threading.Timer(0.2, os.write, (ours, b"V 2\n12.5\r\n5.0 2.5\n"))
    writer.start()
    assert [watts for _, watts in islice(samples, 2)] == [(12.5,), (12.5,)]
    os.write(ours, b"no watts\n")
    with pytest.raises(EnergyError, match="sent 'no watts', no watts and no volts and amperes"):
        next(samples)
    os.close(ours), os.close(theirs)
    with pytest.raises(EnergyError, match="'/dev/no-such-line' can't be opened"):
        next(meters.meter("serial:/dev/no-such-line").samples())
