"""The estimates against recorded measurements. The best candidate by estimate is among the quickest. Trying
candidates in order of their estimates finds the quickest sooner than trying them at random."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

import pytest

from jangin.compiler.kernels import kernel_workload
from jangin.templates.choose import TEMPLATES
from jangin.templates.template import Candidate, Template

from .tuned_kernels import FEWEST, kernels, recorded

NOISE = 1.03
"""The factor by which two timings of one candidate may differ."""
TRIALS = 4

Timed = list[tuple[Candidate, float]]


@pytest.fixture(scope="module")
def measured() -> dict[str, Timed]:
    """Return for each kernel the candidates in order of their estimates, with their measured seconds.
    Candidates with parameters that no template has any more are left out."""
    options, found = recorded()
    workloads = {
        (name, node.name): kernel_workload(node, graph, options)[1] for name, node, graph in kernels(options)
    }
    result = {}
    for m in found:
        workload = workloads[m.network, m.kernel]
        made = {name: t for name, match in TEMPLATES.items() if (t := match(workload)) is not None}
        ways = [w for w in m.ways if _is_known(w[0], made)]
        if len(ways) >= FEWEST:
            ways.sort(key=lambda w, made=made: made[w[0].template].estimate(w[0].params))  # type: ignore[misc]
            result[f"{m.network}: {m.kernel}"] = ways
    return result


def _is_known(candidate: Candidate, made: Mapping[str, Template]) -> bool:
    template = made.get(candidate.template)
    return template is not None and any(p.keys() == candidate.params.keys() for p in template.space())


def quickest(ways: Timed) -> float:
    return min(seconds for _, seconds in ways)


def test_the_best_estimate_is_in_the_top_tenth_for_most_kernels(measured: dict[str, Timed]) -> None:
    missed = {}
    for name, ways in measured.items():
        top = sorted(seconds for _, seconds in ways)[: math.ceil(len(ways) / 10)]
        if ways[0][1] > NOISE * top[-1]:
            missed[name] = round(ways[0][1] / quickest(ways), 3)
    assert len(missed) < len(measured) / 2, missed


def test_the_best_estimate_is_near_the_quickest(measured: dict[str, Timed]) -> None:
    shares = [ways[0][1] / quickest(ways) for ways in measured.values()]
    assert statistics.geometric_mean(shares) <= 1.1


def test_it_beats_random_choice_at_equal_trials(measured: dict[str, Timed]) -> None:
    for trials in range(1, TRIALS + 1):
        ours = statistics.geometric_mean(quickest(w[:trials]) for w in measured.values())
        random = statistics.geometric_mean(expected_quickest(w, trials) for w in measured.values())
        assert ours < random, f"{trials} trials"


def expected_quickest(ways: Timed, trials: int) -> float:
    """Return the expected time of the quickest of `trials` random candidates."""
    times = sorted(seconds for _, seconds in ways)
    all_draws = math.comb(len(times), trials)
    chances = [math.comb(len(times) - n - 1, trials - 1) / all_draws for n in range(len(times))]
    return sum(t * chance for t, chance in zip(times, chances, strict=True))


def test_the_record_fits_the_templates(measured: dict[str, Timed]) -> None:
    assert len(measured) >= 20, "parameters have changed: record again, as tuned_kernels.py says"
    assert {c.template for ways in measured.values() for c, _ in ways} >= {"contraction", "window", "rows"}
