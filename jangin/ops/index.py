"""Elements picked by index: gathers and one-hot vectors; and the loops that imperative operators are made of.

Indices are integers of any type; negative ones count from the end, and all are moved into range, so that no
input can reach outside a buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

from jangin.ir.dtype import I64
from jangin.ir.expr import Buffer, Const, Expr, Var, cast, eq, select
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.loop import For, Stmt
from jangin.ops.axes import axis_of, clamped, wrapped
from jangin.ops.builder import Builder, Tensor


def nest(extents: Sequence[Expr], variables: Sequence[Var], body: Stmt, outermost: str = "serial") -> Stmt:
    """Loops around `body`, the first one of kind `outermost`."""
    loops = list(zip(variables, extents, strict=True))
    for n, (var, extent) in reversed(list(enumerate(loops))):
        body = For(var, extent, body, "serial" if n else outermost)
    return body


def index_vars(count: int, prefix: str = "i") -> tuple[Var, ...]:
    return tuple(Var(f"{prefix}{n}") for n in range(count))


def gather(b: Builder, x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """numpy.take of x at `indices` along `axis`: [*before, *indices, *after]. CompileError where a constant
    index is out of range."""
    at = axis_of(axis, x.rank)
    places, size = b.constant_value(indices), x.shape[at]
    if places is not None and places.size and isinstance(size, Const):
        low, high, n = int(places.min()), int(places.max()), int(size.value)
        if low < -n or high >= n:
            wrong = low if low < -n else high
            raise CompileError(f"index {wrong} is out of range for axis {at} of {x}, which has {n} entries")
    return b.gather(x, indices, at)


def gather_elements(b: Builder, x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """numpy.take_along_axis: x at each element's own index along `axis`, of the indices' shape."""
    if indices.rank != x.rank:
        raise CompileError(f"the elements of {x} at {indices}: the ranks differ")
    at = axis_of(axis, x.rank)

    def pick(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        i = cast(I64, bufs[1][index])
        i = clamped(wrapped(i, x.shape[at]), x.shape[at])
        return bufs[0][(*index[:at], i, *index[at + 1 :])]

    return b.compute(x.dtype, indices.shape, [x, indices], pick)


def gather_nd(b: Builder, x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    """The slices of x at the index tuples along the last axis of `indices`, [*indices but the last axis,
    *the axes of x that a tuple leaves]; the first `batch_dims` axes of both go side by side."""
    depth = tuple_length(indices)
    taken = batch_dims + depth
    if indices.rank == 0 or taken > x.rank:
        raise CompileError(f"the slices of {x} at {indices}: the index tuples are too long")
    outer = indices.rank - 1

    def pick(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        row = index[:outer]
        place = list(index[:batch_dims])
        for n in range(depth):
            size = x.shape[batch_dims + n]
            place.append(clamped(wrapped(cast(I64, bufs[1][(*row, n)]), size), size))
        return bufs[0][(*place, *index[outer:])]

    return b.compute(x.dtype, (*indices.shape[:-1], *x.shape[taken:]), [x, indices], pick)


def tuple_length(indices: Tensor) -> int:
    """How many indices each of the tuples along the last axis has; CompileError if not known."""
    length = static_shape(indices.shape[-1:])
    if not length:
        raise CompileError(f"the last dimension of the indices ({indices}) must be a known integer")
    return length[0]


def one_hot(b: Builder, indices: Tensor, depth: Expr, values: Tensor, *, axis: int = -1) -> Tensor:
    """`values` [2], what is off and what is on, in the values' dtype: a new axis of `depth` entries, on where
    its index is the element's and off elsewhere."""
    at = axis_of(axis, indices.rank + 1)

    def pick(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        i = wrapped(cast(I64, bufs[0][(*index[:at], *index[at + 1 :])]), depth)
        return select(eq(i, index[at]), bufs[1][1], bufs[1][0])

    shape = (*indices.shape[:at], depth, *indices.shape[at:])
    return b.compute(values.dtype, shape, [indices, values], pick)
