"""Lower ATen's operators that read and write at indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jangin.frontends.registry import lowers
from jangin.frontends.torch.operators.common import Number, Operand, Result, scalar
from jangin.ir.dtype import BOOL, I64
from jangin.ir.expr import binary, const, maximum, ne, select
from jangin.ir.graph import CompileError, Shape
from jangin.ir.simplify import simplify
from jangin.ops import index as neutral
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.elementwise import where
from jangin.ops.operands import broadcast
from jangin.ops.scan import cumulate
from jangin.ops.scatter import scatter_elements, scatter_nd
from jangin.ops.select import non_zero
from jangin.ops.values import Tensor


@lowers("embedding")
def embedding(
    b: Builder, out: Result, weight: Tensor, indices: Tensor, padding_idx: int = -1,
    scale_grad_by_freq: bool = False, **given: Any,
) -> Tensor:  # fmt: skip
    """Return the rows of `weight` at the indices. No gradient passes through the row `padding_idx`."""
    rows = neutral.gather(b, weight, indices, axis=0, from_end=False)
    if not b.trained:
        return rows
    if scale_grad_by_freq:
        raise CompileError("scale_grad_by_freq=True of an embedding can't be trained: leave it out")
    if padding_idx < 0:
        return rows
    places = b.reshape(indices, [*indices.shape, const(1)])
    fixed = b.map(lambda v: v, rows, corner="constant")
    return b.map(lambda i, v, c: select(ne(i, padding_idx), v, c), places, rows, fixed)


@lowers("index_select")
def index_select(b: Builder, out: Result, self: Tensor, dim: int, index: Tensor) -> Tensor:
    if not self.rank:
        return b.expand(self, out.shape)
    return b.reshape(neutral.gather(b, self, index, axis=dim, from_end=False), out.shape)


Indices = Sequence[Tensor | None]


def _by_number(b: Builder, indices: Indices) -> list[Tensor | None]:
    """Replace each mask among the indices by the positions of its true elements. A mask then becomes several
    indices, one for each of its axes."""
    positions: list[Tensor | None] = []
    for index in indices:
        if index is None or (index.dtype.is_int and index.dtype.name != "u8"):
            positions.append(index)
            continue
        places = non_zero(b, index)
        rows = range(index.rank)
        count = places.shape[1]
        positions += [b.reshape(b.slice(places, [n, 0], [1, count], [1, 1]), [count]) for n in rows]
    return positions


def _arranged(b: Builder, self: Tensor, indices: Indices) -> tuple[list[int], Tensor, Shape, int]:
    """Return the arguments of a gather by index tuples that does the same as indexing by tensors.

    They are the order of `self`'s axes with the indexed axes first, the index tuples along a last axis, and
    the indices' broadcast shape. The last one is the number of axes that precede this shape in a result."""
    positions = _by_number(b, indices)
    at = [i for i, t in enumerate(positions) if t is not None]
    tensors = [t for t in positions if t is not None]
    shape = broadcast(*(t.shape for t in tensors))
    columns = [b.reshape(b.expand(b.cast(t, I64), shape), (*shape, const(1))) for t in tensors]
    neighbours = at == list(range(at[0], at[-1] + 1))
    order = [*at, *(i for i in range(self.rank) if i not in at)]
    return order, b.concat(columns, len(shape)), shape, at[0] if neighbours else 0


@lowers("index")
def index(b: Builder, out: Result, self: Tensor, indices: Indices) -> Tensor:
    """Return the elements of `self` at indices, as NumPy's indexing by arrays does.

    The indices' broadcast axes replace the indexed axes. They are the first axes of the result if the indexed
    axes aren't adjacent."""
    whole = [i for i, t in enumerate(indices) if t is not None]
    one = indices[whole[0]] if len(whole) == 1 else None
    if one is not None and one.dtype.is_int and one.dtype.name != "u8":
        return neutral.gather(b, self, one, axis=whole[0])
    order, tuples, shape, before = _arranged(b, self, indices)
    taken = neutral.gather_nd(b, b.transpose(self, order), tuples)
    rank = len(shape)
    kept = list(range(rank, taken.rank))
    return b.transpose(taken, [*kept[:before], *range(rank), *kept[before:]])


@lowers("index_put", "_unsafe_index_put")
def index_put(
    b: Builder, out: Result, self: Tensor, indices: Indices, values: Tensor, accumulate: bool = False
) -> Tensor:
    """Return `self` with values written at the positions that `index` would read."""
    tensors = [t for t in indices if t is not None]
    if len(tensors) == 1 and tensors[0].dtype is BOOL and not values.rank and not accumulate:
        mask = tensors[0]
        place = next(i for i, t in enumerate(indices) if t is not None)
        after = self.rank - place - mask.rank
        return where(b, b.reshape(mask, (*mask.shape, *[const(1)] * after)), b.cast(values, self.dtype), self)
    order, tuples, shape, before = _arranged(b, self, indices)
    x = b.transpose(self, order)
    kept = x.shape[tuples.shape[-1].value :]  # type: ignore[attr-defined]
    rank = len(shape)
    whole = b.expand(b.cast(values, self.dtype), (*kept[:before], *shape, *kept[before:]))
    moved = b.transpose(
        whole, [*range(before, before + rank), *range(before), *range(before + rank, whole.rank)]
    )
    written = scatter_nd(b, x, tuples, moved, reduction="add" if accumulate else "none")
    return b.transpose(written, [order.index(i) for i in range(self.rank)])


@lowers("scatter", "scatter_reduce")
def scatter(
    b: Builder, out: Result, self: Tensor, dim: int, index: Tensor, src: Tensor | None = None,
    value: Number | None = None, reduce: str = "", include_self: bool = True,
) -> Tensor:  # fmt: skip
    """Return `self` with elements written at indices along an axis.

    `reduce` tells how several elements at one position are combined: by their sum, product, extreme or mean.
    The element that was there before is combined too, unless `include_self` is false."""
    kind = {"": "none", "sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max",
            "amin": "min", "mean": "add"}[reduce]  # fmt: skip
    x, at = (b.reshape(t, [1]) if not t.rank else t for t in (self, index))
    new: Operand = src if src is not None else (value if value is not None else 0)
    rows = new if isinstance(new, Tensor) else b.expand(scalar(b, new, x.dtype), at.shape)
    rows = b.reshape(rows, [1]) if not rows.rank else rows
    if not include_self:
        neutral_value = {"add": 0.0, "mul": 1.0, "max": float("-inf"), "min": float("inf")}[kind]
        if x.dtype.is_int and kind in ("max", "min"):
            raise CompileError(f"{reduce} of integers with include_self=False is not supported")
        first = b.expand(b.scalar(neutral_value, x.dtype), at.shape)
        x = scatter_elements(b, x, at, first, axis=dim, from_end=False)
    y = scatter_elements(b, x, at, rows, axis=dim, reduction=kind, from_end=False)
    if reduce == "mean":
        ones = b.expand(b.scalar(1, x.dtype), at.shape)
        start = b.expand(b.scalar(1 if include_self else 0, x.dtype), x.shape)
        count = scatter_elements(b, start, at, ones, axis=dim, reduction="add")
        y = _mean(b, y, count)
    return b.reshape(y, out.shape)


def _mean(b: Builder, total: Tensor, count: Tensor) -> Tensor:
    def share(v: Any, n: Any) -> Any:
        n = maximum(n, const(1, n.dtype))
        return binary("floordiv", v, n) if v.dtype.is_int else v / n

    return b.map(share, total, count)


@lowers("scatter_add")
def scatter_add(b: Builder, out: Result, self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return scatter(b, out, self, dim, index, src, reduce="sum")


@lowers("index_add")
def index_add(
    b: Builder, out: Result, self: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Number = 1
) -> Tensor:
    axis = dim % max(self.rank, 1)
    x = b.transpose(self, [axis, *(i for i in range(self.rank) if i != axis)])
    rows = b.transpose(source, [axis, *(i for i in range(self.rank) if i != axis)])
    if alpha != 1:
        rows = b.map(lambda v: v * const(alpha, v.dtype), rows)  # type: ignore[arg-type]
    tuples = b.reshape(index, (*index.shape, const(1)))
    y = scatter_nd(b, x, tuples, b.cast(rows, self.dtype), reduction="add", from_end=False)
    return b.transpose(y, [*range(1, axis + 1), 0, *range(axis + 1, self.rank)])


@lowers("masked_fill")
def masked_fill(b: Builder, out: Result, self: Tensor, mask: Tensor, value: Operand) -> Tensor:
    return where(b, mask, scalar(b, value, out.dtype), b.cast(self, out.dtype))


@lowers("masked_scatter")
def masked_scatter(b: Builder, out: Result, self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Return `self` with its elements replaced where `mask` is true. The elements of `source` are taken in
    order."""
    flags = b.reshape(b.expand(mask, out.shape), [simplify(product(out.shape), b.symbols)])
    place = b.map(lambda v: v - 1, cumulate(b, b.cast(flags, I64), "sum", axis=0))
    flat = b.reshape(source, [simplify(product(source.shape), b.symbols)])
    taken = neutral.gather(b, flat, b.map(lambda v: maximum(v, 0), place), axis=0)
    return where(b, b.reshape(flags, out.shape), b.reshape(b.cast(taken, out.dtype), out.shape), self)


@lowers("masked_select")
def masked_select(b: Builder, out: Result, self: Tensor, mask: Tensor) -> Tensor:
    """Return the elements where `mask` is true, in order, as a vector."""
    shape = broadcast(self.shape, mask.shape)
    return index(b, out, b.expand(self, shape), [b.expand(mask, shape)])
