"""`jangin bench --deadline`: percentiles and misses of runs, alone and under load."""

from __future__ import annotations

import json
import time
from pathlib import Path

import onnx
import pytest
from command_line import Cli, small_model

from jangin.bench.deadline import Latencies, latencies, loaded, parse_deadline


def test_percentiles_and_misses() -> None:
    """A percentile is the least time that so many runs didn't exceed."""
    found = Latencies("m", 1, 0, 0.99, tuple((n + 1) / 1000 for n in range(1000)))
    assert [found.percentile(p) for p in (0.5, 0.99, 0.999, 1.0)] == [0.5, 0.99, 0.999, 1.0]
    assert found.misses == 10
    assert found.as_json()["p99.9_ms"] == 999


def test_runs_begin_a_deadline_apart() -> None:
    """At least the given number of runs is timed, and a run's time is its own."""
    begun = time.perf_counter()
    found = latencies(lambda: time.sleep(0.002), 0.005, 0.0, least=20)
    assert len(found) == 20 and found == sorted(found) and found[0] >= 0.002
    assert time.perf_counter() - begun >= 20 * 0.005


@pytest.mark.parametrize("deadline", [60.0, 1e300])
def test_a_long_deadline_is_not_waited_for(deadline: float) -> None:
    """Runs with a deadline of minutes follow one another quickly, however long the deadline is."""
    begun = time.perf_counter()
    assert len(latencies(lambda: None, deadline, 0.0, least=3)) == 3
    assert time.perf_counter() - begun < 30


NO_TIMES = ["", "5", "ms", "-1ms", "0ms", "5 hours", "1.2.3s", "²ms", "0.s", "1e3s", 400 * "9" + "s"]


@pytest.mark.parametrize("text", NO_TIMES)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no time: write for example 5ms"):
        parse_deadline(text)


def test_times_have_units() -> None:
    assert [parse_deadline(t) for t in ("800us", "5ms", "1.5 s")] == pytest.approx([8e-4, 5e-3, 1.5])


def test_the_load_ends() -> None:
    """No process is left when the context ends, by an error too."""
    started = []
    with pytest.raises(KeyError), loaded(2) as processes:
        started += processes
        assert len(started) == 2 and all(p.poll() is None for p in started)
        raise KeyError
    assert all(p.poll() is not None for p in started)


@pytest.mark.sampled(3)
def test_the_command(cli: Cli, tmp_path: Path) -> None:
    """Each model has a row alone and one under load. The figures are in the file too."""
    model, file = tmp_path / "small.onnx", tmp_path / "d.json"
    onnx.save(small_model(), model)
    options = ("--deadline", "1ms", "--json", file, "--rounds", "1", "--shape", "batch=1")
    done = cli("bench", model, *options)
    assert done.status == 0, done.out
    assert all(word in done.out for word in ("p99.9", "worst", "misses", "none", "processes"))
    alone, under_load = json.loads(file.read_text())
    assert alone["load"] == 0 < under_load["load"] and alone["runs"] >= 1000
    assert 0 < alone["p50_ms"] <= alone["p99_ms"] <= alone["p99.9_ms"] <= alone["worst_ms"]


@pytest.mark.parametrize("other", [["--layers"], ["--symbolic"], ["--tune", "1s"]])
def test_what_a_deadline_excludes_is_refused(other: list[str], cli: Cli, tmp_path: Path) -> None:
    """No option is passed over in silence."""
    onnx.save(small_model(), tmp_path / "small.onnx")
    done = cli("bench", tmp_path / "small.onnx", "--deadline", "1ms", *other)
    assert done.status == 2 and "takes none" in done.err
