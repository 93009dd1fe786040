"""Lower the layers of SSD (Liu et al. 2016): prior boxes and detections."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jangin.frontends.caffe.operators.common import Layer, sizes_of
from jangin.frontends.registry import lowers
from jangin.ir.dtype import F32
from jangin.ir.expr import Buffer, Expr, call, cast, const, select
from jangin.ir.graph import Array, CompileError
from jangin.ops.axes import product
from jangin.ops.select import ABSENT, suppressed, top_k
from jangin.ops.values import Tensor


@lowers("PriorBox")
def prior_box(layer: Layer) -> Tensor:
    """Return [1, 2, 4 * boxes]: the corners of the prior boxes of all positions, as fractions of the image,
    then their variances."""
    p = "prior_box_param."
    rows, columns = sizes_of(layer.x(), "the bottom")[2:]
    image = list(sizes_of(layer.x(1), "the image")[2:])
    declared = layer.pair(p, "img_size", "img_h", "img_w", 0)
    image = [g or s for g, s in zip(declared, image, strict=True)]
    steps = [float((layer.all(p + f"step_{n}") or layer.all(p + "step") or (0,))[-1]) for n in "hw"]
    steps = [s or i / count for s, i, count in zip(steps, image, (rows, columns), strict=True)]
    sizes = np.array(_sizes(layer), np.float32)
    offset = layer.number(p + "offset", 0.5)
    ys, xs = (
        (np.arange(count, dtype=np.float32) + offset) * step
        for count, step in zip((rows, columns), steps, strict=True)
    )
    centres = np.stack(np.broadcast_arrays(xs[None, :, None], ys[:, None, None], sizes[:, 0])[:2], -1)
    scale = np.array([image[1], image[0]], np.float32)
    corners = np.concatenate([(centres - sizes / 2) / scale, (centres + sizes / 2) / scale], -1)
    if layer.flag(p + "clip", False):
        corners = corners.clip(0, 1)
    variances = layer.all(p + "variance") or (0.1,)
    spread = np.broadcast_to(np.array(variances, np.float32), corners.shape)
    return layer.b.const(np.stack([corners, spread]).reshape(1, 2, -1).astype(np.float32))


def _sizes(layer: Layer) -> list[tuple[float, float]]:
    """Return the widths and heights in pixels of the boxes that each position has."""
    p = "prior_box_param."
    least, most = ([float(v) for v in layer.all(p + n)] for n in ("min_size", "max_size"))
    if not least or len(most) not in (0, len(least)):
        raise CompileError(
            f"min_size is given {len(least)} times and max_size {len(most)} times: min_size must "
            "be given, and max_size as often or not at all"
        )
    flip = layer.flag(p + "flip", True)
    ratios = [1.0]
    for value in layer.all(p + "aspect_ratio"):
        if any(abs(value - r) < 1e-6 for r in ratios):
            continue
        ratios += [float(value), 1 / value] if flip else [float(value)]
    sizes = []
    for n, size in enumerate(least):
        sizes.append((size, size))
        if most:
            sizes.append((math.sqrt(size * most[n]),) * 2)
        sizes += [(size * math.sqrt(r), size / math.sqrt(r)) for r in ratios[1:]]
    return sizes


CODES = ("", "CORNER", "CENTER_SIZE", "CORNER_SIZE")


@lowers("DetectionOutput")
def detection_output(layer: Layer) -> Tensor:
    """Return [1, 1, images * keep_top_k, 7], a row for each detection: image, class, score and four corners.
    The best come first.

    The unused rows of an image are 0."""
    b, p = layer.b, "detection_output_param."
    classes, background = layer.whole(p + "num_classes"), layer.whole(p + "background_label_id")
    floor, overlap = (
        layer.number(p + "confidence_threshold", ABSENT),
        layer.number(p + "nms_param.nms_threshold", 0.3),
    )
    if layer.number(p + "nms_param.eta", 1) != 1 or not layer.flag(p + "normalized_bbox", True):
        raise CompileError("an adaptive threshold (eta), or boxes in pixels, are not supported")
    n = layer.x().shape[0]
    shared = layer.flag(p + "share_location", True)
    boxes, priors = _decoded(layer, 1 if shared else classes)
    scores = b.transpose(b.reshape(layer.x(1), [n, priors, classes]), [0, 2, 1])
    wanted = [c for c in range(classes) if c != background]
    picked = b.const(np.array(wanted, np.int64))
    scores = b.gather(scores, picked, 1)
    boxes = boxes if shared else b.gather(boxes, picked, 1)
    detections = suppressed(b, boxes, scores, floor, overlap, min(_limit(layer, "nms_param.top_k"), priors))
    return _rows(layer, *detections, wanted, min(_limit(layer, "keep_top_k"), len(wanted) * priors))


def _limit(layer: Layer, name: str) -> int:
    count = layer.whole(f"detection_output_param.{name}", -1)
    return count if count > 0 else 1 << 30


def _decoded(layer: Layer, classes: int) -> tuple[Tensor, int]:
    """Return the corners [images, classes, priors, 4] of the boxes that the network predicts from the priors,
    and the number of priors."""
    b, p = layer.b, "detection_output_param."
    code = layer.choice(p + "code_type", CODES, "CORNER")
    inside = layer.flag(p + "variance_encoded_in_target", False)
    clip = layer.flag(p + "clip", False)
    known: Array = b.require_constant(layer.x(2), "the boxes to begin with")
    corners, variances = (a.reshape(-1, 4).astype(np.float32) for a in known.reshape(2, -1))
    variances = np.ones_like(variances) if inside else variances
    count = len(corners)
    n = layer.x().shape[0]
    moves = b.transpose(b.reshape(layer.x(), [n, count, classes, 4]), [0, 2, 1, 3])
    size = corners[:, 2:] - corners[:, :2]
    scale = np.concatenate([size, size], 1) if code != "CORNER" else np.ones_like(corners)
    moved = b.map(
        lambda v, f: v * f, moves, b.const(variances * scale if code != "CENTER_SIZE" else variances)
    )
    if code != "CENTER_SIZE":
        boxes = b.map(lambda v, c: v + c, moved, b.const(corners))
    else:
        centre, extent = (b.const(a) for a in ((corners[:, :2] + corners[:, 2:]) / 2, size))
        halves = [b.slice(moved, [0, 0, 0, at], [*moved.shape[:3], const(2)], [1] * 4) for at in (0, 2)]
        middle = b.map(lambda v, s, c: v * s + c, halves[0], extent, centre)
        half = b.map(lambda v, s: call("exp", v) * s / 2.0, halves[1], extent)
        boxes = b.concat(
            [b.map(lambda m, h: m - h, middle, half), b.map(lambda m, h: m + h, middle, half)], 3
        )
    if clip:
        boxes = b.map(lambda v: select(v < 0, const(0.0, F32), select(v > 1, const(1.0, F32), v)), boxes)
    return boxes, count


def _rows(layer: Layer, scores: Tensor, boxes: Tensor, classes: list[int], most: int) -> Tensor:
    """Return the best `most` boxes of all classes as rows of image, class, score and four corners."""
    b = layer.b
    n, count, each = scores.shape
    total = product([count, each])
    flat = b.reshape(scores, [n, total])
    most = min(most, len(classes) * int(each.value))  # type: ignore[attr-defined]
    best, where = top_k(b, flat, const(most), axis=1)
    label = b.const(np.array(classes, np.float32))
    corners = b.reshape(boxes, [n, total, 4])

    def cell(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        image, row = index[2] // most, index[2] % most
        at, score = bufs[0][image, row], bufs[1][image, row]
        there = score > ABSENT
        corner = bufs[2][image, at, select(index[3] < 3, const(0), index[3] - 3)]
        head = select(index[3] < 1, cast(F32, image), select(index[3] < 2, bufs[3][at // each], score))
        return select(there, select(index[3] < 3, head, corner), const(0.0, F32))

    return b.compute(F32, (1, 1, n * most, 7), [where, best, corners, label], cell)
