"""Lower ATen's convolutions and poolings of x [N, C, spatial axes] or x [C, spatial axes]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jangin.frontends.registry import Table, lowers
from jangin.frontends.torch.operators.common import Result, size
from jangin.ir.dtype import I64
from jangin.ir.expr import Buffer, Const, Expr, cast, const
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.simplify import simplify
from jangin.ops import conv as neutral
from jangin.ops import pool
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.elementwise import widen
from jangin.ops.index import gather
from jangin.ops.scatter import scatter_elements
from jangin.ops.values import Tensor
from jangin.ops.window import Window


def _each(given: Sequence[int], rank: int, default: int = 1) -> list[int]:
    """Return one number for each of `rank` axes. A single given number applies to all axes, and none means
    `default`."""
    if not given:
        return [default] * rank
    return [int(g) for g in (given if len(given) == rank else list(given) * rank)]


@lowers("convolution")
def convolution(
    b: Builder, out: Result, input: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    rank = weight.rank - 2
    strides, dilations = _each(stride, rank), _each(dilation, rank)
    around = _each(padding, rank, 0)
    x = input if input.rank == weight.rank else b.reshape(input, [1, *input.shape])
    if transposed:
        extra = _each(output_padding, rank, 0)
        pads = [*around, *(p - e for p, e in zip(around, extra, strict=True))]
        y = neutral.conv_transpose(
            b, x, weight, bias, strides=strides, dilations=dilations, pads=pads, groups=groups
        )
    else:
        y = neutral.conv(
            b, x, weight, bias, strides=strides, dilations=dilations, pads=around * 2, groups=groups
        )
    return b.reshape(y, out.shape)


def _batched(b: Builder, x: Tensor, rank: int) -> Tensor:
    return x if x.rank == rank + 2 else b.reshape(x, [1, *x.shape])


def _window(
    b: Builder, x: Tensor, rank: int, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], ceil: bool,
) -> Window:  # fmt: skip
    taps = _each(kernel, rank)
    strides = _each(stride, rank) if stride else taps
    pads = _each(padding, rank, 0) * 2
    return Window.over(b, x, taps, strides=strides, dilations=_each(dilation, rank), pads=pads, ceil=ceil)


def _max_pool(rank: int) -> Any:
    def lower(
        b: Builder, out: Result, self: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (),
        padding: Sequence[int] = (0,), dilation: Sequence[int] = (1,), ceil_mode: bool = False,
    ) -> Any:  # fmt: skip
        x = _batched(b, self, rank)
        window = _window(b, x, rank, kernel_size, stride, padding, dilation, ceil_mode)
        if len(out.all) == 1:
            return b.reshape(pool.max_pool(b, x, window), out.shape)
        if not out.wanted[1]:
            return b.reshape(pool.max_pool(b, x, window), out.shape), None
        best, at = pool.max_pool_with_indices(b, x, window)
        plane = simplify(product(x.shape[2:]), b.symbols)
        return b.reshape(best, out.shape), b.reshape(b.map(lambda i: i % plane, at), out.shape)

    return lower


def _avg_pool(rank: int) -> Any:
    def lower(
        b: Builder, out: Result, self: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (),
        padding: Sequence[int] = (0,), ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:  # fmt: skip
        x = _batched(b, self, rank)
        window = _window(b, x, rank, kernel_size, stride, padding, (1,), ceil_mode)
        if divisor_override:
            total = b.pool(
                x, combiner="sum", kernel=window.kernel, strides=window.strides, dilations=window.dilations,
                pads=static_shape(window.pads) or (), extents=window.extents, layout="first",
            )  # fmt: skip
            return b.reshape(b.map(lambda v: v / divisor_override, total), out.shape)
        return b.reshape(pool.average_pool(b, x, window, count_padding=count_include_pad), out.shape)

    return lower


POOLS = Table({
    "max_pool1d": _max_pool(1), "max_pool2d": _max_pool(2), "max_pool3d": _max_pool(3),
    "max_pool2d_with_indices": _max_pool(2), "max_pool3d_with_indices": _max_pool(3),
    "avg_pool1d": _avg_pool(1), "avg_pool2d": _avg_pool(2), "avg_pool3d": _avg_pool(3),
})  # fmt: skip


@lowers("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d")
def adaptive_avg_pool(b: Builder, out: Result, self: Tensor, output_size: Sequence[Any]) -> Tensor:
    """Return averages of windows whose sizes follow from the result's size.

    With m entries, result i of n is the mean of entries floor(i m / n) to ceil((i + 1) m / n) - 1."""
    rank = len(output_size)
    axes = range(self.rank - rank, self.rank)
    wanted = [out.shape[a] for a in axes]
    if all(d == const(1) for d in wanted):
        mean = b.reduce("sum", widen(b, self), list(axes), True)
        count = simplify(product(self.shape[a] for a in axes), b.symbols)
        return b.cast(b.map(lambda v: v / cast(v.dtype, count), mean), out.dtype)
    x = widen(b, self)
    for axis, n in zip(axes, wanted, strict=True):
        x = _averaged(b, x, axis, n)
    return b.cast(x, out.dtype)


def _averaged(b: Builder, x: Tensor, axis: int, n: Expr) -> Tensor:
    """Average one axis adaptively to n entries, by a product with a matrix of the entries' shares. Raises
    CompileError if a size isn't fixed."""
    m = x.shape[axis]
    if m == n:
        return x
    if not isinstance(m, Const) or not isinstance(n, Const):
        raise CompileError(f"adaptive pooling of {x} to {n}: fix the size {m} with shapes=", [m, n])
    size_in, size_out = int(m.value), int(n.value)
    shares = np.zeros((size_in, size_out), x.dtype.numpy)
    for i in range(size_out):
        first, last = i * size_in // size_out, -(-(i + 1) * size_in // size_out)
        shares[first:last, i] = 1 / (last - first)
    order = [*(i for i in range(x.rank) if i != axis), axis]
    y = b.matmul(b.transpose(x, order), b.const(shares))
    return b.transpose(y, [order.index(i) for i in range(x.rank)])


@lowers("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(
    b: Builder, out: Result, self: Tensor, output_size: Sequence[Any]
) -> tuple[Tensor, Tensor | None]:
    """Return the maximum of each window of `adaptive_avg_pool`, and its position in the plane. In windows
    that are shorter than the longest, the last entry is repeated."""
    rank = len(output_size)
    x = _batched(b, self, rank)
    places = []
    for axis in range(2, 2 + rank):
        m, n = x.shape[axis], size(output_size[axis - 2])
        if not isinstance(m, Const) or not isinstance(n, Const):
            raise CompileError(f"adaptive pooling of {x} to {n}: fix the size {m} with shapes=", [m, n])
        places.append(_entries(int(m.value), int(n.value)))
        if places[-1].size != m.value or (places[-1].reshape(-1) != np.arange(m.value)).any():
            x = gather(b, x, b.const(places[-1].reshape(-1)), axis=axis)
    kernel = [p.shape[1] for p in places]
    window = _window(b, x, rank, kernel, (), (0,), (1,), False)
    if not out.wanted[1]:
        return b.reshape(pool.max_pool(b, x, window), out.shape), None
    best, at = pool.max_pool_with_indices(b, x, window)
    tables = [b.const(p.reshape(-1)) for p in places]
    taken, true = x.shape[2:], _batched(b, self, rank).shape[2:]

    def place(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        rest: Expr = bufs[0][index]
        position: Expr = const(0)
        step: Expr = const(1)
        for axis in reversed(range(rank)):
            position = position + bufs[1 + axis][rest % taken[axis]] * step
            rest, step = rest // taken[axis], step * true[axis]
        return position

    return b.reshape(best, out.shape), b.reshape(b.compute(I64, at.shape, [at, *tables], place), out.shape)


def _entries(m: int, n: int) -> Any:
    """Return the positions of the entries, among m, that each of n results reads, as [n, longest window]."""
    first = np.arange(n) * m // n
    last = -(-(np.arange(n) + 1) * m // n) - 1
    longest = int((last - first).max(initial=0)) + 1
    return np.minimum(first[:, None] + np.arange(longest), last[:, None]).astype(np.int64)


def _max_pool_backward(rank: int) -> Any:
    def lower(
        b: Builder, out: Result, grad_output: Tensor, self: Tensor, indices: Tensor, **given: Any
    ) -> Tensor:
        """Return the input's gradients: each result's gradient is added at the position of the maximum."""
        rows = simplify(product(self.shape[:-rank]), b.symbols)
        plane = simplify(product(self.shape[-rank:]), b.symbols)
        each = simplify(product(indices.shape[-rank:]), b.symbols)
        start = b.expand(b.scalar(0, out.dtype), [rows, plane])
        at, new = (b.reshape(t, [rows, each]) for t in (indices, grad_output))
        return b.reshape(scatter_elements(b, start, at, new, axis=1, reduction="add"), out.shape)

    return lower


MAX_POOLS_BACKWARD = Table({
    "max_pool2d_with_indices_backward": _max_pool_backward(2),
    "max_pool3d_with_indices_backward": _max_pool_backward(3),
    "adaptive_max_pool2d_backward": _max_pool_backward(2),
    "adaptive_max_pool3d_backward": _max_pool_backward(3),
})  # fmt: skip


@lowers("col2im")
def col2im(
    b: Builder, out: Result, self: Tensor, output_size: Sequence[Any], kernel_size: Sequence[int],
    dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int],
) -> Tensor:  # fmt: skip
    x = self if self.rank == 3 else b.reshape(self, [1, *self.shape])
    y = neutral.col2im(
        b, x, [size(s) for s in output_size], kernel_size, strides=stride, dilations=dilation,
        pads=[*padding, *padding],
    )  # fmt: skip
    return b.reshape(y, out.shape)
