"""The memory of compiling is about the model's weights, once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

PEAK = """
import sys

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) << 10
"""
CHILD = f"""{PEAK}
import jangin, jangin.compiler.pipeline
jangin.compile(sys.argv[2], threads=1, cache=False)
before = peak()
jangin.compile(sys.argv[1], threads=1, cache=False)
print(peak() - before)
"""
KEYED = f"""{PEAK}
from jangin.compiler.source import Source
import jangin.frontends.onnx.format
before = peak()
assert Source.of(sys.argv[1]) is not None
print(peak() - before)
"""
REST = 16 << 20
"""Bytes that the compiler may take for itself, beyond a small model of two products: its own code and
LLVM's."""


needs_peak = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the system doesn't tell a process's peak"
)


def taken(program: str, *paths: Path) -> int:
    done = subprocess.run([sys.executable, "-c", program, *map(str, paths)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.sampled(3)
@needs_peak
def test_weights_are_in_memory_about_once(tmp_path: Path) -> None:
    weights = [np.random.default_rng(0).random((2, n, n), np.float32) for n in (4096, 16)]
    paths = [products(tmp_path / f"{len(w[0])}.onnx", w) for w in weights]
    assert taken(CHILD, *paths) < 1.25 * weights[0].nbytes + REST


@pytest.mark.sampled(3)
@needs_peak
def test_a_model_that_is_hashed_for_its_key_leaves_memory(tmp_path: Path) -> None:
    """A model's blocks leave memory as they are hashed for its key, so that a model from the cache is in
    memory once."""
    weights = np.zeros((2, 4096, 4096), np.float32)
    assert taken(KEYED, products(tmp_path / "m.onnx", weights)) < weights.nbytes / 2


def products(path: Path, weights: NDArray[np.float32]) -> Path:
    """Write a model of two products with weights."""
    size = len(weights[0])
    nodes = [helper.make_node("MatMul", ["x", "a"], ["y"]), helper.make_node("MatMul", ["y", "b"], ["z"])]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, size]) for n in "xz"]
    constants = [numpy_helper.from_array(w, n) for w, n in zip(weights, "ab", strict=True)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)), path)
    return path
