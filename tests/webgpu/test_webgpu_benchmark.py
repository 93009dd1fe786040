"""The benchmark of WebGPU beside other devices goes on where it was stopped, whatever stops it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from broken_jobs import BROKEN, limit
from on_adapter import NONE, usable

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("catalogue", "cuda_bars", "gpu_networks", "sections", "webgpu"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("webgpu")


def row(milliseconds: float, on: str) -> dict[str, Any]:
    return {
        "on": on, "time": milliseconds, "device": milliseconds / 2, "processor": 1.0, "memory": 2**20,
        "loaded": 0.1, "error": 1e-7,
    }  # fmt: skip


def test_shares_of_cuda(benchmark: Any, tmp_path: Path) -> None:
    """Each network's share has the bar beside it, the missed ones first. The table is drawn."""
    done = {
        "resnet50/webgpu": row(8.0, "V"), "resnet50/cuda:sm_80": row(4.0, "C"),
        "squeezenet/webgpu": row(4.0, "V"), "squeezenet/cuda:sm_80": row(3.0, "C"),
        "resnet50/opencl": {"absent": "no OpenCL"}, "squeezenet/opencl": {"problem": "it broke"},
    }  # fmt: skip
    lines = benchmark.reading(done)
    assert [line.split()[0] for line in lines] == ["MISSED"] * 2 + ["met"] * 2 + ["none", "FAILED"]
    assert "of CUDA 0.5, at least 0.6 asked" in lines[0] and "of CUDA 0.75" in lines[2]
    assert benchmark.reading({}) == ["none  WebGPU 0.6 of CUDA without tensor cores: not measured"]
    saved = benchmark.section(done).save("webgpu", tmp_path)
    table = benchmark.Section.load(saved).parts[1]
    assert table.columns[-1] == "of CUDA: kernels" and table.rows[0][-2:] == ["0.50", "0.50"]
    assert table.rows[0][table.columns.index("opencl: time")] == "no OpenCL"
    assert table.rows[1][table.columns.index("opencl: time")] == "it broke"


@pytest.mark.parametrize("text", BROKEN)
def test_what_breaks_in_one_step_stops_no_other(
    text: str, benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash, an error, garbage and a hang of a grandchild are each kept as the row's problem. The next call
    tries such a row again, and no other."""
    args = benchmark.arguments([
        "--on", "ncnn", "webgpu", "--networks", "resnet50", "--folder", str(tmp_path),
        "--seconds", str(limit(text)),
    ])  # fmt: skip
    for name in ("resnet50.wanted.npz", "resnet50.webgpu.jgn"):
        (tmp_path / name).touch()
    asked: list[str] = []

    def command(step: str, name: str, on: str, _: Any) -> list[str]:
        asked.append(f"{name}/{on} {step}")
        good = json.dumps(row(1.0, on)) if on == "webgpu" or len(asked) > 2 else None
        return [sys.executable, "-c", f"print({good!r})" if good else text]

    monkeypatch.setattr(benchmark, "command_of", command)
    done, kept = dict[str, Any](), tmp_path / "done.json"
    benchmark.go_on(args, done, kept)
    assert BROKEN[text] in done["resnet50/ncnn"]["problem"], done
    assert done["resnet50/webgpu"]["time"] == 1.0 and json.loads(kept.read_text()) == done
    benchmark.go_on(args, done, kept)
    assert "time" in done["resnet50/ncnn"] and json.loads(kept.read_text()) == done
    assert asked == ["resnet50/ncnn measure", "resnet50/webgpu measure", "resnet50/ncnn measure"]
    benchmark.go_on(args, done, kept)
    assert len(asked) == 3, "nothing is done twice"


def measured(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "webgpu.py"), "--small", "--folder", str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JANGIN_CACHE_DIR": str(folder / "cache")}
    command += ["--networks", "encoder", *more]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)


@pytest.mark.slow  # processes import the compiler
@pytest.mark.skipif(not usable(), reason=NONE)
def test_a_network_on_the_adapter(tmp_path: Path) -> None:
    """A device that isn't here is said. Steps are done one by one, and then none is left."""
    on = ("--on", "webgpu", "cuda:99")
    never = measured(tmp_path, *on, "--minutes", "0")
    assert never.returncode == 0 and "the 0 minutes are over" in never.stdout, never.stderr
    lines = []
    for _ in range(5):
        one = measured(tmp_path, *on, "--one")
        assert one.returncode == 0, one.stderr
        lines.append(one.stdout.splitlines()[0])
    assert lines.pop().startswith("none  WebGPU 0.6 of CUDA")
    assert [line.split(" {")[0] for line in lines] == [
        "encoder prepare", "encoder/webgpu build", "encoder/webgpu measure", "encoder/cuda:99 build",
    ]  # fmt: skip
    done = json.loads((tmp_path / "done.json").read_text())
    assert done["encoder/webgpu"]["error"] < 3e-6 and done["encoder/webgpu"]["device"] > 0
    assert "absent" in done["encoder/cuda:99"]
