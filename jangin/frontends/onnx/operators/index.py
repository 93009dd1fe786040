"""ONNX operators that pick elements by index: gathers, one-hot and top-k."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.frontends.onnx.registry import op
from jangin.ir.dtype import BOOL, I64
from jangin.ir.expr import Buffer, Const, Expr, Load, Var, cast, const, eq, select
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.loop import For, If, Let, Stmt, Store, block
from jangin.ir.simplify import prove
from jangin.ops.axes import axis_of, clamped, wrapped
from jangin.ops.builder import Builder, Tensor


@op("Gather")
def gather(b: Builder, x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    at = axis_of(axis, x.rank)
    places, size = b.constant_value(indices), x.shape[at]
    if places is not None and places.size and isinstance(size, Const):
        low, high, n = int(places.min()), int(places.max()), int(size.value)
        if low < -n or high >= n:
            wrong = low if low < -n else high
            raise CompileError(f"index {wrong} is out of range for axis {at} of {x}, which has {n} entries")
    return b.gather(x, indices, at)


@op("GatherElements", since=11)
def gather_elements(b: Builder, x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    if indices.rank != x.rank:
        raise CompileError(f"GatherElements of {x} at {indices}: the ranks differ")
    at = axis_of(axis, x.rank)

    def pick(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        i = cast(I64, bufs[1][index])
        i = clamped(wrapped(i, x.shape[at]), x.shape[at])
        return bufs[0][(*index[:at], i, *index[at + 1 :])]

    return b.compute(x.dtype, indices.shape, [x, indices], pick)


@op("GatherND", since=11)
def gather_nd(b: Builder, x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    depth = tuple_length(indices)
    taken = batch_dims + depth
    if indices.rank == 0 or taken > x.rank:
        raise CompileError(f"GatherND of {x} at {indices}: the index tuples are too long")
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


@op("OneHot", since=9)
def one_hot(b: Builder, indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    (size,) = b.require_sizes(depth, "OneHot's depth")
    at = axis_of(axis, indices.rank + 1)

    def pick(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        i = wrapped(cast(I64, bufs[0][(*index[:at], *index[at + 1 :])]), size)
        return select(eq(i, index[at]), bufs[1][1], bufs[1][0])

    shape = (*indices.shape[:at], size, *indices.shape[at:])
    return b.compute(values.dtype, shape, [indices, values], pick)


def nest(extents: Sequence[Expr], variables: Sequence[Var], body: Stmt, outermost: str = "serial") -> Stmt:
    """Loops around `body`, the first one of kind `outermost`."""
    loops = list(zip(variables, extents, strict=True))
    for n, (var, extent) in reversed(list(enumerate(loops))):
        body = For(var, extent, body, "serial" if n else outermost)
    return body


def index_vars(count: int, prefix: str = "i") -> tuple[Var, ...]:
    return tuple(Var(f"{prefix}{n}") for n in range(count))


def top_indices(b: Builder, x: Tensor, k: Expr, axis: int, largest: bool) -> Tensor:
    """Indices of the `k` best along `axis`, best first, the lower index first among equals:
    insertion into the result, which holds the best so far."""
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    src, out = Buffer("x0", x.dtype, x.shape), Buffer("out", I64, shape)
    row = index_vars(x.rank)
    i, j, p = Var("i"), Var("j"), Var("p")

    def at(place: Expr) -> tuple[Expr, ...]:
        return (*row[:axis], place, *row[axis + 1 :])

    def beats(place: Expr) -> Expr:
        """Element i goes before what `place` of the result holds (nothing yet from place i on)."""
        mine, other = Load(src, at(i)), Load(src, at(Load(out, at(place))))
        better = mine > other if largest else mine < other
        return select(place >= i, const(True, BOOL), better)

    shifted = select(p > 0, beats(p - 1), const(False, BOOL))
    move = If(shifted, Store(out, at(p), Load(out, at(p - 1))), Store(out, at(p), i))
    insert = For(j, k, Let(p, k - 1 - j, If(beats(p), move)))
    scan = If(k > 0, For(i, x.shape[axis], If(beats(k - 1), insert)))
    clear = For(j, k, Store(out, at(j), const(0)))
    kept = [n for n in range(x.rank) if n != axis]
    body = nest([x.shape[n] for n in kept], [row[n] for n in kept], block(clear, scan), "parallel")
    enough = () if prove(k <= x.shape[axis], b.symbols) else (k <= x.shape[axis],)
    return b.loop_nest([x], body, I64, shape, enough)


def top(b: Builder, x: Tensor, k: Expr, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    at = axis_of(axis, x.rank)
    if prove(k > x.shape[at], b.symbols):
        raise CompileError(f"TopK of {x}: axis {at} has fewer than {k} entries")
    indices = top_indices(b, x, k, at, largest)
    return gather_elements(b, x, indices, axis=at), indices


@op("TopK")
def top_k_1(b: Builder, x: Tensor, *, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    return top(b, x, const(k), axis, True)


@op("TopK", since=10)
def top_k(
    b: Builder, x: Tensor, k: Tensor, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Tensor, Tensor]:
    """Without `sorted` any order is right, so the result is sorted all the same."""
    (count,) = b.require_sizes(k, "TopK's k")
    return top(b, x, count, axis, bool(largest))
