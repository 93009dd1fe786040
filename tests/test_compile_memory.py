"""What compiling takes of memory: the model's weights about once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

CHILD = """
import sys
import jangin, jangin.compiler.pipeline

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) << 10

before = peak()
jangin.compile(sys.argv[1], threads=1, cache=False)
print(peak() - before)
"""
REST = 64 << 20
"""Bytes that the compiler itself may take: some 35 MB of them are LLVM's code."""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system doesn't tell a process's peak")
def test_weights_are_in_memory_about_once(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).random((2, 4096, 4096), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "a"], ["y"]), helper.make_node("MatMul", ["y", "b"], ["z"])]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 4096]) for n in "xz"]
    constants = [numpy_helper.from_array(w, n) for w, n in zip(weights, "ab", strict=True)]
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)), path)
    done = subprocess.run([sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1.5 * weights.nbytes + REST
