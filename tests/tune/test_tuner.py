"""The tuner: how it spends its budget, which candidates win, what is kept, and that it continues after a
stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.compiler.kernels import kernel_candidates, kernel_workload, make_kernel
from jangin.compiler.pipeline import import_model, tune_model
from jangin.compiler.request import with_winners
from jangin.libraries import CANDIDATES
from jangin.options import Options
from jangin.runtime import libraries
from jangin.runtime.profile import Launches
from jangin.targets import resolve
from jangin.targets.processor import Processor
from jangin.templates.choose import TEMPLATES
from jangin.templates.template import Candidate, Workload
from jangin.tune import tuner
from jangin.tune.measure import Race, Timing
from jangin.tune.outcome import Outcome
from jangin.tune.store import Finding, Store, place_of
from jangin.tune.tuner import tune

OPTIONS = Options(resolve())
SECONDS = 60.0
"""Seconds of the budget, enough for the few candidates of these tests."""
FEW = 3
SAME = Timing(1.0, 1.0, 1.0, 1.0)


def two_products() -> onnx.ModelProto:
    """Return a small matrix product, and one with 20 times the work."""
    rng = np.random.default_rng(0)
    sizes = {"small": (64, 64), "large": (64, 1280)}
    constants = [
        numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in sizes.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "small"], ["a"], name="small"),
        helper.make_node("MatMul", ["a", "large"], ["y"], name="large"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (64, 64))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make tests brief, with few candidates and short races. No kernel counts as so quick that it isn't
    tuned.

    These tests are about the tuner's decisions, not the exactness of its measurements."""

    def few(workload: Workload, options: Options) -> list[tuple[Candidate, float]]:
        found = kernel_candidates(workload, options)
        return [*found[:FEW], *(c for c in found[FEW:] if c[0].template not in TEMPLATES)]

    monkeypatch.setattr(tuner, "kernel_candidates", few)
    monkeypatch.setattr(Launches, "call_seconds", lambda _: 0.0)
    monkeypatch.setattr(Processor, "least_seconds", lambda *_: 0.0)
    monkeypatch.setattr(tuner.TuningModel, "compare", lambda *_: (SAME, SAME))
    for name in ("SCREEN_SECONDS", "RACE_SECONDS", "FINAL_SECONDS"):
        monkeypatch.setattr(tuner, name, 0.0)


def tuned(
    budget: float = SECONDS, known: dict[str, Finding] | None = None, options: Options = OPTIONS
) -> Outcome:
    graph = import_model(two_products().SerializeToString(), options)
    return tune(graph, options, 1, {}, budget, None, known)


def fixed_ratio(ratio: float) -> object:
    """Return a `Race.time` in which every new way takes `ratio` of the first way's time."""

    def timed(self: Race, seconds: float, ways: Sequence[int] | None = None) -> list[Timing]:
        count = len(self._launches.calls) // 2 if ways is None else len(ways)
        return [Timing(1.0, 1.0, 1.0, 1.0), *[Timing(ratio, ratio, ratio, ratio)] * (count - 1)]

    return timed


def test_the_budget_is_kept_and_no_kernel_gets_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """A race takes 5 s by the test's clock, so that the first one ends a budget of 4 s."""
    clock, race = [0.0], tuner.TuningModel.race

    def long_race(model: tuner.TuningModel, kernel: tuner.TuningKernel) -> list[str]:
        clock[0] += 5.0
        return race(model, kernel)

    monkeypatch.setattr(tuner, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(tuner.TuningModel, "race", long_race)
    outcome = tuned(4.0)
    assert outcome.spent == 5.0 and sum(bool(r.tried) for r in outcome.kernels) == 1
    assert not outcome.defects
    assert not outcome.stopped
    assert all((r.gain <= 1 and r.best == r.first) or r.gain < 1 for r in outcome.kernels)


def test_no_budget_measures_the_model_alone() -> None:
    outcome = tuned(0.0)
    assert all(not r.tried and r.before > 0 for r in outcome.kernels)
    assert outcome.findings == {}
    assert outcome.tuned is not None
    assert outcome.tuned.ratio == 1


def test_the_kernel_that_can_gain_most_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    raced: list[str] = []

    def race(self: object, kernel: tuner.TuningKernel) -> list[str]:
        raced.append(kernel.report.name)
        kernel.queue.clear()
        return []

    monkeypatch.setattr(tuner.TuningModel, "race", race)
    outcome = tuned()
    gaps = {r.name: r.before - r.bound for r in outcome.kernels if r.before > r.bound}
    assert raced == sorted(gaps, key=gaps.__getitem__, reverse=True)


def test_what_wins_is_kept_and_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Race, "time", fixed_ratio(0.5))
    store, model = Store(tmp_path), two_products()
    outcome = tune_model(model, OPTIONS, 1, SECONDS, store=store)
    changed = [r for r in outcome.kernels if r.gain < 1]
    assert changed
    assert all(r.best != r.first and r.after < r.before for r in changed)
    found = store.get(place_of(OPTIONS.target, 1, "never", "latency"))
    assert {str(f.candidate) for f in found.values() if f.better} == {str(r.best) for r in changed}
    exe = jangin.compile(model, threads=1, cache=tmp_path)
    assert isinstance(exe, jangin.Executable)
    assert {str(r.best) for r in changed} <= {x.template for x in exe.plan.launches}
    x = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
    np.testing.assert_allclose(exe(x), jangin.compile(model, cache=False)(x), rtol=1e-4, atol=1e-3)


def test_what_is_not_quicker_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Race, "time", fixed_ratio(1.0))
    outcome = tuned()
    assert outcome.choices == {}
    assert sum(r.tried.total() for r in outcome.kernels) > 0


def test_the_winners_of_a_model_that_is_slower_with_them_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Race, "time", fixed_ratio(0.5))
    worse = (Timing(1.0, 1.0, 1.0, 1.0), Timing(1.1, 1.1, 1.05, 1.15))
    monkeypatch.setattr(tuner.TuningModel, "compare", lambda *_: worse)
    outcome = tuned()
    assert outcome.choices == {}
    assert all(r.best == r.first for r in outcome.kernels)
    assert any(f.tried for f in outcome.findings.values())


def test_it_goes_on_where_it_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    race, calls = tuner.TuningModel.race, iter(range(9))

    def stopped(self: tuner.TuningModel, kernel: tuner.TuningKernel) -> list[str]:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return race(self, kernel)

    monkeypatch.setattr(tuner, "BATCH", 1)
    monkeypatch.setattr(tuner.TuningModel, "race", stopped)
    first = tuned()
    (found,) = first.findings.values()
    second = tuned(SECONDS, dict(first.findings))
    assert [len(found.tried), first.stopped, second.stopped] == [1, True, False]
    assert sum(r.earlier for r in second.kernels) == 1
    ways = [len(f.tried) for f in second.findings.values()]
    assert ways == [FEW - 1] * 2
    third = tuned(SECONDS, dict(second.findings))
    assert all(not r.tried for r in third.kernels)


def test_an_earlier_gain_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Race, "time", fixed_ratio(0.5))
    first = tuned()
    monkeypatch.setattr(Race, "time", fixed_ratio(1.0))
    options = OPTIONS.but(choices=first.choices)
    again = tuned(SECONDS, dict(first.findings), options)
    kept = {d: f for d, f in again.findings.items() if f.better}
    assert {d: f.candidate for d, f in kept.items()} == {d: first.choices[d] for d in kept}
    assert kept


def test_an_interrupt_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Race, "time", fixed_ratio(0.5))
    race = tuner.TuningModel.race
    raced: list[tuner.TuningKernel] = []

    def interrupted(self: tuner.TuningModel, kernel: tuner.TuningKernel) -> list[str]:
        if any(k.report.gain < 1 for k in raced):
            raise KeyboardInterrupt
        raced.append(kernel)
        return race(self, kernel)

    monkeypatch.setattr(tuner.TuningModel, "race", interrupted)
    outcome = tuned()
    assert outcome.stopped
    assert len(outcome.choices) == 1

    def again(*_: object) -> Iterator[Timing]:
        raise KeyboardInterrupt

    raced.clear()
    monkeypatch.setattr(tuner.TuningModel, "compare", again)
    outcome = tuned()
    assert outcome.tuned is None
    assert len(outcome.choices) == 1


def test_a_defective_candidate_is_told_and_the_others_race(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = import_model(two_products().SerializeToString(), OPTIONS)
    node = next(n for n in graph.nodes if n.name.startswith("large"))
    bad = kernel_candidates(kernel_workload(node, graph, OPTIONS)[1], OPTIONS)[1][0]

    def made(workload: object, options: Options, candidate: Candidate | None = None) -> object:
        if candidate is not None and candidate == bad:
            raise AssertionError("a wrong step")
        return make_kernel(workload, options, candidate)  # type: ignore[arg-type]

    monkeypatch.setattr(tuner, "make_kernel", made)
    outcome = tuned()
    assert outcome.defects
    assert all(str(bad) in d and "a wrong step" in d for d in outcome.defects)
    assert any(r.tried for r in outcome.kernels)


def called(model: onnx.ModelProto, **settings: Any) -> tuple[str, ...]:
    """Return the libraries that a compiled model calls."""
    exe = jangin.compile(model, threads=1, **settings)
    assert isinstance(exe, jangin.Executable)
    return exe.plan.libraries


@pytest.mark.parametrize("library", ["openblas", "onednn"])
def test_libraries_race_first_where_they_may(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if libraries.find(library) is None:
        pytest.skip(libraries.absent(library))
    monkeypatch.setattr(Race, "time", fixed_ratio(0.5))
    monkeypatch.setitem(globals(), "FEW", 1)
    monkeypatch.setattr("jangin.libraries.CANDIDATES", {library: CANDIDATES[library]})
    store, model, options = Store(tmp_path), two_products(), OPTIONS.but(libraries="auto")
    outcome = tune_model(model, options, 1, SECONDS, store=store)
    assert any(library in r.tried for r in outcome.kernels)
    assert library in {c.template for c in with_winners(options.but(cache=tmp_path), 1).choices.values()}
    assert with_winners(OPTIONS.but(cache=tmp_path), 1).choices == {}
    assert called(model, cache=tmp_path, libraries="auto") == (library,)
    assert called(model, cache=tmp_path) == ()


def test_without_tuning_our_own_kernels_are_taken() -> None:
    assert called(two_products(), cache=False, libraries="auto") == ()


def test_a_model_of_several_plans_is_refused() -> None:
    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, 4))],
        [helper.make_tensor_value_info("y", TensorProto.INT64, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with pytest.raises(ValueError, match=r"the model runs in steps .* and can't be tuned"):
        tune_model(model, OPTIONS, 1, 1.0)


def test_a_library_s_estimate_discards_none_of_ours() -> None:
    """A library's estimate is a guess. Ours are compared with ours."""
    ranked = [
        (Candidate(n), s) for n, s in (("cudnn", 1e-6), ("rows", 7e-6), ("window", 8e-6), ("planes", 1e-4))
    ]
    assert [c.template for c in tuner.hopeful_of(ranked)] == ["cudnn", "rows", "window"]
