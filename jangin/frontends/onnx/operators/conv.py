"""ONNX convolutions and what turns them round: Conv, ConvTranspose, Col2Im."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jangin.frontends.onnx.operators.activation import NAMES
from jangin.frontends.onnx.registry import op
from jangin.ir.dtype import BOOL, DType
from jangin.ir.expr import Buffer, Expr, Load, const, eq, land, select
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.simplify import simplify
from jangin.ops.activation import ACTIVATIONS
from jangin.ops.axes import ceil_div, divide, integers, product, window_pads
from jangin.ops.builder import Builder, Tensor
from jangin.ops.operands import wide


@dataclass(frozen=True)
class Geometry:
    """The window attributes of a convolution, as ONNX gives them."""

    kernel_shape: Sequence[int] | None = None
    strides: Sequence[int] | None = None
    dilations: Sequence[int] | None = None
    pads: Sequence[int] | None = None
    auto_pad: str = "NOTSET"
    group: int = 1

    def kernel(self, x: Tensor, w: Tensor) -> tuple[int, ...]:
        """The kernel's size, from the weights; CompileError where the two don't fit."""
        size = static_shape(w.shape[2:])
        if x.rank < 3 or w.rank != x.rank or size is None:
            raise CompileError(
                f"a convolution of {x} with weights {w}: it takes N, C and spatial axes, and weights of the "
                "same rank whose kernel size is known"
            )
        if self.kernel_shape and tuple(self.kernel_shape) != size:
            raise CompileError(f"kernel_shape {list(self.kernel_shape)} does not fit the weights {w}")
        return size

    def steps(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(strides, dilations)"""
        return tuple(self.strides or [1] * rank), tuple(self.dilations or [1] * rank)


def channelwise(b: Builder, v: Tensor, rank: int) -> Tensor:
    """A vector over channels (or a scalar) shaped to broadcast over N, C, spatial axes."""
    return b.reshape(v, [1, *v.shape, *([1] * (rank - 2))]) if v.rank == 1 else v


def add_bias(b: Builder, y: Tensor, bias: Tensor | None) -> Tensor:
    return y if bias is None else b.map(lambda v, c: v + c, y, channelwise(b, bias, y.rank))


def convolve(
    b: Builder,
    x: Tensor,
    w: Tensor,
    g: Geometry,
    dtype: DType | None = None,
    pads: Sequence[Expr] | None = None,
) -> Tensor:
    """The core `conv`, padded by `pads` (begins, then ends) in place of what `g` says. Pads that
    depend on sizes, or crop, are a `pad` before it."""
    kernel = g.kernel(x, w)
    rank = len(kernel)
    strides, dilations = g.steps(rank)
    if pads is None:
        pads = window_pads(g.auto_pad, g.pads, x.shape[2:], kernel, strides, dilations, b.symbols)
    amounts = static_shape(tuple(pads))
    if amounts is None or min(amounts, default=0) < 0:
        none = [const(0)] * 2
        x = b.pad(x, [*none, *pads[:rank], *none, *pads[rank:]])
        amounts = (0,) * (2 * rank)
    return b.conv(x, w, strides=strides, dilations=dilations, pads=amounts, groups=g.group, dtype=dtype)


@op("Conv")
def conv(b: Builder, x: Tensor, w: Tensor, bias: Tensor | None = None, **window: Any) -> Tensor:
    return add_bias(b, convolve(b, x, w, Geometry(**window)), bias)


FUSED = {**NAMES, "Clip": "clip"}
"""What FusedConv's `activation` may say, as names of `ops.activation`."""


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
    """Conv, then + z, then an activation."""
    y = conv(b, x, w, bias, **window)
    if z is not None:
        y = b.map(lambda v, u: v + u, y, z)
    if not activation:
        return y
    if activation not in FUSED:
        raise CompileError(f"FusedConv with activation {activation!r} is not supported")
    return b.map(lambda v: ACTIVATIONS[FUSED[activation]](v, *activation_params), y)


# -- transposed ----------------------------------------------------------------------------------


@op("ConvTranspose")
def conv_transpose(
    b: Builder,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    output_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    **window: Any,
) -> Tensor:
    g = Geometry(**window)
    kernel = g.kernel(x, w)
    rank = len(kernel)
    strides, dilations = g.steps(rank)
    extra = output_padding or [0] * rank
    full = [
        (x.shape[2 + i] - 1) * strides[i] + extra[i] + (kernel[i] - 1) * dilations[i] + 1 for i in range(rank)
    ]
    out, begins = _transposed_extent(
        g, full, [d * s for d, s in zip(x.shape[2:], strides, strict=True)], output_shape
    )
    out = [simplify(e, b.symbols) for e in out]
    begins = [simplify(e, b.symbols) for e in begins]
    if all(d == 1 for d in dilations):
        y = _subpixel(b, x, w, g.group, kernel, strides, begins, out)
    else:
        y = _gathered(b, x, w, g.group, strides, dilations, begins, out)
    return add_bias(b, y, bias)


def _transposed_extent(
    g: Geometry, full: Sequence[Expr], same: Sequence[Expr], output_shape: Sequence[int] | None
) -> tuple[list[Expr], list[Expr]]:
    """(spatial output sizes, elements cut off at each beginning) of an unpadded extent `full`."""
    rank = len(full)
    if output_shape is None and g.auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        pads = list(g.pads or [0] * (2 * rank))
        out = [full[i] - (pads[i] + pads[i + rank]) for i in range(rank)]
        return out, [const(p) for p in pads[:rank]]
    given = list(output_shape or [])[-rank:]
    wanted: list[Expr] = [const(n) for n in given] if given else list(same)
    begins = []
    for whole, want in zip(full, wanted, strict=True):
        total = whole - want
        begins.append(total // 2 if g.auto_pad == "SAME_UPPER" else total - total // 2)
    return wanted, begins


def _gathered(
    b: Builder,
    x: Tensor,
    w: Tensor,
    group: int,
    strides: Sequence[int],
    dilations: Sequence[int],
    begins: Sequence[Expr],
    out: Sequence[Expr],
) -> Tensor:
    """Each output sums the inputs whose kernels reach it: a reduction with predicates."""
    in_group, out_group = divide(x.shape[1], const(group), b.symbols), w.shape[1]

    def term(bufs: Sequence[Buffer], index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        n, o, *at = index
        c, *taps = k
        inside: Expr = const(True, BOOL)
        place = []
        for i, (p, tap) in enumerate(zip(at, taps, strict=True)):
            reach = p + begins[i] - tap * dilations[i]
            source = reach // strides[i]
            hit = land(reach >= 0, source < x.shape[2 + i])
            inside = land(inside, land(hit, eq(reach % strides[i], 0)))
            place.append(source)
        channel = simplify(o // out_group * in_group + c) if group > 1 else c
        value = select(inside, bufs[0][(n, channel, *place)], const(0, x.dtype))
        filters = o % out_group if group > 1 else o
        return wide(value) * wide(bufs[1][(channel, filters, *taps)])

    shape = [x.shape[0], simplify(out_group * group), *out]
    return b.reduction(x.dtype, shape, [in_group, *w.shape[2:]], "sum", [x, w], term)


def _subpixel(
    b: Builder,
    x: Tensor,
    w: Tensor,
    group: int,
    kernel: Sequence[int],
    strides: Sequence[int],
    begins: Sequence[Expr],
    out: Sequence[Expr],
) -> Tensor:
    """Outputs of one phase (position modulo the stride) see one subset of the taps each: a plain
    convolution computes all phases as channels, and they are interleaved afterwards. Same
    multiplications as the definition's, and no holes."""
    rank = len(kernel)
    taps = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    weights = _phase_weights(b, w, group, kernel, strides, taps)
    # positions [first, last) of the phases hold all outputs; [0, size + taps - 1) would be all there are
    first = [simplify(p // s, b.symbols) for p, s in zip(begins, strides, strict=True)]
    last = [simplify(ceil_div(p + n, s), b.symbols) for p, n, s in zip(begins, out, strides, strict=True)]
    before = [simplify(t - 1 - m, b.symbols) for t, m in zip(taps, first, strict=True)]
    after = [simplify(m - d, b.symbols) for m, d in zip(last, x.shape[2:], strict=True)]
    y = convolve(b, x, weights, Geometry(group=group), pads=[*before, *after])
    y = b.reshape(y, [y.shape[0], group, *strides, w.shape[1], *y.shape[2:]])
    y = b.transpose(y, [0, 1, 2 + rank, *(a for i in range(rank) for a in (3 + rank + i, 2 + i))])
    grown = [y.shape[3 + 2 * i] * strides[i] for i in range(rank)]
    y = b.reshape(y, [y.shape[0], simplify(w.shape[1] * group), *grown])
    starts = [p - m * s for p, m, s in zip(begins, first, strides, strict=True)]
    return b.slice(y, [0, 0, *starts], [*y.shape[:2], *out], [1] * y.rank)


def _phase_weights(
    b: Builder, w: Tensor, group: int, kernel: Sequence[int], strides: Sequence[int], taps: Sequence[int]
) -> Tensor:
    """[C, M/g, *kernel] as the filters [g * phases * M/g, C/g, *taps] of a correlation: tap t of phase r
    is element (taps - 1 - t) * stride + r of the kernel, and 0 beyond its end. A phase's filters stand
    together, so that channels-last pixels are interleaved whole."""
    rank = len(kernel)
    per_group, filters = divide(w.shape[0], const(group), b.symbols), w.shape[1]
    ends = [t * s - k for t, s, k in zip(taps, strides, kernel, strict=True)]
    w = b.pad(w, [0] * (2 + rank) + [0, 0, *ends])
    split = [n for t, s in zip(taps, strides, strict=True) for n in (t, s)]
    w = b.reshape(w, [group, per_group, filters, *split])
    last = [const(t - 1) for t in taps]
    starts = [const(0)] * 3 + [e for t in last for e in (t, const(0))]
    w = b.slice(w, starts, w.shape, [1, 1, 1] + [-1, 1] * rank)
    outer = [0, *(4 + 2 * i for i in range(rank)), 2]
    w = b.transpose(w, [*outer, 1, *(3 + 2 * i for i in range(rank))])
    return b.reshape(w, [filters * group * product(strides), per_group, *taps])


@op("Col2Im", since=18)
def col2im(b: Builder, x: Tensor, image_shape: Tensor, block_shape: Tensor, **window: Any) -> Tensor:
    """Sums overlapping blocks: each pixel gathers the block elements that fall on it."""
    image = b.require_sizes(image_shape, "Col2Im's image_shape")
    kernel = tuple(integers(b, block_shape, "Col2Im's block_shape"))
    rank = len(kernel)
    g = Geometry(**window)
    strides, dilations = g.steps(rank)
    pads = list(g.pads or [0] * (2 * rank))
    counts = [
        simplify(
            (image[i] + (pads[i] + pads[i + rank] - (kernel[i] - 1) * dilations[i] - 1)) // strides[i] + 1
        )
        for i in range(rank)
    ]
    channels = divide(x.shape[1], product(kernel), b.symbols)
    blocks = b.reshape(x, [x.shape[0], channels, *kernel, *counts])

    def term(bufs: Sequence[Buffer], index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        inside: Expr = const(True, BOOL)
        place = []
        for i, p in enumerate(index[2:]):
            reach = p + pads[i] - k[i] * dilations[i]
            block = reach // strides[i]
            hit = land(reach >= 0, block < counts[i])
            inside = land(inside, land(hit, eq(reach % strides[i], 0)))
            place.append(block)
        return select(inside, Load(bufs[0], (*index[:2], *k, *place)), const(0, x.dtype))

    return b.reduction(x.dtype, [x.shape[0], channels, *image], kernel, "sum", [blocks], term)
