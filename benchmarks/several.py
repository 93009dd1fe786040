"""Measure a batch on two devices at once: native code on core 0 and an OpenCL driver on core 1, compared with
core 0 alone.

    python benchmarks/several.py opencl:intel

The models' batch must be free. A model that was exported with a fixed batch gets a symbol instead.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from catalogue import CATALOGUE
from onnx import numpy_helper

import jangin
from jangin.bench.arrays import random_array

MODELS = ("squeezenet1_1", "resnet50", "minilm")
BATCH = 8
ASKED = 1.7


def free_batch(path: os.PathLike[str]) -> bytes:
    """Return the model with "batch" as the first size of its inputs and outputs."""
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del model.graph.value_info[:]
    shapes = {n.output[0]: n.attribute[0].t for n in model.graph.node if n.op_type == "Constant"}
    for node in model.graph.node:
        if node.op_type == "Reshape" and node.input[1] in shapes:
            to = numpy_helper.to_array(shapes[node.input[1]]).copy()
            to[0] = 0  # 0 keeps the input's size
            shapes[node.input[1]].CopyFrom(numpy_helper.from_array(to))
    return model.SerializeToString()


def feeds_of(exe: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    sizes = {"batch": BATCH, "seq": 128}
    shapes = {s.name: [d if isinstance(d, int) else sizes[str(d)] for d in s.shape] for s in exe.inputs}
    return {s.name: random_array(rng, s.dtype, shapes[s.name], "mask" in s.name) for s in exe.inputs}


def seconds(exe: Any, feeds: Mapping[str, Any]) -> float:
    start = time.perf_counter()
    exe.run(feeds)
    return time.perf_counter() - start


def measure(name: str, driver: str, turns: int) -> None:
    entry = CATALOGUE[name]
    model = entry.path if entry.sizes else free_batch(entry.path)
    alone = jangin.compile(model, threads=1)
    os.sched_setaffinity(0, {1})  # this core is for the driver's threads and the thread that gives them work
    other = jangin.compile(model, driver, threads=1)
    both = jangin.compile(model, f"cpu+{driver}", threads=2)
    assert isinstance(both, jangin.SeveralExecutable)
    feeds = feeds_of(alone)
    other.run(feeds)
    os.sched_setaffinity(0, {0})
    ways = both.ways(feeds)
    while ways is not None and not ways.settled:
        both.run(feeds)
    taken: dict[str, list[float]] = {"core 0 alone": [], "core 1 alone": [], "both": []}
    for _ in range(turns):
        for what, exe, core in zip(taken, (alone, other, both), (0, 1, 0), strict=True):
            os.sched_setaffinity(0, {core})
            taken[what].append(seconds(exe, feeds))
    medians = {what: statistics.median(t) for what, t in taken.items()}
    ratios = [a / b for a, b in zip(taken["core 0 alone"], taken["both"], strict=True)]
    rates = ", ".join(f"{what} {BATCH / t:.1f}" for what, t in medians.items())
    ratio, way = statistics.median(ratios), None if ways is None else ways.next()
    print(f"{entry.title}: {rates} images/s; {ratio:.2f} times core 0 alone ({ASKED} asked); rows {way}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("driver", nargs="?", default="opencl:intel")
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--turns", type=int, default=15)
    arguments = parser.parse_args()
    for name in arguments.models:
        measure(name, arguments.driver, arguments.turns)


if __name__ == "__main__":
    main()
