"""The benchmarks' page and picture, from figures made up here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
MEDIANS = {"jangin": 2.0, "onnxruntime": 3.0, "openvino": 2.5, "ncnn": 0.0}


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("catalogue", "figures", "operators", "page", "plot"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def comparison(threads: int, scale: float) -> dict[str, Any]:
    """As `run.py` keeps it: Jangin beside two peers that run and one that isn't installed."""
    from jangin.bench import Comparison, Result, as_json

    results = [
        Result(e, "1.0", median=m * scale, low=m * scale, high=m * scale, error=1e-6)
        if m
        else Result(e, problem="no module", absent=True)
        for e, m in MEDIANS.items()
    ]
    c = Comparison("x", threads, {}, 10**9, 1e12, 1e11, tuple(results))
    return {**as_json([c])["comparisons"][0], "date": "2026-01-01", "revision": "abc"}


@pytest.fixture
def figures() -> Any:
    from figures import Figures

    names = ("resnet18", "vgg16", "resnet50_batch8")
    found = {f"{name}/{n}": comparison(n, 1 / n) for name in names for n in (1, 2)}
    machine = {"processor": "P", "target": "T", "system": "S", "python": "3"}
    states = {state: {"median": 2.0, "low": 1.0, "high": 3.0} for state in ("quiet/1", "quiet/2", "loaded/2")}
    beside = {"engines": {"jangin": states}, "date": "2026-01-02", "revision": "abd"}
    return Figures(machine, {"untuned": found}, {"resnet50": beside})


def test_figures_survive_their_file_and_give_ratios(figures: Any, tmp_path: Path) -> None:
    from figures import BEST, Figures, fastest_peer, geometric_mean, ratio, ratios

    figures.save(tmp_path / "f.json")
    assert Figures.load(tmp_path / "f.json").comparisons.keys() == figures.comparisons.keys()
    c = figures.comparisons["untuned"]["vgg16/1"]
    assert (ratio(c, "onnxruntime"), ratio(c, "ncnn"), fastest_peer(c)) == (1.5, None, "openvino")
    assert ratios(figures, "untuned", 1, BEST) == {"resnet18": 1.25, "vgg16": 1.25}
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean([]) is None


def test_page_has_every_table_in_full(figures: Any) -> None:
    from page import page, short

    text = page(figures, {"untuned": "untuned.svg"})
    assert "| ONNX Runtime | 1.50× | 1.50× | **1.50×** | 4 of 4 |" in text
    assert "**1.25×** OpenVINO" in text and "ncnn" not in text
    assert "| ResNet-50 | Jangin | 2.00 (1.00–3.00) |" in text
    assert "2026-01-01 to 2026-01-02, source abc, abd" in text
    for block in (*text.split("\n\n"), short(figures)):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) <= 1, block


def test_page_of_neighbours_alone(figures: Any) -> None:
    from page import page

    figures.comparisons.clear()
    assert "| ResNet-50 | Jangin | 2.00 (1.00–3.00) |" in page(figures, {})


def test_picture_is_the_same_each_time(figures: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws the picture")
    from plot import draw

    for name in ("a.svg", "b.svg"):
        draw(figures, "untuned", tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()


def test_operators_are_drawn_by_their_seed() -> None:
    import operators

    drawn = [str(operators.draw(1, n)) for n in range(60)]
    assert drawn == [str(operators.draw(1, n)) for n in range(60)]
    assert len({d.split()[0] for d in drawn}) > 8 and len(set(drawn)) > 50
    for n in range(0, 60, 6):
        model, feeds = operators.model_of(operators.draw(1, n))
        assert model and all(x.size for x in feeds.values())
