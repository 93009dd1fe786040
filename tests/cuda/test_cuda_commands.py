"""`jangin devices` and `jangin inspect` with GPUs and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mocked
import onnx
import pytest
from test_cuda_compile import _able
from test_toy_backend import network
from typer.testing import CliRunner

from jangin.cli import app
from jangin.commands import devices
from jangin.runtime.devices import cuda_library


@mocked.needed
def test_devices(driver: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    devices.devices()
    said = capsys.readouterr().out
    assert "Mock GPU 0" in said and "cuda:0" in said and "4096 MiB" in said
    assert "cuda:sm_90a" in said and "NVRTC 12.0" in said


def test_without_a_driver(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def opened() -> None:
        raise OSError("no such file")

    monkeypatch.setattr(cuda_library, "_opened", opened)
    monkeypatch.setenv("COLUMNS", "300")
    mocked.forget()
    devices.devices()
    said = capsys.readouterr().out
    assert "CUDA: NVIDIA's driver isn't here (no such file): install" in said and "cuda:sm_62" in said


@pytest.mark.skipif(not _able("sm_80"), reason="NVIDIA's compiler isn't here: pip install 'jangin[cuda]'")
@pytest.mark.parametrize(
    ("form", "has"),
    [("cuda", "__launch_bounds__"), ("ptx", ".target sm_80"), ("usage", "0 bytes spill stores")],
)
def test_a_kernel_is_shown(form: str, has: str, tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "m.onnx")
    given = ["inspect", str(tmp_path / "m.onnx"), "--target", "cuda:sm_80"]
    done = CliRunner().invoke(app, [*given, "--kernel", "k_y_4", "--show", form], catch_exceptions=False)
    assert has in done.output
