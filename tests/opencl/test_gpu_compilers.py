"""LLVM makes AMD code of kernels for work-groups, and keeps all in registers. No GPU is needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from templates.test_gpu import KERNELS, asked

from jangin.backends.opencl.backend import source
from jangin.templates.choose import choose
from jangin.templates.gpu.table import TEMPLATES

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))
from gpu_compilers import AMD, amd, target

MANY = 200
"""More vectors of eight floats than an AMD work-item's 512 registers hold."""


def _able() -> bool:
    clang = shutil.which("clang")
    done = clang and subprocess.run([clang, "--print-targets"], capture_output=True, text=True)
    return bool(done) and "amdgcn" in done.stdout


pytestmark = pytest.mark.skipif(not _able(), reason="no clang that makes AMD code is here")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("product", "softmax") else pytest.mark.slow) for n in KERNELS]
)
def test_nothing_is_spilled(name: str) -> None:
    on = target()
    counted = amd(source(choose(asked(name, on), templates=TEMPLATES).func, on), AMD[0])
    assert counted.spilled == 0 < counted.registers


def test_spills_and_calls_are_counted() -> None:
    names = [f"v{n}" for n in range(MANY)]
    begun = "".join(f"float8 {v} = vload8_({n}, x);" for n, v in enumerate(names))
    turned = "".join(f"{v} = {names[n * 7 % MANY]} * {names[n - 1]} + {v};" for n, v in enumerate(names))
    ended = "".join(f"((__global float8 *)x)[{n}] = {v};" for n, v in enumerate(names))
    text = f"""#define vload8_(n, x) ((__global float8 *)x)[n]
      __kernel void k(__global float *x, int c) {{
        {begun} for (int i = 0; i < c; i++) {{ {turned} }} {ended} }}"""
    assert amd(text, AMD[0]).spilled > 0
    with pytest.raises(ValueError, match="calls a function"):
        amd("__kernel void k(__global float *x) { x[0] = erf(x[1]); }", AMD[0])
