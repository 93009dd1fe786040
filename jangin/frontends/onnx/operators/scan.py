"""Lower ONNX's running sums and products, and determinants."""

from __future__ import annotations

from functools import partial

from jangin.frontends.onnx.operators.families import family
from jangin.ops.axes import integers
from jangin.ops.builder import Builder
from jangin.ops.scan import cumulate, det
from jangin.ops.values import Tensor


def _cumulate(
    combiner: str, b: Builder, x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0
) -> Tensor:
    (along,) = integers(b, axis, "the axis")[:1]
    return cumulate(b, x, combiner, axis=along, exclusive=bool(exclusive), reverse=bool(reverse))


SCANS = family({"CumSum": partial(_cumulate, "sum"), "CumProd": partial(_cumulate, "prod"), "Det": det})
