"""`jangin tune`: the report, the stored findings, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Cli

from jangin.runtime.profile import Launches
from jangin.targets.processor import Processor
from jangin.tune import tuner


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Races have one round, and every kernel promises a gain.

    Under load, a kernel of a microsecond may seem as quick as an empty call, and wouldn't be tried."""
    monkeypatch.setattr(Launches, "call_seconds", lambda _: 0.0)
    monkeypatch.setattr(Processor, "least_seconds", lambda *_: 0.0)
    for name in ("SCREEN_SECONDS", "RACE_SECONDS", "FINAL_SECONDS"):
        monkeypatch.setattr(tuner, name, 0.0)
    monkeypatch.setattr(tuner, "HOPELESS", 1.3)


def test_it_reports_and_keeps(cli: Cli, model: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = cli("tune", model, "--shape", "batch=1", "--budget", "5m", "--threads", 1, "--json", figures)
    assert done.status == 0
    for text in ("of bound", "tried", "pruned", "Conv+Relu conv1", "a run on 1 thread", "kept in"):
        assert text in done.out
    data = json.loads(figures.read_text())
    assert data["threads"] == 1
    assert len(data["kernels"]) >= 3
    attempts = [a for k in data["kernels"] for a in k["attempts"]]
    assert len(attempts) == sum(sum(k["tried"].values()) for k in data["kernels"])
    assert all(a["candidate"] and a["estimated"] > 0 and a["measured"] > 0 for a in attempts)
    assert "the estimate's first choice is within 10% of the best for" in done.out
    assert (tmp_path / "cache" / "tuned.sqlite").is_file()
    again = cli("tune", model, "--shape", "batch=1", "--budget", "0s", "--threads", 1)
    tried = sum(sum(k["tried"].values()) for k in data["kernels"])
    assert tried
    assert "0 candidates tried" in again.out


def test_what_pruning_loses(cli: Cli, model: Path, tmp_path: Path) -> None:
    """Candidates that estimates leave out are measured too, and compared with the others."""
    figures = tmp_path / "figures.json"
    given = "--shape", "batch=1", "--budget", "5m", "--threads", 1, "--pruned", "--json", figures
    done = cli("tune", model, *given)
    assert done.status == 0, done.err
    kernels = json.loads(figures.read_text())["kernels"]
    far = [k for k in kernels if any(a["far"] for a in k["attempts"])]
    assert far and all(k["lost"] >= 1 for k in far)
    assert all(k["pruned"] + 1 <= k["known"] for k in far)
    lost = 100 * max(k["lost"] - 1 for k in far)
    assert f"on {len(far)} kernels, at most {lost:.1f}%" in " ".join(done.out.split())
    refused = cli("tune", model, "--pruned", "--pareto")
    assert refused.status == 1 and "--pruned measures on one device" in refused.err


def test_without_a_cache_nothing_is_kept(cli: Cli, model: Path, tmp_path: Path) -> None:
    done = cli("--no-cache", "tune", model, "--shape", "batch=1", "--budget", "0s")
    assert done.status == 0
    assert "nothing is kept" in done.out
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["small.onnx", "--budget", "soon"], "write 60s or 2m"),
        (["small.onnx", "--budget", "-1s"], "write 60s or 2m"),
        (["absent.onnx"], "absent.onnx"),
        (["small.jgn"], "compiled already"),
    ],
)
def test_errors_say_what_to_do(cli: Cli, model: Path, arguments: list[str], message: str) -> None:
    (model.parent / "small.jgn").write_bytes(b"anything")
    done = cli("tune", model.parent / arguments[0], *arguments[1:])
    assert done.status == 1
    assert message in done.err
    assert "Traceback" not in done.err


def test_a_library_that_is_absent_is_said(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jangin.libraries.find", lambda name: None)
    done = cli("--libraries", "onednn", "tune", model, "--shape", "batch=1", "--budget", "1s")
    assert done.status == 1
    assert "oneDNN is not installed here" in done.err
