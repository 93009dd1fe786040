"""Lower ONNX's reductions. The axes are an attribute in older opsets and an input in newer ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from jangin.frontends.onnx.operators.families import family
from jangin.ops.axes import axes_of, integers
from jangin.ops.builder import Builder
from jangin.ops.reduce import arg_extreme, log_sum_exp, reduce_over
from jangin.ops.values import Tensor

Axes = Tensor | Sequence[int] | None

NAMES: Mapping[str, str] = {
    "ReduceSum": "sum",
    "ReduceMean": "mean",
    "ReduceProd": "prod",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceL1": "l1_norm",
    "ReduceL2": "l2_norm",
    "ReduceSumSquare": "sum_of_squares",
    "ReduceLogSum": "log_sum",
    "ReduceLogSumExp": "log_sum_exp",
}


def reduced_axes(b: Builder, x: Tensor, axes: Axes, noop: int) -> tuple[int, ...]:
    """Return the axes to reduce. If no axes are given, they are all axes, or none if `noop`
    (noop_with_empty_axes) is set."""
    listed = integers(b, axes, "axes") if isinstance(axes, Tensor) else list(axes or ())
    return axes_of(listed, x.rank) if listed else () if noop else tuple(range(x.rank))


def _reduce(
    kind: str, b: Builder, x: Tensor, axes: Axes = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    over = reduced_axes(b, x, axes, noop_with_empty_axes)
    if kind == "log_sum_exp":
        return log_sum_exp(b, x, over, bool(keepdims))
    return reduce_over(b, kind, x, over, bool(keepdims))


REDUCTIONS = family({name: partial(_reduce, kind) for name, kind in NAMES.items()})


def _arg(
    combiner: str, b: Builder, x: Tensor, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Tensor:
    return arg_extreme(b, x, axis, combiner, last=bool(select_last_index), keepdims=bool(keepdims))


ARGUMENTS = family({"ArgMax": partial(_arg, "max"), "ArgMin": partial(_arg, "min")})
