"""The command `jangin study`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli

from jangin.bench.engines import MULTIPLIERS, STUDIED
from jangin.commands.common import parse_counts
from jangin.commands.study import convolutions, parse_engines
from jangin.options import Options
from jangin.runtime.threads import default_threads
from jangin.study import run as running
from jangin.study.products import Product, parse_sizes
from jangin.study.rows import RowFile

QUICK = ("--rounds", "1", "--seconds", "0.005", "--engines", "onnxruntime")


def test_a_study_of_a_small_model(cli: Cli, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="Plotly isn't installed (the extra `study`)")
    report = tmp_path / "report"
    done = cli("--plain", "study", model, *QUICK, "--batch", "batch=1,2", "-o", report)
    assert done.status == 0, done.err
    assert "small, float32, batch 2, 1 thread\t" in done.out and f"written to {report}" in done.out
    assert {"index.html", "report.md", "rows.csv", "rows.jsonl"} <= {p.name for p in report.iterdir()}
    done = cli("study", model, *QUICK, "-o", report)
    assert done.status == 1 and "other settings: batch_symbol was 'batch' and is ''" in done.err


def test_ctrl_c_leaves_a_report(
    cli: Cli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("plotly", reason="Plotly isn't installed (the extra `study`)")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "measure_group", interrupted)
    monkeypatch.setattr(running.Models, "reference", lambda *_: ({}, ""))
    done = cli("study", model, *QUICK, "-o", tmp_path / "report")
    assert done.status == 130 and "interrupted: 0 rows are kept; the same command goes on" in done.err
    assert (tmp_path / "report" / "index.html").exists()


def test_ctrl_c_before_anything_was_measured(
    cli: Cli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "_prepare", interrupted)
    done = cli("study", model, *QUICK, "-o", tmp_path / "report")
    assert done.status == 130 and done.err.strip() == "interrupted before anything was measured"


def test_an_engine_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_engine.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [p for p in sys.path if p])
    assert parse_engines("my_own_engine:make") == ("my_own_engine:make",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--engines", "onxruntime"), "'onxruntime' is unknown: there are all, jangin"),
        (("--engines", "nowhere:engine"), "module nowhere is neither installed nor in this folder"),
        (("--engines", "nowhere.inside:engine"), "module nowhere.inside is neither installed"),
        (("--engines", "small:"), "'small:' is unknown"),
        (("--threads", "two"), "--threads 'two' is no list of counts"),
        (("--batch", "n=0"), "--batch '0' is no list of counts"),
        (("--precision", "float32,int3"), "--precision 'int3' is unknown: there are float32"),
        (("--baseline", "caffe"), "--baseline 'caffe' is none of the engines"),
        (("--data", "/nowhere"), "no such file"),
        (("--devices", "cpu,gpu"), "unknown target 'gpu'"),
        (("--engines", "tuned"), "the engine tuned needs the time to tune in: give --tune 60s"),
        (("--tune", "soon"), "write 60s or 2m"),
        (("--products", "64-128"), "--products '64-128' is not understood: write 64..4096"),
    ],
)
def test_wrong_calls_are_told_before_anything_runs(
    cli: Cli, model: Path, tmp_path: Path, given: tuple[str, ...], message: str
) -> None:
    done = cli("study", model, "-o", tmp_path / "report", *given)
    assert done.status == 1 and message in done.err and not (tmp_path / "report").exists()


def test_counts_of_threads_without_repetition() -> None:
    assert parse_counts("2,all,2") == [*dict.fromkeys((2, default_threads()))]
    with pytest.raises(ValueError, match="--batch 'all' is no list of counts"):
        parse_counts("all", "--batch")


def test_nothing_to_study(cli: Cli, tmp_path: Path) -> None:
    done = cli("study", "-o", tmp_path / "report")
    assert done.status == 1 and "give models, or --products" in done.err


def test_sizes_of_products() -> None:
    def rows(text: str) -> tuple[int, ...]:
        found, _ = parse_sizes(text)
        assert all(p.square for p in found)
        return tuple(p.rows for p in found)

    assert rows("64..512") == (64, 128, 256, 512) and rows("96,7,96") == (96, 7)
    assert rows("64..65,96") == (64, 96)
    assert parse_sizes("64x147x12544,convolutions") == ((Product(64, 147, 12544),), True)
    for text in ("64..32", "0..8", "0", "a", "64,", "8x0x8", "8x8"):
        with pytest.raises(ValueError, match="not understood"):
            parse_sizes(text)


def test_products_of_a_models_convolutions(model: Path) -> None:
    """16 filters of 3 x 3 x 3 on a padded picture of 8 x 8."""
    (product,) = convolutions([model, model.with_suffix(".none")], Options())
    assert product == Product(16, 27, 64) and product.name == "product-16x27x64"
    assert product.work == 2 * 16 * 27 * 64


@pytest.mark.slow
def test_a_sweep_of_products(cli: Cli, tmp_path: Path) -> None:
    """Each library multiplies right, or tells why it doesn't."""
    pytest.importorskip("plotly", reason="Plotly isn't installed (the extra `study`)")
    report = tmp_path / "report"
    done = cli("study", "--products", "24,40,3x5x7", *QUICK[:4], "--engines", "jangin", "-o", report)
    assert done.status == 0, done.err
    rows = RowFile(report / "rows.jsonl").rows
    assert {(r.model, r.engine) for r in rows} == {
        (f"product-{n}", e) for n in ("24", "40", "3x5x7") for e in ("jangin", *MULTIPLIERS)
    }
    for row in rows:
        told = "is not installed" in row.problem or (row.error is not None and row.error < 1e-5)
        assert told and bool(row.median) != bool(row.problem), row
    assert "GFLOP/s of matrix products" in (report / "report.md").read_text()


def test_two_models_of_one_name_are_refused(cli: Cli, model: Path, tmp_path: Path) -> None:
    done = cli("study", model, model, *QUICK, "-o", tmp_path / "report")
    assert done.status == 1 and "two models are called 'small'" in done.err


def test_all_engines_are_those_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jangin.commands.engines.installed", lambda e: "1" if e == "litert" else None)
    assert parse_engines("all") == ("jangin", "aot", "litert")
    assert parse_engines("mnn,jangin,mnn") == ("mnn", "jangin") and {"mnn", "jangin"} <= {*STUDIED}
    assert parse_engines("mnn,all,jangin") == ("mnn", "jangin", "aot", "litert")
