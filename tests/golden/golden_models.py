"""Two small models whose graphs after each pass are golden files. Their weights are whole numbers, so that no
folding rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class _Net:
    """Nodes and initializers of an ONNX graph."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, *shape: int, value: int | None = None) -> str:
        count = int(np.prod(shape))
        data = (np.arange(count) * 7 + len(self.weights)) % 5 - 2 if value is None else np.full(count, value)
        self.weights.append(numpy_helper.from_array(data.astype(np.float32).reshape(shape), name))
        return name

    def node(self, op: str, inputs: Sequence[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=f"{op} {output}", **attributes))
        return output

    def model(self, name: str, shape: Sequence[int | str], result: Sequence[int | str]) -> onnx.ModelProto:
        x, y = (
            helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), ("y", result))
        )
        graph = helper.make_graph(self.nodes, name, [x], [y], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def convolutional() -> onnx.ModelProto:
    """Make a model with convolution, batch normalization, depthwise convolution, residual, pool and
    classifier."""
    t = _Net()
    c = t.node("Conv", ["x", t.weight("w1", 8, 3, 3, 3)], "c", kernel_shape=[3, 3], pads=[1] * 4)
    statistics = [t.weight(n, 8, value=v) for n, v in (("scale", 3), ("shift", 1), ("mean", 2), ("var", 4))]
    n = t.node("BatchNormalization", [c, *statistics], "n", epsilon=0.0)
    r = t.node("Relu", [n], "r")
    d = t.node("Conv", [r, t.weight("w2", 8, 1, 3, 3)], "d", kernel_shape=[3, 3], pads=[1] * 4, group=8)
    s = t.node("Add", [t.node("Relu", [d], "e"), r], "s")
    p = t.node("MaxPool", [s], "p", kernel_shape=[2, 2], strides=[2, 2])
    g = t.node("Flatten", [t.node("GlobalAveragePool", [p], "g")], "f")
    z = t.node("Gemm", [g, t.weight("w3", 5, 8), t.weight("b3", 5)], "z", transB=1)
    t.node("Softmax", [z], "y", axis=1)
    return t.model("convolutional", ["batch", 3, 8, 8], ["batch", 5])


def attention() -> onnx.ModelProto:
    """Make a model with layer normalization, two heads of attention over any length, and a residual."""
    t = _Net()
    n = t.node("LayerNormalization", ["x", t.weight("scale", 8), t.weight("shift", 8)], "n", epsilon=0.5)
    t.weights.append(numpy_helper.from_array(np.array([0, 0, 2, 4]), "heads"))
    t.weights.append(numpy_helper.from_array(np.array([0, 0, 8]), "whole"))
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        m = t.node("MatMul", [n, t.weight(f"w{name}", 8, 8)], f"{name}m")
        t.node("Transpose", [t.node("Reshape", [m, "heads"], f"{name}r")], name, perm=perm)
    scores = t.node("Mul", [t.node("MatMul", ["q", "k"], "s"), t.weight("half", 1, value=2)], "scaled")
    mixed = t.node("MatMul", [t.node("Softmax", [scores], "p", axis=-1), "v"], "o")
    joined = t.node("Reshape", [t.node("Transpose", [mixed], "ot", perm=[0, 2, 1, 3]), "whole"], "or")
    t.node("Add", [t.node("MatMul", [joined, t.weight("wo", 8, 8)], "oo"), "x"], "y")
    return t.model("attention", ["batch", "length", 8], ["batch", "length", 8])


MODELS = {"convolutional": convolutional, "attention": attention}
