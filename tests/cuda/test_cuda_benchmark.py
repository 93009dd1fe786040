"""The benchmark for a GPU runs through on the mock, and continues where it was stopped."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import mocked
import pytest

ROOT = Path(__file__).parent.parent.parent
pytestmark = mocked.needed


def measured(folder: Path, only: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "cuda.py"), "--small", "--only", only, *more]
    env = {**os.environ, **mocked.settings(), "PYTHONPATH": str(ROOT), "JANGIN_CACHE_DIR": str(folder)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)


def test_the_most_valuable_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors come before times, and ResNet-50 and BERT before other networks. Figures become tables of a
    page."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("measured_cuda", ROOT / "benchmarks" / "cuda.py")
    assert spec is not None and spec.loader is not None
    cuda = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cuda)
    for small in (True, False):
        names = [name for name, _ in cuda.jobs(small)]
        assert len(names) == len({*names})
        parts = (
            "errors/product",
            "errors/windows",
            "errors/resnet50",
            "errors/gpt2",
            "sanitizer",
            "products",
            "networks/bert",
        )
        order = [next(n for n, name in enumerate(names) if name.startswith(part)) for part in parts]
        assert order == sorted(order)
    done = {"a/1": {"seconds": 0.5, "on": "x"}, "a/2": {"problem": "none"}, "b": {"error": 1e-7, "on": "x"}}
    section = cuda.section(done)
    assert section.parts[1].rows == [["a/1", "0.5", ""], ["a/2", "", "none"]]
    assert section.save("cuda", tmp_path).exists()
    done = {
        "errors/windows/float32": {"error": 1e-7}, "errors/bert/bfloat16": {"error": 0.5},
        "products/4096/float32": {"of cuBLAS": 0.8}, "networks/resnet50/64/float16": {"of ONNX Runtime": 1.0},
        "networks/bert/1/float32": {"absent": "ONNX Runtime with CUDA"}, "copy": {"problem": "no device"},
        "sanitizer/memcheck": {"exit": 9, "said": "out of bounds"},
    }  # fmt: skip
    words = [line.split()[0] for line in cuda.reading(done)]
    assert words == ["MISSED", "MISSED", "FAILED", "FAILED", "met", "met", "none"]


@pytest.mark.slow  # four processes import the compiler
def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    first = measured(tmp_path, "errors/product/float32")
    assert first.returncode == 0, first.stderr
    kept = json.loads((tmp_path / "cuda.json").read_text())
    row = kept["errors/product/float32"]
    assert row["error"] < 1e-6 and row["on"] == "cuda:0 (Mock GPU 0)"
    again = measured(tmp_path, "errors/product/float32")
    assert again.returncode == 0 and len(again.stdout.splitlines()) == 1, "nothing is done twice"
    never = measured(tmp_path, "errors/product", "--minutes", "0")
    assert never.returncode == 0 and never.stdout.count("the 0 minutes are over") == 3
    assert "met  errors/product/float32" in never.stdout
    late = measured(tmp_path, "errors/product/bfloat16", "--seconds", "0.01")
    assert late.returncode == 1 and "1 of 2 jobs failed: errors/product/bfloat16" in late.stderr
    kept = json.loads((tmp_path / "cuda.json").read_text())
    assert kept["errors/product/bfloat16"] == {"problem": "it took longer than 0.01 seconds"}
    assert kept["errors/product/float32"] == row


@pytest.mark.slow  # the C++ compiler takes minutes
@pytest.mark.parametrize(
    "only", ["errors/squeezenet/float32", "errors/windows", "errors/bert", "errors/gpt2/float32", "copy",
             "products", "launches", "networks/squeezenet", "networks/bert/1/bfloat16", "sanitizer"]
)  # fmt: skip
def test_every_kind_of_job(tmp_path: Path, only: str) -> None:
    done = measured(tmp_path, only)
    assert done.returncode == 0, done.stderr + done.stdout
    for name, row in json.loads((tmp_path / "cuda.json").read_text()).items():
        limit = 3e-2 if "bfloat16" in name else 3e-3 if "float16" in name or "tf32" in name else 3e-6
        assert row.get("error", 0.0) < limit, (name, row)
