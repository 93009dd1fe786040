"""`jangin tune --objective` and `--pareto`: the table of costs, what is kept, and errors."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import Cli

from jangin.quantization.quantize import DropMissed
from jangin.tune import joules

WATTS = """
import os, sys, time
from pathlib import Path
pid, watts, tick = sys.argv[1], [float(w) for w in sys.argv[2:]], os.sysconf("SC_CLK_TCK")
def busy():
    fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / tick
before, last = busy(), time.time()
while True:
    time.sleep(0.025)
    now, spent = time.time(), busy()
    cores = (spent - before) / (now - last)
    print(now, 10 + watts[0] * min(cores, 1) + watts[1] * max(cores - 1, 0), flush=True)
    before, last = spent, now
"""
"""A meter of 10 W at rest. A process adds watts for its first busy core, and others for the second."""


@pytest.fixture
def meter(tmp_path: Path) -> str:
    """The command of a meter of this process whose second core costs three times the first one."""

    script = tmp_path / "watts.py"
    script.write_text(WATTS)
    return f"{sys.executable} {script} {os.getpid()} 20 60"


@pytest.mark.slow
def test_the_least_joules_are_chosen_and_used(
    cli: Cli, model: Path, tmp_path: Path, meter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second core saves at most half of the time. One thread takes fewer joules on any machine."""
    monkeypatch.setattr(joules, "ROUNDS", 2)
    monkeypatch.setattr("jangin.compiler.objective.default_threads", lambda: 2)
    figures = tmp_path / "figures.json"
    asked = ("--shape", "batch=64", "--budget", "0s", "--meter", meter, "--json", figures)
    done = cli("tune", model, "--objective", "energy", *asked)
    assert done.status == 0, done.err
    for text in (
        "float32, cpu with 1 thread",
        "cpu with 2 threads",
        "Costs of a run",
        "mJ·s",
        "above rest, by meter",
        "frontier",
    ):
        assert text in done.out
    assert f"compiling {model} with the objective energy uses cpu with 1 thread" in done.out
    points = json.loads(figures.read_text())["points"]
    assert [p["threads"] for p in points] == [1, 2] and points[0]["joules"] < points[1]["joules"]
    run = cli("run", model, "--shape", "batch=64", "--objective", "energy")
    assert run.status == 0 and "1 threads" in run.out


def test_a_table_of_costs_without_joules(
    cli: Cli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a source, the table has times and memory, and says why there are no joules."""
    monkeypatch.setattr("jangin.compiler.objective.Wanted", lambda _: joules.Wanted((), str(tmp_path)))
    monkeypatch.setattr("jangin.compiler.objective.FINAL_SECONDS", 0.0)
    monkeypatch.setattr("jangin.tune.tuner.FINAL_SECONDS", 0.0)
    done = cli("tune", model, "--shape", "batch=1", "--budget", "0s", "--pareto", "--threads", 1)
    assert done.status == 0, done.err
    if "above rest" not in done.out:  # no GPU whose driver tells its energy
        assert "Joules weren't measured" in done.out and "RAPL" in done.out


def test_precisions_to_choose_from(
    cli: Cli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each precision is a file with the quality that it loses. One that loses too much is left out.

    Quantizing takes long and has tests of its own, so that a copy of the model stands for the result."""
    monkeypatch.setattr("jangin.compiler.objective.Wanted", lambda _: joules.Wanted((), str(tmp_path)))
    for name in ("jangin.compiler.objective.FINAL_SECONDS", "jangin.tune.tuner.FINAL_SECONDS"):
        monkeypatch.setattr(name, 0.0)

    def quantized(given: Path, data: Path, kind: str, *, drop: float, **_: object) -> SimpleNamespace:
        assert (given, data, drop) == (model, tmp_path / "data", 0.05)
        if kind == "float16":
            raise DropMissed("the drop is 7%", None)  # type: ignore[arg-type]
        return SimpleNamespace(drop=0.03, save=lambda path: shutil.copy(given, path))

    monkeypatch.setattr("jangin.commands.choices.quantize", quantized)
    folder, figures = tmp_path / "made", tmp_path / "figures.json"
    asked = ("--shape", "batch=1", "--budget", "0s", "--threads", 1, "--data", tmp_path / "data")
    more = ("--precision", "float32,int8,float16", "--drop", "5%", "-o", folder, "--json", figures)
    done = cli("tune", model, *asked, *more)
    assert done.status == 0, done.err
    points = json.loads(figures.read_text())["points"]
    assert [(p["precision"], p["drop"]) for p in points] == [("float32", 0.0), ("int8", 0.03)]
    assert (folder / "small-int8.onnx").is_file() and "3.00%" in done.out
    assert "float16 is left out: the drop is 7%." in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--objective", "power"], "objective='power' is unknown; known: latency, energy, edp"),
        (["--devices", "cpu", "--target", "cpu"], "--target for one device, or --devices for some"),
        (["--precision", "float32,int3"], "--precision 'int3' is unknown: there are float32"),
        (["--precision", "int8"], "give --data to do it on, and -o FOLDER for the models"),
        (["--devices", "cpv"], "unknown target 'cpv'"),
        (["--objective", "energy", "--meter", "no-such-meter"], "'no-such-meter' can't be started"),
    ],
)
def test_errors_say_what_to_do(cli: Cli, model: Path, arguments: list[str], message: str) -> None:
    done = cli("tune", model, "--shape", "batch=1", "--budget", "1s", *arguments)
    assert done.status == 1 and message in done.err and "Traceback" not in done.err


def test_a_compiled_file_has_no_objective(cli: Cli, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.jgn"
    path.write_bytes(b"anything")
    done = cli("run", path, "--objective", "energy")
    assert done.status == 1 and "compiled already" in done.err
