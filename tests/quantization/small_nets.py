"""Small networks to quantize, as ONNX models, and inputs for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from jangin.quantization.writer import Chosen

Array = np.ndarray[Any, Any]


def made(nodes: list[onnx.NodeProto], shape: list[Any], out: list[Any], constants: dict[str, Array]) -> bytes:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "net", [value("x", TensorProto.FLOAT, shape)], [value("y", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    opset = helper.make_opsetid("", 18)
    data: bytes = helper.make_model(graph, opset_imports=[opset], ir_version=9).SerializeToString()
    return data


def convolutions(seed: int = 0) -> bytes:
    """Return a network with a stem, a depthwise convolution with ReLU6, a residual around a projection, a
    pool, and class scores. The batch is symbolic."""
    rng, node = np.random.default_rng(seed), helper.make_node
    weights = {
        "w0": (8, 3, 3, 3), "w1": (8, 1, 3, 3), "w2": (8, 8, 1, 1), "w3": (12, 8, 3, 3), "fc": (12, 11),
    }  # fmt: skip
    constants = {
        n: (rng.standard_normal(s) / np.sqrt(np.prod(s[1:]))).astype(np.float32) for n, s in weights.items()
    }
    for i, n in enumerate((8, 8, 8, 12)):
        constants[f"b{i}"] = (rng.standard_normal(n) / 4).astype(np.float32)
    constants |= {"low": np.float32(0), "high": np.float32(6), "axes": np.array([2, 3])}
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], name="stem", pads=[1] * 4, strides=[2, 2]),
        node("Relu", ["c0"], ["r0"], name="relu"),
        node("Conv", ["r0", "w1", "b1"], ["c1"], name="depthwise", pads=[1] * 4, group=8),
        node("Clip", ["c1", "low", "high"], ["r1"], name="clip"),
        node("Conv", ["r1", "w2", "b2"], ["c2"], name="project"),
        node("Add", ["c2", "r0"], ["a"], name="residual"),
        node("MaxPool", ["a"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p", "w3", "b3"], ["c3"], name="last"),
        node("Sigmoid", ["c3"], ["s"], name="sigmoid"),
        node("ReduceMean", ["s", "axes"], ["m"], name="mean", keepdims=0),
        node("MatMul", ["m", "fc"], ["y"], name="scores"),
    ]
    return made(nodes, ["batch", 3, 16, 16], ["batch", 11], constants)


def products(seed: int = 0, width: int = 64) -> bytes:
    """Return two layers with a normalization before and GELU between, and a residual, for [1, rows,
    width]."""
    rng, node = np.random.default_rng(seed), helper.make_node
    constants = {
        "w0": rng.standard_normal((width, 2 * width)) / np.sqrt(width),
        "b0": rng.standard_normal(2 * width) / 4,
        "w1": rng.standard_normal((2 * width, width)) / np.sqrt(2 * width),
        "scale": np.abs(rng.standard_normal(width)) + 0.5,
        "shift": rng.standard_normal(width) / 4,
        "root": np.array(np.sqrt(2)), "one": np.array(1), "half": np.array(0.5),
    }  # fmt: skip
    nodes = [
        node("LayerNormalization", ["x", "scale", "shift"], ["n"], name="norm"),
        node("MatMul", ["n", "w0"], ["m"], name="up"),
        node("Add", ["m", "b0"], ["u"], name="up.bias"),
        node("Div", ["u", "root"], ["d"], name="div"),
        node("Erf", ["d"], ["e"], name="erf"),
        node("Add", ["e", "one"], ["f"], name="one more"),
        node("Mul", ["u", "f"], ["g"], name="times"),
        node("Mul", ["g", "half"], ["h"], name="gelu"),
        node("MatMul", ["h", "w1"], ["o"], name="down"),
        node("Add", ["o", "x"], ["y"], name="residual"),
    ]
    f32 = {n: a.astype(np.float32) for n, a in constants.items()}
    return made(nodes, [1, "rows", width], [1, "rows", width], f32)


def pictures(count: int = 6, seed: int = 1) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((1, 3, 16, 16)).astype(np.float32) for _ in range(count)]


def rows(count: int = 6, seed: int = 1, width: int = 64) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((1, 7, width)).astype(np.float32) for _ in range(count)]


def of_pairs(chosen: Chosen) -> int:
    """Return the largest sum of two neighbouring int8 weights of one sign, along a product's terms. It is 0
    for a depthwise convolution."""
    w = chosen.weights.astype(int)
    rows = w.T if w.ndim == 2 else np.moveaxis(w, 1, -1)
    if rows.shape[-1] == 1:
        return 0
    even = np.pad(rows, [*[(0, 0)] * (rows.ndim - 1), (0, rows.shape[-1] % 2)])
    pairs = even.reshape(*even.shape[:-1], -1, 2)
    return int(max(np.maximum(pairs, 0).sum(-1).max(), np.maximum(-pairs, 0).sum(-1).max()))
