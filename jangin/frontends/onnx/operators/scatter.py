"""ONNX operators that write elements at indices: imperative nests, in the order of the updates.

Every index is checked, so that no input can make a kernel write outside its buffer; updates whose
index is out of range are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from jangin.frontends.onnx.operators.index import index_vars, nest, tuple_length
from jangin.frontends.onnx.registry import op
from jangin.ir.dtype import BOOL, I64
from jangin.ir.expr import Buffer, Expr, Load, Var, cast, const, land, lor, maximum, minimum, select
from jangin.ir.graph import CompileError
from jangin.ir.loop import If, Let, Stmt, Store, block
from jangin.ir.simplify import simplify
from jangin.ops.axes import axis_of, product, wrapped
from jangin.ops.builder import Builder, Tensor


def combined(reduction: str, old: Expr, new: Expr) -> Expr:
    """The value to store where `old` is; CompileError for an unknown reduction."""
    if reduction == "none":
        return new
    if old.dtype is BOOL:
        return {"add": lor, "mul": land, "max": lor, "min": land}[reduction](old, new)
    if reduction in ("add", "mul"):
        return old + new if reduction == "add" else old * new
    if reduction in ("max", "min"):
        return maximum(old, new) if reduction == "max" else minimum(old, new)
    raise CompileError(f"reduction {reduction!r} is none of none, add, mul, max, min")


def _copy(source: Buffer, out: Buffer) -> Stmt:
    at = index_vars(len(out.shape), "c")
    return nest(out.shape, at, Store(out, at, Load(source, at)))


def _guarded(place: dict[Var, tuple[Expr, Expr]], body: Stmt) -> Stmt:
    """`body` with variables bound to run-time indices (value, axis size), run where all lie inside."""
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
    """x0, x1, ... and `out`, which is like the first."""
    found = [Buffer(f"x{n}", t.dtype, t.shape) for n, t in enumerate(inputs)]
    return (*found, Buffer("out", inputs[0].dtype, inputs[0].shape))


@op("Scatter", since=9)
@op("ScatterElements", since=11)
def scatter_elements(
    b: Builder, x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    if not x.rank == indices.rank == updates.rank:
        raise CompileError(f"ScatterElements of {x} at {indices} with {updates}: the ranks differ")
    at = axis_of(axis, x.rank)
    source, where, new, out = _buffers([x, indices, updates])
    row, j = index_vars(x.rank), Var("j")
    target = (*row[:at], j, *row[at + 1 :])
    store = Store(out, target, combined(reduction, Load(out, target), Load(new, row)))
    loops = nest(indices.shape, row, _guarded({j: (cast(I64, Load(where, row)), x.shape[at])}, store))
    return _scatter(b, [x, indices, updates], block(_copy(source, out), loops))


@op("ScatterND", since=11)
def scatter_nd(b: Builder, x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    depth = tuple_length(indices)
    if depth > x.rank or updates.rank != indices.rank - 1 + x.rank - depth:
        raise CompileError(f"ScatterND of {x} at {indices} with {updates}: the shapes don't fit")
    source, where, new, out = _buffers([x, indices, updates])
    row, inner = index_vars(indices.rank - 1), index_vars(x.rank - depth, "s")
    picked = index_vars(depth, "j")
    target = (*picked, *inner)
    store = Store(out, target, combined(reduction, Load(out, target), Load(new, (*row, *inner))))
    place = {j: (cast(I64, Load(where, (*row, const(n)))), x.shape[n]) for n, j in enumerate(picked)}
    copy_slice = nest(x.shape[depth:], inner, store)
    loops = nest(indices.shape[:-1], row, _guarded(place, copy_slice))
    return _scatter(b, [x, indices, updates], block(_copy(source, out), loops))


@op("TensorScatter", since=24)
def tensor_scatter(
    b: Builder,
    x: Tensor,
    update: Tensor,
    indices: Tensor | None = None,
    *,
    mode: str = "linear",
    axis: int = -2,
) -> Tensor:
    """A cache with new entries along `axis`, from the index of each batch item on; in mode "circular"
    they go on at the front. Those beyond the end are left out."""
    if mode not in ("linear", "circular") or x.rank != update.rank:
        raise CompileError(f"TensorScatter of {update} into {x} with mode {mode!r} is not defined")
    at, size = axis_of(axis, x.rank), x.shape[axis_of(axis, x.rank)]
    inputs = [x, update] if indices is None else [x, update, indices]

    def value(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        start = cast(I64, bufs[2][index[0]]) if indices is not None else const(0)
        place = index[at] - start
        place = place % size if mode == "circular" else place
        new = bufs[1][(*index[:at], place, *index[at + 1 :])]
        return select(land(place >= 0, place < update.shape[at]), new, bufs[0][index])

    return b.compute(x.dtype, x.shape, inputs, value)


@op("MaxUnpool", since=9)
def max_unpool(
    b: Builder,
    x: Tensor,
    indices: Tensor,
    output_shape: Tensor | None = None,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
) -> Tensor:
    """Values go to their flat indices in the shape that the window implies; other elements are 0.
    A given `output_shape` only adds zeros at the ends, or cuts them off."""
    rank = x.rank - 2
    steps, edge = strides or [1] * rank, pads or [0] * (2 * rank)
    spatial = [
        (d - 1) * steps[i] + kernel_shape[i] - (edge[i] + edge[i + rank]) for i, d in enumerate(x.shape[2:])
    ]
    shape = tuple(simplify(d, b.symbols) for d in (*x.shape[:2], *spatial))
    total = simplify(product(shape), b.symbols)
    values, where = Buffer("x0", x.dtype, x.shape), Buffer("x1", indices.dtype, x.shape)
    out = Buffer("out", x.dtype, (total,))
    row, j, c = index_vars(x.rank), Var("j"), Var("c")
    clear = nest([total], [c], Store(out, (c,), const(0, x.dtype)))
    store = Store(out, (j,), Load(values, row))
    loops = nest(x.shape, row, _guarded({j: (cast(I64, Load(where, row)), total)}, store))
    flat = b.loop_nest([x, indices], block(clear, loops), x.dtype, (total,))
    unpooled = b.reshape(flat, shape)
    if output_shape is None:
        return unpooled
    wanted = b.require_sizes(output_shape, "MaxUnpool's output_shape")
    grown = [simplify(w - d, b.symbols) for w, d in zip(wanted, shape, strict=True)]
    return b.pad(unpooled, [*([0] * x.rank), *grown])
