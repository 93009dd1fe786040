"""Elements picked by index: gathers and one-hot vectors, and the loops of imperative operators.

Indices are integers of any type. Negative ones count from the end, unless a format says that they are out of
range (`from_end=False`). A run checks indices (`in_range`). Every index is clamped into range at its use, so
that no input can reach outside a buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jangin.ir.core import IndexCheck
from jangin.ir.dtype import I64
from jangin.ir.expr import Buffer, Expr, Var, cast, const, eq, lor, select
from jangin.ir.graph import Array, CompileError, static_shape
from jangin.ir.loop import For, Stmt
from jangin.ir.simplify import prove, simplify
from jangin.ops.axes import axis_of, clamped, wrapped
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor


def nest(extents: Sequence[Expr], variables: Sequence[Var], body: Stmt, outermost: str = "serial") -> Stmt:
    """Return loops around `body`; the outermost is of kind `outermost`."""
    loops = list(zip(variables, extents, strict=True))
    for n, (var, extent) in reversed(list(enumerate(loops))):
        body = For(var, extent, body, "serial" if n else outermost)
    return body


def index_vars(count: int, prefix: str = "i") -> tuple[Var, ...]:
    return tuple(Var(f"{prefix}{n}") for n in range(count))


def in_range(
    b: Builder, indices: Tensor, *sizes: Expr, from_end: bool = True, ignored: int | None = None
) -> Tensor:
    """Return the indices, which are checked against the `sizes` of one axis, or of several axes along their
    last axis.

    Known indices are checked here (CompileError). A run checks the others if it uses the returned tensor,
    unless the builder is `unchecked`. `from_end`: negative indices count from the end. The value `ignored`
    isn't checked.
    """
    limits = tuple(simplify(n, b.symbols) for n in sizes)
    if _known_to_be_inside(b, indices, limits, from_end, ignored) or b.unchecked:
        return indices
    indices = b.materialize(indices)
    b.add(IndexCheck(limits, from_end, ignored), [indices.name], f"{b.prefix}.indices", b.source)
    return indices


def _known_to_be_inside(
    b: Builder, indices: Tensor, sizes: Sequence[Expr], from_end: bool, ignored: int | None
) -> bool:
    """Return whether all indices are proven in range. Raises CompileError if one is known to be out of
    range."""
    known = b.constant_value(indices)
    columns: Sequence[Any] = [indices.data if known is None else known]
    if columns[0] is None:
        return False
    if len(sizes) > 1:
        columns = [columns[0][..., n] for n in range(len(sizes))]
    inside = True
    for column, size in zip(columns, sizes, strict=True):
        for i in _extremes(column, ignored) if known is not None else column.flat:
            low = 0 - size if from_end else const(0)
            if prove(lor(i < low, size <= i), b.symbols):
                raise CompileError(f"index {i} is out of range for an axis of {size} entries")
            inside = inside and prove(low <= i, b.symbols) and prove(size > i, b.symbols)
    return inside


def _extremes(known: Array, ignored: int | None) -> list[Expr]:
    """Return the smallest and largest index, without `ignored` ones. The list is empty if there are no
    indices."""
    counted = known.reshape(-1) if ignored is None else known[known != ignored]
    return [const(int(counted.min())), const(int(counted.max()))] if counted.size else []


def gather(b: Builder, x: Tensor, indices: Tensor, *, axis: int = 0, from_end: bool = True) -> Tensor:
    """Return numpy.take of x at `indices` along `axis`: [*before, *indices, *after]."""
    at = axis_of(axis, x.rank)
    return b.gather(x, in_range(b, indices, x.shape[at], from_end=from_end), at)


def gather_elements(
    b: Builder, x: Tensor, indices: Tensor, *, axis: int = 0, from_end: bool = True
) -> Tensor:
    """Return numpy.take_along_axis: x at each element's own index along `axis`, in the indices' shape."""
    if indices.rank != x.rank:
        raise CompileError(f"the elements of {x} at {indices}: both must have one rank")
    at = axis_of(axis, x.rank)
    return take_along(b, x, in_range(b, indices, x.shape[at], from_end=from_end), at)


def take_along(b: Builder, x: Tensor, indices: Tensor, at: int) -> Tensor:
    """Return `gather_elements` at indices that are in range."""

    def pick(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        i = cast(I64, bufs[1][index])
        i = clamped(wrapped(i, x.shape[at]), x.shape[at])
        return bufs[0][(*index[:at], i, *index[at + 1 :])]

    return b.compute(x.dtype, indices.shape, [x, indices], pick)


def gather_nd(
    b: Builder, x: Tensor, indices: Tensor, *, batch_dims: int = 0, from_end: bool = True
) -> Tensor:
    """Return the slices of x at the index tuples along the last axis of `indices`. The result is [*indices
    but the last axis, *the remaining axes of x]. The first `batch_dims` axes are shared by both."""
    depth = tuple_length(indices)
    taken = batch_dims + depth
    if indices.rank == 0 or taken > x.rank:
        raise CompileError(
            f"the slices of {x} at {indices}: an index tuple may have at most {x.rank - batch_dims} entries"
        )
    indices = in_range(b, indices, *x.shape[batch_dims:taken], from_end=from_end)
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
    """Return the length of each index tuple along the last axis. Raises CompileError if it isn't known."""
    length = static_shape(indices.shape[-1:])
    if not length:
        raise CompileError(f"the last dimension of the indices ({indices}) must be a known integer")
    return length[0]


def one_hot(b: Builder, indices: Tensor, depth: Expr, values: Tensor, *, axis: int = -1) -> Tensor:
    """Return one-hot vectors along a new axis of `depth` entries, in the dtype of `values` [off value, on
    value]. An entry is on if its position is the element's index."""
    at = axis_of(axis, indices.rank + 1)

    def pick(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        i = wrapped(cast(I64, bufs[0][(*index[:at], *index[at + 1 :])]), depth)
        return select(eq(i, index[at]), bufs[1][1], bufs[1][0])

    shape = (*indices.shape[:at], depth, *indices.shape[at:])
    return b.compute(values.dtype, shape, [indices, values], pick)
