"""An error in a call is reported before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import Cli

from jangin.bench import engines
from jangin.commands import bench
from jangin.commands.engines import parse_peers
from jangin.runtime.device import LoadError
from jangin.runtime.devices import webgpu_adapters


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
    if flag != "--layers":
        done = cli("bench", missing, "--against", "tvm,nothing", flag)
        assert done.status == 1 and f"{missing}: No such file" in done.err, "the model comes before peers"
    done = cli("bench", model, "--json", model, flag)
    assert done.status == 1 and "is the model itself" in done.err
    done = cli("bench", model, "--threads", "one", *([flag] if flag == "--layers" else []))
    assert done.status == 1 and "--threads 'one' is no list of counts" in done.err


@pytest.mark.usefixtures("idle")
def test_bench_says_that_the_target_is_not_here(
    cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No peer is measured beside a target that this machine lacks."""
    done = cli("bench", model, "--target", "riscv64-v")
    assert (done.status, done.out) == (1, "") and "this machine can't run code for riscv64-v" in done.err

    def none() -> None:
        raise LoadError("there is no adapter")

    monkeypatch.setattr(webgpu_adapters, "adapters", none)
    done = cli("bench", model, "--target", "webgpu")
    assert (done.status, done.out) == (1, "")
    assert "this machine can't run code for webgpu: there is no adapter; jangin.build" in done.err


@pytest.mark.usefixtures("idle")
def test_bench_says_which_packages_peers_lack(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ncnn is installed, but not its converter. TVM isn't there at all."""
    there = {"ncnn": "1", "numpy": "2", "torch": "3"}
    monkeypatch.setattr(engines, "_version", there.get)
    done = cli("bench", model, "--against", "tvm,numpy.linalg:norm,ncnn,pytorch")
    assert (done.status, done.out) == (1, "")
    assert "tvm needs apache-tvm: pip install apache-tvm; ncnn needs pnnx: pip install pnnx" in done.err
    assert parse_peers("all") == ("inductor", "pytorch", "im2col")
    with pytest.raises(ValueError, match=r"'torch' is unknown: there are all, .*litert, inductor, pytorch"):
        parse_peers("pytorch,torch")


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
