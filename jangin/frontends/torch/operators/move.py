"""Lower ATen's operators that create, move, join and cut tensors. Results have the shapes that PyTorch
traced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jangin.frontends.registry import Table, lowers
from jangin.frontends.torch.operators.common import (
    Number,
    Operand,
    Result,
    scalar,
    size,
)
from jangin.ir.dtype import F64, I64
from jangin.ir.expr import Buffer, Const, Expr, cast, const, eq, land, select
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.simplify import prove, simplify
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.move import parts_of, slice_axes
from jangin.ops.move import repeat as repeated
from jangin.ops.values import DATA_LIMIT, Tensor

END = (1 << 63) - 1
"""The end that PyTorch gives a slice without an end, the largest int64."""


def _same(b: Builder, out: Result, self: Tensor, **given: Any) -> Tensor:
    return self


def _reshaped(b: Builder, out: Result, self: Tensor, **given: Any) -> Tensor:
    return b.reshape(self, out.shape)


@lowers("detach", "detach_copy")
def detach(b: Builder, out: Result, self: Tensor) -> Tensor:
    """Return the input's elements, as constants for gradients: no gradient passes through them."""
    return b.map(lambda v: v, self, corner="constant")


_COPIES = "alias clone contiguous dropout lift lift_fresh_copy"
_RESHAPES = (
    "view.default view_copy reshape _unsafe_view squeeze squeeze_copy unsqueeze "
    "unsqueeze_copy flatten unflatten"
)
COPIES = Table(dict.fromkeys(_COPIES.split(), _same))
RESHAPES = Table(dict.fromkeys(_RESHAPES.split(), _reshaped))


@lowers("expand", "expand_copy", "broadcast_to")
def expand(b: Builder, out: Result, self: Tensor, **given: Any) -> Tensor:
    return b.expand(self, out.shape)


@lowers("permute", "permute_copy")
def permute(b: Builder, out: Result, self: Tensor, dims: Sequence[int]) -> Tensor:
    return b.transpose(self, [d % self.rank for d in dims])


@lowers("transpose", "t", "transpose_copy")
def transpose(b: Builder, out: Result, self: Tensor, dim0: int = 0, dim1: int = 1) -> Tensor:
    order = list(range(self.rank))
    if self.rank > 1:
        i, j = dim0 % self.rank, dim1 % self.rank
        order[i], order[j] = order[j], order[i]
    return b.transpose(self, order)


@lowers("select", "select_copy")
def select_int(b: Builder, out: Result, self: Tensor, dim: int, index: Number) -> Tensor:
    axis = dim % self.rank
    starts = [_from_front(index, d) if i == axis else const(0) for i, d in enumerate(self.shape)]
    taken = [const(1) if i == axis else d for i, d in enumerate(self.shape)]
    return b.reshape(b.slice(self, starts, taken, [1] * self.rank), out.shape)


def _from_front(index: Number, length: Expr) -> Expr:
    """Return a position, which may be negative to count from the end, as one that counts from the front."""
    if isinstance(index, Expr):
        return index
    return length + int(index) if index < 0 else const(int(index))


@lowers("slice", "slice_copy")
def slice_tensor(
    b: Builder, out: Result, self: Tensor, dim: int = 0, start: Number = 0, end: Number = END, step: int = 1
) -> Tensor:
    cut = slice_axes(b, self, [size(start)], [size(end)], [dim], [step])
    return b.reshape(cut, out.shape)


@lowers("split_with_sizes", "split_with_sizes_copy", "split", "split_copy", "chunk")
def split(b: Builder, out: Result, self: Tensor, dim: int = 0, **given: Any) -> tuple[Tensor, ...]:
    axis = dim % self.rank
    return parts_of(b, self, axis, [shape[axis] for _, shape in out.all])


@lowers("unbind", "unbind_copy")
def unbind(b: Builder, out: Result, self: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    axis = dim % self.rank
    parts = parts_of(b, self, axis, [const(1)] * len(out.all))
    return tuple(b.reshape(p, shape) for p, (_, shape) in zip(parts, out.all, strict=True))


@lowers("cat")
def cat(b: Builder, out: Result, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return the tensors concatenated along an axis. Empty vectors are ignored, even if the other tensors
    have more axes."""
    rank = len(out.shape)
    joined = [b.cast(t, out.dtype) for t in tensors if t.rank == rank]
    joined = [t for t in joined if rank > 1 or t.shape != (const(0),)] or joined[:1]
    return b.reshape(b.concat(joined, dim % rank), out.shape)


@lowers("stack")
def stack(b: Builder, out: Result, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    axis = dim % len(out.shape)
    rows = [b.reshape(b.cast(t, out.dtype), (*t.shape[:axis], const(1), *t.shape[axis:])) for t in tensors]
    return b.concat(rows, axis)


@lowers("repeat")
def repeat(b: Builder, out: Result, self: Tensor, repeats: Sequence[Number]) -> Tensor:
    wide = b.reshape(self, [const(1)] * (len(repeats) - self.rank) + list(self.shape))
    if not repeats:
        return self
    return b.reshape(repeated(b, wide, [size(n) for n in repeats]), out.shape)


@lowers("flip")
def flip(b: Builder, out: Result, self: Tensor, dims: Sequence[int]) -> Tensor:
    turned = {d % max(self.rank, 1) for d in dims} if self.rank else set()
    starts = [d - 1 if i in turned else const(0) for i, d in enumerate(self.shape)]
    if any(prove(eq(d, 0), b.symbols) for d in self.shape):
        return self
    return b.slice(self, starts, self.shape, [-1 if i in turned else 1 for i in range(self.rank)])


def _pads(x: Tensor, pad: Sequence[Number]) -> list[Expr]:
    """Return pads as those before each axis, then those after each. PyTorch's pads begin with both of the
    last axis, and go on with those of the axis before."""
    begins, ends = [const(0)] * x.rank, [const(0)] * x.rank
    for n in range(len(pad) // 2):
        begins[-1 - n], ends[-1 - n] = size(pad[2 * n]), size(pad[2 * n + 1])  # type: ignore[call-overload]
    return [*begins, *ends]


@lowers("constant_pad_nd")
def constant_pad(b: Builder, out: Result, self: Tensor, pad: Sequence[Number], value: Number = 0) -> Tensor:
    if isinstance(value, Expr):
        raise CompileError("it pads with a size: pad with a number")
    return b.pad(self, _pads(self, pad), "constant", value)


@lowers("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(b: Builder, out: Result, self: Tensor, padding: Sequence[Number]) -> Tensor:
    return b.pad(self, _pads(self, padding), "reflect")


@lowers("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(b: Builder, out: Result, self: Tensor, padding: Sequence[Number]) -> Tensor:
    return b.pad(self, _pads(self, padding), "edge")


@lowers("diagonal", "diagonal_copy")
def diagonal(b: Builder, out: Result, self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return the elements whose index along `dim2` is `offset` more than that along `dim1`. The result has
    them along its last axis."""
    rows, columns = dim1 % self.rank, dim2 % self.rank

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        rest = iter(index[:-1])
        places = {rows: index[-1] + max(-offset, 0), columns: index[-1] + max(offset, 0)}
        return bufs[0][tuple(places[i] if i in places else next(rest) for i in range(self.rank))]

    return b.compute(self.dtype, out.shape, [self], at)


@lowers("unfold", "unfold_copy")
def unfold(b: Builder, out: Result, self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Return windows of `size` elements along an axis, `step` apart. The result has the places in a window
    along its last axis."""
    axis = dimension % max(self.rank, 1)

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        if not self.rank:
            return bufs[0][()]
        *places, inside = index
        places[axis] = places[axis] * const(step) + inside
        return bufs[0][tuple(places)]

    return b.compute(self.dtype, out.shape, [self], at)


@lowers("select_scatter")
def select_scatter(b: Builder, out: Result, self: Tensor, src: Tensor, dim: int, index: Number) -> Tensor:
    axis = dim % self.rank
    row = b.reshape(b.cast(src, self.dtype), (*src.shape[:axis], const(1), *src.shape[axis:]))
    return _written(b, self, row, axis, _from_front(index, self.shape[axis]), 1)


@lowers("slice_scatter")
def slice_scatter(
    b: Builder, out: Result, self: Tensor, src: Tensor, dim: int = 0, start: Number = 0, end: Number = END,
    step: int = 1,
) -> Tensor:  # fmt: skip
    axis = dim % self.rank
    first = _from_front(start, self.shape[axis])
    rows = b.expand(
        b.cast(src, self.dtype), [src.shape[i] if i == axis else d for i, d in enumerate(out.shape)]
    )
    return _written(b, self, rows, axis, first, step)


def _written(b: Builder, x: Tensor, rows: Tensor, axis: int, first: Expr, step: int) -> Tensor:
    """Return x with the entry k of `rows` written at position first + k * step along an axis, for all k."""
    count = rows.shape[axis]

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        offset = index[axis] - first
        inside = land(offset >= 0, land(offset < count * step, eq(offset % step, 0)))
        place = select(inside, offset // step, const(0))
        return select(inside, bufs[1][(*index[:axis], place, *index[axis + 1 :])], bufs[0][index])

    return b.compute(x.dtype, x.shape, [x, rows], at)


@lowers("as_strided", "as_strided_copy")
def as_strided(
    b: Builder, out: Result, self: Tensor, size: Sequence[Number], stride: Sequence[Number],
    storage_offset: Number = 0, order: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """Return a view of a tensor's memory by sizes and strides. `order` is the order of the tensor's axes in
    memory (see `torch.strided`)."""
    lying = self if order is None else b.transpose(self, order)
    flat = b.reshape(lying, [simplify(product(self.shape), b.symbols)])

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        place: Expr = storage_offset if isinstance(storage_offset, Expr) else const(int(storage_offset))
        for i, s in zip(index, stride, strict=True):
            place = place + i * (s if isinstance(s, Expr) else const(int(s)))
        return bufs[0][place]

    return b.compute(self.dtype, out.shape, [flat], at)


@lowers("as_strided_scatter")
def as_strided_scatter(
    b: Builder, out: Result, self: Tensor, src: Tensor, size: Sequence[Number], stride: Sequence[Number],
    storage_offset: Number = 0, order: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """Return `self` with `src` written at the positions that `as_strided` reads. If two elements have one
    position, the later one is kept. Raises CompileError if a size isn't fixed."""
    axes = list(range(self.rank)) if order is None else list(order)
    lying = b.transpose(self, axes)
    shape = static_shape(lying.shape)
    if shape is None or any(isinstance(n, Expr) for n in (*size, *stride, storage_offset)):
        raise CompileError("writing by strides needs sizes that are known: export without dynamic_shapes")
    places = np.array(storage_offset, np.int64)
    for n, step in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(int(n)) * int(step)  # type: ignore[arg-type]
    whose = np.full(math.prod(shape), -1, np.int64)
    whose[places.reshape(-1)] = np.arange(places.size)
    values = b.gather(b.reshape(src, [places.size]), b.const(np.maximum(whose, 0)), 0)
    kept = b.reshape(lying, [whose.size])
    y = b.map(lambda v, w, i: select(i < 0, v, w), kept, values, b.const(whose))
    return b.transpose(b.reshape(y, shape), [axes.index(i) for i in range(self.rank)])


# -- new tensors ---------------------------------------------------------------------------------


@lowers("arange")
def arange(
    b: Builder, out: Result, end: Number, start: Number = 0, step: Number = 1, dtype: Any = None
) -> Tensor:
    kind = I64 if out.dtype.is_int and not isinstance(start, float) and not isinstance(step, float) else F64
    first, by = (v if isinstance(v, Expr) else const(v, kind) for v in (start, step))
    count = out.shape[0]
    if out.dtype is I64 and isinstance(count, Const) and int(count.value) <= DATA_LIMIT and kind is I64:
        return b.sizes([simplify(first + by * i, b.symbols) for i in range(int(count.value))])

    def at(_: Sequence[Buffer], i: Expr) -> Expr:
        return cast(out.dtype, cast(kind, first) + cast(kind, i) * cast(kind, by))

    return b.compute(out.dtype, out.shape, [], at)


@lowers("full", "full_like", "fill.Scalar", "new_full", "scalar_tensor")
def full(
    b: Builder, out: Result, fill_value: Operand | None = None, value: Number | None = None,
    s: Operand | None = None, **given: Any,
) -> Tensor:  # fmt: skip
    number = next(v for v in (fill_value, value, s) if v is not None)
    return b.expand(scalar(b, number, out.dtype), out.shape)


@lowers("fill.Tensor")
def fill(b: Builder, out: Result, self: Tensor, value: Tensor) -> Tensor:
    return b.expand(b.cast(value, out.dtype), out.shape)


def _filled(value: int) -> Any:
    def lower(b: Builder, out: Result, **given: Any) -> Tensor:
        return b.expand(b.scalar(value, out.dtype), out.shape)

    return lower


FILLED = Table({
    "zeros": _filled(0), "zeros_like": _filled(0), "empty": _filled(0), "empty_like": _filled(0),
    "empty_strided": _filled(0), "empty_permuted": _filled(0), "new_zeros": _filled(0),
    "new_empty": _filled(0), "new_empty_strided": _filled(0), "ones": _filled(1), "ones_like": _filled(1),
    "new_ones": _filled(1),
})  # fmt: skip
"""Lowerings of operators that fill new tensors with one number. The contents of `empty` are undefined, and 0
is used."""


@lowers("copy")
def copy(b: Builder, out: Result, self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    return b.expand(b.cast(src, out.dtype), out.shape)


@lowers("pixel_shuffle")
def pixel_shuffle(b: Builder, out: Result, self: Tensor, upscale_factor: int) -> Tensor:
    """Return [..., C r², H, W] rearranged as [..., C, H r, W r] (Shi et al. 2016)."""
    *outer, _, height, width = self.shape
    r, count = upscale_factor, len(outer)
    depth = out.shape[count]
    y = b.reshape(self, [*outer, depth, r, r, height, width])
    at = count
    y = b.transpose(y, [*range(at), at, at + 3, at + 1, at + 4, at + 2])
    return b.reshape(y, out.shape)
