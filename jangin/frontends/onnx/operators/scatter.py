"""Lower ONNX operators that write elements at indices."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.frontends.onnx.operators.families import family
from jangin.frontends.onnx.registry import op
from jangin.ir.dtype import I64
from jangin.ir.expr import Buffer, Expr, cast, const, land, select
from jangin.ir.graph import CompileError
from jangin.ir.simplify import simplify
from jangin.ops.axes import axis_of
from jangin.ops.builder import Builder
from jangin.ops.index import in_range
from jangin.ops.scatter import scatter_elements, scatter_nd, unpool
from jangin.ops.values import Tensor

SCATTER = family({"Scatter": scatter_elements}, since=9)
SCATTERS = family({"ScatterElements": scatter_elements, "ScatterND": scatter_nd}, since=11)


@op("TensorScatter", since=24)
def tensor_scatter(
    b: Builder,
    x: Tensor,
    update: Tensor,
    indices: Tensor | None = None,
    *,
    mode: str = "linear",
    axis: int = -2,
) -> Tensor:
    """Return the cache x with `update` written along `axis`, from each batch item's index on.

    In mode "circular", entries beyond the end are written at the front. In mode "linear", all entries must
    fit."""
    if mode not in ("linear", "circular") or x.rank != update.rank:
        raise CompileError(f"TensorScatter of {update} into {x} with mode {mode!r} is not defined")
    at, size = axis_of(axis, x.rank), x.shape[axis_of(axis, x.rank)]
    if indices is not None and mode == "linear":
        indices = in_range(b, indices, size - update.shape[at] + 1, from_end=False)
    inputs = [x, update] if indices is None else [x, update, indices]

    def value(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        start = cast(I64, bufs[2][index[0]]) if indices is not None else const(0)
        place = index[at] - start
        place = place % size if mode == "circular" else place
        new = bufs[1][(*index[:at], place, *index[at + 1 :])]
        return select(land(place >= 0, place < update.shape[at]), new, bufs[0][index])

    return b.compute(x.dtype, x.shape, inputs, value)


@op("MaxUnpool", since=9)
def max_unpool(
    b: Builder,
    x: Tensor,
    indices: Tensor,
    output_shape: Tensor | None = None,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
) -> Tensor:
    """Return values at their flat indices in the shape that the window implies, and 0 elsewhere.
    `output_shape`, if given, only adds zeros at the ends, or crops the ends."""
    rank = x.rank - 2
    steps, edge = strides or [1] * rank, pads or [0] * (2 * rank)
    spatial = [
        (d - 1) * steps[i] + kernel_shape[i] - (edge[i] + edge[i + rank]) for i, d in enumerate(x.shape[2:])
    ]
    shape = tuple(simplify(d, b.symbols) for d in (*x.shape[:2], *spatial))
    unpooled = unpool(b, x, indices, shape)
    if output_shape is None:
        return unpooled
    wanted = b.require_sizes(output_shape, "MaxUnpool's output_shape")
    grown = [simplify(w - d, b.symbols) for w, d in zip(wanted, shape, strict=True)]
    return b.pad(unpooled, [*([0] * x.rank), *grown])
