"""Darknet's layers behind the protocol of all dialects. Images are [N, C, H, W]."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jangin.frontends.darknet.activations import ACTIVATIONS, normalized
from jangin.frontends.darknet.recurrent import recurrent
from jangin.frontends.dialect import Bodies, Dialect, Inputs, Lowering
from jangin.ir.dtype import F32
from jangin.ir.expr import Expr, call, cast, const, select
from jangin.ir.graph import CompileError, ImportedAttributes, Node
from jangin.ops import activation as functions
from jangin.ops import move, pool
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.conv import conv
from jangin.ops.resize import Style, asymmetric, resize, scaled_lines
from jangin.ops.select import ABSENT, suppressed, top_k
from jangin.ops.values import Tensor
from jangin.ops.window import Window

CANDIDATES = 1000
"""Of each class, so many boxes of highest score are compared with each other."""


def _activated(b: Builder, node: Node, x: Tensor) -> Tensor:
    name = node.of(ImportedAttributes)["activation"]
    if name not in ACTIVATIONS:
        raise CompileError(f"the activation {name} is none of {', '.join(ACTIVATIONS)}")
    return x if name == "linear" else b.map(ACTIVATIONS[name], x)


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
    return _activated(b, node, normalized(b, y, bias, inputs[3:]))


def connected(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x, w, bias = (_tensor(t) for t in inputs[:3])
    rows = b.reshape(x, [x.shape[0], w.shape[1]])
    y = normalized(b, b.matmul(rows, w, transpose_b=True), bias, inputs[3:])
    return b.reshape(_activated(b, node, y), [x.shape[0], w.shape[0], 1, 1])


def batchnorm(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    return normalized(b, _tensor(inputs[0]), _tensor(inputs[1]), inputs[2:])


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


def nms(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    """[N, most, 6]: centre, sizes, score and class of the boxes of all detections that no better one
    overlaps, the likeliest first, then rows of 0."""
    o = node.of(ImportedAttributes)
    whole = b.concat([_tensor(x) for x in inputs], 1)
    n, count, width = whole.shape
    middle, size = (b.slice(whole, [0, 0, at], [n, count, 2], [1] * 3) for at in (0, 2))
    ends = [b.map(lambda m, s, f=f: m + s * f, middle, size) for f in (-0.5, 0.5)]
    odds = b.map(
        lambda c, s: c * s,
        b.slice(whole, [0, 0, 4], [n, count, 1], [1] * 3),
        b.slice(whole, [0, 0, 5], [n, count, width - 5], [1] * 3),
    )
    corners = b.reshape(b.concat(ends, 2), [n, 1, count, 4])
    each = min(int(count.value), CANDIDATES)  # type: ignore[attr-defined]
    scores, boxes = suppressed(b, corners, b.transpose(odds, [0, 2, 1]), o["score"], o["overlap"], each)
    total = scores.shape[1] * each
    most = min(int(o["most"]), int((width - 5).value) * each)  # type: ignore[attr-defined]
    best, where = top_k(b, b.reshape(scores, [n, total]), const(most), axis=1)
    held = b.reshape(boxes, [n, total, 4])

    def cell(bufs: Any, *index: Expr) -> Expr:
        row, place = index[:2], index[2]
        at, side = bufs[1][row], place % 2
        low, high = (bufs[2][index[0], at, side + offset] for offset in (0, 2))
        box = select(place < 2, (low + high) * 0.5, high - low)
        rest = select(place < 5, bufs[0][row], cast(F32, at // each))
        there = bufs[0][row] > ABSENT
        return select(there, select(place < 4, box, rest), const(0.0, F32))

    return b.compute(F32, (n, const(most), const(6)), [best, where, held], cell)


LAYERS: Mapping[str, Lowering] = {
    "activation": activation, "avgpool": avgpool, "batchnorm": batchnorm, "connected": connected,
    "convolutional": convolutional, "maxpool": maxpool, "nms": nms, "region": detections, "reorg": reorg,
    "route": route,
    "sam": times, "scale_channels": times, "shortcut": shortcut, "softmax": softmax, "upsample": upsample,
    "yolo": detections,
}  # fmt: skip


RECURRENT = ("crnn", "gru", "lstm", "rnn")


class Darknet(Dialect):
    """Nodes are known by their sections ("darknet.convolutional")."""

    domain = "darknet"

    def lowering(self, node: Node) -> Lowering | None:
        name = node.op.removeprefix("darknet.")
        return recurrent if name in RECURRENT else LAYERS.get(name)

    def remedy(self, node: Node) -> str:
        return f"there are sections of the kinds {', '.join((*LAYERS, *RECURRENT))}"


DARKNET = Darknet()
