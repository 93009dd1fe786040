"""Lower ONNX operators that crop, pad and rotate tensors."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.frontends.onnx.operators.families import family
from jangin.frontends.onnx.registry import op
from jangin.ir.expr import Expr, const, select
from jangin.ir.graph import MAX_SIZE, CompileError
from jangin.ir.simplify import simplify
from jangin.ops.axes import axes_of, integers
from jangin.ops.builder import Builder
from jangin.ops.move import pad_with, reverse_sequence, slice_axes
from jangin.ops.values import Tensor


@op("Slice")
def slice_1(
    b: Builder, x: Tensor, *, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None = None
) -> Tensor:
    return slice_axes(b, x, [const(s) for s in starts], [const(e) for e in ends], axes, None)


@op("Slice", since=10)
def slice_(
    b: Builder,
    x: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    return slice_axes(
        b,
        x,
        b.require_sizes(starts, "Slice's starts", positions=True),
        b.require_sizes(ends, "Slice's ends", positions=True),
        None if axes is None else integers(b, axes, "Slice's axes"),
        None if steps is None else integers(b, steps, "Slice's steps"),
    )


@op("Pad")
def pad_1(
    b: Builder, x: Tensor, *, paddings: Sequence[int], mode: str = "constant", value: float = 0.0
) -> Tensor:
    return pad_2(b, x, pads=paddings, mode=mode, value=value)


@op("Pad", since=2)
def pad_2(
    b: Builder, x: Tensor, *, pads: Sequence[int], mode: str = "constant", value: float = 0.0
) -> Tensor:
    return pad_with(b, x, [const(p) for p in pads], mode, b.scalar(value, x.dtype))


@op("Pad", since=11)
def pad(
    b: Builder,
    x: Tensor,
    pads: Tensor,
    constant_value: Tensor | None = None,
    axes: Tensor | None = None,
    *,
    mode: str = "constant",
) -> Tensor:
    amounts = b.require_sizes(pads, "Pad's pads", -MAX_SIZE)
    if axes is not None:
        at = axes_of(integers(b, axes, "Pad's axes"), x.rank)
        if len(amounts) != 2 * len(at):
            raise CompileError(f"Pad of {x}: {len(amounts)} pads don't fit {len(at)} axes")
        every: list[Expr] = [const(0)] * (2 * x.rank)
        for n, axis in enumerate(at):
            every[axis], every[axis + x.rank] = amounts[n], amounts[n + len(at)]
        amounts = every
    return pad_with(b, x, amounts, mode, constant_value)


@op("CenterCropPad", since=18)
def center_crop_pad(b: Builder, x: Tensor, shape: Tensor, *, axes: Sequence[int] | None = None) -> Tensor:
    """Return x cropped or padded around its centre to a shape. If the number of elements to crop or pad is
    odd, the additional one is at the end."""
    at = axes_of(range(x.rank) if axes is None else axes, x.rank)
    pads: list[Expr] = [const(0)] * (2 * x.rank)
    for axis, want in zip(at, b.require_sizes(shape, "CenterCropPad's shape"), strict=True):
        grow = simplify(want - x.shape[axis], b.symbols)
        # (d - want) // 2 elements are cropped before, and (want - d) // 2 are padded before
        before = select(grow < 0, -((-grow) // 2), grow // 2)
        before = simplify(before, b.symbols)
        pads[axis] = before
        pads[axis + x.rank] = simplify(grow - before, b.symbols)
    return b.pad(x, pads)


REVERSE_SEQUENCE = family({"ReverseSequence": reverse_sequence}, since=10)
