"""`--auto`: choices from given figures, the simulation against the written model, and whole runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_nets import convolutions, of_pairs, pictures, products, rows

import jangin
from jangin.commands.quantize_report import summary
from jangin.ir.products import DOT4S
from jangin.options import Options
from jangin.quantization import auto
from jangin.quantization.decide import FLOAT, Decision, Option, explained, most, others, ranked, uniform
from jangin.quantization.job import Job
from jangin.quantization.simulate import Simulator
from jangin.targets import resolve

pytestmark = pytest.mark.usefixtures("shared_kernels")


def decision(name: str, seconds: float, cost: float, half: float = 1.0) -> Decision:
    return Decision(
        name, f"Conv '{name}'",
        {FLOAT: Option(1.0, 0.0), "int8": Option(seconds, cost), "float16": Option(half, cost / 100)},
    )  # fmt: skip


def test_choice() -> None:
    """Parts that gain most for their cost come first, until the drop is spent. Each part says why."""
    found = [
        decision("dear", 0.5, 0.9), decision("cheap", 0.5, 0.1), decision("slow", 1.2, 0.1),
        decision("even", 0.99, 0.1), decision("half", 0.5, 0.1, half=0.6),
    ]  # fmt: skip
    order = ranked(found)
    assert [(d.name, d.kind) for d in order] == [("half", "float16"), ("cheap", "int8"), ("dear", "int8")]

    def fits(taken: Sequence[Decision]) -> bool:
        return sum(d.options[d.kind].cost for d in taken) <= 0.5

    taken = most(order, fits)
    assert [d.name for d in taken] == ["half", "cheap"]
    assert [d.name for d in uniform(found, "int8")][-1] == "dear"
    why = {d.name: (d.kind, d.reason) for d in explained(found, taken, taken)}
    assert why["cheap"] == ("int8", "")
    assert why["dear"] == (FLOAT, "int8 would cost more than the drop allows beside the others")
    assert why["slow"] == why["even"] == (FLOAT, "no smaller numbers are quicker here")
    left = {d.name: d.reason for d in explained(found, [], taken)}
    assert left["cheap"] == "int8 is quicker, but the whole model isn't with it"
    assert left["dear"] == "int8 would cost more than the drop allows"
    alone = {d.name: d.reason for d in explained(found, taken[:1], taken)}
    assert alone["cheap"] == "int8 is quicker, but the whole model isn't with it"
    one = [replace(found[4], kind="int8")]
    beside = {d.name: d.reason for d in explained(found, one, taken)}
    assert beside["cheap"] == "int8 would cost more than the drop allows beside the others"


def test_all_before_fewer() -> None:
    """All parts are taken if they fit the drop. If not, the largest number that fits is taken. On few runs,
    all parts may drop less than some."""
    found = [decision(str(n), 0.5, 0.1) for n in range(6)]
    tried: list[int] = []

    def fits(taken: Sequence[Decision]) -> bool:
        tried.append(len(taken))
        return len(taken) in (0, 1, 2, 6)

    assert len(most(found, fits)) == 6
    assert tried == [6]
    assert len(most(found[:5], fits)) == 2
    assert most([], fits) == []
    assert most(found[:1], lambda taken: not taken) == []


def test_others() -> None:
    """Parts that are left gain from other kinds, as long as everything together fits the drop."""
    found = [decision("a", 0.5, 0.1), decision("b", 0.5, 0.9, half=0.6), decision("c", 0.5, 0.9, half=0.7)]
    taken = [replace(found[0], kind="int8")]
    more = others(found, taken, lambda all_: len(all_) <= 2)
    assert [(d.name, d.kind) for d in more] == [("b", "float16")]
    assert others(found, [replace(d, kind="int8") for d in found], lambda all_: True) == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("net", ["convolutions", "products"])
def test_simulation(net: str) -> None:
    """The simulation without parts gives the model's results. With all parts, or one, it gives the written
    model's, except for roundings of halves."""
    model, data = (convolutions(), pictures()) if net == "convolutions" else (products(), rows())
    job = Job(model, Options(threads=1))
    feeds: Any = [{"x": x} for x in data]
    seen = job.watched(feeds)
    ranges = seen.ranges("minmax")
    simulator = Simulator(job.graph, job.parts, job.options)
    chosen = job.chosen("int8", ranges, 32, seen)
    float32 = job.engine.run(feeds[0])["y"]
    np.testing.assert_allclose(simulator.runner({}, {})(feeds[0])["y"], float32, rtol=1e-4, atol=1e-5)
    for some in (chosen, {n: chosen[n] for n in list(chosen)[-1:]}):
        _, _, exe = job.compiled(some, ranges)
        said, real = simulator.runner(some, ranges)(feeds[0])["y"], exe.run(feeds[0])["y"]
        apart, wrong = (float(np.linalg.norm(a - real)) for a in (said, float32))
        assert apart < 0.3 * wrong


@pytest.mark.sampled(2)
@pytest.mark.parametrize("last", [0.5, 0.595])
def test_weights_of_7_bits(last: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """7-bit weights are raced if they may be quicker, and taken if they are clearly so."""
    races, seconds = iter([0.6, 0.6, last]), iter([1.0, 0.5, 1.1])

    def timed(exe: Any, feeds: Any, owners: dict[str, str]) -> dict[str, float]:
        return dict.fromkeys(owners.values(), next(seconds))

    few = resolve().with_figures(products=(DOT4S,))
    monkeypatch.setattr("jangin.targets.resolve", lambda asked=None: few)
    monkeypatch.setattr(auto, "owned", timed)
    monkeypatch.setattr(auto, "raced", lambda first, second, feeds: (1.0, next(races)))
    found = jangin.quantize(convolutions(), pictures(), "auto", drop=0.5, threads=1)
    assert (max(map(of_pairs, found.chosen.values())) <= 128) == (last == 0.5) == (found.bits == 7)
    assert found.report is not None and ("7 bits" in found.report.note) == (last == 0.5)
    assert found.report.after == (last if last == 0.5 else 0.6)
    told = summary(found.report)
    assert f"({1 / found.report.after:.2f}x)" in told and ("7 bits" in told) == (last == 0.5)


@pytest.mark.parametrize("ratio", [0.5, 1.5])
def test_whole(ratio: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test sets the parts' times. If int8 takes half, all parts are int8. If it takes longer, the model
    stays in float32, and the report says so."""
    times = iter([1.0, ratio, ratio])

    def timed(exe: Any, feeds: Any, owners: dict[str, str]) -> dict[str, float]:
        seconds = next(times)
        return dict.fromkeys(owners.values(), seconds)

    monkeypatch.setattr(auto, "owned", timed)
    monkeypatch.setattr(auto, "raced", lambda first, second, feeds: (1.0, ratio))
    model, data = convolutions(), pictures()
    found = jangin.quantize(model, data, "auto", drop=0.5, threads=1)
    assert found.report is not None
    kinds = {d.kind for d in found.report.decisions}
    assert kinds == ({FLOAT} if ratio > 1 else {found.report.decisions[0].kind})
    assert (FLOAT in kinds) == (ratio > 1) == bool(found.report.note) == (not found.chosen)
    assert found.report.after == (1.0 if ratio > 1 else 0.5)
    told = summary(found.report)
    assert ("the model stays in float32 (1000.000 ms a run)" in told) == (ratio > 1) == ("2.00x" not in told)
    if ratio > 1:
        (x,) = pictures(1, seed=4)
        wanted = jangin.compile(model, cache=False)(x)
        np.testing.assert_allclose(found.executable(x), wanted, rtol=1e-4, atol=1e-5)
