"""Kernels of all templates over symbolic and small sizes compile, and give NumPy's results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin

Size = int | str
Arrays = Mapping[str, np.ndarray]
SIZES = {"b": 2, "m": 5, "n": 19, "k": 37, "h": 6, "w": 9}
"""The symbols' values in a run."""


def check(
    nodes: Sequence[onnx.NodeProto],
    shapes: Mapping[str, Sequence[Size]],
    want: Callable[[Arrays], np.ndarray],
    constants: Mapping[str, np.ndarray] | None = None,
    sizes: Sequence[Mapping[str, int]] = (SIZES, dict.fromkeys(SIZES, 1)),
) -> None:
    """Check the output `y` for random inputs, at several sizes."""
    held = constants or {}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    exe = jangin.compile(model, cache=False, isolated=False, threads=2)
    rng = np.random.default_rng(0)
    for values in sizes:
        arrays = {
            n: rng.standard_normal([values[d] if isinstance(d, str) else d for d in s]).astype(np.float32)
            for n, s in shapes.items()
        }
        wide = {n: a.astype(np.float64) for n, a in {**arrays, **held}.items()}
        found = exe.run(arrays)["y"]
        np.testing.assert_allclose(found, want(wide), rtol=2e-4, atol=2e-5)  # sums of up to 500 terms in f32


def node(op: str, inputs: str, output: str = "y", **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attrs)


def transposed_product(m: Size, n: Size, k: Size) -> None:
    nodes = [node("Transpose", "c", "t", perm=[0, 2, 1]), node("MatMul", "a t")]
    check(nodes, {"a": ["b", m, k], "c": ["b", n, k]}, lambda v: v["a"] @ v["c"].transpose(0, 2, 1))


def product(m: Size, n: Size, k: Size) -> None:
    check([node("MatMul", "a c")], {"a": ["b", m, k], "c": ["b", k, n]}, lambda v: v["a"] @ v["c"])


def weights(m: Size, n: Size, k: Size) -> None:
    """Check products. A constant right operand has known sizes."""
    rows, columns = (s if isinstance(s, int) else SIZES[s] for s in (k, n))
    w = np.random.default_rng(1).standard_normal((rows, columns)).astype(np.float32)
    check([node("MatMul", "a w")], {"a": ["b", m, rows]}, lambda v: v["a"] @ v["w"], {"w": w})


def attention(m: Size, n: Size, k: Size) -> None:
    """Check attention: scores, softmax, and their product with the values."""
    depth = k if isinstance(k, int) else 16
    nodes = [
        node("Transpose", "c", "t", perm=[0, 2, 1]),
        node("MatMul", "a t", "s"),
        node("Softmax", "s", "p", axis=-1),
        node("MatMul", "p d"),
    ]

    def want(v: Arrays) -> np.ndarray:
        s = v["a"] @ v["c"].transpose(0, 2, 1)
        p = np.exp(s - s.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True) @ v["d"]

    check(nodes, {"a": ["b", m, depth], "c": ["b", n, depth], "d": ["b", n, depth]}, want)


PRODUCTS = [transposed_product, product, weights, attention]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, "n", "k"), (4, "n", "k"), (8, "n", "k"), (2, 33, "k"), (7, 33, 5), ("m", "n", "k"), ("m", 1, "k")],
)
@pytest.mark.parametrize("kind", PRODUCTS)
def test_products(kind: Callable[[Size, Size, Size], None], m: Size, n: Size, k: Size) -> None:
    kind(m, n, k)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PRODUCTS)
def test_products_of_all_sizes(kind: Callable[[Size, Size, Size], None]) -> None:
    rows = (*range(1, 10), 16, 17, 33, "m")
    for m, n, k in itertools.product(rows, (1, 2, 7, 8, 16, 33, "n"), (1, 4, 7, 33, "k")):
        kind(m, n, k)


def convolution(channels: int, group: int, kernel: int, stride: int, h: Size, w: Size) -> None:
    """Check convolutions against a plain sum over taps."""
    weight = np.random.default_rng(2).standard_normal((channels, channels // group, kernel, kernel))
    weight = weight.astype(np.float32)
    pad = kernel // 2

    def want(v: Arrays) -> np.ndarray:
        x = np.pad(v["x"], [(0, 0), (0, 0), (pad, pad), (pad, pad)])
        rows, columns = ((s - kernel) // stride + 1 for s in x.shape[2:])
        out = np.zeros((x.shape[0], channels, rows, columns))
        each = channels // group
        for i, j in itertools.product(range(kernel), repeat=2):
            taps = x[
                :, :, i : i + stride * (rows - 1) + 1 : stride, j : j + stride * (columns - 1) + 1 : stride
            ]
            for g in range(group):
                part = slice(g * each, (g + 1) * each)
                out[:, part] += np.einsum("nchw,oc->nohw", taps[:, part], v["weight"][part, :, i, j])
        return out

    attrs = {"pads": [pad] * 4, "strides": [stride] * 2, "group": group}
    check([node("Conv", "x weight", **attrs)], {"x": ["b", channels, h, w]}, want, {"weight": weight})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("sizes", [("h", "w"), (6, 9), (1, "w")])
@pytest.mark.parametrize(
    ("channels", "group", "kernel", "stride"),
    [(3, 1, 3, 1), (16, 1, 3, 1), (16, 16, 3, 1), (5, 5, 3, 2), (16, 1, 1, 1)],
)
def test_convolutions(channels: int, group: int, kernel: int, stride: int, sizes: tuple[Size, Size]) -> None:
    convolution(channels, group, kernel, stride, *sizes)


@pytest.mark.slow
def test_convolutions_of_all_sizes() -> None:
    shapes = [("h", "w"), (1, 1), (2, "w"), ("h", 3), (7, 8), (5, 17)]
    for c, kernel, stride, (h, w) in itertools.product((1, 2, 7, 8, 16, 24), (1, 3, 5), (1, 2), shapes):
        for group in {1, c}:
            convolution(c, group, kernel, stride, h, w)


ROWS: dict[str, tuple[list[onnx.NodeProto], Callable[[np.ndarray], np.ndarray]]] = {
    "softmax": (
        [node("Softmax", "x", axis=-1)],
        lambda x: (
            np.exp(x - x.max(-1, keepdims=True)) / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)
        ),
    ),
    "sum": ([node("ReduceL2", "x", axes=[1], keepdims=0)], lambda x: np.sqrt((x * x).sum(1))),
    "mean": ([node("ReduceMean", "x", axes=[2], keepdims=1)], lambda x: x.mean(2, keepdims=True)),
    "turned": (
        [node("Transpose", "x", "t", perm=[2, 0, 1]), node("Relu", "t")],
        lambda x: np.maximum(x.transpose(2, 0, 1), 0),
    ),
    "outer": ([node("Softmax", "x", axis=0)], lambda x: np.exp(x) / np.exp(x).sum(0)),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("shape", [("b", "m", "n"), ("b", 1, "n"), (3, "m", 33), ("b", 4, 1)])
def test_rows(kind: str, shape: tuple[Size, ...]) -> None:
    nodes, want = ROWS[kind]
    check(nodes, {"x": shape}, lambda v: want(v["x"]))


def test_windows_of_no_images() -> None:
    """Windows of no images, beside free sizes. There is nothing to cut into tiles."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])], "g",
        [value("x", TensorProto.FLOAT, [0, 2, "h", "w"])], [value("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    exe = jangin.compile(model.SerializeToString(), threads=1, cache=False, isolated=False)
    assert exe(np.ones((0, 2, 8, 9), np.float32)).shape == (0, 2, 4, 4)
