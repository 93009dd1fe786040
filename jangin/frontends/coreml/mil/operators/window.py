"""Lower convolutions, pools, products, normalizations and resizing."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.frontends.coreml.mil.operators.common import Call
from jangin.frontends.registry import lowers
from jangin.ir.expr import Expr, call, const
from jangin.ir.graph import CompileError
from jangin.ops import linear, normalize, pool
from jangin.ops.attention import attention
from jangin.ops.axes import axes_of, per_channel
from jangin.ops.conv import conv, conv_transpose, kernel_size, transposed_extents
from jangin.ops.elementwise import widen
from jangin.ops.resize import Style, resize, scaled_lines, sized_lines
from jangin.ops.resize_positions import (
    align_corners,
    align_corners_or_middle,
    asymmetric,
    between_corners,
    half_pixel,
)
from jangin.ops.values import Tensor
from jangin.ops.window import Window, explicit_pads, same_pads, steps


def _pads(
    c: Call, x: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[Expr]:
    """Return the pads before each spatial axis, then those after each. MIL's custom pads are listed axis by
    axis."""
    rank = len(kernel)
    kind = c.text("pad_type", "valid")
    if kind == "custom":
        pads = c.integers("pad", [0] * 2 * rank)
        return explicit_pads([*pads[0::2], *pads[1::2]], rank)
    if kind == "valid":
        return explicit_pads([], rank)
    if kind not in ("same", "same_lower"):
        raise CompileError(f"pad_type {kind} is none of valid, custom, same, same_lower")
    return list(same_pads(x.shape[2:], kernel, strides, dilations, c.b.symbols, lower=kind == "same_lower"))


def _steps(c: Call, kernel: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return a convolution's strides and dilations, which are 1 if they are missing."""
    rank = len(kernel)
    return tuple(steps(c.integers(name, [1] * rank), rank) for name in ("strides", "dilations"))


@lowers("conv")
def conv_(c: Call) -> Tensor:
    x, w = c.x(), c.x("weight")
    kernel = kernel_size(x, w)
    strides, dilations = _steps(c, kernel)
    return conv(
        c.b, x, w, c.optional("bias"), strides=strides, dilations=dilations,
        pads=_pads(c, x, kernel, strides, dilations), groups=c.integer("groups", 1),
    )  # fmt: skip


@lowers("conv_transpose")
def conv_transpose_(c: Call) -> Tensor:
    x, w = c.x(), c.x("weight")
    kernel = kernel_size(x, w)
    strides, dilations = _steps(c, kernel)
    kind, rank = c.text("pad_type", "valid"), len(kernel)
    if kind in ("same", "same_lower"):
        totals = [e - d * s for e, d, s in zip(
            transposed_extents(x, kernel, strides, dilations), x.shape[2:], strides,
                strict=True)]  # fmt: skip
        begins = [(t + 1) // 2 if kind == "same_lower" else t // 2 for t in totals]
        pads = [*begins, *(t - g for t, g in zip(totals, begins, strict=True))]
    else:
        pads = _pads(c, x, kernel, strides, dilations)
    wanted = c.integers("output_shape", [])
    if wanted:
        full = transposed_extents(x, kernel, strides, dilations)
        rest = [e - p - q - n for e, p, q, n in zip(full, pads[:rank], pads[rank:], wanted[2:], strict=True)]
        pads = [*pads[:rank], *(q + r for q, r in zip(pads[rank:], rest, strict=True))]
    return conv_transpose(
        c.b, x, w, c.optional("bias"), strides=strides, dilations=dilations, pads=pads,
        groups=c.integer("groups", 1),
    )  # fmt: skip


def _window(c: Call) -> Window:
    x, kernel = c.x(), c.integers("kernel_sizes")
    strides = c.integers("strides", [1] * len(kernel))
    pads = _pads(c, x, kernel, strides, [1] * len(kernel))
    return Window.over(c.b, x, kernel, strides=strides, pads=pads, ceil=c.flag("ceil_mode"))


@lowers("max_pool")
def max_pool(c: Call) -> Tensor:
    return pool.max_pool(c.b, c.x(), _window(c))


@lowers("avg_pool")
def avg_pool(c: Call) -> Tensor:
    excluded = c.flag("exclude_padding_from_average")
    return pool.average_pool(c.b, c.x(), _window(c), count_padding=not excluded)


@lowers("l2_pool")
def l2_pool(c: Call) -> Tensor:
    return pool.lp_pool(c.b, c.x(), _window(c))


@lowers("linear")
def linear_(c: Call) -> Tensor:
    b, x = c.b, c.x()
    y = linear.matmul(b, x, b.transpose(c.x("weight"), [1, 0]))
    bias = c.optional("bias")
    return y if bias is None else b.map(lambda v, o: v + o, y, bias)


@lowers("matmul")
def matmul(c: Call) -> Tensor:
    b, x, y = c.b, c.x(), c.x("y")

    def turned(t: Tensor, name: str) -> Tensor:
        swap = c.flag(name) and t.rank > 1
        return b.transpose(t, [*range(t.rank - 2), t.rank - 1, t.rank - 2]) if swap else t

    return linear.matmul(b, turned(x, "transpose_x"), turned(y, "transpose_y"))


@lowers("einsum")
def einsum(c: Call) -> Tensor:
    return linear.einsum(c.b, *c.several("values"), equation=c.text("equation", ""))


@lowers("scaled_dot_product_attention")
def scaled_dot_product_attention(c: Call) -> Tensor:
    b = c.b
    q, k, v = (c.x(name) for name in ("query", "key", "value"))
    lead = q.shape[: q.rank - 3]

    def flat(t: Tensor) -> Tensor:
        return t if t.rank == 4 else b.reshape(t, [1, *t.shape]) if t.rank == 3 else t

    if len(lead) > 1:
        raise CompileError(f"attention over {q} of more than 4 axes is not supported")
    return b.reshape(
        attention(b, flat(q), flat(k), flat(v), mask=c.optional("attn_mask")).y, [*q.shape[:-1], v.shape[-1]]
    )


# -- normalizations ------------------------------------------------------------------------------


@lowers("batch_norm")
def batch_norm(c: Call) -> Tensor:
    b, x = c.b, c.x()
    mean, variance, epsilon = c.x("mean"), c.x("variance"), c.number("epsilon", 1e-5)
    gamma, beta = c.optional("gamma"), c.optional("beta")
    ones = gamma if gamma is not None else b.map(lambda v: v * 0.0 + 1.0, mean)
    zeros = beta if beta is not None else b.map(lambda v: v * 0.0, mean)
    return normalize.batch_norm(b, x, ones, zeros, mean, variance, epsilon=epsilon)


@lowers("instance_norm")
def instance_norm(c: Call) -> Tensor:
    x = c.x()
    return _scaled(c, c.b.normalize(widen(c.b, x), range(2, x.rank), c.number("epsilon", 1e-5)), channel=True)


@lowers("layer_norm")
def layer_norm(c: Call) -> Tensor:
    x = c.x()
    axes = axes_of(c.integers("axes", list(range(x.rank))), x.rank)
    return _scaled(c, c.b.normalize(widen(c.b, x), axes, c.number("epsilon", 1e-5)), channel=False)


def _scaled(c: Call, y: Tensor, *, channel: bool) -> Tensor:
    for name, fn in (("gamma", lambda v, f: v * f), ("beta", lambda v, f: v + f)):
        factor = c.optional(name)
        if factor is not None:
            factor = c.b.cast(factor, y.dtype)
            y = c.b.map(fn, y, per_channel(c.b, factor, y.rank) if channel else factor)
    return c.b.cast(y, c.x().dtype)


@lowers("l2_norm")
def l2_norm(c: Call) -> Tensor:
    """Return x divided by its L2 norm over the last three axes. Epsilon is added to the sum of squares."""
    x, epsilon = c.x(), c.number("epsilon", 1e-6)
    total = c.b.reduce("sum", c.b.map(lambda v: v * v, x), range(max(x.rank - 3, 0), x.rank), True)
    return c.b.map(lambda v, t: v / call("sqrt", t + epsilon), x, total)


@lowers("local_response_norm")
def local_response_norm(c: Call) -> Tensor:
    return normalize.local_response_norm(
        c.b, c.x(), size=c.integer("size"), alpha=c.number("alpha", 1e-4), beta=c.number("beta", 0.75),
        bias=c.number("k", 1.0),
    )  # fmt: skip


@lowers("softmax")
def softmax(c: Call) -> Tensor:
    return c.b.softmax(c.x(), c.axis(default=-1))


# -- resizing ------------------------------------------------------------------------------------

MODES = {
    "STRICT_ALIGN_CORNERS": align_corners, "ALIGN_CORNERS": align_corners_or_middle, "DEFAULT": asymmetric,
    "OFFSET_CORNERS": between_corners, "UNALIGN_CORNERS": half_pixel,
}  # fmt: skip


@lowers("upsample_nearest_neighbor")
def upsample_nearest_neighbor(c: Call) -> Tensor:
    x = c.x()
    scales = [c.number(f"scale_factor_{n}", 1) for n in ("height", "width")]
    return resize(
        c.b, x, scaled_lines(c.b, x, [x.rank - 2, x.rank - 1], scales), Style("nearest", asymmetric, "floor")
    )


@lowers("upsample_bilinear")
def upsample_bilinear(c: Call) -> Tensor:
    x = c.x()
    scales = [c.number(f"scale_factor_{n}", 1) for n in ("height", "width")]
    pixels = c.optional("half_pixel_centers")
    halves = c.flag("half_pixel_centers") if pixels is not None else not c.flag("align_corners", True)
    how = align_corners if c.flag("align_corners", True) else half_pixel if halves else asymmetric
    return resize(c.b, x, scaled_lines(c.b, x, [x.rank - 2, x.rank - 1], scales), Style("linear", how))


@lowers("resize_bilinear")
def resize_bilinear(c: Call) -> Tensor:
    mode = c.text("sampling_mode", "DEFAULT")
    if mode not in MODES:
        raise CompileError(f"sampling_mode {mode} is none of {', '.join(MODES)}")
    return _sized(c, Style("linear", MODES[mode]))


@lowers("resize_nearest_neighbor")
def resize_nearest_neighbor(c: Call) -> Tensor:
    return _sized(c, Style("nearest", asymmetric, "floor"))


def _sized(c: Call, style: Style) -> Tensor:
    x = c.x()
    sizes = [const(c.integer(f"target_size_{n}")) for n in ("height", "width")]
    return resize(c.b, x, sized_lines(c.b, x, [x.rank - 2, x.rank - 1], sizes), style)
