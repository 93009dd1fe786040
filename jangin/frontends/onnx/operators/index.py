"""Lower ONNX operators that select elements, by index or by value."""

from __future__ import annotations

from jangin.frontends.onnx.operators.families import family
from jangin.frontends.onnx.registry import op
from jangin.ir.expr import const
from jangin.ir.simplify import simplify
from jangin.ops.axes import axis_of, product
from jangin.ops.builder import Builder
from jangin.ops.index import gather, gather_elements, gather_nd, one_hot
from jangin.ops.select import count_true, non_max_suppression, non_zero, positions, top_k, unique
from jangin.ops.values import Tensor

GATHER = family({"Gather": gather})
NON_ZERO = family({"NonZero": non_zero}, since=9)
GATHERS = family({"GatherElements": gather_elements, "GatherND": gather_nd}, since=11)


@op("OneHot", since=9)
def one_hot_9(b: Builder, indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    (size,) = b.require_sizes(depth, "OneHot's depth")
    return one_hot(b, indices, size, values, axis=axis)


@op("TopK")
def top_k_1(b: Builder, x: Tensor, *, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    return top_k(b, x, const(k), axis=axis)


@op("TopK", since=10)
def top_k_10(
    b: Builder, x: Tensor, k: Tensor, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Tensor, Tensor]:
    """Return the k largest or smallest elements, and their positions. They are always sorted, because any
    order is right if `sorted` is 0."""
    (count,) = b.require_sizes(k, "TopK's k")
    return top_k(b, x, count, axis=axis, largest=bool(largest))


@op("Compress", since=9)
def compress(b: Builder, x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    """Return the slices for which `condition` is true. Slices after the last entry of `condition` are
    dropped."""
    at = 0 if axis is None else axis_of(axis, x.rank)
    if axis is None:
        x = b.reshape(x, [simplify(product(x.shape), b.symbols)])
    return b.gather(x, positions(b, condition, count_true(b, condition)), at)


@op("Unique", since=11)
def unique_11(b: Builder, x: Tensor, *, axis: int | None = None, sorted: int = 1) -> tuple[Tensor, ...]:
    return unique(b, x, axis=axis, ascending=bool(sorted))


@op("NonMaxSuppression", since=10)
def non_max_suppression_10(
    b: Builder, boxes: Tensor, scores: Tensor, max_output_boxes_per_class: Tensor | None = None,
    iou_threshold: Tensor | None = None, score_threshold: Tensor | None = None, *, center_point_box: int = 0,
) -> Tensor:  # fmt: skip
    """Return the boxes that non-maximum suppression keeps. Without `max_output_boxes_per_class`, there are
    none."""
    return non_max_suppression(
        b, boxes, scores, limit=max_output_boxes_per_class or b.sizes([0]), overlap=iou_threshold,
        floor=score_threshold, centred=bool(center_point_box),
    )  # fmt: skip
