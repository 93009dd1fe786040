"""A small model, and a study of it in engines of the tests' own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from jangin.bench.engines import STUDIED
from jangin.options import Options
from jangin.study.run import run
from jangin.study.settings import Settings

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("cli", "energy")]
QUICK: dict[str, Any] = {"rounds": 2, "seconds": 0.01, "limit": 60.0}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the small model, and let workers find the engines of the tests."""
    paths = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("ENERGY_FOLDER", str(tmp_path))
    monkeypatch.syspath_prepend(paths[0])
    from command_line import small_model  # by the path above

    path = tmp_path / "small.onnx"
    onnx.save(small_model(), path)
    return path


@pytest.fixture
def study(model: Path, tmp_path: Path) -> Callable[..., Any]:
    """Run a study of the small model in engines of the tests, by name."""

    def ran(*engines: str, tell: Any = lambda *_: None, root: str = "", **how: Any) -> Any:
        names = tuple(e if e in STUDIED else f"odd_engines:{e}" for e in engines)
        settings = Settings((model,), names, **{**QUICK, **how})
        rows = run(settings, tmp_path / "report", Options(), tell, root or str(tmp_path / "none"))
        return {r.engine.rpartition(":")[2]: r for r in rows}

    return ran
