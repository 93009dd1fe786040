"""Lower ONNX's pooling operators, and interpret the attributes that describe windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jangin.frontends.onnx.operators.families import family
from jangin.frontends.onnx.registry import one_of, op
from jangin.ir.expr import Expr, const
from jangin.ir.records import dataclass
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.pool import (
    average_pool,
    global_lp_pool,
    lp_pool,
    max_pool,
    max_pool_with_indices,
    spatial_axes,
)
from jangin.ops.reduce import reduce_over
from jangin.ops.values import Tensor
from jangin.ops.window import Window, steps


@dataclass(frozen=True)
class Sliding:
    """The attributes of an ONNX operator that describe its windows, unchanged."""

    kernel_shape: Sequence[int] = ()
    strides: Sequence[int] | None = None
    dilations: Sequence[int] | None = None
    pads: Sequence[int] | None = None
    auto_pad: str = "NOTSET"

    def __post_init__(self) -> None:
        one_of("auto_pad", self.auto_pad or "NOTSET", ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))

    @property
    def same(self) -> bool:
        """Tell if the pads are to be computed from the sizes."""
        return self.auto_pad in ("SAME_UPPER", "SAME_LOWER")

    @property
    def given_pads(self) -> Sequence[int]:
        """The given pads: those before each axis, then those after each. It is empty if there are none, or if
        they are computed."""
        return () if self.auto_pad == "VALID" else self.pads or ()

    def steps(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the strides and the dilations for `rank` axes."""
        return steps(self.strides or (), rank), steps(self.dilations or (), rank)


@dataclass(frozen=True)
class Pooling(Sliding):
    """The attributes of a pooling operator that describe its windows."""

    ceil_mode: int = 0

    def over(self, b: Builder, x: Tensor) -> Window:
        strides, dilations = self.strides or (), self.dilations or ()
        if self.same:
            lower = self.auto_pad == "SAME_LOWER"
            return Window.same(b, x, self.kernel_shape, strides=strides, dilations=dilations, lower=lower)
        return Window.over(
            b, x, self.kernel_shape, strides=strides, dilations=dilations, pads=self.given_pads,
            ceil=bool(self.ceil_mode),
        )  # fmt: skip


@op("MaxPool")
def max_pool_(b: Builder, x: Tensor, *, storage_order: int = 0, **window: Any) -> tuple[Tensor, ...]:
    over = Pooling(**window).over(b, x)
    if b.results == 1:
        return (max_pool(b, x, over),)
    best, places = max_pool_with_indices(b, x, over)
    return best, b.map(lambda p: _column_major(p, x.shape[2:]), places) if storage_order else places


def _column_major(flat: Expr, spatial: Sequence[Expr]) -> Expr:
    """Return a row-major index as one in which the spatial axes, the last ones, are in column-major order."""
    area = product(spatial)
    inner, out = flat % area, flat // area * area
    step: Expr = const(1)
    rest = area
    for d in spatial:
        rest = rest // d
        out, inner, step = out + inner // rest * step, inner % rest, step * d
    return out


@op("AveragePool")
def average_pool_(b: Builder, x: Tensor, *, count_include_pad: int = 0, **window: Any) -> Tensor:
    return average_pool(b, x, Pooling(**window).over(b, x), count_padding=bool(count_include_pad))


@op("LpPool")
def lp_pool_(b: Builder, x: Tensor, *, p: float = 2, **window: Any) -> Tensor:
    return lp_pool(b, x, Pooling(**window).over(b, x), p=p)


@op("GlobalMaxPool")
def global_max_pool(b: Builder, x: Tensor) -> Tensor:
    return reduce_over(b, "max", x, spatial_axes(x), keepdims=True)


@op("GlobalAveragePool")
def global_average_pool(b: Builder, x: Tensor) -> Tensor:
    return reduce_over(b, "mean", x, spatial_axes(x), keepdims=True)


GLOBAL_LP = family({"GlobalLpPool": global_lp_pool})
