"""A fixture that calls the command line in this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import onnx
import pytest
from command_line import Cli, Done, small_model

from jangin import cli as command_line
from jangin.environment import TARGET


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Run `jangin` with arguments, for the target of all tests, with a cache in the test's own folder."""
    for name in [n for n in os.environ if n.startswith("JANGIN_") and n != TARGET]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("JANGIN_CACHE_DIR", str(tmp_path / "cache"))

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["jangin", *map(str, arguments)])
        status = 0
        try:
            command_line.main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        return Done(status, *capsys.readouterr())

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "small.onnx"
    onnx.save(small_model(), path)
    return path
