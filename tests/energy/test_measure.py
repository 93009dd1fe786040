"""Energy from samples: a known model's joules come back, and what isn't known isn't told."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pytest
from fake import REST, WORK, Machine, meter

from jangin.energy import EnergyError, Gap, Rail, Sampler, Series, Wanted, joules_per_call, rest
from jangin.energy.measure import DOUBT, HEADROOM, MOST_SECONDS, _warning
from jangin.energy.series import continued

COUNTER = Rail("package-0", True, 1000.0, 1e-6, 0.001)
RAILS = {
    "a counter that wraps": (COUNTER, 0.01),
    "a counter of coarse joules": (Rail("c", True, resolution=0.5), 0.01),
    "watts": (Rail("w", resolution=1e-3), 0.02),
    "a wall meter of 1 Hz": (Rail("wall", resolution=0.1), 1.0),
}


@pytest.mark.parametrize("kind", RAILS)
def test_a_known_model_comes_back(kind: str) -> None:
    """A call of 10 ms takes 0.35 J more than rest. The error allowed is that of an honest sensor, 2 %."""
    machine = Machine(*RAILS[kind])
    idle = rest(machine, 0, 1.0)  # type: ignore[arg-type]
    assert idle.watts[0] == pytest.approx(REST, rel=0.02)
    used = joules_per_call(machine, 0, machine.work, idle)  # type: ignore[arg-type]
    assert used.joules == pytest.approx(WORK * 0.01, rel=0.02)
    assert used.gross == pytest.approx((REST + WORK) * 0.01, rel=0.02)
    assert (used.watts, used.idle) == pytest.approx((REST + WORK, REST), rel=0.02)
    assert used.low <= used.joules <= used.high and used.windows == 5 and not used.warning
    assert used.doubt <= DOUBT and used.rails == {machine.rail.name: used.watts}


@pytest.mark.parametrize("kind", RAILS)
@pytest.mark.parametrize("behind", [-1.7, 0.37, 1.9])
def test_another_clock_is_aligned_by_a_marked_load(kind: str, behind: float) -> None:
    """The windows of a call are a second or more, so a wrong clock would falsify them by this share of it."""
    machine = Machine(*RAILS[kind])
    machine.behind, machine.noise = behind, 0.02
    idle = rest(machine, 0, 1.0)  # type: ignore[arg-type]
    used = joules_per_call(machine, 0, machine.work, idle)  # type: ignore[arg-type]
    # a sample is up to a spacing late, on average half of it
    assert machine.shifted == pytest.approx(behind, abs=0.6 * machine.spacing + 0.01)
    assert used.joules == pytest.approx(WORK * 0.01, rel=0.02) and not used.warning


def test_a_meter_that_does_not_show_the_load_is_told() -> None:
    machine = Machine(*RAILS["watts"])
    machine.behind, machine.noise = 0.5, 0.1
    idle = rest(machine, 0, 1.0)  # type: ignore[arg-type]

    def elsewhere(seconds: float) -> tuple[float, float, int]:
        return *machine.pause(seconds), 10

    used = joules_per_call(machine, 0, elsewhere, idle)  # type: ignore[arg-type]
    assert machine.shifted == 0.0 and "doesn't show the marked load" in used.warning


def test_windows_are_as_long_as_the_sensor_needs() -> None:
    quick, slow = (Machine(*RAILS[k]) for k in ("a counter that wraps", "a wall meter of 1 Hz"))
    seconds = []
    for machine in (quick, slow):
        idle = rest(machine, 0, 1.0)  # type: ignore[arg-type]
        seconds.append(joules_per_call(machine, 0, machine.work, idle).seconds)  # type: ignore[arg-type]
    assert seconds == pytest.approx([1.0, HEADROOM / DOUBT], rel=0.15)


def test_a_sensor_that_stays_too_coarse_is_told() -> None:
    machine = Machine(Rail("battery", resolution=1e-6, period=5.0), 1.0)
    used = joules_per_call(machine, 0, machine.work, rest(machine, 0, 1.0))  # type: ignore[arg-type]
    assert used.seconds == pytest.approx(MOST_SECONDS) and used.doubt == pytest.approx(5 / 60, rel=0.1)
    assert "too coarse: the energy may be off by 8%" in used.warning


def test_work_that_adds_little_to_rest_is_told() -> None:
    machine = Machine(*RAILS["watts"])
    idle = rest(machine, 0, 1.0)  # type: ignore[arg-type]

    def lazy(seconds: float) -> tuple[float, float, int]:
        start = machine.now + 0.1
        machine.busy.append((start, start + seconds / 100))
        machine.now = start + seconds
        return start, machine.now, 100

    used = joules_per_call(machine, 0, lazy, idle)  # type: ignore[arg-type]
    assert "adds little" in used.warning and used.net_doubt > 0.2


def test_work_that_adds_nothing_is_told_in_words() -> None:
    assert _warning(0.01, math.inf).endswith("off by any factor")


@pytest.mark.parametrize(
    ("values", "wraps", "want"),
    [
        ([998.0, 999.5, 1.0, 2.0], 1000.0, [998.0, 999.5, 1001.0, 1002.0]),
        ([999.0, 1.0, 999.0, 1.0], 1000.0, [999.0, 1001.0, 1999.0, 2001.0]),
        ([5.0, 7.0, 1.0], 0.0, [5.0, 7.0, 8.0]),
        ([], 10.0, []),
    ],
)
def test_counters_continue(values: list[float], wraps: float, want: list[float]) -> None:
    assert continued(np.array(values), wraps).tolist() == want


def test_a_counter_that_is_reset_is_no_wrap() -> None:
    """A machine that was suspended starts its counters again at 0. A true wrap adds what the watts tell."""
    rail = Rail("package-0", True, 262143.3, 1e-6, 0.001)
    times = np.arange(0, 10, 0.1)
    joules = 5000 + 4 * times
    joules[50:] -= joules[50]
    series = Series(rail, times, joules)
    assert series.joules(1, 4) == pytest.approx(12.0) == series.joules(6, 9)
    with pytest.raises(Gap, match="the counter was reset during the run"):
        series.joules(4, 6)
    wrapped = Series(rail, times, (rail.wraps - 10 + 4 * times) % rail.wraps)
    assert wrapped.joules(1, 9) == pytest.approx(32.0)


def test_energy_between_samples_of_a_ramp() -> None:
    times = np.arange(0, 10, 0.05)
    series = Series(Rail("ramp"), times, 3 * times)
    assert series.joules(2.0, 6.01) == pytest.approx(1.5 * (6.01**2 - 4), rel=1e-3)


def test_gaps_are_no_numbers() -> None:
    """Watts must be known all the time. A counter counts on while nobody reads it, but not for a minute."""
    times = np.array([*np.arange(0, 5, 0.1), *np.arange(7, 12, 0.1)])
    watts, counter = Series(Rail("w"), times, 0 * times + 4), Series(COUNTER, times, 4 * times)
    assert watts.joules(1, 4) == pytest.approx(12.0)
    with pytest.raises(Gap, match=r"no samples for 2\.\d+ s"):
        watts.joules(4, 8)
    assert counter.joules(4, 8) == pytest.approx(16.0)
    for start, end in ((5.5, 8), (4, 6)):
        with pytest.raises(Gap):
            counter.joules(start, end)
    late = Series(COUNTER, [0, 0.1, 0.2, 70, 70.1], [0, 1, 2, 3, 4])
    with pytest.raises(Gap, match="no samples for 69"):
        late.joules(0.05, 70.05)
    with pytest.raises(Gap, match="before and after"):
        watts.joules(11, 13)
    assert np.isnan([np.nan]).any() and Series(Rail("n"), [0, 1, 2], [1, np.nan, 3]).times.tolist() == [0, 2]


def test_a_window_with_a_gap_is_repeated_and_many_gaps_are_an_error() -> None:
    machine = Machine(*RAILS["watts"])
    idle = rest(machine, 0, 1.0)  # type: ignore[arg-type]
    machine.missing = [(machine.now + 0.7, machine.now + 1.1)]
    used = joules_per_call(machine, 0, machine.work, idle)  # type: ignore[arg-type]
    assert used.joules == pytest.approx(WORK * 0.01, rel=0.02) and machine.calls == 7
    machine.missing = [(machine.now + 0.5, 1e9)]
    with pytest.raises(EnergyError, match="missing in 10 windows"):
        joules_per_call(machine, 0, machine.work, idle)  # type: ignore[arg-type]


def test_power_over_time_is_that_of_the_work() -> None:
    machine = Machine(*RAILS["a counter that wraps"])
    used = joules_per_call(machine, 0, machine.work, rest(machine, 0, 1.0))  # type: ignore[arg-type]
    assert 50 < len(used.power) <= 200
    assert used.power[-1][0] == pytest.approx(used.seconds * used.windows, rel=0.01)
    assert all(abs(w - REST - WORK) < 2 for _, w in used.power[1:])


def test_a_meter_beside_real_work(tmp_path: Path) -> None:
    """A meter in its own process shows the energy of work in this one, within 2 %."""
    busy = tmp_path / "busy"

    def work(seconds: float) -> tuple[float, float, int]:
        busy.touch()
        time.sleep(0.05)  # the meter notices the work at its next line
        start = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        time.sleep(0.05)
        busy.unlink()
        return start, end, 10

    with Sampler(Wanted((meter(tmp_path),), str(tmp_path))) as sampler:
        sampler.wait(0, time.monotonic())
        idle = rest(sampler, 0, 0.3)
        used = joules_per_call(sampler, 0, work, idle, windows=2)
        assert 0 <= used.cost < 1
    assert used.joules == pytest.approx(WORK * used.seconds / 10, rel=0.02)
    assert used.gross == pytest.approx((REST + WORK) * used.seconds / 10, rel=0.02)
    assert used.source.startswith("meter ")


@pytest.mark.parametrize(("late", "apart"), [(0.0, False), (0.5, True)])
def test_a_sampler_tells_whose_clock_a_meter_has(tmp_path: Path, late: float, apart: bool) -> None:
    command = meter(tmp_path)
    script = tmp_path / "meter.py"
    script.write_text(script.read_text().replace("print(time.time(),", f"print(time.time() - {late},"))
    with Sampler(Wanted((command,), str(tmp_path))) as sampler:
        sampler.wait(0, time.monotonic() - 0.4)
        assert sampler.is_apart(0) == apart
        sampler.shift(0, late)
        sampler.wait(0, time.monotonic() + 0.01)
        assert not sampler.is_apart(0)
        (series,) = sampler.series(0)
        assert series.last > time.monotonic() - 0.3
