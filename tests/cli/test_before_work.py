"""An error in a call is reported before anything runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli

from jangin.commands import bench


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every measurement fail."""

    def measured(*_: Any, **__: Any) -> None:
        raise AssertionError("something ran")

    for name in ("_compare", "measure", "account", "import_model"):
        monkeypatch.setattr(bench, name, measured)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("flag", ["--threads=1", "--layers"])
def test_bench_says_before_anything_runs(cli: Cli, model: Path, tmp_path: Path, flag: str) -> None:
    missing = tmp_path / "missing.onnx"
    done = cli("bench", model, missing, flag)
    assert (done.status, done.out) == (1, "") and f"{missing}: No such file" in done.err
    done = cli("bench", model, "--json", model, flag)
    assert done.status == 1 and "is the model itself" in done.err
    done = cli("bench", model, "--threads", "one", *([flag] if flag == "--layers" else []))
    assert done.status == 1 and "--threads 'one' is no list of counts" in done.err


@pytest.mark.sampled(3)
def test_bench_says_which_package_a_peer_lacks(
    cli: Cli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ncnn is installed, but not its converter."""
    if importlib.util.find_spec("pnnx") is not None:
        pytest.skip("pnnx is installed, so that ncnn lacks nothing")
    (tmp_path / "ncnn.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(bench.__file__).parents[2]}")
    quick = ("--shape", "batch=1", "--threads", "1", "--rounds", "1", "--seconds", "0.001")
    done = cli("--plain", "bench", model, "--against", "ncnn", *quick)
    assert done.status == 0, done.err
    assert "absent: pnnx, ncnn's converter, is not installed: pip install pnnx" in done.out


def test_missing_data_is_said_before_the_model_is_read(
    cli: Cli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: Any) -> None:
        raise AssertionError("a model was read")

    for module in ("job", "compare"):
        monkeypatch.setattr(f"jangin.quantization.{module}.imported", read)
    for command in (("quantize", model, "-o", tmp_path / "smaller"), ("compare", model, model)):
        done = cli(*command, "--data", tmp_path / "nowhere")
        assert done.status == 1 and f"{tmp_path / 'nowhere'}: there is no such file or folder" in done.err


@pytest.mark.parametrize("output", ["new model.onnx", "new.tflite", "new.nnef", "new.nnef.tgz"])
@pytest.mark.parametrize("more", [(), ("--emit", "c")])
def test_compile_points_to_convert(
    cli: Cli, model: Path, tmp_path: Path, output: str, more: tuple[str, ...]
) -> None:
    path = tmp_path / output
    done = cli("compile", model, "-o", path, *more)
    name = f"'{path}'" if " " in output else path
    assert done.status == 1 and f"jangin convert {model} {name}" in done.err and not path.exists()
