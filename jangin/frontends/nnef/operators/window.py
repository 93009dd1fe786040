"""Lower NNEF's operations over sliding windows: convolutions, poolings, samplings.

Poolings have a window size for every axis, including N and C; convolutions have one for each spatial axis.
Without padding, a window has ceil(size / stride) positions. The positions that `argmax_pool` gives, and
`sample` and `desample` take, count through the spatial axes of the padded input, as in the interpreter of
NNEF-Tools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jangin.frontends.nnef.operators.common import Operand, mapped, tensor
from jangin.frontends.nnef.operators.move import Padding, bordered
from jangin.frontends.registry import lowers
from jangin.ir.expr import Const, Expr, cast, const
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.simplify import simplify
from jangin.ops import conv as neutral
from jangin.ops import normalize, pool, resize, resize_positions
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.elementwise import power
from jangin.ops.index import in_range, take_along
from jangin.ops.scatter import unpool
from jangin.ops.values import Tensor
from jangin.ops.window import Window, same_pads, steps

Sizes = Sequence[int]
NONE = (0, 0)
"""The padding of an axis without padding, in elements before and after it."""


def _counts(given: Sequence[Any], rank: int, what: str) -> None:
    if given and len(given) != rank:
        raise CompileError(f"{what} {list(given)} must have {rank} entries")


def _positive(given: Sizes, what: str) -> None:
    if min(given, default=1) < 1:
        raise CompileError(f"{what} {list(given)} must be positive")


def _bias(b: Builder, y: Tensor, bias: Operand) -> Tensor:
    """Return y plus the bias, which is [1, C], [C] or a single number."""
    if not isinstance(bias, Tensor):
        return y if bias == 0 else mapped(b, lambda v, c: v + c, y, bias)
    if product(bias.shape) == const(1):
        return b.map(lambda v, c: v + c, y, b.reshape(bias, []))
    return neutral.add_bias(b, y, b.reshape(bias, bias.shape[-1:]))


@lowers("conv")
def conv(
    b: Builder, input: Operand, filter: Operand, bias: Operand = 0.0, border: str = "constant",
    padding: Padding = (), stride: Sizes = (), dilation: Sizes = (), groups: int = 1,
) -> Tensor:  # fmt: skip
    x, w = tensor(b, input), tensor(b, filter)
    kernel = neutral.kernel_size(x, w)
    _check(len(kernel), padding, stride, dilation)
    if padding:
        pads: list[Expr] = [const(p[i]) for i in (0, 1) for p in padding]
    else:
        rank = len(kernel)
        pads = same_pads(x.shape[2:], kernel, steps(stride, rank), steps(dilation, rank), b.symbols)
    amounts = static_shape(tuple(pads))
    if border != "constant" and amounts != (0,) * len(pads):
        x = bordered(b, x, [NONE, NONE, *_pairs(amounts, x)], border)
        pads = []
    y = neutral.conv(
        b, x, w, strides=stride, dilations=dilation, pads=pads, groups=groups or _size(x.shape[1], x)
    )
    return _bias(b, y, bias)


def _check(rank: int, padding: Padding, stride: Sizes, dilation: Sizes) -> None:
    for sizes, what in ((padding, "padding"), (stride, "stride"), (dilation, "dilation")):
        _counts(sizes, rank, what)
    _positive(stride, "stride")
    _positive(dilation, "dilation")


def _pairs(amounts: Sizes | None, x: Tensor) -> list[tuple[int, int]]:
    if amounts is None:
        raise CompileError(f"the padding of {x} follows from its sizes: fix them with shapes=")
    half = len(amounts) // 2
    return list(zip(amounts[:half], amounts[half:], strict=True))


def _size(d: Expr, x: Tensor) -> int:
    if not isinstance(d, Const):
        raise CompileError(f"the size {d} of {x} must be known: fix it with shapes=")
    return int(d.value)


@lowers("deconv")
def deconv(
    b: Builder, input: Operand, filter: Operand, bias: Operand = 0.0, border: str = "constant",
    padding: Padding = (), stride: Sizes = (), dilation: Sizes = (), output_shape: Sizes = (),
    groups: int = 1,
) -> Tensor:  # fmt: skip
    x, w = tensor(b, input), tensor(b, filter)
    kernel = neutral.kernel_size(x, w)
    rank = len(kernel)
    _check(rank, padding, stride, dilation)
    _counts(output_shape, x.rank, "output_shape")
    if border != "constant":
        raise CompileError(f"border '{border}' instead of 'constant' is not supported")
    if not groups:
        groups = output_shape[1] if output_shape else _size(w.shape[0], w)
    strides, dilations = steps(stride, rank), steps(dilation, rank)
    full = neutral.transposed_extents(x, kernel, strides, dilations)
    if padding:
        begins: list[Expr] = [const(p) for p, _ in padding]
        out = [e - p - q for e, (p, q) in zip(full, padding, strict=True)]
    else:
        out = [d * s for d, s in zip(x.shape[2:], strides, strict=True)]
        wanted = list(map(const, output_shape[2:])) or out
        begins = same_pads(wanted, kernel, strides, dilations, b.symbols)[:rank]
    if output_shape:
        out = list(map(const, output_shape[2:]))
    ends = [simplify(e - o - p, b.symbols) for e, o, p in zip(full, out, begins, strict=True)]
    y = neutral.conv_transpose(
        b, x, w, strides=strides, dilations=dilations, pads=[*begins, *ends], groups=groups
    )
    return _bias(b, y, bias)


# -- poolings ------------------------------------------------------------------------------------


class _Windows:
    """A pooling's windows over x. The border is added to x, unless it is none or zeros, which the pool's own
    padding gives.

    If the window is larger than 1 along N or C, these axes become spatial axes of a tensor [1, 1, N, C,
    ...]."""

    def __init__(
        self, b: Builder, x: Tensor, size: Sizes, padding: Padding, stride: Sizes, dilation: Sizes,
        border: str, zeros_padded: bool,
    ) -> None:  # fmt: skip
        self.b = b
        _counts(size, x.rank, "size")
        _check(x.rank, padding, stride, dilation)
        stride, dilation = steps(stride, x.rank), steps(dilation, x.rank)
        whole = padding or _pairs(
            static_shape(tuple(same_pads(x.shape, size, stride, dilation, b.symbols))), x
        )
        nested = x.rank < 3 or any(
            s != 1 or t != 1 or tuple(p) != NONE
            for s, t, p in zip(size[:2], stride[:2], whole[:2], strict=True)
        )
        if border not in ("ignore", "constant") or (border == "constant" and not zeros_padded):
            if any(tuple(p) != NONE for p in whole):
                x = bordered(b, x, whole, border)
            whole = [NONE] * x.rank
        skip = 0 if nested else 2
        self.x = b.reshape(x, [1, 1, *x.shape]) if nested else x
        self.nested = nested
        pads = [p[i] for i in (0, 1) for p in whole[skip:]]
        self.window = Window.over(
            b, self.x, size[skip:], strides=stride[skip:], dilations=dilation[skip:], pads=pads
        )

    def result(self, y: Tensor) -> Tensor:
        return self.b.reshape(y, y.shape[2:]) if self.nested else y


@lowers("box")
def box(
    b: Builder, input: Operand, size: Sizes, border: str = "constant", padding: Padding = (),
    stride: Sizes = (), dilation: Sizes = (), normalize: bool = False,
) -> Tensor:  # fmt: skip
    """Return the sum of each window, or its mean if `normalize` is set. With border "ignore", the mean counts
    only elements inside the input."""
    windows = _Windows(b, tensor(b, input), size, padding, stride, dilation, border, True)
    window = windows.window
    if normalize:
        y = pool.average_pool(b, windows.x, window, count_padding=border != "ignore")
    else:
        y = b.pool(
            windows.x, combiner="sum", kernel=window.kernel, strides=window.strides,
            dilations=window.dilations, pads=static_shape(window.pads) or (), extents=window.extents,
        )  # fmt: skip
    return windows.result(y)


@lowers("avg_pool")
def avg_pool(b: Builder, input: Operand, **given: Any) -> Tensor:
    return box(b, input, **given, normalize=True)


@lowers("max_pool")
def max_pool(
    b: Builder, input: Operand, size: Sizes, border: str = "constant", padding: Padding = (),
    stride: Sizes = (), dilation: Sizes = (),
) -> Tensor:  # fmt: skip
    windows = _Windows(b, tensor(b, input), size, padding, stride, dilation, border, False)
    return windows.result(pool.max_pool(b, windows.x, windows.window))


@lowers("debox")
def debox(
    b: Builder, input: Operand, size: Sizes, border: str = "constant", padding: Padding = (),
    stride: Sizes = (), dilation: Sizes = (), output_shape: Sizes = (), normalize: bool = False,
) -> Tensor:  # fmt: skip
    """Return the transpose of `box`: a transposed convolution with ones, or with 1 divided by the window's
    size if `normalize` is set."""
    x = tensor(b, input)
    _spatial_only(x, size, padding, stride, dilation)
    if border != "constant" and (border != "ignore" or normalize):
        raise CompileError(
            f"border '{border}' instead of 'constant' (or 'ignore', without normalize) is not supported"
        )
    channels = _size(x.shape[1], x)
    ones = np.full((channels, 1, *size[2:]), 1 / math.prod(size) if normalize else 1.0, x.dtype.numpy)
    return deconv(
        b, x, b.const(ones), padding=padding[2:], stride=stride[2:], dilation=dilation[2:],
        output_shape=output_shape, groups=channels,
    )  # fmt: skip


@lowers("avg_unpool")
def avg_unpool(b: Builder, input: Operand, **given: Any) -> Tensor:
    return debox(b, input, **given, normalize=True)


def _spatial_only(x: Tensor, size: Sizes, padding: Padding, stride: Sizes, dilation: Sizes) -> None:
    """Raise CompileError if a window covers more than one item or channel."""
    _counts(size, x.rank, "size")
    _check(x.rank, padding, stride, dilation)
    if x.rank < 3 or [*size[:2], *stride[:2]] not in ([1, 1], [1, 1, 1, 1]) or any(map(any, padding[:2])):
        raise CompileError("windows over items or channels are not supported")


def _plane(
    b: Builder, input: Operand, size: Sizes, border: str, padding: Padding, stride: Sizes, dilation: Sizes
) -> Tensor:
    """Return the input, padded by its border. Without given padding, the padding for ceil(size / stride)
    windows is computed."""
    x = tensor(b, input)
    _spatial_only(x, size, padding, stride, dilation)
    pads = padding
    if not pads:
        edges = same_pads(x.shape, size, steps(stride, x.rank), steps(dilation, x.rank), b.symbols)
        pads = _pairs(static_shape(tuple(edges)), x)
    return bordered(b, x, pads, *(("constant", -math.inf) if border == "ignore" else (border, 0.0)))


@lowers("max_pool_with_index")
def max_pool_with_index(
    b: Builder, input: Operand, size: Sizes, border: str = "constant", padding: Padding = (),
    stride: Sizes = (), dilation: Sizes = (),
) -> tuple[Tensor, Tensor]:  # fmt: skip
    x = _plane(b, input, size, border, padding, stride, dilation)
    window = Window.over(b, x, size[2:], strides=stride[2:], dilations=dilation[2:])
    best, at = pool.max_pool_with_indices(b, x, window)
    plane = simplify(product(x.shape[2:]), b.symbols)
    return best, b.map(lambda i: i % plane, at)


@lowers("argmax_pool")
def argmax_pool(b: Builder, input: Operand, **given: Any) -> Tensor:
    return max_pool_with_index(b, input, **given)[1]


@lowers("sample")
def sample(
    b: Builder, input: Operand, index: Operand, size: Sizes, border: str = "constant", padding: Padding = (),
    stride: Sizes = (), dilation: Sizes = (),
) -> Tensor:  # fmt: skip
    x, at = _plane(b, input, size, border, padding, stride, dilation), tensor(b, index)
    plane = simplify(product(x.shape[2:]), b.symbols)
    flat = b.reshape(at, [*at.shape[:2], simplify(product(at.shape[2:]), b.symbols)])
    flat = in_range(b, flat, plane, from_end=False)
    return b.reshape(take_along(b, b.reshape(x, [*x.shape[:2], plane]), flat, 2), at.shape)


@lowers("desample", "max_unpool")
def desample(
    b: Builder, input: Operand, index: Operand, size: Sizes, border: str = "constant", padding: Padding = (),
    stride: Sizes = (), dilation: Sizes = (), output_shape: Sizes = (),
) -> Tensor:  # fmt: skip
    """Put each element of the input at the position that `index` gives, and zeros elsewhere."""
    x, at = tensor(b, input), tensor(b, index)
    _spatial_only(x, size, padding, stride, dilation)
    rank = x.rank - 2
    strides, dilations = steps(stride[2:], rank), steps(dilation[2:], rank)
    if padding:
        pads = [(p, q) for p, q in padding[2:]]
        full = neutral.transposed_extents(x, size[2:], strides, dilations)
        out = [e - p - q for e, (p, q) in zip(full, pads, strict=True)]
    else:
        out = [d * s for d, s in zip(x.shape[2:], strides, strict=True)]
        edges = same_pads(out, size[2:], strides, dilations, b.symbols)
        pads = _pairs(static_shape(tuple(edges)), x)
    out = list(map(const, output_shape[2:])) or out
    padded = [simplify(d + p + q, b.symbols) for d, (p, q) in zip(out, pads, strict=True)]
    n, c = x.shape[:2]
    plane = simplify(product(padded), b.symbols)
    flat = in_range(b, b.reshape(at, [n, c, simplify(product(at.shape[2:]))]), plane, from_end=False)
    whole = b.compute(
        flat.dtype,
        flat.shape,
        [flat],
        lambda bufs, *i: bufs[0][i] + cast(flat.dtype, (i[0] * c + i[1]) * plane),
    )
    y = unpool(b, b.reshape(x, flat.shape), whole, (n, c, *padded))
    return b.slice(y, [0, 0, *(p for p, _ in pads)], [n, c, *out], [1] * x.rank)


# -- changing sizes ------------------------------------------------------------------------------


@lowers("nearest_upsample")
def nearest_upsample(b: Builder, input: Operand, factor: Sizes) -> Tensor:
    x = tensor(b, input)
    return resize.resize(
        b, x, _lines(b, x, factor), resize.Style("nearest", resize_positions.asymmetric, rounding="floor")
    )


def _lines(b: Builder, x: Tensor, factor: Sizes) -> list[resize_positions.Line]:
    _counts(factor, x.rank - 2, "factor")
    return resize.scaled_lines(b, x, range(2, x.rank), [float(f) for f in factor])


METHODS = {
    "symmetric": resize_positions.half_pixel,
    "asymmetric": resize_positions.asymmetric,
    "aligned": resize_positions.align_corners,
}
"""By method, the function that returns the position in the input of an entry of the result."""


@lowers("multilinear_upsample")
def multilinear_upsample(
    b: Builder, input: Operand, factor: Sizes, method: str = "symmetric", border: str = "replicate"
) -> Tensor:
    x = tensor(b, input)
    if method not in METHODS or border not in ("replicate", "constant"):
        raise CompileError(
            f"method '{method}' with border '{border}' instead of {', '.join(METHODS)} with 'replicate' or "
            "'constant' is not supported"
        )
    style = resize.Style("linear", METHODS[method])
    if border == "replicate" or method == "aligned":
        return resize.resize(b, x, _lines(b, x, factor), style)
    rank = len(factor)  # zeros around the input, whose contributions outside are cropped again
    wide = b.pad(x, [0, 0, *[1] * rank] * 2)
    y = resize.resize(b, wide, _lines(b, wide, factor), style)
    out = [simplify(d * f, b.symbols) for d, f in zip(x.shape[2:], factor, strict=True)]
    return b.slice(y, [0, 0, *factor], [*x.shape[:2], *out], [1] * x.rank)


@lowers("local_response_normalization")
def local_response_normalization(
    b: Builder, input: Operand, size: Sizes, alpha: float = 1.0, beta: float = 0.5, bias: float = 1.0
) -> Tensor:
    x = tensor(b, input)
    if len(size) == x.rank > 1 and all(s == 1 for i, s in enumerate(size) if i != 1):
        return normalize.local_response_norm(b, x, size=size[1], alpha=alpha, beta=beta, bias=bias)
    mean = box(b, b.map(lambda v: v * v, x), size, normalize=True)
    sigma = b.map(lambda v: v * alpha + bias, mean)
    return b.map(lambda v, s: v / power(s, beta), x, sigma)
