"""One network in several formats, each written in the format's way, gives the same numbers and code."""

from __future__ import annotations

import importlib.util
import struct
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin

RANDOM = np.random.default_rng(0)
WEIGHTS = {
    "first/w": RANDOM.standard_normal((8, 3, 3, 3)), "first/b": RANDOM.standard_normal(8),
    "second/w": RANDOM.standard_normal((8, 8, 3, 3)) / 9, "second/b": RANDOM.standard_normal(8),
    "dense/w": RANDOM.standard_normal((5, 8)), "dense/b": RANDOM.standard_normal(5),
}  # fmt: skip
W = {k: v.astype(np.float32) for k, v in WEIGHTS.items()}
X = RANDOM.standard_normal((1, 3, 16, 16)).astype(np.float32)
TOLERANCE = 2e-6
"""The largest difference of probabilities. Sums of at most 72 products are in another order if channels are
last."""


def by_numpy() -> Any:
    """The network in float64: two convolutions with ReLU, a pool between them, mean, a layer, softmax."""

    def conv(x: Any, name: str) -> Any:
        padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        y = np.einsum("ncyxij,ocij->noyx", windows, W[f"{name}/w"].astype(np.float64))
        return np.maximum(y + W[f"{name}/b"][:, None, None], 0)

    pooled = conv(X.astype(np.float64), "first").reshape(1, 8, 8, 2, 8, 2).max((3, 5))
    y = conv(pooled, "second").mean((2, 3)) @ W["dense/w"].T + W["dense/b"]
    return np.exp(y - y.max()) / np.exp(y - y.max()).sum()


def as_onnx(folder: Path, keepdims: int = 1) -> Any:
    node, value = helper.make_node, helper.make_tensor_value_info
    nodes = [
        node("Conv", ["x", "first/w", "first/b"], ["a"], pads=[1, 1, 1, 1]), node("Relu", ["a"], ["b"]),
        node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["c", "second/w", "second/b"], ["d"], pads=[1, 1, 1, 1]), node("Relu", ["d"], ["e"]),
        node("ReduceMean", ["e"], ["means"], axes=[2, 3], keepdims=keepdims),
        node("Flatten", ["means"], ["f"]),
        node("Gemm", ["f", "dense/w", "dense/b"], ["g"], transB=1), node("Softmax", ["g"], ["y"], axis=1),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "net", [value("x", TensorProto.FLOAT, X.shape)], [value("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(v, k) for k, v in W.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return made.SerializeToString()


NNEF = """version 1.0;
graph net( x ) -> ( y )
{
    x = external(shape = [1, 3, 16, 16]);
    w1 = variable(shape = [8, 3, 3, 3], label = 'first/w');
    b1 = variable(shape = [1, 8], label = 'first/b');
    w2 = variable(shape = [8, 8, 3, 3], label = 'second/w');
    b2 = variable(shape = [1, 8], label = 'second/b');
    w3 = variable(shape = [5, 8], label = 'dense/w');
    b3 = variable(shape = [1, 5], label = 'dense/b');
    a = relu(conv(x, w1, b1, padding = [(1, 1), (1, 1)]));
    c = max_pool(a, size = [1, 1, 2, 2], stride = [1, 1, 2, 2], padding = [(0, 0), (0, 0), (0, 0), (0, 0)]);
    d = relu(conv(c, w2, b2, padding = [(1, 1), (1, 1)]));
    f = squeeze(mean_reduce(d, axes = [2, 3]), axes = [2, 3]);
    y = softmax(linear(f, w3, b3));
}
"""


def as_nnef(folder: Path) -> Any:
    pytest.importorskip("nnef", reason="nnef isn't installed: the extra `nnef` brings it")
    from jangin.frontends.nnef.tensors import tensor_bytes

    (folder / "graph.nnef").write_text(NNEF)
    for name, array in W.items():
        path = folder / f"{name}.dat"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(tensor_bytes(array[None] if array.ndim == 1 else array))
    return folder


def as_torch(folder: Path) -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")
    nn = torch.nn
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5), nn.Softmax(1),
    )  # fmt: skip
    with torch.no_grad():
        for parameter, array in zip(net.parameters(), W.values(), strict=True):
            parameter.copy_(torch.from_numpy(array))
    torch.export.save(torch.export.export(net.eval(), (torch.from_numpy(X),)), folder / "net.pt2")
    return folder / "net.pt2"


def as_darknet(folder: Path) -> Any:
    conv = "[convolutional]\nfilters=8\nsize=3\nstride=1\npad=1\nactivation=relu\n"
    rest = "[avgpool]\n[connected]\noutput=5\nactivation=linear\n[softmax]\ngroups=1\n"
    text = f"[net]\nwidth=16\nheight=16\nchannels=3\n{conv}[maxpool]\nsize=2\nstride=2\n{conv}{rest}"
    (folder / "net.cfg").write_text(text)
    numbers = [W[f"{layer}/{part}"] for layer in ("first", "second", "dense") for part in ("b", "w")]
    data = struct.pack("<iiiq", 0, 2, 5, 0) + b"".join(n.tobytes() for n in numbers)
    (folder / "net.weights").write_bytes(data)
    return folder / "net.cfg"


def as_tflite(folder: Path) -> Any:
    """Write the network with channels last."""
    pytest.importorskip("tflite", reason="tflite isn't installed: the extra `tflite` brings it")
    files = _files()
    t, o, relu = files.Tensor, files.Operator, {"FusedActivationFunction": 1}
    tensors = [
        t([1, 16, 16, 3]), t([8, 3, 3, 3], data=W["first/w"].transpose(0, 2, 3, 1)),
        t([8], data=W["first/b"]),
        t([1, 16, 16, 8]), t([1, 8, 8, 8]), t([8, 3, 3, 8], data=W["second/w"].transpose(0, 2, 3, 1)),
        t([8], data=W["second/b"]), t([1, 8, 8, 8]), t([2], "int32", data=[1, 2]), t([1, 8]),
        t([5, 8], data=W["dense/w"]), t([5], data=W["dense/b"]), t([1, 5]), t([1, 5]),
    ]  # fmt: skip
    step = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1, **relu}
    pool = {"Padding": 1, "StrideH": 2, "StrideW": 2, "FilterHeight": 2, "FilterWidth": 2}
    operators = [
        o("CONV_2D", [0, 1, 2], [3], "Conv2DOptions", step),
        o("MAX_POOL_2D", [3], [4], "Pool2DOptions", pool),
        o("CONV_2D", [4, 5, 6], [7], "Conv2DOptions", step), o("MEAN", [7, 8], [9], "ReducerOptions", {}),
        o("FULLY_CONNECTED", [9, 10, 11], [12], "FullyConnectedOptions", {}),
        o("SOFTMAX", [12], [13], "SoftmaxOptions", {"Beta": 1.0}),
    ]  # fmt: skip
    return files.written(tensors, operators, [0], [13])


def _files() -> Any:
    path = Path(__file__).parents[1] / "tflite_format" / "files.py"
    spec = importlib.util.spec_from_file_location("tflite_files", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tflite_files"] = module
    spec.loader.exec_module(module)
    return module


FORMATS: Mapping[str, Callable[[Path], Any]] = {
    "onnx": as_onnx, "without axes": partial(as_onnx, keepdims=0),
    "nnef": as_nnef, "torch": as_torch, "darknet": as_darknet, "tflite": as_tflite,
}  # fmt: skip
SAME_KERNELS = ("onnx", "without axes", "nnef", "torch")
"""Formats with channels first and weights in ONNX's order. All their kernels are ONNX's."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FORMATS)
def test_the_same_network(name: str, tmp_path: Path) -> None:
    exe = jangin.compile(FORMATS[name](tmp_path), threads=1, cache=False)
    x = X.transpose(0, 2, 3, 1) if name == "tflite" else X
    (y,) = exe.run({exe.inputs[0].name: x}).values()
    np.testing.assert_allclose(np.asarray(y).reshape(1, 5), by_numpy(), rtol=0, atol=TOLERANCE)
    first = jangin.compile(as_onnx(tmp_path), threads=1, cache=False)
    functions, others = ([x.function for x in e.artifact.plan.launches] for e in (first, exe))
    if name in SAME_KERNELS:
        assert others == functions


@pytest.mark.slow
def test_basic_pitch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One author's ONNX model and TFLite model are compared on noise."""
    pytest.importorskip("tflite", reason="tflite isn't installed: the extra `tflite` brings it")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "examples"))
    from packages import package

    folder = package("basic-pitch==0.4.0") / "basic_pitch" / "saved_models" / "icassp_2022"
    x = (np.random.default_rng(1).standard_normal((1, 43844, 1)) * 0.1).astype(np.float32)
    found = []
    for name in ("nmp.onnx", "nmp.tflite"):
        exe = jangin.compile(folder / name, threads=2, cache=False)
        found.append(exe.run({exe.inputs[0].name: x}))
    for name, wanted in found[0].items():
        np.testing.assert_allclose(found[1][name], wanted, rtol=0, atol=5e-4, err_msg=name)
