"""Darknet's layers as a dialect. Images are [N, C, H, W]."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jangin.frontends.darknet.activations import ACTIVATIONS, normalized, tensor
from jangin.frontends.darknet.recurrent import recurrent
from jangin.frontends.dialect import Bodies, Dialect, Inputs, Lowering
from jangin.ir.dtype import F32
from jangin.ir.expr import Expr, call, cast, const, eq, land, minimum, select
from jangin.ir.graph import CompileError, ImportedAttributes, Node, static_shape
from jangin.ops import activation as functions
from jangin.ops import move, pool
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.conv import conv, conv_transpose
from jangin.ops.resize import Style, resize, scaled_lines
from jangin.ops.resize_positions import asymmetric
from jangin.ops.select import ABSENT, suppressed, top_k
from jangin.ops.values import Tensor
from jangin.ops.window import Window

LEAST = 1e-4
"""The number that is added to the sum by which channels are divided, because the sum may be 0."""


def _channels(softmax: bool, near: bool = False) -> Callable[[Builder, Tensor], Tensor]:
    """Return an activation that divides each channel by the sum of all channels. The channels are first cut
    at 0, or with `softmax` exponentiated.

    With `near`, the largest channel is subtracted before, so that exponentials don't overflow."""

    def apply(b: Builder, x: Tensor) -> Tensor:
        if near:
            x = b.map(lambda v, m: v - m, x, b.reduce("max", x, [1], True))
        parts = b.map(lambda v: call("exp", v) if softmax else functions.relu(v), x)
        return b.map(lambda v, s: v / (s + LEAST), parts, b.reduce("sum", parts, [1], True))

    return apply


ACROSS: Mapping[str, Callable[[Builder, Tensor], Tensor]] = {
    "normalize_channels": _channels(False), "normalize_channels_softmax": _channels(True),
    "normalize_channels_softmax_maxval": _channels(True, near=True),
}  # fmt: skip
"""Activations that combine all channels of a pixel."""
CANDIDATES = 1000
"""At most this many boxes of each class are compared with each other: those with the highest scores. The
comparisons grow with the square of this number."""


def _activated(b: Builder, node: Node, x: Tensor) -> Tensor:
    name = node.of(ImportedAttributes)["activation"]
    if name in ACROSS:
        return ACROSS[name](b, x)
    if name not in ACTIVATIONS:
        raise CompileError(f"the activation {name} is none of {', '.join(ACTIVATIONS)}")
    return x if name == "linear" else b.map(ACTIVATIONS[name], x)


def convolutional(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x, w, bias = (tensor(t) for t in inputs[:3])
    o = node.of(ImportedAttributes)
    y = conv(
        b, x, w, strides=list(o["strides"]), dilations=[o["dilation"]] * 2, pads=[o["padding"]] * 4,
        groups=o["groups"],
    )  # fmt: skip
    return _activated(b, node, normalized(b, y, bias, inputs[3:]))


def connected(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x, w, bias = (tensor(t) for t in inputs[:3])
    rows = b.reshape(x, [x.shape[0], w.shape[1]])
    y = normalized(b, b.matmul(rows, w, transpose_b=True), bias, inputs[3:])
    return b.reshape(_activated(b, node, y), [x.shape[0], w.shape[0], 1, 1])


def batchnorm(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    return normalized(b, tensor(inputs[0]), tensor(inputs[1]), inputs[2:])


def maxpool(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    """Return the maxima of windows, or of groups of channels at each pixel. `padding` is that of both sides
    together. Half of it, rounded down, is in front."""
    x, o = tensor(inputs[0]), node.of(ImportedAttributes)
    if "channels" in o:  # maximum over groups of channels, pixel by pixel
        n, c, h, w = x.shape
        apart = b.reshape(x, [n, c // o["channels"], o["channels"], h, w])
        return b.reduce("max", apart, [1])
    return pool.max_pool(b, x, _window(b, x, o))


def _window(b: Builder, x: Tensor, o: Mapping[str, Any]) -> Window:
    before = o["padding"] // 2
    after = o["padding"] - before
    pads = [before, before, after, after]
    return Window.over(b, x, [o["size"]] * 2, strides=list(o["strides"]), pads=pads)


def local_avgpool(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x = tensor(inputs[0])
    return pool.average_pool(b, x, _window(b, x, node.of(ImportedAttributes)))


def deconvolutional(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x, w, bias = (tensor(t) for t in inputs[:3])
    o = node.of(ImportedAttributes)
    y = conv_transpose(b, x, w, strides=[o["stride"]] * 2, pads=[o["padding"]] * 4)
    return _activated(b, node, normalized(b, y, bias, inputs[3:]))


def local(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    """Convolve with other weights at each position. Weights are [positions, filters, channels, rows,
    columns], and biases [filters, rows, columns]."""
    x, w, biases = (tensor(t) for t in inputs)
    o = node.of(ImportedAttributes)
    _, height, width = o["size_out"]
    pad = [0, 0, o["padding"], o["padding"]]
    x = b.pad(x, [*pad, *pad])

    def term(bufs: Any, index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        n, f, i, j = index
        pixel: Expr = bufs[0][n, k[0], i * o["stride"] + k[1], j * o["stride"] + k[2]]
        weighted: Expr = pixel * bufs[1][(i * width + j, f, *k)]
        return weighted

    shape, kernel = (x.shape[0], w.shape[1], const(height), const(width)), w.shape[2:]
    y = b.reduction(F32, shape, kernel, "sum", [x, w], term)
    return _activated(b, node, b.map(lambda v, bias: v + bias, y, biases))


def crop(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x, o = tensor(inputs[0]), node.of(ImportedAttributes)
    n, c, h, w = x.shape
    _, height, width = o["size_out"]
    y = b.slice(x, [0, 0, (h - height) // 2, (w - width) // 2], [n, c, height, width], [1] * 4)
    return b.map(lambda v: v * 2.0 - 1.0, y) if o["adjust"] else y


def implicit(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x, numbers = tensor(inputs[0]), tensor(inputs[1])
    return b.expand(numbers, [x.shape[0], *numbers.shape])


def by_channels(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    adds = node.op == "darknet.shift_channels"
    body: Callable[[Expr, Expr], Expr] = (lambda v, w: v + w) if adds else (lambda v, w: v * w)
    return b.map(body, tensor(inputs[0]), tensor(inputs[1]))


def avgpool(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x = tensor(inputs[0])
    count = product(x.shape[2:])
    return b.map(lambda v: v / cast(v.dtype, count), b.reduce("sum", x, [2, 3], True))


def route(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    o = node.of(ImportedAttributes)
    parts = []
    for value, channels in zip(inputs, o["channels"], strict=True):
        x, each = tensor(value), channels // o["groups"]
        start = [0, each * o["group_id"], 0, 0]
        parts.append(b.slice(x, start, [x.shape[0], each, *x.shape[2:]], [1] * 4))
    return b.concat(parts, 1)


def shortcut(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    layers, weights = [tensor(x) for x in inputs], None
    if node.of(ImportedAttributes)["weighted"]:
        weights = layers.pop()
    first = layers[0]
    y: Tensor | None = None
    for n, x in enumerate(layers):
        part = _fitted(b, x, first)
        if weights is not None:
            own = b.slice(weights, [n, 0], [1, weights.shape[1]], [1, 1])
            part = b.map(lambda v, w: v * w, part, b.reshape(own, [weights.shape[1], 1, 1]))
        y = part if y is None else b.map(lambda v, w: v + w, y, part)
    assert y is not None
    return _activated(b, node, y)


def _fitted(b: Builder, x: Tensor, like: Tensor) -> Tensor:
    """Return x in the shape of `like`.

    Too many channels are cut, and missing channels are zeros. If there are too many rows, every second (or
    n-th) is kept. Between too few rows there are zeros. Columns are treated like rows."""
    sizes, wanted = (static_shape(t.shape[1:]) for t in (x, like))
    if sizes == wanted:
        return x
    assert sizes is not None and wanted is not None
    steps = [max(d // w, 1) for d, w in zip(sizes, wanted, strict=True)][1:]
    gaps = [max(w // d, 1) for d, w in zip(sizes, wanted, strict=True)][1:]

    def at(bufs: Any, *index: Expr) -> Expr:
        inside = index[1] < sizes[0]
        places = [minimum(index[1], sizes[0] - 1)]
        for i, step, gap, size in zip(index[2:], steps, gaps, sizes[1:], strict=True):
            place = i // gap * step
            inside = land(inside, land(eq(i % gap, 0), place < size))
            places.append(minimum(place, size - 1))
        return select(inside, bufs[0][(index[0], *places)], const(0.0, F32))

    return b.compute(F32, (x.shape[0], *map(const, wanted)), [x], at)


def times(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    return _activated(b, node, b.map(lambda v, w: v * w, tensor(inputs[0]), tensor(inputs[1])))


def upsample(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x, o = tensor(inputs[0]), node.of(ImportedAttributes)
    if o["stride"] < 0:  # backward: sums of blocks
        (n, c, h, w), s = x.shape, -o["stride"]
        y = b.reduce("sum", b.reshape(x, [n, c, h // s, s, w // s, s]), [3, 5])
        return y if o["scale"] == 1 else b.map(lambda v: v * float(o["scale"]), y)
    y = resize(
        b, x, scaled_lines(b, x, [2, 3], [float(o["stride"])] * 2), Style("nearest", asymmetric, "floor")
    )
    return y if o["scale"] == 1 else b.map(lambda v: v * float(o["scale"]), y)


def reorg(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x, o = tensor(inputs[0]), node.of(ImportedAttributes)
    if o["back"]:
        return move.depth_to_space(b, x, o["stride"])
    later = node.op == "darknet.reorg3d"
    return move.space_to_depth(b, x, o["stride"]) if later else move.reorg(b, x, o["stride"])


def softmax(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x, o = tensor(inputs[0]), node.of(ImportedAttributes)
    size = math.prod(o["size_out"])
    rows = b.reshape(x, [x.shape[0], o["groups"], size // o["groups"]])
    if o["temperature"] != 1:
        rows = b.map(lambda v: v * float(1 / o["temperature"]), rows)
    return b.reshape(b.softmax(rows, 2), x.shape)


def activation(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    return _activated(b, node, tensor(inputs[0]))


def detections(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    """Decode boxes to [N, rows * columns * anchors, 5 + classes] (Redmon & Farhadi 2016, 2018).

    Each row has a box's centre and size as fractions of the image. The probability that there is an object
    follows, then the classes' conditional probabilities."""
    x, o = tensor(inputs[0]), node.of(ImportedAttributes)
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


def gaussian(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    """Decode boxes as `detections` does. Each coordinate is followed by its deviation, and the mean deviation
    lowers the box's probability (Choi et al. 2019)."""
    x, o = tensor(inputs[0]), node.of(ImportedAttributes)
    anchors, stretch = o["anchors"], float(o["scale_x_y"])
    n, _, h, w = x.shape
    shape = (n, h, w, const(len(anchors)))
    cells = b.transpose(b.reshape(x, [n, len(anchors), 9 + o["classes"], h, w]), [0, 3, 4, 1, 2])
    sizes = b.const(np.array(anchors, np.float32))

    def part(first: int, count: int) -> Tensor:
        return b.slice(cells, [0, 0, 0, 0, first], [*shape, count], [1] * 5)

    def extent(bufs: Any, *index: Expr) -> Expr:
        size: Expr = call("exp", bufs[0][(*index[:4], index[4] * 2 + 4)])
        length: Expr = size * bufs[1][index[3:]]
        return length

    def centre(bufs: Any, *index: Expr) -> Expr:
        v = functions.sigmoid(bufs[0][(*index[:4], index[4] * 2)]) * stretch - 0.5 * (stretch - 1)
        across = index[4] < 1
        place = (v + cast(F32, select(across, index[2], index[1]))) / select(
            across, cast(F32, w), cast(F32, h)
        )
        return place + bufs[1][index] * o["point"] if o["point"] else place

    extents = b.compute(F32, (*shape, const(2)), [cells, sizes], extent)
    places = b.compute(F32, (*shape, const(2)), [cells, extents], centre)
    doubts = [b.map(functions.sigmoid, part(i, 1)) for i in (1, 3, 5, 7)]
    doubt = b.map(lambda p, q, r, s: (p + q + r + s) * 0.25, *doubts)
    certain = b.map(lambda v, d: functions.sigmoid(v) * (1.0 - d), part(8, 1), doubt)
    whole = b.concat([places, extents, certain, b.map(functions.sigmoid, part(9, o["classes"]))], 4)
    return b.reshape(whole, [n, h * w * len(anchors), 5 + o["classes"]])


def first_detections(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    """Decode boxes of YOLO's first version (Redmon et al. 2016). All boxes of a cell have the cell's class
    probabilities."""
    o = node.of(ImportedAttributes)
    side, count, classes = o["side"], o["count"], o["classes"]
    cells, n = side * side, tensor(inputs[0]).shape[0]
    x = b.reshape(tensor(inputs[0]), [n, cells * (classes + 5 * count)])
    odds = b.reshape(b.slice(x, [0, 0], [n, cells * classes], [1, 1]), [n, cells, classes])
    if o["softmax"]:
        odds = b.softmax(odds, 2)
    sure = b.slice(x, [0, cells * classes], [n, cells * count], [1, 1])
    boxes = b.slice(x, [0, cells * (classes + count)], [n, cells * count * 4], [1, 1])

    def coordinate(bufs: Any, *index: Expr) -> Expr:
        v = bufs[0][index[0], index[1] * 4 + index[2]]
        cell, axis = index[1] // count, index[2]
        place = select(axis < 1, cell % side, cell // side)
        return select(axis < 2, (v + cast(F32, place)) / float(side), v * v if o["squared"] else v)

    shape = (n, const(cells * count))
    parts = [
        b.compute(F32, (*shape, const(4)), [boxes], coordinate), b.reshape(sure, [*shape, 1]),
        b.compute(F32, (*shape, const(classes)), [odds], lambda bufs, i, j, k: bufs[0][i, j // count, k]),
    ]  # fmt: skip
    return b.concat(parts, 2)


def nms(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    """Return [N, most, 6]: centre, sizes, score and class of each box that overlaps no better box of its
    class too much.

    The best boxes come first, and unused rows are 0."""
    o = node.of(ImportedAttributes)
    whole = b.concat([tensor(x) for x in inputs], 1)
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
    "route": route, "control_channels": by_channels, "crop": crop, "deconvolutional": deconvolutional,
    "detection": first_detections, "gaussian_yolo": gaussian, "implicit": implicit, "implicit_add": implicit,
    "implicit_mul": implicit, "local": local, "local_avgpool": local_avgpool, "reorg3d": reorg,
    "shift_channels": by_channels,
    "sam": times, "scale_channels": times, "shortcut": shortcut, "softmax": softmax, "upsample": upsample,
    "yolo": detections,
}  # fmt: skip


RECURRENT = ("crnn", "gru", "lstm", "rnn")


class Darknet(Dialect):
    """The dialect of Darknet's layers. A lowering is found by the section's name
    ("darknet.convolutional")."""

    domain = "darknet"

    def lowering(self, node: Node) -> Lowering | None:
        name = node.op.removeprefix("darknet.")
        return recurrent if name in RECURRENT else LAYERS.get(name)

    def remedy(self, node: Node) -> str:
        return f"there are sections of the kinds {', '.join((*LAYERS, *RECURRENT))}"


DARKNET = Darknet()
