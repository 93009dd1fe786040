"""Kernels of known networks, and the measurements of their candidates that a machine recorded.

    python tests/tune/tuned_kernels.py [NETWORK ...]

records tests/tune/measurements.json anew (or only the networks named in it): some ten minutes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from jangin.compiler.kernels import kernel_candidates, kernel_workload, make_kernel
from jangin.compiler.pipeline import import_model
from jangin.ir.graph import Graph, Node
from jangin.ir.text import print_func
from jangin.options import Options
from jangin.passes.fusion.stages import is_opaque
from jangin.runtime.system.processor import processor_name
from jangin.targets import NAMED, resolve
from jangin.templates.scheduled import Scheduled
from jangin.templates.template import Candidate
from jangin.tune.measure import Trial

FILE = Path(__file__).with_name("measurements.json")
ABREAST = 12
"""Ways that are timed together, besides the first."""
SECONDS = 1.5
FEWEST = 4
FIRST, THEN = 6, 3
"""The kernels to measure, of those with at least four candidates: the first six, and one in three of the
others."""


def network(
    op: str, shape: tuple[int, ...], weight: tuple[int, ...] = (), **attrs: object
) -> onnx.ModelProto:
    """Return a model of one operator on `shape`, with `weight` if it has one, and an activation."""
    rng = np.random.default_rng(0)
    inputs = ["x", *(["w"] if weight else [])]
    nodes = [helper.make_node(op, inputs, ["p"], **attrs), helper.make_node("Relu", ["p"], ["y"])]
    constants = (
        [numpy_helper.from_array(rng.standard_normal(weight).astype(np.float32), "w")] if weight else []
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    graph = helper.make_graph(
        nodes, "g", [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], constants
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def conv(
    size: int, channels: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> onnx.ModelProto:
    pads = [kernel // 2] * 4
    return network(
        "Conv", (1, channels, size, size), (outputs, channels // groups, kernel, kernel),
        strides=[stride] * 2, pads=pads, group=groups,
    )  # fmt: skip


def depthwise(size: int, channels: int, kernel: int, stride: int = 1) -> onnx.ModelProto:
    return conv(size, channels, channels, kernel, stride, channels)


NETWORKS = {
    "ResNet-50 first": conv(224, 3, 64, 7, 2),
    "MobileNet first": conv(224, 3, 32, 3, 2),
    "64 to 256 at 56": conv(56, 64, 256),
    "256 to 64 at 56": conv(56, 256, 64),
    "128 to 512 at 28": conv(28, 128, 512),
    "1024 to 256 at 14": conv(14, 1024, 256),
    "2048 to 512 at 7": conv(7, 2048, 512),
    "16 to 96 at 112": conv(112, 16, 96),
    "144 to 24 at 56": conv(56, 144, 24),
    "576 to 96 at 14": conv(14, 576, 96),
    "320 to 1280 at 7": conv(7, 320, 1280),
    "256 to 128 at 28": conv(28, 256, 128),
    "3 x 3, 64 at 56": conv(56, 64, 64, 3),
    "3 x 3, 256 at 14": conv(14, 256, 256, 3),
    "3 x 3, 128 at 28, stride 2": conv(56, 128, 128, 3, 2),
    "3 x 3, 128 to 32 at 14, stride 2": conv(28, 128, 32, 3, 2),
    "depthwise 96 at 112, stride 2": depthwise(112, 96, 3, 2),
    "depthwise 144 at 56": depthwise(56, 144, 3),
    "depthwise 384 at 14": depthwise(14, 384, 3),
    "depthwise 5 x 5, 240 at 28": depthwise(28, 240, 5),
    "pool 64 at 112": network(
        "MaxPool", (1, 64, 112, 112), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
    ),
    "mean 2048 at 7": network("GlobalAveragePool", (1, 2048, 7, 7)),
    "128 x 768 x 768": network("MatMul", (128, 768), (768, 768)),
    "128 x 768 x 3072": network("MatMul", (128, 768), (768, 3072)),
    "128 x 1536 x 384": network("MatMul", (128, 1536), (1536, 384)),
    "1 x 2048 x 1000": network("MatMul", (1, 2048), (2048, 1000)),
    "softmax 12 x 128 x 128": network("Softmax", (12, 128, 128)),
    "normalize 128 x 768": network("LayerNormalization", (128, 768), (768,)),
    "sum of 28 x 28 x 512": network("ReduceSum", (28, 28, 512)),
    "tanh of 3072 x 128": network("Tanh", (3072, 128)),
}


@dataclass(frozen=True)
class Measured:
    """A kernel and its ways: candidates with the seconds they took on one thread."""

    network: str
    kernel: str
    ways: Sequence[tuple[Candidate, float]]


def kernels(options: Options) -> Iterator[tuple[str, Node, Graph]]:
    """Yield (network, kernel, its graph) for every kernel with candidates."""
    for name, model in NETWORKS.items():
        graph = import_model(model, options)
        for node in graph.nodes:
            if node.op == "kernel" and not is_opaque(node):
                yield name, node, graph


def recorded() -> tuple[Options, list[Measured]]:
    """Return the options of the recording machine, and its measurements."""
    data = json.loads(FILE.read_text())
    target = NAMED[data["target"]].with_figures(**data["caches"])
    found = [
        Measured(k["network"], k["kernel"], [(Candidate(t, p), s) for t, p, s in k["ways"]])
        for k in data["kernels"]
    ]
    return Options(target), found


def record(names: Sequence[str]) -> None:
    """Time the candidates of the networks' kernels on one thread. Other networks keep their records."""
    options = Options(resolve())
    t, processor = options.target, options.target.processor
    caches = {"l1": processor.l1, "l2": processor.l2, "l3": processor.l3}
    data = {"processor": processor_name(), "target": t.name, "caches": caches}
    old = json.loads(FILE.read_text())["kernels"] if FILE.is_file() else []
    found = [k for k in old if k["network"] not in names]
    for name, node, graph in kernels(options):
        if name in names and (ways := measured(node, graph, options)):
            found.append({"network": name, "kernel": node.name, "ways": ways})
    text = (
        json.dumps({**data, "kernels": found})
        .replace(', {"network"', ',\n{"network"')
        .replace('[["', '[\n["')
    )
    FILE.write_text(text.replace(', ["', ',\n["') + "\n")


def measured(node: Node, graph: Graph, options: Options) -> list[list[object]]:
    """Return [template, parameters, seconds] of each way, or of some if there are many. Empty if there are
    few. The seconds are of the least disturbed run."""
    _, workload, _ = kernel_workload(node, graph, options)
    ways: dict[str, tuple[Candidate, Scheduled]] = {}
    ranked = [c for c, _ in kernel_candidates(workload, options)]
    for candidate in [*ranked[:FIRST], *ranked[FIRST::THEN]]:
        way = make_kernel(replace(workload, name=f"way_{len(ways)}"), options, candidate)
        ways.setdefault(print_func(replace(way.func, name="way")), (candidate, way))
    first, *others = ways.values()
    if len(ways) < FEWEST:
        return []
    trial = Trial(node, graph, options, 1, {}, 4 * options.target.processor.l2)
    times = []
    for n in range(0, len(others), ABREAST):
        batch = others[n : n + ABREAST]
        own, *timings = trial.build([way for _, way in (first, *batch)]).time(SECONDS)
        times += [(first[0], own), *((c, t) for (c, _), t in zip(batch, timings, strict=True))]
    print(node.name, len(ways), flush=True)
    best = {str(c): (c, min(t.least for other, t in times if other == c)) for c, _ in times}
    return [[c.template, dict(c.params), round(seconds, 9)] for c, seconds in best.values()]


if __name__ == "__main__":
    record(sys.argv[1:] or list(NETWORKS))
