"""Lower the custom operators of published models: SSD's detections and those of MediaPipe.

Their options are in the format FlexBuffers or are the bytes of a C structure. They aren't a table of the
schema."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jangin.frontends.registry import lowers
from jangin.frontends.tflite.operators.common import Call, activated, real
from jangin.frontends.tflite.operators.conv import SAME, VALID, pool_window
from jangin.frontends.tflite.operators.flex import PREFIX, node_attributes
from jangin.ir.dtype import F32, I64
from jangin.ir.expr import Buffer, Expr, call, cast, const, land, maximum, minimum, select
from jangin.ir.graph import CompileError, static_shape
from jangin.ops import conv
from jangin.ops.axes import channels_first, channels_last
from jangin.ops.builder import Builder
from jangin.ops.pool import max_pool_with_indices
from jangin.ops.scatter import unpool
from jangin.ops.select import chosen_boxes, top_k
from jangin.ops.values import Tensor

POOL = ("padding", "stride_w", "stride_h", "filter_width", "filter_height", "fused_activation_function")
FIELDS = {
    "Convolution2DTransposeBias": POOL[:3],
    "MaxPoolingWithArgmax2D": POOL,
    "MaxUnpooling2D": POOL,
}
"""The fields of the C structures with options (`TfLitePoolParams`), by operator. All are 32-bit integers."""
PADDINGS = {1: SAME, 2: VALID}
"""The kinds of padding, by their numbers in the C structures."""
COUNTS = ("max_detections", "max_classes_per_detection", "num_classes")
SCALES = ("y_scale", "x_scale", "h_scale", "w_scale")
THRESHOLDS = ("nms_score_threshold", "nms_iou_threshold")


def options(name: str, data: bytes) -> dict[str, Any]:
    """Return a custom operator's options by name. Those of an unknown operator are an array of bytes,
    `custom_options`.

    Damaged options raise CompileError or the decoder's error."""
    if name in FIELDS:
        fields = FIELDS[name]
        settings = dict(zip(fields, struct.unpack_from(f"<{len(fields)}i", data), strict=True))
        if settings["padding"] not in PADDINGS or min(v for k, v in settings.items() if k in POOL[1:5]) < 1:
            raise CompileError(f"{name} has impossible options: {settings}")
        return {**settings, "padding": PADDINGS[settings["padding"]]}
    if name.startswith(PREFIX):
        return node_attributes(name, data)
    if name != "TFLite_Detection_PostProcess":
        return {"custom_options": np.frombuffer(data, np.uint8)}
    from flatbuffers import flexbuffers

    entries = flexbuffers.Loads(data)
    numbers = {k: entries.get(k) for k in (*COUNTS, *SCALES, *THRESHOLDS)}
    for key, value in numbers.items():
        least = 1 if key in COUNTS else 0 if key in THRESHOLDS else 1e-30
        if not isinstance(value, int if key in COUNTS else (int, float)) or not least <= value < 1 << 20:
            raise CompileError(f"{name} has the impossible option {key} = {value}")
    regular, per = entries.get("use_regular_nms", False), entries.get("detections_per_class", 100)
    return {**numbers, "use_regular_nms": bool(regular), "detections_per_class": max(1, int(per))}


# -- MediaPipe's ---------------------------------------------------------------------------------


@lowers("Convolution2DTransposeBias")
def transposed_convolution(c: Call) -> Tensor:
    """Return a transposed convolution. Its inputs are x, filters [out, H, W, in] and a bias.

    With the padding `SAME`, the result is cropped by the padding that a convolution of x would have, half of
    it at the front."""
    b, x, w = c.b, channels_first(c.b, c.x()), c.b.transpose(c.x(1), [3, 0, 1, 2])
    kernel, sizes = static_shape(w.shape[2:]), static_shape(x.shape[2:])
    if kernel is None or sizes is None:
        raise CompileError(f"the filters {w} and the sizes of {x} must be known")
    strides, pads = [c.options["stride_h"], c.options["stride_w"]], [0, 0, 0, 0]
    if c.options["padding"] == SAME:
        for i, (k, s, n) in enumerate(zip(kernel, strides, sizes, strict=True)):
            cut = max(0, k - (n - 1) % s - 1)
            pads[i], pads[2 + i] = cut // 2, cut - cut // 2
    return channels_last(b, conv.conv_transpose(b, x, w, c.optional(2), strides=strides, pads=pads))


@lowers("MaxPoolingWithArgmax2D")
def max_pool_with_places(c: Call) -> tuple[Tensor, Tensor]:
    """Return the maximum of each window, and its position in the window. Positions are counted row by row,
    and are floats to which 0.1 is added."""
    b, x = c.b, channels_first(c.b, c.x())
    window = pool_window(c, x)
    best, where = max_pool_with_indices(b, x, window)
    pads = static_shape(window.pads)
    assert pads is not None
    height, width = x.shape[2:]

    def place(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        at = bufs[0][index]
        row = at // width % height - (index[2] * window.strides[0] - pads[0])
        column = at % width - (index[3] * window.strides[1] - pads[1])
        return cast(F32, row * window.kernel[1] + column) + 0.1

    places = b.compute(F32, where.shape, [where], place)
    return activated(c, channels_last(b, best)), channels_last(b, places)


@lowers("MaxUnpooling2D")
def max_unpooling(c: Call) -> Tensor:
    """Return each element of x at its position in its window, and 0 elsewhere. The positions are in the form
    of `max_pool_with_places`."""
    b, x, places, o = c.b, c.x(), c.x(1), c.options
    sizes = static_shape(x.shape)
    if sizes is None:
        raise CompileError(f"unpooling {x} needs known sizes: fix them with shapes=")
    kernel, strides = (o["filter_height"], o["filter_width"]), (o["stride_h"], o["stride_w"])
    extents: list[int] = [n * k for n, k in zip(sizes[1:3], kernel, strict=True)]
    offsets = [
        max(0, ((n - 1) * s + k - m) // 2)
        for n, s, k, m in zip(sizes[1:3], strides, kernel, extents, strict=True)
    ]
    shape = (sizes[0], *extents, sizes[3])

    def target(bufs: Sequence[Buffer], n: Expr, y: Expr, x: Expr, channel: Expr) -> Expr:
        at = cast(I64, bufs[0][n, y, x, channel])
        row: Expr = y * strides[0] - offsets[0] + at // kernel[1]
        column: Expr = x * strides[1] - offsets[1] + at % kernel[1]
        return ((n * shape[1] + row) * shape[2] + column) * shape[3] + channel

    where = b.compute(I64, x.shape, [places], target)
    return unpool(b, x, where, tuple(map(const, shape)))


@lowers("TransformTensorBilinear")
def transform_bilinear(c: Call) -> Tensor:
    """Return x [1, H, W, C] sampled bilinearly. A matrix [1, 4, 4] maps the centres of the result's pixels to
    positions in x. x is 0 outside of the image."""
    b, x, matrix = c.b, c.x(), c.b.reshape(c.x(1), [4, 4])
    wanted = c.options["shapes"][0]
    if len(wanted) != 4 or x.rank != 4:
        raise CompileError(f"the image {x} and the result {list(wanted)} must have four axes")
    rows, columns = x.shape[1:3]
    places = b.compute(F32, (const(2), const(wanted[1]), const(wanted[2])), [matrix], _place)
    inside = [
        b.map(lambda v, n=n: land(v >= 0, v <= cast(F32, n - 1)), _part(b, places, i))
        for i, n in enumerate((columns, rows))
    ]

    def value(bufs: Sequence[Buffer], n: Expr, y: Expr, x: Expr, channel: Expr) -> Expr:
        across, down = bufs[1][const(0), y, x], bufs[1][const(1), y, x]
        left, top = call("floor", across), call("floor", down)

        def corner(dy: int, dx: int) -> Expr:
            at = [_held(v, d, size) for v, d, size in ((top, dy, rows), (left, dx, columns))]
            return bufs[0][n, at[0], at[1], channel]

        right, lower = across - left, down - top
        upper_row, lower_row = ((1.0 - right) * corner(dy, 0) + right * corner(dy, 1) for dy in (0, 1))
        mixed = lower * lower_row + (1.0 - lower) * upper_row
        return select(land(bufs[2][y, x], bufs[3][y, x]), mixed, const(0.0, F32))

    shape = (x.shape[0], const(wanted[1]), const(wanted[2]), x.shape[3])
    return b.compute(F32, shape, [x, places, *inside], value)


def _place(bufs: Sequence[Buffer], which: Expr, y: Expr, x: Expr) -> Expr:
    """Return the column (`which` 0) or the row (`which` 1) in the source for pixel (x, y). The centres of
    pixels are at halves."""
    m = [bufs[0][which, const(i)] for i in (0, 1, 3)]
    moved = m[2] + (m[0] * 0.5 + m[1] * 0.5 - 0.5)
    return m[0] * cast(F32, x) + m[1] * cast(F32, y) + moved


def _part(b: Builder, x: Tensor, i: int) -> Tensor:
    return b.reshape(b.slice(x, [i, 0, 0], [1, *x.shape[1:]], [1, 1, 1]), x.shape[1:])


def _held(v: Expr, step: int, size: Expr) -> Expr:
    """Return the integer part of a float plus a step, clamped to the entries of an axis. Entries at positions
    outside have the weight 0."""
    top = cast(F32, size - 1)
    return minimum(maximum(cast(I64, minimum(maximum(v, const(0.0, F32)), top)) + step, 0), size - 1)


# -- detections ----------------------------------------------------------------------------------


@lowers("TFLite_Detection_PostProcess")
def detections(c: Call) -> tuple[Tensor, ...]:
    """Return the boxes that SSD detects, the best first: corners, classes, scores and the number of boxes.
    Rows after the last box are 0.

    The inputs are boxes [1, count, 4] as offsets from anchors, scores [1, count, classes] and anchors [count,
    4]. The classes may include the background, first. Anchors are centres and sizes."""
    b, o = c.b, c.options
    boxes, scores = _corners(c), real(c, 1)
    sizes, classes = static_shape(scores.shape), o["num_classes"]
    if sizes is None or len(sizes) != 3 or sizes[0] != 1 or sizes[2] < classes:
        raise CompileError(
            f"detections need one image, known sizes and {classes} classes, and the scores are {scores}"
        )
    count = sizes[1]
    scores = b.slice(scores, [0, 0, sizes[2] - classes], [1, count, classes], [1, 1, 1])
    most = o["max_detections"]
    if o["use_regular_nms"]:
        return _each_class(c, boxes, scores, min(o["detections_per_class"], count))
    per = min(o["max_classes_per_detection"], classes)
    values, labels = top_k(b, scores, const(per), axis=2)
    best = b.reshape(b.slice(values, [0, 0, 0], [1, count, 1], [1, 1, 1]), [1, 1, count])
    at, there = _chosen(c, boxes, best, most)
    at, there = (b.reshape(t, [t.shape[2]]) for t in (at, there))

    def rows(table: Tensor) -> Tensor:
        """Return the table's rows of the boxes found, [most * per, ...], with one row for each class."""
        gathered = b.gather(b.reshape(table, table.shape[1:]), at, 0)
        return b.map(
            lambda v, f: select(f, cast(F32, v), const(0.0, F32)),
            gathered,
            b.reshape(there, [*there.shape, 1]),
        )

    near = b.expand(b.reshape(boxes, [1, count, 1, 4]), [1, count, per, 4])
    held = min(most, count) * per
    corners = b.reshape(rows(b.reshape(near, [1, count, per * 4])), [held, 4])
    columns = [b.reshape(rows(t), [held]) for t in (labels, values)]
    total = b.reduce("sum", b.cast(there, F32), [0], True)
    return (*(_filled(b, t, most * per) for t in (corners, *columns)), total)


def _corners(c: Call) -> Tensor:
    """Return the boxes as top, left, bottom and right, [1, count, 4]. A box is its anchor, moved and scaled
    by its offsets."""
    b, moves, anchors, o = c.b, real(c, 0), real(c, 2), c.options
    scales = [o[f"{n}_scale"] for n in "yx"], [o[f"{n}_scale"] for n in "hw"]

    def part(t: Tensor, first: int) -> Tensor:
        starts = [0] * (t.rank - 1) + [first]
        return b.slice(t, starts, [*t.shape[:-1], const(2)], [1] * t.rank)

    centre, size = part(anchors, 0), part(anchors, 2)
    steps, growth = (b.const(np.array(s, np.float32)) for s in scales)
    middle = b.map(lambda v, s, z, m: v / s * z + m, part(moves, 0), steps, size, centre)
    half = b.map(lambda v, s, z: 0.5 * call("exp", v / s) * z, part(moves, 2), growth, size)
    return b.concat([b.map(lambda m, h: m - h, middle, half), b.map(lambda m, h: m + h, middle, half)], 2)


def _chosen(c: Call, boxes: Tensor, scores: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return the positions of up to `most` boxes for each row of scores [1, rows, count], and whether each
    position has a box. The boxes overlap no better one."""
    b, o = c.b, c.options
    floor = np.nextafter(np.float32(o["nms_score_threshold"]), np.float32(-math.inf))
    _, rows, count = static_shape(scores.shape) or (1, 1, 1)
    chosen = chosen_boxes(
        b, boxes, scores, limit=b.const(np.array([most])), floor=b.const(np.array([floor])),
        overlap=b.const(np.array([o["nms_iou_threshold"]], np.float32)),
    )  # fmt: skip
    chosen = b.slice(chosen, [0, 0, 0], [1, rows, min(most, count)], [1, 1, 1])
    return b.map(lambda v: maximum(v, 0), chosen), b.map(lambda v: v >= 0, chosen)


def _each_class(c: Call, boxes: Tensor, scores: Tensor, per: int) -> tuple[Tensor, ...]:
    """Choose boxes for each class alone, at most `per` of each. Return the best of them in the form of
    `detections`."""
    b, most = c.b, c.options["max_detections"]
    _, count, classes = static_shape(scores.shape) or (1, 1, 1)
    by_class = b.transpose(scores, [0, 2, 1])
    at, there = _chosen(c, boxes, by_class, per)
    flat = b.reshape(at, [classes * per])
    first = b.const(np.repeat(np.arange(classes) * count, per))
    own = b.gather(b.reshape(by_class, [classes * count]), b.map(lambda v, f: v + f, flat, first), 0)
    absent = const(-math.inf, F32)
    own = b.map(lambda v, f: select(f, v, absent), own, b.reshape(there, [classes * per]))
    values, which = top_k(b, own, const(min(most, classes * per)), axis=0)
    mask = b.map(lambda v: v > absent, values)
    near = b.gather(b.reshape(boxes, [count, 4]), b.gather(flat, which, 0), 0)

    def kept(t: Tensor, fn: Callable[[Expr], Expr]) -> Tensor:
        flags = mask if t.rank == 1 else b.reshape(mask, [*mask.shape, 1])
        return _filled(b, b.map(lambda v, f: select(f, fn(v), const(0.0, F32)), t, flags), most)

    labels = kept(which, lambda v: cast(F32, v // per))
    return (
        kept(near, lambda v: v), labels, kept(values, lambda v: v),
        b.reduce("sum", b.cast(mask, F32), [0], True),
    )  # fmt: skip


def _filled(b: Builder, x: Tensor, rows: int) -> Tensor:
    """Return x as [1, rows, ...], with zeros after its last row."""
    held = static_shape(x.shape[:1]) or (rows,)
    x = b.pad(x, [0] * x.rank + [rows - held[0]] + [0] * (x.rank - 1))
    return b.reshape(x, [1, *x.shape])
