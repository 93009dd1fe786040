"""Lower ONNX convolutions: Conv, ConvTranspose, Col2Im, and ONNX Runtime's FusedConv."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from jangin.frontends.onnx.operators.activation import NAMES
from jangin.frontends.onnx.operators.window import Sliding
from jangin.frontends.onnx.registry import op
from jangin.ir.expr import Expr, ExprLike, const
from jangin.ir.graph import CompileError
from jangin.ir.records import dataclass
from jangin.ops.activation import ACTIVATIONS
from jangin.ops.axes import integers
from jangin.ops.builder import Builder
from jangin.ops.conv import col2im, conv, conv_transpose, kernel_size, transposed_extents
from jangin.ops.values import Tensor
from jangin.ops.window import explicit_pads, same_pads


class Arguments(TypedDict):
    """The arguments of `ops.conv.conv` that describe its window."""

    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[ExprLike]
    groups: int


@dataclass(frozen=True)
class Convolution(Sliding):
    """The attributes of a convolution that describe its window, and its number of groups."""

    group: int = 1

    def kernel(self, x: Tensor, w: Tensor) -> tuple[int, ...]:
        """Return the kernel's sizes, which are those of the weights. Raises CompileError if `kernel_shape`
        differs."""
        size = kernel_size(x, w)
        if self.kernel_shape and tuple(self.kernel_shape) != size:
            raise CompileError(f"kernel_shape {list(self.kernel_shape)} does not fit the weights {w}")
        return size

    def arguments(self, b: Builder, x: Tensor, w: Tensor) -> Arguments:
        """Return the arguments of `ops.conv.conv` that describe the window of a convolution of x and w."""
        kernel = self.kernel(x, w)
        strides, dilations = self.steps(len(kernel))
        pads: Sequence[ExprLike] = self.given_pads
        if self.same:
            lower = self.auto_pad == "SAME_LOWER"
            pads = same_pads(x.shape[2:], kernel, strides, dilations, b.symbols, lower=lower)
        return {"strides": strides, "dilations": dilations, "pads": pads, "groups": self.group}


@op("Conv")
def conv_(b: Builder, x: Tensor, w: Tensor, bias: Tensor | None = None, **window: Any) -> Tensor:
    return conv(b, x, w, bias, **Convolution(**window).arguments(b, x, w))


FUSED = {**NAMES, "Clip": "clip"}
"""The activations that FusedConv may apply, as names in `ops.activation`."""


@op("FusedConv", domain="com.microsoft")
def fused_conv(
    b: Builder,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    z: Tensor | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    **window: Any,
) -> Tensor:
    """Return the activation of Conv of x plus z."""
    y = conv_(b, x, w, bias, **window)
    if z is not None:
        y = b.map(lambda v, u: v + u, y, z)
    if not activation:
        return y
    if activation not in FUSED:
        known = ", ".join(FUSED)
        raise CompileError(f"activation {activation!r} is none of {known}, and is not supported")
    return b.map(lambda v: ACTIVATIONS[FUSED[activation]](v, *activation_params), y)


@op("ConvTranspose")
def conv_transpose_(
    b: Builder, x: Tensor, w: Tensor, bias: Tensor | None = None, *,
    output_shape: Sequence[int] | None = None, output_padding: Sequence[int] | None = None, **window: Any,
) -> Tensor:  # fmt: skip
    """Return a transposed convolution. `output_shape` or `auto_pad` may determine how much of the full result
    is cropped. Otherwise `pads` do."""
    g = Convolution(**window)
    kernel = g.kernel(x, w)
    rank = len(kernel)
    strides, dilations = g.steps(rank)
    extra = output_padding or [0] * rank
    pads = explicit_pads(g.given_pads, rank)
    begins, ends = pads[:rank], pads[rank:]
    if output_shape is not None or g.same:
        sizes = list(output_shape or [])[-rank:]
        same = [d * s for d, s in zip(x.shape[2:], strides, strict=True)]
        wanted: Sequence[Expr] = [const(n) for n in sizes] if sizes else same
        full = transposed_extents(x, kernel, strides, dilations)
        total = [e + n - want for e, n, want in zip(full, extra, wanted, strict=True)]
        begins = [t // 2 if g.auto_pad == "SAME_UPPER" else t - t // 2 for t in total]
        ends = [t - p for t, p in zip(total, begins, strict=True)]
    pads = [*begins, *(p - n for p, n in zip(ends, extra, strict=True))]
    return conv_transpose(b, x, w, bias, strides=strides, dilations=dilations, pads=pads, groups=g.group)


@op("Col2Im", since=18)
def col2im_(b: Builder, x: Tensor, image_shape: Tensor, block_shape: Tensor, **window: Any) -> Tensor:
    g = Sliding(**window)
    image = b.require_sizes(image_shape, "Col2Im's image_shape")
    kernel = integers(b, block_shape, "Col2Im's block_shape")
    strides, dilations = g.steps(len(kernel))
    return col2im(b, x, image, kernel, strides=strides, dilations=dilations, pads=g.given_pads)
