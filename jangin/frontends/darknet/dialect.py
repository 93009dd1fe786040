"""Darknet's layers behind the protocol of all dialects. Images are [N, C, H, W]."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jangin.frontends.dialect import Bodies, Dialect, Inputs, Lowering
from jangin.ir.dtype import F32
from jangin.ir.expr import Expr, call, cast, const, select
from jangin.ir.graph import CompileError, ImportedAttributes, Node
from jangin.ops import activation as functions
from jangin.ops import move, pool
from jangin.ops.axes import per_channel, product
from jangin.ops.builder import Builder, Tensor
from jangin.ops.conv import conv
from jangin.ops.resize import Style, asymmetric, resize, scaled_lines
from jangin.ops.window import Window

ACTIVATIONS: Mapping[str, Callable[[Expr], Expr]] = {
    "linear": lambda x: x,
    "logistic": functions.sigmoid,
    "relu": functions.relu,
    "relu6": lambda x: functions.clip(x, 0.0, 6.0),
    "leaky": lambda x: functions.leaky_relu(x, 0.1),
    "relie": lambda x: functions.leaky_relu(x, 0.01),
    "ramp": lambda x: functions.relu(x) + x * 0.1,
    "tanh": functions.tanh,
    "hardtan": lambda x: functions.clip(x, -1.0, 1.0),
    "loggy": lambda x: functions.sigmoid(x) * 2.0 - 1.0,
    "elu": functions.elu,
    "selu": lambda x: functions.selu(x, 1.6732, 1.0507),
    "gelu": functions.gelu_tanh,
    "mish": functions.mish,
    "swish": functions.swish,
    "lhtan": lambda x: select(x < 0, x * 0.001, select(x > 1, (x - 1.0) * 0.001 + 1.0, x)),
    "plse": lambda x: select(
        x < -4, (x + 4.0) * 0.01, select(x > 4, (x - 4.0) * 0.01 + 1.0, x * 0.125 + 0.5)
    ),
}
"""By the names in a cfg (src/activations.h)."""
EPSILON = 1e-6
"""Added to the standard deviation, not to the variance (src/blas.c, normalize_cpu)."""


def _activated(b: Builder, node: Node, x: Tensor) -> Tensor:
    name = node.of(ImportedAttributes)["activation"]
    if name not in ACTIVATIONS:
        raise CompileError(f"the activation {name} is none of {', '.join(ACTIVATIONS)}")
    return x if name == "linear" else b.map(ACTIVATIONS[name], x)


def _normalized(b: Builder, x: Tensor, bias: Tensor, rest: Inputs) -> Tensor:
    """x times a factor plus an offset a channel, folded where these are constants."""
    if not rest:
        return b.map(lambda v, o: v + o, x, per_channel(b, bias, x.rank) if x.rank > 2 else bias)
    scales, mean, variance = (b.require_constant(_tensor(t), "a statistic").astype(np.float64) for t in rest)
    offset = b.require_constant(bias, "a bias").astype(np.float64)
    factor = scales / (np.sqrt(variance) + EPSILON)
    whole = [b.const(a.astype(np.float32)) for a in (factor, offset - mean * factor)]
    spread = [per_channel(b, t, x.rank) if x.rank > 2 else t for t in whole]
    return b.map(lambda v, f, o: v * f + o, x, *spread)


def _tensor(value: Any) -> Tensor:
    assert isinstance(value, Tensor)
    return value


def convolutional(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x, w, bias = (_tensor(t) for t in inputs[:3])
    o = node.of(ImportedAttributes)
    y = conv(
        b, x, w, strides=[o["stride"]] * 2, dilations=[o["dilation"]] * 2, pads=[o["padding"]] * 4,
        groups=o["groups"],
    )  # fmt: skip
    return _activated(b, node, _normalized(b, y, bias, inputs[3:]))


def connected(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x, w, bias = (_tensor(t) for t in inputs[:3])
    rows = b.reshape(x, [x.shape[0], w.shape[1]])
    y = _normalized(b, b.matmul(rows, w, transpose_b=True), bias, inputs[3:])
    return b.reshape(_activated(b, node, y), [x.shape[0], w.shape[0], 1, 1])


def batchnorm(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    return _normalized(b, _tensor(inputs[0]), _tensor(inputs[1]), inputs[2:])


def maxpool(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    """Padding is on both sides together: half of it, rounded down, before."""
    x, o = _tensor(inputs[0]), node.of(ImportedAttributes)
    before = o["padding"] // 2
    after = o["padding"] - before
    pads = [before, before, after, after]
    window = Window.over(b, x, [o["size"]] * 2, strides=[o["stride"]] * 2, pads=pads)
    return pool.max_pool(b, x, window)


def avgpool(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x = _tensor(inputs[0])
    count = product(x.shape[2:])
    return b.map(lambda v: v / cast(v.dtype, count), b.reduce("sum", x, [2, 3], True))


def route(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    o = node.of(ImportedAttributes)
    parts = []
    for value, channels in zip(inputs, o["channels"], strict=True):
        x, each = _tensor(value), channels // o["groups"]
        start = [0, each * o["group_id"], 0, 0]
        parts.append(b.slice(x, start, [x.shape[0], each, *x.shape[2:]], [1] * 4))
    return b.concat(parts, 1)


def shortcut(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    y = _tensor(inputs[0])
    for other in inputs[1:]:
        y = b.map(lambda v, w: v + w, y, _tensor(other))
    return _activated(b, node, y)


def times(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    return _activated(b, node, b.map(lambda v, w: v * w, _tensor(inputs[0]), _tensor(inputs[1])))


def upsample(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x, o = _tensor(inputs[0]), node.of(ImportedAttributes)
    y = resize(
        b, x, scaled_lines(b, x, [2, 3], [float(o["stride"])] * 2), Style("nearest", asymmetric, "floor")
    )
    return y if o["scale"] == 1 else b.map(lambda v: v * float(o["scale"]), y)


def reorg(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    return move.reorg(b, _tensor(inputs[0]), node.of(ImportedAttributes)["stride"])


def softmax(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x, o = _tensor(inputs[0]), node.of(ImportedAttributes)
    size = math.prod(o["size_out"])
    rows = b.reshape(x, [x.shape[0], o["groups"], size // o["groups"]])
    if o["temperature"] != 1:
        rows = b.map(lambda v: v * float(1 / o["temperature"]), rows)
    return b.reshape(b.softmax(rows, 2), x.shape)


def activation(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    return _activated(b, node, _tensor(inputs[0]))


def detections(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    """[N, rows * columns * anchors, 5 + classes]: a box's centre and size in parts of the image, how certain
    it is that there is one, and the classes' probabilities if so (Redmon & Farhadi 2016, 2018)."""
    x, o = _tensor(inputs[0]), node.of(ImportedAttributes)
    anchors, width = o["anchors"], 5 + o["classes"]
    n, _, h, w = x.shape
    cells = b.transpose(b.reshape(x, [n, len(anchors), width, h, w]), [0, 3, 4, 1, 2])
    stretch, squares = float(o.get("scale_x_y", 1)), bool(o.get("new_coords"))
    sizes = b.const(np.array(anchors, np.float32))
    raw = squares or bool(o.get("softmax"))

    def part(first: int, count: int) -> Tensor:
        return b.slice(cells, [0, 0, 0, 0, first], [n, h, w, len(anchors), count], [1] * 5)

    def centre(bufs: Any, *index: Expr) -> Expr:
        v = bufs[0][index]
        v = v if squares else functions.sigmoid(v)
        v = v * stretch - 0.5 * (stretch - 1) if stretch != 1 else v
        across = index[4] < 1
        place = select(across, index[2], index[1])
        return (v + cast(F32, place)) / select(across, cast(F32, w), cast(F32, h))

    places = b.compute(F32, (n, h, w, const(len(anchors)), const(2)), [part(0, 2)], centre)
    extents = b.map(lambda v, a: (v * v * 4.0 if squares else call("exp", v)) * a, part(2, 2), sizes)
    certain = part(4, 1) if squares else b.map(functions.sigmoid, part(4, 1))
    classes = part(5, o["classes"])
    if o.get("softmax"):
        classes = b.softmax(classes, 4)
    elif not raw:
        classes = b.map(functions.sigmoid, classes)
    whole = b.concat([places, extents, certain, classes], 4)
    return b.reshape(whole, [n, h * w * len(anchors), width])


LAYERS: Mapping[str, Lowering] = {
    "activation": activation, "avgpool": avgpool, "batchnorm": batchnorm, "connected": connected,
    "convolutional": convolutional, "maxpool": maxpool, "region": detections, "reorg": reorg, "route": route,
    "sam": times, "scale_channels": times, "shortcut": shortcut, "softmax": softmax, "upsample": upsample,
    "yolo": detections,
}  # fmt: skip


class Darknet(Dialect):
    """Nodes are known by their sections ("darknet.convolutional")."""

    domain = "darknet"

    def lowering(self, node: Node) -> Lowering | None:
        return LAYERS.get(node.op.removeprefix("darknet."))

    def remedy(self, node: Node) -> str:
        return f"there are sections of the kinds {', '.join(LAYERS)}"


DARKNET = Darknet()
