"""Progress by estimated times: kernels start in the order of their weight, and are reported by it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from jangin.commands.common import share
from jangin.compiler.kernels import PRODUCT_SECONDS, STAGES_SECONDS, schedule_kernels
from jangin.compiler.pipeline import build_artifact, import_model
from jangin.options import Options
from jangin.targets import resolve

OPTIONS = Options(resolve("x86-64-v3"))


def model() -> onnx.ModelProto:
    """Return a convolution that Winograd's method computes, a product and a map."""
    rng = np.random.default_rng(0)
    held = [
        numpy_helper.from_array(rng.standard_normal(shape, np.float32), name)
        for name, shape in (("w", (32, 32, 3, 3)), ("v", (28, 8)))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]),
        helper.make_node("MatMul", ["y", "v"], ["z"]),
        helper.make_node("Softmax", ["z"], ["out"]),
    ]
    ends = [
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s)
        for n, s in (("x", [1, 32, 28, 28]), ("out", [1, 32, 28, 8]))
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def test_kernels_weigh_what_they_take() -> None:
    weights: dict[str, float] = {}

    def note(jobs: object) -> list[object]:
        kernels = [job() for job in jobs]  # type: ignore[attr-defined]
        for kernel, job in zip(kernels, jobs, strict=True):  # type: ignore[call-overload]
            weights[kernel.template] = max(job.seconds, weights.get(kernel.template, 0.0))
        return kernels

    schedule_kernels(import_model(model(), OPTIONS), OPTIONS, note)  # type: ignore[arg-type]
    assert weights["contraction"] == STAGES_SECONDS + PRODUCT_SECONDS
    assert weights["rows"] == STAGES_SECONDS
    assert weights["nest"] > 2 * STAGES_SECONDS, "parts of them come unrolled"


def test_bars_only_grow_and_end_full() -> None:
    told: list[tuple[int, int, str]] = []
    build_artifact(model(), OPTIONS, lambda *step: told.append(step))
    shares = [share(*step) for step in told]
    bars = [max(shares[: n + 1]) for n in range(len(shares))]
    assert bars == sorted(bars) and bars[-1] == 1.0
    kernels = [(done, total) for done, total, what in told if what == "kernels"]
    assert len({total for _, total in kernels[1:]}) == 1 and all(done <= total for done, total in kernels)


WORK = """
import time
from functools import partial
from jangin.compiler.processes.forked import Workers
told = []
def job(n):
    time.sleep(0.01)
    return n, time.monotonic()
weights = [1.0, 5.0, 2.0, 4.0, 3.0]
with Workers(1, dict) as workers:
    done = workers.do([partial(job, n) for n in range(5)], 1, lambda *s: told.append(s), weights=weights)
assert [n for n, _ in done] == [0, 1, 2, 3, 4], "results are in order"
assert [n for n, _ in sorted(done, key=lambda d: d[1])] == [1, 3, 4, 2, 0], "the heaviest are done first"
assert told == [(5.0, 15.0), (9.0, 15.0), (12.0, 15.0), (14.0, 15.0), (15.0, 15.0)]
print("well")
"""


def test_the_heaviest_are_begun_first(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True)
    assert done.stdout == "well\n", done.stderr
