"""Core ML's layers of neural networks on arrays, compared with NumPy by the definitions in
NeuralNetwork.proto."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import jangin

pytest.importorskip("coremltools", reason="coremltools isn't installed: the extra `coreml` brings it")

from test_networks import network

from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ops.interpret import run_graph
from jangin.passes.partition import has_steps

RANDOM = np.random.default_rng(8)
Fields = Mapping[str, Any]
Case = tuple[Fields, Sequence[Any], Callable[..., Any]]
"""A layer's parameters, its inputs, and its expected results."""


def fill(message: Any, fields: Fields) -> None:
    """Set parameters by name: numbers, lists, other messages, and enumerations' values by their names."""
    message.SetInParent()
    for name, value in fields.items():
        if isinstance(value, Mapping):
            fill(getattr(message, name), value)
        elif isinstance(value, str):
            setattr(
                message, name, message.DESCRIPTOR.fields_by_name[name].enum_type.values_by_name[value].number
            )
        elif isinstance(value, (list, np.ndarray)) and isinstance(next(iter(value), 0), Mapping):
            for part in value:
                fill(getattr(message, name).add(), part)
        elif isinstance(value, (list, np.ndarray)):
            getattr(message, name).extend(np.asarray(value).tolist())
        else:
            setattr(message, name, value)


def weights(a: Any) -> Fields:
    return {"floatValue": np.asarray(a, np.float32).reshape(-1)}


def x(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def inside(*shape: int) -> Any:
    return RANDOM.uniform(0.1, 0.9, shape).astype(np.float32)


def run(name: str, fields: Fields, inputs: Sequence[Any], outputs: int, exact: bool = True) -> list[Any]:
    shape = list(inputs[0].shape) if inputs else [1]
    message, net = network(shape if exact else shape[1:], exact)
    names = ["x", *(f"x{n}" for n in range(1, len(inputs)))]
    for n, array in list(zip(names, inputs, strict=False))[1:]:
        declared = message.description.input.add(name=n).type.multiArrayType
        declared.dataType = 65568
        declared.shape.extend(array.shape)
    results = ["y", *(f"y{n}" for n in range(1, outputs))]
    for n in results[1:]:
        message.description.output.add(name=n).type.multiArrayType.dataType = 65568
    layer = net.layers.add(name="l", input=names[: len(inputs)], output=results)
    fill(getattr(layer, name), fields)
    graph = lower(load(message))
    given = dict(zip(graph.inputs, inputs or [np.zeros(1, np.float32)], strict=True))
    if has_steps(graph):  # a run computes sizes
        return list(jangin.compile(message, threads=1, cache=False).run(given).values())
    return list(run_graph(graph, given).values())


A, B, IMAGE, ROWS = x(3, 4), x(3, 4), x(1, 4, 6, 6), x(2, 3, 4)
W, GAIN, SHIFT, MEAN, SPREAD = x(4, 5), x(4), x(4), x(4), inside(4)
BORDERS = {"borderAmounts": [{"startEdgeSize": 1, "endEdgeSize": 2}, {"startEdgeSize": 2, "endEdgeSize": 0}]}
PADS = ((0, 0), (0, 0), (1, 2), (2, 0))
FLAGS = (RANDOM.random((2, 3, 4)) > 0.5).astype(np.float32)
PLACES = np.float32([2, 0, 1])


def by_channel(v: Any) -> Any:
    return np.reshape(v, (-1, 1, 1))


def windows(v: Any, sizes: Sequence[int], fn: Any) -> Any:
    """Apply `fn` to windows of the last axes, in steps of 1."""
    axes = tuple(range(v.ndim - len(sizes), v.ndim))
    return fn(np.lib.stride_tricks.sliding_window_view(v, sizes, axes), tuple(range(-len(sizes), 0)))


def normal(v: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    mean, variance = v.mean(axes, keepdims=True), v.var(axes, keepdims=True)
    return (v - mean) / np.sqrt(variance + epsilon)


def space_to_depth(v: Any, n: int) -> Any:
    """Move blocks of space to channels. The position in the block comes first."""
    b, c, h, w = v.shape
    parts = v.reshape(b, c, h // n, n, w // n, n)
    return parts.transpose(0, 3, 5, 1, 2, 4).reshape(b, c * n * n, h // n, w // n)


def depth_to_space(v: Any, n: int, channels_first: bool) -> Any:
    b, c, h, w = v.shape
    if channels_first:
        parts = v.reshape(b, c // n**2, n, n, h, w).transpose(0, 1, 4, 2, 5, 3)
    else:
        parts = v.reshape(b, n, n, c // n**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    return parts.reshape(b, c // n**2, h * n, w * n)


def lrn(v: Any) -> Any:
    near = np.pad(v.astype(np.float64) ** 2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    return v / (1.5 + 0.3 / 3 * sum(near[:, n : n + 4] for n in range(3))) ** 0.75


def lines(v: Any, axis: int, at: Any) -> Any:
    """Return values of an axis, interpolated between its entries."""
    at = np.clip(at, 0, v.shape[axis] - 1)
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, v.shape[axis] - 1)
    shape = [-1 if n == axis % v.ndim else 1 for n in range(v.ndim)]
    part = (at - low).reshape(shape)
    return np.take(v, low, axis) * (1 - part) + np.take(v, high, axis) * part


def resized(v: Any, at: Any) -> Any:
    return lines(lines(v, -1, at), -2, at)


def convolved(v: Any, w: Any, bias: Any) -> Any:
    view = np.lib.stride_tricks.sliding_window_view(v, w.shape[2:], (2, 3, 4))
    return np.einsum("ncxyzabd,ocabd->noxyz", view, w) + bias.reshape(-1, 1, 1, 1)


KERNEL, BIAS = x(3, 2, 2, 2, 3), x(3)
VOLUME = x(1, 2, 4, 5, 6)
VOLUME_KERNEL = {"kernelDepth": 2, "kernelHeight": 2, "kernelWidth": 3}
STRIDES = {f"{k}{d}": 1 for k in ("stride", "dilation") for d in ("Depth", "Height", "Width")}
CASES: dict[str, Case] = {
    **{f"a{n}": ({}, [inside(3, 4)], getattr(np, f"arc{n}")) for n in ("cos", "sin", "tan", "tanh", "sinh")},
    **{n: ({}, [x(3, 4)], getattr(np, n)) for n in ("ceil", "cos", "cosh", "sign", "sinh", "tan", "exp2")},
    "acosh": ({}, [1 + inside(3, 4)], np.arccosh),
    "erf": ({}, [A], lambda v: np.vectorize(math.erf)(v)),
    "clampedReLU": ({"alpha": 0.2, "beta": 0.7}, [A],
        lambda v: np.minimum(0.7, np.where(v >= 0, v, 0.2 * v))),
    "argMax": ({"axis": 1, "removeDim": True}, [A], lambda v: v.argmax(1)),
    "argMin": ({"axis": 0}, [A], lambda v: v.argmin(0)[None]),
    "argSort": ({"axis": 1, "descending": True}, [A], lambda v: (-v).argsort(1)),
    "average": ({}, [A, B], lambda v, w: (v + w) / 2), "min": ({}, [A, B], np.minimum),
    "multiply": ({"alpha": 3.0}, [A], lambda v: v * 3), "bias": (
        {"shape": [4], "bias": weights(GAIN)}, [IMAGE], lambda v: v + by_channel(GAIN)),
    "batchedMatmul": ({"transposeB": True}, [x(2, 3, 4), x(2, 5, 4)], lambda v, w: v @ w.swapaxes(1, 2)),
    "batchedMatmul of weights": (
        {"weightMatrixFirstDimension": 4, "weightMatrixSecondDimension": 5, "hasBias": True,
         "weights": weights(W.T), "bias": weights(x(5) * 0 + 2)}, [ROWS], lambda v: v @ W + 2),
    "batchnorm": (
        {"channels": 4, "gamma": weights(GAIN), "beta": weights(SHIFT), "mean": weights(MEAN),
         "variance": weights(SPREAD), "epsilon": 0.01}, [IMAGE],
        lambda v: by_channel(GAIN) * (v - by_channel(MEAN)) / by_channel(np.sqrt(SPREAD + 0.01))
        + by_channel(SHIFT)),
    "broadcastToStatic": ({"targetShape": [2, 3, 4]}, [A], lambda v: np.broadcast_to(v, (2, 3, 4))),
    "broadcastToLike": ({}, [A, ROWS], lambda v, w: np.broadcast_to(v, w.shape)),
    "broadcastToDynamic": ({}, [A, np.float32([2, 3, 4])], lambda v, _: np.broadcast_to(v, (2, 3, 4))),
    "concat": ({}, [IMAGE, IMAGE], lambda v, w: np.concatenate([v, w], -3)),
    "concatND": ({"axis": 1}, [A, B], lambda v, w: np.concatenate([v, w], 1)),
    "concatND by turns": (
        {"axis": 1, "interleave": True}, [A, B], lambda v, w: np.stack([v, w], 2).reshape(3, 8)),
    "constantPad": (
        {"value": 1.5, "padAmounts": [1, 0, 0, 2]}, [A],
        lambda v: np.pad(v, ((1, 0), (0, 2)), constant_values=1.5)),
    "padding": (
        {"constant": {"value": 0.5}, "paddingAmounts": BORDERS}, [IMAGE],
        lambda v: np.pad(v, PADS, constant_values=0.5)),
    "padding by reflection": (
        {"reflection": {}, "paddingAmounts": BORDERS}, [IMAGE], lambda v: np.pad(v, PADS, "reflect")),
    "padding by copies": (
        {"replication": {}, "paddingAmounts": BORDERS}, [IMAGE], lambda v: np.pad(v, PADS, "edge")),
    "convolution3d": (
        {"outputChannels": 3, "inputChannels": 2, "nGroups": 1, **VOLUME_KERNEL, **STRIDES, "hasBias": True,
         "paddingType": "VALID", "weights": weights(KERNEL), "bias": weights(BIAS)}, [VOLUME],
        lambda v: convolved(v, KERNEL, BIAS)),
    "pooling3d": (
        {"type": "AVERAGE", **VOLUME_KERNEL, **{k: v for k, v in STRIDES.items() if "stride" in k},
         "paddingType": "VALID"}, [VOLUME], lambda v: windows(v, (2, 2, 3), np.mean)),
    "globalPooling3d": ({"type": "MAX"}, [VOLUME], lambda v: v.max((2, 3, 4), keepdims=True)),
    "crop": ({"cropAmounts": BORDERS}, [IMAGE], lambda v: v[:, :, 1:4, 2:]),
    "cumSum": ({"axis": 1, "reverse": True}, [A], lambda v: v[:, ::-1].cumsum(1)[:, ::-1]),
    "cumSum without": (
        {"axis": 0, "excludeFinalSum": True}, [A], lambda v: v.cumsum(0) - v),
    "divideBroadcastable": ({}, [ROWS, A + 3], lambda v, w: v / w),
    "floorDivBroadcastable": ({}, [ROWS * 5, A + 3], lambda v, w: np.floor(v / w)),
    "minBroadcastable": ({}, [ROWS, A], np.minimum), "multiplyBroadcastable": ({}, [ROWS, A], np.multiply),
    "modBroadcastable": ({}, [ROWS * 5, inside(3, 4)], np.mod),
    "powBroadcastable": ({}, [inside(2, 3, 4), A], np.power),
    "dot": ({}, [IMAGE, IMAGE * 2 + 1], lambda v, w: (v * w).sum(-3, keepdims=True)),
    "dot by cosine": (
        {"cosineSimilarity": True}, [IMAGE, IMAGE * 2 + 1],
        lambda v, w: (v * w).sum(-3, keepdims=True)
        / np.sqrt((v * v).sum(-3, keepdims=True) * (w * w).sum(-3, keepdims=True))),
    "embedding": (
        {"inputDim": 5, "outputChannels": 4, "weights": weights(W)},
        [np.float32([3, 0, 4]).reshape(3, 1, 1, 1, 1)],
            lambda v: W.T[v.reshape(-1).astype(int)].reshape(3, 1, 4, 1, 1)),
    "embeddingND": (
        {"vocabSize": 5, "embeddingSize": 4, "weights": weights(W)}, [np.float32([[3], [0], [4]])],
        lambda v: W.T[v.reshape(-1).astype(int)]),
    "equal": ({}, [FLAGS, FLAGS[:1]], lambda v, w: v == w),
    "notEqual": ({}, [FLAGS, FLAGS[:1]], np.not_equal),
    "greaterThan": ({}, [A, B], np.greater), "greaterEqual": ({"alpha": 0.3}, [A], lambda v: v >= 0.3),
    "lessThan": ({"alpha": 0.3}, [A], lambda v: v < 0.3),
    "lessEqual": ({}, [FLAGS, FLAGS[:1]], np.less_equal),
    "logicalAnd": ({}, [FLAGS, FLAGS[:1]], np.logical_and),
    "logicalOr": ({}, [FLAGS, FLAGS[:1]], np.logical_or),
    "logicalXor": ({}, [FLAGS, FLAGS[:1]], np.logical_xor), "logicalNot": ({}, [FLAGS], np.logical_not),
    "expandDims": ({"axes": [0, -1]}, [A], lambda v: v[None, ..., None]),
    "fillStatic": ({"value": 2.5, "targetShape": [2, 3]}, [], lambda: np.full((2, 3), 2.5)),
    "fillLike": ({"value": 2.5}, [A], lambda v: np.full(v.shape, 2.5)),
    "fillDynamic": ({"value": 2.5}, [np.float32([2, 3])], lambda _: np.full((2, 3), 2.5)),
    "gather": ({"axis": 1}, [A, PLACES], lambda v, i: v[:, i.astype(int)]),
    "gatherAlongAxis": (
        {"axis": 0}, [A, np.float32([[2, 0, 1, 1]])], lambda v, i: np.take_along_axis(v, i.astype(int), 0)),
    "gatherND": ({}, [ROWS, np.float32([[1, 2], [0, 0]])], lambda v, i: v[[1, 0], [2, 0]]),
    "getShape": ({}, [ROWS], lambda v: np.array(v.shape)),
    "l2normalize": (
        {"epsilon": 0.5}, [IMAGE], lambda v: v / np.sqrt((v**2).sum((1, 2, 3), keepdims=True) + 0.5)),
    "layerNormalization": (
        {"normalizedShape": [4], "eps": 0.01, "gamma": weights(GAIN), "beta": weights(SHIFT)}, [ROWS],
        lambda v: normal(v, (-1,), 0.01) * GAIN + SHIFT),
    "loadConstant": ({"shape": [2, 1, 3], "data": weights(range(6))}, [],
        lambda: np.arange(6.0).reshape(2, 1, 3)),
    "loadConstantND": ({"shape": [2, 3], "data": weights(range(6))}, [],
        lambda: np.arange(6.0).reshape(2, 3)),
    "lowerTriangular": ({"k": 1}, [ROWS], lambda v: np.tril(v, 1)),
    "upperTriangular": ({"k": -1}, [ROWS], lambda v: np.triu(v, -1)),
    "matrixBandPart": ({"numLower": 1, "numUpper": -1}, [ROWS], lambda v: np.triu(v, -1)),
    "lrn": ({"alpha": 0.3, "beta": 0.75, "localSize": 3, "k": 1.5}, [IMAGE], lrn),
    "mvn": (
        {"normalizeVariance": True, "epsilon": 0.1}, [IMAGE], lambda v: normal(v, (2, 3), 0.1)),
    "mvn of all": (
        {"acrossChannels": True, "epsilon": 0.1}, [IMAGE], lambda v: v - v.mean((1, 2, 3), keepdims=True)),
    "oneHot": (
        {"oneHotVectorSize": 4, "axis": -1, "onValue": 2.0, "offValue": -1.0}, [PLACES],
        lambda v: np.where(np.eye(4)[v.astype(int)] > 0, 2.0, -1.0)),
    "rangeStatic": (
        {"startValue": 1.0, "endValue": 4.0, "stepSizeValue": 0.75}, [], lambda: np.arange(1, 4, 0.75)),
    "rankPreservingReshape": ({"targetShape": [0, -1, 2]}, [ROWS], lambda v: v.reshape(2, 6, 2)),
    "reshapeStatic": ({"targetShape": [4, -1]}, [ROWS], lambda v: v.reshape(4, 6)),
    "reshapeLike": ({}, [A, x(2, 6)], lambda v, w: v.reshape(2, 6)),
    "reshapeDynamic": ({}, [A, np.float32([2, 6])], lambda v, _: v.reshape(2, 6)),
    "reduce": ({"mode": "AVG", "axis": "HW"}, [IMAGE], lambda v: v.mean((2, 3), keepdims=True)),
    "reduce of logarithms": (
        {"mode": "LOGSUM", "axis": "C", "epsilon": 0.1}, [inside(1, 4, 6, 6)],
        lambda v: np.log(v + 0.1).sum(1, keepdims=True)),
    "reduce L2": ({"mode": "L2", "axis": "C"}, [IMAGE], lambda v: np.sqrt((v**2).sum(1, keepdims=True))),
    "reduceL1": ({"axes": [1], "keepDims": True}, [ROWS], lambda v: np.abs(v).sum(1, keepdims=True)),
    "reduceL2": ({"axes": [0, 2]}, [ROWS], lambda v: np.sqrt((v**2).sum((0, 2)))),
    "reduceLogSum": ({"axes": [1]}, [inside(2, 3, 4)], lambda v: np.log(v.sum(1))),
    "reduceLogSumExp": ({"axes": [-1]}, [ROWS], lambda v: np.log(np.exp(v).sum(-1))),
    "reduceMax": ({"axes": [1]}, [ROWS], lambda v: v.max(1)),
    "reduceMin": ({"axes": [1]}, [ROWS], lambda v: v.min(1)),
    "reduceMean": ({"reduceAll": True, "keepDims": True}, [ROWS], lambda v: v.mean(keepdims=True)),
    "reduceProd": ({"axes": [1]}, [ROWS], lambda v: v.prod(1)),
    "reduceSum": ({"axes": [0]}, [ROWS], lambda v: v.sum(0)),
    "reduceSumSquare": ({"axes": [1]}, [ROWS], lambda v: (v**2).sum(1)),
    "reorganizeData": ({"mode": "SPACE_TO_DEPTH", "blockSize": 2}, [IMAGE], lambda v: space_to_depth(v, 2)),
    "reorganizeData back": (
        {"mode": "DEPTH_TO_SPACE", "blockSize": 2}, [x(1, 8, 3, 2)], lambda v: depth_to_space(v, 2, False)),
    "reorganizeData pixels": (
        {"mode": "PIXEL_SHUFFLE", "blockSize": 2}, [x(1, 8, 3, 2)], lambda v: depth_to_space(v, 2, True)),
    "resizeBilinear": (
        {"targetSize": [4, 4], "mode": {"samplingMethod": "STRICT_ALIGN_ENDPOINTS_MODE"}}, [IMAGE],
        lambda v: resized(v, np.arange(4) * 5 / 3)),
    "resizeBilinear by steps": (
        {"targetSize": [4, 4], "mode": {"samplingMethod": "UPSAMPLE_MODE"}}, [IMAGE],
        lambda v: resized(v, np.arange(4) * 1.5)),
    "resizeBilinear of regions": (
        {"targetSize": [4, 4], "mode": {"samplingMethod": "ROI_ALIGN_MODE"}}, [IMAGE],
        lambda v: resized(v, (np.arange(4) + 0.5) * 1.25)),
    "resizeBilinear to the middle": (
        {"targetSize": [1, 1], "mode": {"samplingMethod": "ALIGN_ENDPOINTS_MODE"}}, [IMAGE],
        lambda v: resized(v, np.array([2.5]))),
    "reverse": ({"reverseDim": [False, True, True]}, [ROWS], lambda v: v[:, ::-1, ::-1]),
    "slice": ({"startIndex": 1, "endIndex": -1, "stride": 2, "axis": "HEIGHT_AXIS"}, [IMAGE],
        lambda v: v[:, :, 1:-1:2]),
    "sliceStatic": (
        {"beginIds": [0, -1, 3], "beginMasks": [True, False, False], "endIds": [1, 0, 0],
         "endMasks": [False, True, False], "strides": [1, -2, -1], "squeezeMasks": [False] * 3}, [ROWS],
        lambda v: v[:1, -1::-2, 3:0:-1]),
    "squeeze": ({"axes": [0, 2]}, [x(1, 3, 1, 2)], lambda v: v[0, :, 0]),
    "squeeze all": ({"squeezeAll": True}, [x(1, 3, 1, 2)], lambda v: v[0, :, 0]),
    "tile": ({"reps": [2, 1, 3]}, [ROWS], lambda v: np.tile(v, (2, 1, 3))),
    "upsample": ({"scalingFactor": [2, 3]}, [IMAGE], lambda v: v.repeat(2, 2).repeat(3, 3)),
    "unary": ({"type": "THRESHOLD", "alpha": 0.3}, [A], lambda v: np.maximum(v, 0.3)),
    "unary of a line": (
        {"type": "INVERSE", "scale": 2.0, "shift": 9.0, "epsilon": 0.1}, [A],
            lambda v: 1 / (2 * v + 9 + 0.1)),
    "whereBroadcastable": ({}, [FLAGS, ROWS, A], lambda c, v, w: np.where(c > 0, v, w)),
    "whereNonZero": ({}, [FLAGS], lambda v: np.argwhere(v)),
    "scatterND": (
        {"mode": "SCATTER_ADD"}, [A, np.float32([[2], [0]]), x(2, 4)],
        lambda v, i, u: v + np.stack([u[1], np.zeros(4), u[0]])),
    "scatterAlongAxis": (
        {"axis": 0, "mode": "SCATTER_UPDATE"}, [A, np.float32([[2, 0, 1, 1]]), x(1, 4)],
        lambda v, i, u: np.where(np.arange(3)[:, None] == i, u, v)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_layer(name: str) -> None:
    fields, inputs, wanted = CASES[name]
    (got,) = run(name.split()[0], fields, inputs, 1)
    exact = np.asarray(wanted(*inputs))
    assert got.shape == exact.shape
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("smallest", [False, True])
def test_the_largest(smallest: bool) -> None:
    best, places = run("topK", {"axis": 1, "K": 2, "useBottomK": smallest}, [A], 2)
    order = (A if smallest else -A).argsort(1)[:, :2]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(best, np.take_along_axis(A, order, 1))


def test_parts_of_an_axis() -> None:
    for fields, sizes in (({"axis": 1, "splitSizes": [1, 3]}, [1]), ({"axis": 1, "numSplits": 2}, [2])):
        parts = run("splitND", fields, [A], 2)
        for got, wanted in zip(parts, np.split(A, sizes, 1), strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("backwards", [False, True])
def test_simple_recurrent(backwards: bool) -> None:
    w, r, bias, given = x(5, 3), x(5, 5), x(5), x(4, 2, 3, 1, 1)
    fields = {
        "inputVectorSize": 3, "outputVectorSize": 5, "activation": {"tanh": {}}, "sequenceOutput": True,
        "hasBiasVector": True, "weightMatrix": weights(w), "recursionMatrix": weights(r),
        "biasVector": weights(bias), "reverseInput": backwards,
    }  # fmt: skip
    got, last = run("simpleRecurrent", fields, [given], 2)
    h, rows = np.zeros((2, 5)), []
    for row in given[::-1] if backwards else given:
        h = np.tanh(row[..., 0, 0] @ w.T + h @ r.T + bias)
        rows.append(h)
    np.testing.assert_allclose(got[..., 0, 0], rows[::-1] if backwards else rows, atol=2e-6)
    np.testing.assert_allclose(last.reshape(2, 5), h, atol=2e-6)
