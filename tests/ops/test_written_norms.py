"""Normalizations and statistics that a model computes by single operators, against float64.

Exporters write them so before opset 17, and for a framework that has no such operator. Each operator rounds
its result. So the way in which a mean is summed shows in numbers that lie far from 0 and close to each other.
The limit is ONNX Runtime's error, with or without its optimizations, whichever is less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import jangin
from jangin.ir.graph import Array

MEANS = (0.0, 1e3, -1e4, 1e6)
EPSILON = np.float64(np.float32(1e-5))
CLOSE = 1.3
"""The factor by which an error may exceed ONNX Runtime's. Two root mean squares of 256 errors of one size
differ by 6 %. A variance's errors are squares of a mean's, which differ by more. Sums of one term after the
other have 1.4 to 5 times the error."""
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    **{f"rows of {n}": ((512, n), (1,)) for n in (7, 12, 16, 17, 31, 33, 64, 77, 100, 768, 1023)},
    "few long rows": ((256, 4097), (1,)), "columns of 13": ((8, 13, 60), (1,)),
    "columns of 50": ((8, 50, 60), (1,)), "columns of 300": ((4, 300, 128), (1,)),
    "images": ((32, 8, 13, 15), (2, 3)), "groups": ((256, 2, 4, 21), (2, 3)),
    "channels of all images": ((8, 256, 13, 15), (0, 2, 3)), "first axis": ((65, 512), (0,)),
}  # fmt: skip
ENDS = "v + eps = u; sqrt u = s; "
CENTRED = "mean x = m; x - m = d; "
FORMS = {
    "mean": "mean x = y",
    "centred": "mean x = m; x - m = y",
    "variance": CENTRED + "d * d = q; mean q = y",
    "power": CENTRED + "d ^ two = q; mean q = v; " + ENDS + "d / s = y",
    "product": CENTRED + "d * d = q; mean q = v; " + ENDS + "d / s = y",
    "taken off twice": CENTRED + "x - m = e; e ^ two = q; mean q = v; " + ENDS + "d / s = y",
    "reciprocal": CENTRED + "d * d = q; mean q = v; " + ENDS + "one / s = r; d * r = y",
    "sum of squares": CENTRED + "squares d = q; q / n = v; " + ENDS + "d / s = y",
    "sums": "sum x = t; t / n = m; x - m = d; d * d = q; sum q = w; w / n = v; " + ENDS + "d / s = y",
    "root mean square": "x * x = q; mean q = v; " + ENDS + "x / s = y",
    "mean of squares less square of mean": "mean x = m; x * x = q; mean q = w; m * m = k; w - k = y",
    "length": "length x = y",
}
REDUCED = {"mean": "Mean", "sum": "Sum", "squares": "SumSquare", "length": "L2"}
PAIRED = {"+": "Add", "-": "Sub", "*": "Mul", "/": "Div", "^": "Pow"}


@dataclass(frozen=True)
class Case:
    form: str
    size: str
    opset: int
    symbolic: bool

    def node(self, text: str) -> NodeProto:
        given, result = text.split(" = ")
        match given.split():
            case ["sqrt", x]:
                return helper.make_node("Sqrt", [x], [result])
            case [kind, x]:
                (_, axes), name = SHAPES[self.size], f"Reduce{REDUCED[kind]}"
                if self.opset >= 18 or name == "ReduceSum":
                    return helper.make_node(name, [x, "axes"], [result], keepdims=1)
                return helper.make_node(name, [x], [result], keepdims=1, axes=axes)
            case [a, op, b]:
                return helper.make_node(PAIRED[op], [a, b], [result])
        raise ValueError(text)

    def model(self) -> onnx.ModelProto:
        shape, axes = SHAPES[self.size]
        nodes = [self.node(text) for text in FORMS[self.form].split("; ")]
        numbers = {"eps": 1e-5, "two": 2, "one": 1, "n": np.prod([shape[a] for a in axes])}
        given: dict[str, Array] = {k: np.array(v, np.float32) for k, v in numbers.items()}
        given["axes"] = np.array(axes)
        read = {i for n in nodes for i in n.input}
        sizes: Sequence[Any] = [f"n{i}" for i in range(len(shape))] if self.symbolic else shape
        graph = helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(a, k) for k, a in given.items() if k in read],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)

    def exact(self, x: Array) -> Array:
        _, axes = SHAPES[self.size]
        mean = x.mean(axes, keepdims=True)
        variance = np.square(x - mean).mean(axes, keepdims=True)
        power = np.square(x).mean(axes, keepdims=True)
        known = {
            "mean": mean, "centred": x - mean, "variance": variance, FORMS_OF_TWO_MEANS: variance,
            "root mean square": x / np.sqrt(power + EPSILON),
            "length": np.sqrt(np.square(x).sum(axes, keepdims=True)),
        }  # fmt: skip
        return known[self.form] if self.form in known else (x - mean) / np.sqrt(variance + EPSILON)


FORMS_OF_TWO_MEANS = "mean of squares less square of mean"
CASES = [
    Case(form, size, 13 + 5 * (n % 2), symbolic)
    for n, form in enumerate(FORMS)
    for size in SHAPES
    for symbolic in (False, True)
]


def session(proto: onnx.ModelProto, optimized: bool) -> onnxruntime.InferenceSession:
    options, level = onnxruntime.SessionOptions(), onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])


def root_mean_square(error: Array) -> float:
    return float(np.sqrt(np.square(error).mean()))


@pytest.mark.sampled(28)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_error(case: Case) -> None:
    proto = case.model()
    peers = [session(proto, optimized) for optimized in (True, False)]
    exe = jangin.compile(proto, cache=False, isolated=False, threads=1)
    for mean in MEANS:
        x = np.random.default_rng(7).standard_normal(SHAPES[case.size][0]) + mean
        given = x.astype(np.float32)
        want = case.exact(given.astype(np.float64))
        least = min(root_mean_square(p.run(None, {"x": given})[0] - want) for p in peers)
        off = root_mean_square(exe(given) - want)
        assert off <= CLOSE * least, f"{case}, mean {mean}: {off:.2e}, ONNX Runtime {least:.2e}"
