"""Tuning by energy: on a simulated machine of known watts, the choice changes as it should."""

from __future__ import annotations

import math
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.compiler import objective
from jangin.compiler.objective import counts, measure
from jangin.compiler.request import winners_of
from jangin.energy import EnergyError, Rail, Series, Used
from jangin.options import LATENCY, OBJECTIVES, Options
from jangin.runtime.executable import Executable
from jangin.runtime.profile import Launches
from jangin.targets.processor import Processor
from jangin.templates.template import Candidate
from jangin.tune import joules, tuner
from jangin.tune.joules import Cost, Meter
from jangin.tune.measure import Timing
from jangin.tune.store import Finding, Point, Store

sys.path.append(str(Path(__file__).parent.parent / "energy"))
from fake import REST, Machine

SAME = Timing(1.0, 1.0, 1.0, 1.0)
GAIN = 1.6
"""How many times as fast two threads are as one, on the simulated machine."""
ONE = 20.0
"""The watts above rest of one busy core."""


class Simulated(Machine):
    """A sampler on a simulated clock. A run takes 10 ms on one thread.

    The second core's watts, `more`, are added while a model runs on two threads."""

    def __init__(self, more: float) -> None:
        super().__init__(Rail("package", True, resolution=1e-6), 0.01)
        self.more, self.at, self.spent = more, [self.now], [0.0]

    def joules(self, times: np.ndarray) -> np.ndarray:
        return np.asarray(REST * (times - 50) + np.interp(times, self.at, self.spent))

    def series(self, source: int) -> list[Series]:
        """Return the samples of the last minutes, because each window asks for them."""
        times = np.arange(max(50.0, self.now - 100), self.now + 2 * self.spacing, self.spacing)
        return [Series(self.rail, times, self.joules(times))]

    def load(self, seconds: float, watts: float) -> None:
        before = self.spent[-1]
        self.at += self.now, self.now + seconds
        self.spent += before, before + watts * seconds
        self.now += seconds


def product() -> bytes:
    weights = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (64, 64))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return bytes(model.SerializeToString())


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Simulated:
    """A machine on which runs of a model take simulated time and watts. The test's parameter gives the watts
    of the second core."""
    made = Simulated(request.param)
    run = Executable.run

    def simulated(self: Executable, feeds: Mapping[str, Any]) -> Any:
        two = self.threads > 1
        made.load(0.01 / (GAIN if two else 1.0), ONE + made.more * two)
        return run(self, feeds)

    monkeypatch.setattr(Executable, "run", simulated)
    monkeypatch.setattr(joules, "time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(joules, "Sampler", lambda wanted: _entered(made))
    monkeypatch.setattr(objective, "default_threads", lambda: 2)
    return made


def _entered(machine: Simulated) -> Any:
    class Entered(SimpleNamespace):
        def __enter__(self) -> Simulated:
            return machine

        def __exit__(self, *_: object) -> None: ...

        def __getattr__(self, name: str) -> Any:
            return getattr(machine, name)

    return Entered()


COSTLY, CHEAP, BETWEEN = 30.0, 5.0, 20.0
"""Watts of a second core. Two threads take 1.56, 0.78 and 1.25 times the joules of one with them. The product
of joules and seconds is 0.98, 0.49 and 0.78 times as large."""
CHOICES = [(COSTLY, 1, 2), (CHEAP, 2, 2), (BETWEEN, 1, 2), (2.5 * COSTLY, 1, 1)]


@pytest.mark.parametrize(("machine", "energy", "edp"), CHOICES, indirect=["machine"])
def test_fewer_threads_where_a_second_core_costs_more_than_it_saves(
    machine: Simulated, energy: int, edp: int, tmp_path: Path
) -> None:
    """Two threads are always quicker. A later compilation chooses what was measured, without measuring."""
    model, chosen = product(), {}
    for name in ("energy", "edp"):
        with pytest.raises(ValueError, match=f"nothing was measured for objective='{name}'"):
            jangin.compile(model, objective=name, cache=tmp_path)
        tuned = jangin.compile(model, objective=name, tune=0, cache=tmp_path)
        before = machine.now
        again = jangin.compile(model, objective=name, cache=tmp_path)
        assert again.threads == tuned.threads and machine.now == before
        chosen[name] = again.threads
    assert chosen == {"energy": energy, "edp": edp}
    assert jangin.compile(model, threads=2, objective="energy", cache=tmp_path).threads == 2
    with pytest.raises(ValueError, match="nothing was measured"):
        jangin.compile(model, "x86-64-v2", objective="energy", cache=tmp_path)


@pytest.mark.parametrize("machine", [COSTLY], indirect=True)
def test_costs_are_those_of_the_machine(machine: Simulated, tmp_path: Path) -> None:
    """The sensor's coarseness may falsify a figure by 2 %."""
    options, store = Options(objective="energy", cache=tmp_path), Store(tmp_path)
    one, two = (
        t.point
        for t in measure(product(), options, [None], [1, 2], 0.0, Meter(machine), store)  # type: ignore[arg-type]
    )
    assert (one.target, one.threads, two.threads) == ("cpu", 1, 2)
    assert (one.seconds, two.seconds) == pytest.approx((0.01, 0.01 / GAIN), rel=1e-6)
    assert one.joules == pytest.approx(ONE * 0.01, rel=0.02)
    assert two.joules == pytest.approx((ONE + COSTLY) * 0.01 / GAIN, rel=0.02)
    assert one.bytes == two.bytes >= 64 * 256 * 4  # type: ignore[operator]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("machine", [CHEAP], indirect=True)
def test_the_candidate_of_a_kernel_is_that_of_the_fewest_joules(
    machine: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quickest candidate draws twice the watts, so that another one takes fewer joules.

    Tuning by time and by energy end with different kernels, which are kept apart."""
    speeds = {"way_0": (3e-3, 20.0), "way_2": (1e-3, 90.0), "way_3": (2e-3, 20.0)}
    names: dict[tuple[int, ...], str] = {}
    made = Launches.__init__

    def simulated(*call: Any) -> None:
        machine.load(*speeds.get(names[tuple(map(id, call))], (1e-4, 10.0)))

    def named(self: Launches, plan: Any, layout: Any, run: Any, calls: Any, idle: Any, held: Any) -> None:
        names.update({tuple(map(id, c)): x.kernel for c, x in zip(calls, plan.launches, strict=True)})
        made(self, plan, layout, simulated, calls, idle, held)

    def seconds(self: Launches, call: Any) -> float:
        before = machine.now
        self.run(*call)
        return machine.now - before

    monkeypatch.setattr(Launches, "__init__", named)
    monkeypatch.setattr(Launches, "seconds", seconds)
    monkeypatch.setattr(Launches, "call_seconds", lambda _: 0.0)
    monkeypatch.setattr(Processor, "least_seconds", lambda *_: 0.0)
    monkeypatch.setattr(tuner.TuningModel, "compare", lambda *_: (SAME, SAME))
    monkeypatch.setattr(tuner, "HOPELESS", 1e9)
    for name in ("SCREEN_SECONDS", "RACE_SECONDS", "FINAL_SECONDS"):
        monkeypatch.setattr(tuner, name, 0.0)
    found = {}
    candidates = tuner.kernel_candidates
    monkeypatch.setattr(tuner, "kernel_candidates", lambda *given: candidates(*given)[:3])
    for goal in (LATENCY, "energy"):
        options = Options(threads=1, objective=goal, cache=tmp_path)
        meter = Meter(machine) if goal == "energy" else None  # type: ignore[arg-type]
        (trial,) = measure(product(), options, [None], [1], 60.0, meter, winners_of(options))
        (kernel,) = trial.outcome.kernels
        found[goal] = (kernel.best, kernel.gain)
    assert found[LATENCY][1] == pytest.approx(1 / 3) and found["energy"][1] == pytest.approx(2 / 3, rel=0.02)
    assert found[LATENCY][0] != found["energy"][0]


def test_without_a_source_there_is_one_error_with_what_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without sensors chooses nothing by estimates."""
    monkeypatch.setattr(objective, "Wanted", lambda meters: joules.Wanted(meters, str(tmp_path / "none")))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("JANGIN_METER", raising=False)
    for name in ("energy", "edp"):
        with pytest.raises(EnergyError) as error:
            jangin.compile(product(), objective=name, tune=1, cache=tmp_path)
        told = str(error.value)
        assert told.startswith(f"objective='{name}' is reached by measured joules only: no source")
        assert all(kind in told for kind in ("RAPL", "hwmon", "batter", "NVML"))


def test_the_environment_names_a_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JANGIN_METER", "no-such-meter of mine")
    with pytest.raises(EnergyError, match="'no-such-meter' can't be started"):
        jangin.compile(product(), objective="energy", tune=1, cache=False)


def test_several_devices_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="chooses a device by itself"):
        jangin.compile(product(), "cpu+x86-64-v2", objective="energy", cache=tmp_path)


def test_objectives_are_figures_of_a_cost() -> None:
    cost = Cost(2.0, 3.0)
    assert [cost.figure(o) for o in OBJECTIVES] == [2.0, 3.0, 6.0]
    assert Cost(1.0, -1e-9).figure("energy") > 0, "a ratio needs a figure above 0"
    assert Point("cpu", 1, 2.0).figure(LATENCY) == 2.0 and Point("cpu", 1, 2.0).figure("edp") == np.inf
    with pytest.raises(ValueError, match="objective='power' is unknown; known: latency, energy, edp"):
        Options(objective="power")


def test_threads_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    for most, want in ((1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])):
        monkeypatch.setattr(objective, "default_threads", lambda most=most: most)
        assert counts(Options()) == want
    assert counts(Options(threads=3)) == [3]


def test_stored_costs_are_bounded_and_checked(tmp_path: Path) -> None:
    store = Store(tmp_path, limit=2)
    assert store.points("m") == []
    store.put("here", {"k": Finding(Candidate("window", {}), 1.0, 2.0)})
    assert store.points("m") == [], "a file of an older version has no such table"
    store.put_points("m", [Point("cpu", 1, 0.5, 2.0, 7), Point("opencl:0", 2, 0.25)])
    assert store.points("m") == [Point("cpu", 1, 0.5, 2.0, 7), Point("opencl:0", 2, 0.25)]
    store.put_points("n", [Point("cpu", 1, 0.5)])
    assert len(store.points("m")) == 1 and store.points("n") == [Point("cpu", 1, 0.5)]
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute("UPDATE points SET seconds = 'soon' WHERE model = 'n'")
    assert store.points("n") == []


def test_the_warning_of_the_most_doubtful_measurement_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A meter that doesn't show the load would otherwise choose by noise, and say nothing."""
    told = iter([(0.3, "off by 30%"), (math.inf, "off by any factor"), (0.5, "off by 50%"), (0.01, "")])

    def joules_per_call(*_: object, **given: object) -> Used:
        doubt, warning = next(told)
        return Used("fake", 0.0, 0.0, 0.0, 1.0, 10.0, 10.0, 1, 1.0, 100, 0.01, doubt, warning)

    monkeypatch.setattr(joules, "joules_per_call", joules_per_call)
    meter = Meter(Machine(Rail("package", True, resolution=1e-6), 0.01))  # type: ignore[arg-type]
    assert meter.warning == ""
    seen = []
    for _ in range(4):
        meter.cost(lambda: None)
        seen.append(meter.warning)
    assert seen == ["off by 30%", *["off by any factor"] * 3]
