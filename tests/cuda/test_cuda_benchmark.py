"""The benchmark for a GPU runs through on the mock, and continues where it was stopped."""

from __future__ import annotations

import argparse
import importlib.util
import json
import lzma
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import mocked
import pytest
from broken_jobs import BROKEN, HANGS, limit

ROOT = Path(__file__).parent.parent.parent
pytestmark = mocked.needed


def measured(folder: Path, only: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "cuda.py"), "--small", "--only", only, *more]
    env = {**os.environ, **mocked.settings(), "PYTHONPATH": str(ROOT), "JANGIN_CACHE_DIR": str(folder)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the benchmark as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("measured_cuda", ROOT / "benchmarks" / "cuda.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_most_valuable_comes_first(tmp_path: Path, cuda: Any) -> None:
    """Errors come before times, and ResNet-50 and BERT before other networks. GPT-2, the U-Net and training
    come before other types. Figures become tables of a page."""
    for small in (True, False):
        parts = [[*part] for part in cuda.parts(small)]
        names = [name for part in parts for name in part]
        assert len(names) == len({*names})
        assert all(name.startswith(("errors/", "sanitizer/")) for name in parts[0])
        later = {
            "networks/gpt2/1/bfloat16",
            "networks/unet/1/float32",
            "training/bert/32",
            "shapes/bert/float32",
        }
        assert later <= {*parts[2]}
        assert {"compilers/unet/1/bfloat16", "triton/attention/bfloat16", "engines"} <= {*parts[3]}
        others = ("mobilenetv2", "squeezenet", "gpt2", "float16")
        assert not [n for n in parts[1] if any(o in n.split("/") for o in others)]
        assert {"errors/bytes/int8", "errors/shared/bfloat16", "errors/bert/float32"} <= {*parts[0]}
        assert {"products/4096/bfloat16", "networks/resnet50/64/float32"} <= {*parts[1]} or small
    done = {"a/1": {"seconds": 0.5, "on": "x"}, "a/2": {"problem": "none"}, "b": {"error": 1e-7, "on": "x"}}
    section = cuda.section(done)
    assert section.parts[1].rows == [["a/1", "0.5", ""], ["a/2", "", "none"]]
    assert section.save("cuda", tmp_path).exists()


def test_every_bar_is_said(cuda: Any) -> None:
    """Missed figures come first. A bar without a figure says so."""
    done = {
        "errors/windows/float32": {"error": 1e-7}, "errors/bert/bfloat16": {"error": 0.5},
        "products/4096/float32": {"of cuBLAS": 0.8}, "networks/resnet50/64/float16": {"of the best": 1.0},
        "networks/bert/1/float32": {"absent": "PyTorch with CUDA"}, "copy": {"problem": "no device"},
        "sanitizer/memcheck": {"exit": 9, "said": "out of bounds"},
    }  # fmt: skip
    words = [line.split()[0] for line in cuda.reading(done)]
    assert words[:5] == ["MISSED"] * 3 + ["FAILED"] * 2 and {*words[5:]} == {"met", "none"}
    lines = cuda.reading({})
    assert len(lines) == 9 and all(line.startswith("none") and "not measured" in line for line in lines)


def test_no_device_is_asked_when_kernels_are_made(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that makes no kernels has nothing to do there."""
    monkeypatch.setattr(cuda, "device", None)
    given = argparse.Namespace(
        job="engines", small=True, device="cuda", architecture="sm_80", carried="kernels", prepare=True
    )
    assert "problem" not in cuda.done_here(given)


@pytest.mark.parametrize("text", BROKEN)
def test_what_breaks_in_one_job_stops_no_other(
    text: str, cuda: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash, an error, garbage and a hang of a grandchild are each stored as the job's problem."""
    good = [sys.executable, "-c", "print('{\"seconds\": 1}')"]
    bad = [sys.executable, "-c", text]
    monkeypatch.setattr(cuda, "command_of", lambda name, _: bad if name == "bad" else good)
    given = argparse.Namespace(
        seconds=limit(text), only="", again=False, json=tmp_path / "cuda.json", minutes=5.0, small=True,
        device="cuda",
    )  # fmt: skip
    done: dict[str, Any] = {}
    cuda.measure(["bad", "good"], done, given, time.monotonic() + 300)
    assert done["good"] == {"seconds": 1} == json.loads(given.json.read_text())["good"]
    assert BROKEN[text] in done["bad"]["problem"]
    if text == HANGS:  # the time that is left counts too
        assert cuda.apart("bad", given, 0.01)["problem"] == "it took longer than 0.01 seconds"


def test_a_part_leaves_what_it_cannot_end(cuda: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that a part's end cuts, and those that don't begin, are left for later and have no figure. A
    job's own limit is its problem."""
    good = [sys.executable, "-c", "print('{\"seconds\": 1}')"]
    long = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(cuda, "command_of", lambda name, _: good if name == "quick" else long)
    given = argparse.Namespace(seconds=30.0, only="", again=False, json=tmp_path / "cuda.json", small=True)
    done: dict[str, Any] = {}
    start = time.monotonic()
    left = cuda.measure(["quick", "long", "never"], done, given, start + 5.0)
    assert left == ["long", "never"] and [*done] == ["quick"] and time.monotonic() - start < 300
    given.seconds = 0.5
    assert cuda.measure(["long"], done, given, time.monotonic() + 60) == []
    assert done["long"] == {"problem": "it took longer than 0.5 seconds"}


def test_kernels_are_found_with_other_versions_of_packages(
    cuda: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine with a GPU names kernels as the one that made them, and may read the copied file."""
    import cuda_place

    from jangin.compiler import cache

    monkeypatch.setattr(cache, "installed", lambda package: "1.0")
    cuda_place.as_prepared(tmp_path, prepares=True)
    (tmp_path / "kernels").mkdir()
    file = tmp_path / "kernels" / "kernels.sqlite"
    file.write_bytes(b"")
    file.chmod(0o666)
    monkeypatch.setattr(cache, "installed", lambda package: "2.0")
    cuda_place.as_prepared(tmp_path, prepares=False)
    assert {cache.installed(name) for name in cuda_place.PACKAGES} == {"1.0"}
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.slow  # four processes import the compiler
def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    first = measured(tmp_path, "errors/product/float32")
    assert first.returncode == 0, first.stderr
    kept = json.loads((tmp_path / "cuda.json").read_text())
    row = kept["errors/product/float32"]
    assert row["error"] < 1e-6 and row["on"] == "cuda:0 (Mock GPU 0)"
    again = measured(tmp_path, "errors/product/float32")
    assert again.returncode == 0 and "met  errors/product/float32" in again.stdout
    assert "errors/product/float32 {" in first.stdout, "a job that ran prints its row"
    assert "errors/product/float32 {" not in again.stdout, "nothing is done twice"
    never = measured(tmp_path, "errors/product", "--minutes", "0")
    assert never.returncode == 0 and never.stdout.count("the 0 minutes are over") == 3
    assert "met  errors/product/float32" in never.stdout
    late = measured(tmp_path, "errors/product/bfloat16", "--seconds", "0.01")
    assert late.returncode == 1 and "1 of 2 jobs failed: errors/product/bfloat16" in late.stderr
    kept = json.loads((tmp_path / "cuda.json").read_text())
    assert kept["errors/product/bfloat16"] == {"problem": "it took longer than 0.01 seconds"}
    assert kept["errors/product/float32"] == row


def carried(folder: Path) -> int:
    """Return the number of kernels in a folder."""
    with closing(sqlite3.connect(folder / "kernels" / "kernels.sqlite")) as file:
        return int(file.execute("SELECT count(*) FROM kernels").fetchone()[0])


@pytest.mark.slow  # four processes import the compiler
def test_kernels_are_made_before_and_carried(tmp_path: Path) -> None:
    """The second call finds all its kernels, and the reference's, and makes none."""
    there = ("--architecture", "sm_80", "--carried", "kernels")
    made = measured(tmp_path, "errors/windows/float32", "--prepare", *there)
    assert made.returncode == 0 and "MiB to carry" in made.stdout, made.stderr
    assert not [*tmp_path.rglob("*.jgn")] and not (tmp_path / "cuda.json").exists()
    packed = tmp_path / "kernels" / "kernels.xz"
    assert [*(tmp_path / "kernels").rglob("kernels*.*")] == [packed]
    assert not [p for p in (tmp_path / "kernels").iterdir() if p.is_dir()]
    (tmp_path / "plain" / "kernels").mkdir(parents=True)
    (tmp_path / "plain" / "kernels" / "kernels.sqlite").write_bytes(lzma.decompress(packed.read_bytes()))
    count = carried(tmp_path / "plain")
    done = measured(tmp_path, "errors/windows/float32", *there)
    assert done.returncode == 0 and "met  errors/windows/float32" in done.stdout, done.stderr
    assert carried(tmp_path / "kernels") == count > 8
    refused = measured(tmp_path, "errors", "--prepare")
    assert refused.returncode == 2 and "--prepare needs --architecture and --carried" in refused.stderr


@pytest.mark.slow  # the C++ compiler takes minutes
@pytest.mark.parametrize(
    "only", ["errors/squeezenet/float32", "errors/windows", "errors/bytes", "errors/shared", "errors/bert",
             "errors/gpt2/float32", "copy", "products", "launches", "networks/squeezenet",
             "networks/bert/1/bfloat16", "networks/gpt2/1/bfloat16", "networks/unet/1/bfloat16", "sanitizer",
             "errors/training", "training/bert", "shapes/gpt2", "triton", "libraries", "engines",
             "estimates/bert/float32", "compilers/bert"]
)  # fmt: skip
def test_every_kind_of_job(tmp_path: Path, only: str) -> None:
    done = measured(tmp_path, only)
    assert done.returncode == 0, done.stderr + done.stdout
    for name, row in json.loads((tmp_path / "cuda.json").read_text()).items():
        limit = 3e-2 if "bfloat16" in name else 3e-3 if "float16" in name or "tf32" in name else 3e-6
        assert row.get("error", 0.0) < limit, (name, row)


class Nvml:
    """NVML of one device, which has used `spent` joules."""

    spent, started = 0.0, 0

    def nvmlInit_v2(self) -> int:
        return self.started

    def nvmlDeviceGetHandleByIndex_v2(self, number: int, handle: Any) -> int:
        return number

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, millijoules: Any) -> int:
        millijoules._obj.value = int(1e3 * self.spent)
        return 0


def test_joules_are_those_of_a_run(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML counts millijoules. Without NVML, or if it doesn't start, there are none."""
    import cuda_work

    nvml = Nvml()
    monkeypatch.setattr(cuda_work.ctypes, "CDLL", lambda name: nvml)

    def run() -> None:
        nvml.spent += 0.25

    assert cuda_work.joules(run) == {"joules": 0.25}
    nvml.started = 9
    assert cuda_work.joules(run) == {}
    monkeypatch.setattr(cuda_work.ctypes, "CDLL", lambda name: Path(name).read_bytes())
    assert cuda_work.joules(run) == {}
