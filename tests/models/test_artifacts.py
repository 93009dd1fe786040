"""The promises of `.jgn` files on a real model: they are deterministic, take little memory, and load without
the compiler."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COMPILE = """
import sys, jangin
jangin.compile(sys.argv[1], shapes={"batch": 1}, cache=False).save(sys.argv[2])
"""
LOAD = """
import json, sys, time
import numpy as np
image = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
start = time.perf_counter()
import jangin
exe = jangin.load(sys.argv[1])
exe(image)
seconds = time.perf_counter() - start
exe(image)
status = open("/proc/self/status").read().splitlines()
peak = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
weights = sum(a.nbytes for a in exe.plan.constants.values())
compiler = [m for m in sys.modules if m == "onnx" or m.startswith(("jangin.compiler", "jangin.passes",
            "jangin.backends.llvm", "jangin.templates", "jangin.frontends", "llvmlite"))]
print(json.dumps({"seconds": seconds, "peak": peak, "weights": weights, "arena": exe.arena_bytes(),
                  "compiler": compiler}))
"""


def python(code: str, *arguments: Any, seed: int = 0) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {"PYTHONHASHSEED": str(seed), "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def compiled(efficientnet: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "model.onnx").write_bytes(efficientnet)
    python(COMPILE, folder / "model.onnx", folder / "first.jgn", seed=1)
    return folder


@pytest.mark.sampled(3)
def test_compiling_twice_gives_the_same_bytes(compiled: Path) -> None:
    python(COMPILE, compiled / "model.onnx", compiled / "second.jgn", seed=2)
    assert (compiled / "first.jgn").read_bytes() == (compiled / "second.jgn").read_bytes()


def test_loading_is_quick_and_small(compiled: Path) -> None:
    found = json.loads(python(LOAD, compiled / "first.jgn"))
    print(f"\nload to first result {found['seconds']:.3f} s, peak {found['peak'] / 1e6:.0f} MB")
    assert found["compiler"] == []
    assert found["peak"] <= 1.3 * (found["weights"] + found["arena"] + 60e6)
    assert found["seconds"] < 3  # 0.3 on a quiet machine
