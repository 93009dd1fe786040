"""PyTorch's own tests of Inductor pass with Jangin in its place, except for those that look into Inductor.

PYTORCH_SOURCE names a folder with PyTorch's source, such as Debian's source package. A sample is drawn of the
tests on the CPU."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

ROOT = Path(__file__).resolve().parents[3]
FILE = Path(os.environ.get("PYTORCH_SOURCE", "pytorch")) / "test" / "inductor" / "test_torchinductor.py"
COUNT = 25
"""The number of tests in a sample. They take half a minute, half of which is PyTorch's import."""
PROGRAM = """
import inspect, io, json, random, sys, unittest
import torch._inductor.compile_fx as inductor
from jangin.torch_backend import backend

inductor.compile_fx = lambda graph, inputs, *_, **__: backend(graph, inputs)
if not hasattr(inductor, "complex_memory_overlap"):  # newer versions of PyTorch have it elsewhere
    inductor.complex_memory_overlap = lambda tensor: False
sys.argv, seed, count = sys.argv[:1], int(sys.argv[2]), int(sys.argv[3])
import test_torchinductor as theirs

names = [n for n in dir(theirs.CpuTests) if n.startswith("test_") and "aoti_eager" not in n]
drawn = random.Random(seed).sample(sorted(names), count)
result = unittest.TestResult()
unittest.TestSuite(map(theirs.CpuTests, drawn)).run(result)
failed = {}
for case, text in [*result.failures, *result.errors]:
    name = case._testMethodName
    own = getattr(theirs.CommonTemplate, name.removesuffix("_cpu"))
    failed[name] = {"source": inspect.getsource(own), "error": text[-2000:]}
print("RESULT", json.dumps({"run": result.testsRun, "failed": failed}))
"""
INNER = (
    "GeneratedKernelCount", "metrics", "run_and_get", "run_fw_bw_and_get", "_run_and_assert", "FileCheck",
    "compile_fx_inner", "inner_fn", "V.set_", "torch._inductor.", "config.patch",
)  # fmt: skip
"""Words of tests that count Inductor's kernels, read its code or call its inner functions."""
ROUNDED = "sums of a thousand products are added in another order; both are within 1e-6 of float64's"
NEWER = "PyTorch 2.13 lacks the operator, which 2.6 had"
REWORDED = "PyTorch 2.13 refuses gradients of integers by another message than the test expects"
FAILS = {
    "test_cat_extern_kernel_cpu": ROUNDED, "test_conv2d_backward_channels_last_cpu": ROUNDED,
    "test_low_memory_max_pool_cpu": NEWER, "test_should_pad_bench_for_bmm_cpu": NEWER,
    "test_linear_mixed_dtype_cpu": REWORDED,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not FILE.is_file(), reason="PYTORCH_SOURCE names no folder of PyTorch's source")
def test_inductors_tests_pass() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    path = os.pathsep.join([str(ROOT), str(FILE.parent)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--", str(seed), str(COUNT)], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path}, timeout=900, cwd=FILE.parent,
    )  # fmt: skip
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert found, done.stderr[-4000:]
    result = json.loads(found[0].removeprefix("RESULT "))
    assert result["run"] == COUNT
    wrong = {n: f["error"] for n, f in result["failed"].items() if not looks_into_inductor(**f)}
    assert {*wrong} <= {*FAILS}, wrong


def looks_into_inductor(source: str, error: str) -> bool:
    """Return whether a test failed because it looks into Inductor. Wrong numbers are never excused."""
    return any(word in source for word in INNER) and "Tensor-likes" not in error
