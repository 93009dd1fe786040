"""Some mutants of each kind. `python -m tests.fuzz` runs as many as there is time for."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import run
from .run import KINDS, OTHERS, Tally, batch, prepare


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fuzz")
    prepare(made, whole=False)
    return made


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_goes_wrong(kind: str, folder: Path) -> None:
    tally, count = Tally(), 10 if kind in OTHERS else 30
    batch(kind, "quick", 0, count, folder, tally)
    assert not tally.wrong, "\n".join(tally.wrong)
    assert tally.count == count
    assert tally.ends["refused"] > 0
    assert 10_000 < tally.peak < 4 << 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fields", *OTHERS])
def test_hundreds_of_each_format(kind: str, folder: Path) -> None:
    """Hundreds of mutants of each format. ONNX's are of the kind `fields`. Each may take 4 GiB and a minute
    (see `run.SECONDS`)."""
    tally = Tally()
    batch(kind, "many", 0, 300, folder, tally)
    assert not tally.wrong, "\n".join(tally.wrong)
    assert tally.count == 300
    assert tally.peak < 4 << 20


@pytest.mark.sampled(2)
def test_what_goes_wrong_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tally has a mutant that isn't refused, one that ends the process, and one that hangs."""
    for name in ("models", "files"):
        (tmp_path / name).mkdir()
    tally = Tally()
    # the folders are empty, so that each mutant ends with an IndexError
    batch("rewrite", "none", 0, 2, tmp_path, tally)
    assert tally.ends == {"WRONG": 2}
    assert "rewrite seed none number 1: IndexError" in tally.wrong[1]
    batch("nothing", "none", 0, 1, tmp_path, tally)
    assert "the process ended with 1" in tally.wrong[2]
    monkeypatch.setattr(run, "SECONDS", 0.01)
    batch("rewrite", "none", 0, 1, tmp_path, tally)
    assert "nothing for 0 s" in tally.wrong[3]
