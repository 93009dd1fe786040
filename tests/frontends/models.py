"""Small ONNX models that the tests of this folder change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ir.graph import Array
from jangin.ops.interpret import run_graph

Dims = Sequence[int | str | None]


def info(name: str, dims: Dims | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
    constants: dict[str, Array] | None = None,
    opset: int = 17,
    **more: Any,
) -> onnx.ModelProto:
    """Return a model whose outputs' types are left open."""
    initializers = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    outs = [helper.make_empty_tensor_value_info(n) for n in outputs]
    graph = helper.make_graph(nodes, "test", inputs, outs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **more)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    """Return a node of values named in strings: "x w" (and "-" for an absent one)."""
    names = [["" if n == "-" else n for n in names.split()] for names in (inputs, outputs)]
    return helper.make_node(op, *names, name=f"{op.lower()}_{outputs.split()[0]}", **attrs)


def run(proto: onnx.ModelProto, shapes: dict[str, Any] | None = None, **feeds: Array) -> list[Array]:
    graph = lower(load(proto, shapes))
    return list(run_graph(graph, feeds).values())


def classifier(batch: int | str = "batch") -> onnx.ModelProto:
    """Convolution, batch normalization, relu, pool, flatten by Shape arithmetic, gemm, softmax."""
    random = np.random.default_rng(3)

    def weight(*shape: int) -> Array:
        return random.standard_normal(shape).astype(np.float32) * 0.3

    nodes = [
        node("Conv", "image w b", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c scale shift mean var", "n"),
        node("Relu", "n", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", "p", "s"),
        node("Gather", "s zero", "s0"),
        node("Unsqueeze", "s0 axis", "s1"),
        node("Concat", "s1 rest", "target", axis=0),
        node("Reshape", "p target", "flat"),
        node("Gemm", "flat fc bias", "logits", transB=1),
        node("Softmax", "logits", "probabilities", axis=-1),
    ]
    constants = {
        "w": weight(4, 3, 3, 3), "b": weight(4), "scale": weight(4), "shift": weight(4), "mean": weight(4),
        "var": np.abs(weight(4)) + 0.5, "zero": np.array(0, np.int64), "axis": np.array([0], np.int64),
        "rest": np.array([-1], np.int64), "fc": weight(5, 36), "bias": weight(5),
    }  # fmt: skip
    return model(nodes, [info("image", [batch, 3, 6, 6])], ["probabilities"], constants)
