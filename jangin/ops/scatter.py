"""Elements written at indices: imperative nests, in the order of the updates.

A run checks the indices. Updates at an index out of range are left out, so that no input can make a kernel
write outside its buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jangin.ir.dtype import BOOL, I64
from jangin.ir.expr import Buffer, Expr, Load, Var, cast, const, land, lor, maximum, minimum
from jangin.ir.graph import CompileError, Shape
from jangin.ir.loop import For, If, Let, Stmt, Store, block
from jangin.ir.simplify import simplify
from jangin.ops.axes import axis_of, product, wrapped
from jangin.ops.builder import Builder
from jangin.ops.index import in_range, index_vars, nest, tuple_length
from jangin.ops.values import Tensor


def combined(reduction: str, old: Expr, new: Expr) -> Expr:
    """Return the value to store over `old`. Raises CompileError for an unknown reduction."""
    if reduction == "none":
        return new
    if old.dtype is BOOL:
        return {"add": lor, "mul": land, "max": lor, "min": land}[reduction](old, new)
    if reduction in ("add", "mul"):
        return old + new if reduction == "add" else old * new
    if reduction in ("max", "min"):
        return maximum(old, new) if reduction == "max" else minimum(old, new)
    raise CompileError(f"reduction {reduction!r} is none of none, add, mul, max, min")


LANES = 16
"""Elements that are copied by one vector loop's iteration, as many f32 as AVX-512 has. Targets with shorter
vectors take several instructions."""


def _by_vectors(b: Builder, shape: Shape, prefix: str, each: Callable[[tuple[Expr, ...]], Stmt]) -> Stmt:
    """Return loops that do `each(index)` for all indices of a shape, by vectors along the last axis."""
    if not shape:
        return each(())
    *outer, last = shape
    at, part, lane, rest = index_vars(len(outer), prefix), *(Var(f"{prefix}{n}") for n in ("o", "l", "r"))
    whole = simplify(last // LANES, b.symbols)
    left = simplify(last - whole * LANES, b.symbols)
    vectors = For(part, whole, For(lane, const(LANES), each((*at, part * LANES + lane)), "vector"))
    others = For(rest, left, each((*at, whole * LANES + rest)))
    parts = [s for s in (vectors, others) if s.extent != const(0)]
    return nest(outer, at, block(*parts))


def _copy(b: Builder, source: Buffer, out: Buffer) -> Stmt:
    return _by_vectors(b, out.shape, "c", lambda at: Store(out, at, Load(source, at)))


def _guarded(place: dict[Var, tuple[Expr, Expr]], body: Stmt) -> Stmt:
    """Return `body` with variables bound to run-time indices (value, axis size). It runs only if all indices
    are in range."""
    inside: Expr = const(True, BOOL)
    for var, (_, size) in place.items():
        inside = land(inside, land(var >= 0, var < size))
    body = If(inside, body)
    for var, (value, size) in place.items():
        body = Let(var, wrapped(value, size), body)
    return body


def _scatter(b: Builder, inputs: Sequence[Tensor], body: Stmt) -> Tensor:
    x = inputs[0]
    return b.loop_nest(inputs, body, x.dtype, x.shape)


def _buffers(inputs: Sequence[Tensor]) -> tuple[Buffer, ...]:
    """Return buffers x0, x1, ... and `out`, which is like the first. Raises CompileError if the updates, the
    last input, have another dtype."""
    if inputs[0].dtype is not inputs[-1].dtype:
        raise CompileError(f"{inputs[0]} updated with {inputs[-1]}: both must have one type")
    buffers = [Buffer(f"x{n}", t.dtype, t.shape) for n, t in enumerate(inputs)]
    return (*buffers, Buffer("out", inputs[0].dtype, inputs[0].shape))


def scatter_elements(
    b: Builder, x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none",
    from_end: bool = True,
) -> Tensor:  # fmt: skip
    """Return x with each of `updates` combined, at its own index along `axis`, with the old value.
    `reduction` is none, add, mul, max or min. indices and updates have one shape, of x's rank. `from_end` is
    as in `in_range`."""
    if not x.rank == indices.rank == updates.rank:
        raise CompileError(f"{x} updated at {indices} with {updates}: all must have one rank")
    at = axis_of(axis, x.rank)
    indices = in_range(b, indices, x.shape[at], from_end=from_end)
    source, where, new, out = _buffers([x, indices, updates])
    row, j = index_vars(x.rank), Var("j")
    target = (*row[:at], j, *row[at + 1 :])
    store = Store(out, target, combined(reduction, Load(out, target), Load(new, row)))
    loops = nest(indices.shape, row, _guarded({j: (cast(I64, Load(where, row)), x.shape[at])}, store))
    return _scatter(b, [x, indices, updates], block(_copy(b, source, out), loops))


def scatter_nd(
    b: Builder, x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none", from_end: bool = True
) -> Tensor:
    """Return x with slices written at the index tuples along the last axis of `indices`. The updates are
    [*indices but the last axis, *the axes of x that a tuple leaves]. `reduction` and `from_end` are as in
    `scatter_elements`."""
    depth = tuple_length(indices)
    if depth > x.rank or updates.rank != indices.rank - 1 + x.rank - depth:
        raise CompileError(
            f"{x} updated at {indices} with {updates}: an index tuple may have at most {x.rank} entries, and "
            "the updates must have the indices' axes but the last, then the axes that a tuple leaves"
        )
    indices = in_range(b, indices, *x.shape[:depth], from_end=from_end)
    source, where, new, out = _buffers([x, indices, updates])
    row, picked = index_vars(indices.rank - 1), index_vars(depth, "j")

    def store(inner: tuple[Expr, ...]) -> Stmt:
        target = (*picked, *inner)
        return Store(out, target, combined(reduction, Load(out, target), Load(new, (*row, *inner))))

    place = {j: (cast(I64, Load(where, (*row, const(n)))), x.shape[n]) for n, j in enumerate(picked)}
    loops = nest(indices.shape[:-1], row, _guarded(place, _by_vectors(b, tuple(x.shape[depth:]), "s", store)))
    return _scatter(b, [x, indices, updates], block(_copy(b, source, out), loops))


def unpool(b: Builder, x: Tensor, indices: Tensor, shape: Shape) -> Tensor:
    """Return a max unpooling (Zeiler et al. 2011): a tensor of `shape` that is 0 except for x's elements.
    Each element lies at its own index into the flattened result."""
    total = simplify(product(shape), b.symbols)
    indices = in_range(b, indices, total, from_end=False)
    if b.whole:
        flat = simplify(product(x.shape), b.symbols)
        zeros = b.expand(b.scalar(0, x.dtype), [total])
        filled = scatter_elements(b, zeros, b.reshape(indices, [flat]), b.reshape(x, [flat]), axis=0)
        return b.reshape(filled, shape)
    values, where = Buffer("x0", x.dtype, x.shape), Buffer("x1", indices.dtype, x.shape)
    out = Buffer("out", x.dtype, (total,))
    row, j = index_vars(x.rank), Var("j")
    clear = _by_vectors(b, (total,), "c", lambda at: Store(out, at, const(0, x.dtype)))
    store = Store(out, (j,), Load(values, row))
    loops = nest(x.shape, row, _guarded({j: (cast(I64, Load(where, row)), total)}, store))
    return b.reshape(b.loop_nest([x, indices], block(clear, loops), x.dtype, (total,)), shape)
