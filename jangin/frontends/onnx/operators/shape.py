"""Lower ONNX operators that create tensors or change only their shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jangin.frontends.onnx.registry import one_of, op
from jangin.frontends.onnx.types import element_type
from jangin.ir.dtype import BOOL, I64, DType
from jangin.ir.expr import Expr, Var, cast, const, eq, is_const, land, lor, maximum, ne, select
from jangin.ir.graph import Array, CompileError, static_shape
from jangin.ir.simplify import prove, simplify
from jangin.ops import nontensor
from jangin.ops.axes import axes_of, axis_of, integers, product
from jangin.ops.builder import Builder
from jangin.ops.move import (
    arange,
    depth_to_space,
    equal_sizes,
    parts_of,
    repeat,
    reshape_to,
    space_to_depth,
    split_into,
    triangle,
)
from jangin.ops.nontensor import Item
from jangin.ops.operands import broadcast
from jangin.ops.values import Tensor


@op("Shape")
def shape(b: Builder, x: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    return b.sizes(list(x.shape[start:end]))


@op("Size")
def size(b: Builder, x: Tensor) -> Tensor:
    return b.reshape(b.sizes([simplify(product(x.shape), b.symbols)]), ())


@op("Reshape")
def reshape_1(b: Builder, x: Tensor, *, shape: Sequence[int] = ()) -> Tensor:
    return reshape_to(b, x, [const(d) for d in shape], False)


@op("Reshape", since=5)
def reshape(b: Builder, x: Tensor, shape: Tensor, *, allowzero: int = 0) -> Tensor:
    if shape.data is None and b.constant_value(shape) is None and not b.joined(shape):
        return b.reshape(x, _resolved(b, x, shape, bool(allowzero)))
    return reshape_to(b, x, b.require_sizes(shape, "Reshape's shape"), bool(allowzero))


def _resolved(b: Builder, x: Tensor, shape: Tensor, allowzero: bool) -> list[Expr]:
    """Return the sizes of a shape that is computed during a run. Its entries 0 and -1 are replaced during the
    run too."""
    if shape.rank != 1 or static_shape(shape.shape) is None:
        raise CompileError(f"Reshape of {x}: the rank of its result, {shape.shape}, must be known")
    want = b.cast(shape, I64)
    if not allowzero:
        (count,) = static_shape(shape.shape) or (0,)
        own = b.sizes([*x.shape, *[const(0)] * count][:count])
        want = b.map(lambda v, d: select(eq(v, 0), d, v), want, own)
    rest = b.reduce("prod", b.map(lambda v: select(v < 0, const(1), v), want), [0], True)
    total = b.sizes([simplify(product(x.shape), b.symbols)])
    return b.bind(b.map(lambda v, n, all: select(v < 0, all // maximum(n, 1), v), want, rest, total))


@op("Flatten")
def flatten(b: Builder, x: Tensor, *, axis: int = 1) -> Tensor:
    cut = axis if axis == x.rank else axis_of(axis, x.rank)
    return b.reshape(x, [product(x.shape[:cut]), product(x.shape[cut:])])


@op("Squeeze")
def squeeze_1(b: Builder, x: Tensor, *, axes: Sequence[int] | None = None) -> Tensor:
    if axes is None:
        gone: tuple[int, ...] = tuple(i for i, d in enumerate(x.shape) if is_const(d, 1))
        for d in x.shape:
            _not_one(b, d)
    else:
        gone = axes_of(axes, x.rank)
    for i in gone:
        if static_shape((x.shape[i],)) not in (None, (1,)):
            raise CompileError(f"Squeeze of {x}: axis {i} has {x.shape[i]} entries, not one")
    return b.reshape(x, [d for i, d in enumerate(x.shape) if i not in gone])


def _not_one(b: Builder, size: Expr) -> None:
    """Assume that a size isn't 1, if it is a symbol. With the size 1, the result would have another rank."""
    if isinstance(size, Var) and size in b.symbols and not prove(ne(size, 1), b.symbols):
        b.not_one.setdefault(size, b.source)


@op("Squeeze", since=13)
def squeeze(b: Builder, x: Tensor, axes: Tensor | None = None) -> Tensor:
    return squeeze_1(b, x, axes=None if axes is None else integers(b, axes, "Squeeze's axes"))


@op("Unsqueeze")
def unsqueeze_1(b: Builder, x: Tensor, *, axes: Sequence[int]) -> Tensor:
    new = axes_of(axes, x.rank + len(axes))
    old = iter(x.shape)
    return b.reshape(x, [const(1) if i in new else next(old) for i in range(x.rank + len(new))])


@op("Unsqueeze", since=13)
def unsqueeze(b: Builder, x: Tensor, axes: Tensor) -> Tensor:
    return unsqueeze_1(b, x, axes=integers(b, axes, "Unsqueeze's axes"))


@op("Transpose")
def transpose(b: Builder, x: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    order = tuple(range(x.rank))[::-1] if perm is None else axes_of(perm, x.rank)
    if len(order) != x.rank:
        raise CompileError(f"Transpose of {x}: perm {list(order)} must name every axis once")
    return b.transpose(x, order)


@op("Concat")
def concat(b: Builder, *xs: Tensor, axis: int = 1) -> Tensor:
    at = axis_of(axis, xs[0].rank)
    for x in xs[1:]:
        if x.rank != xs[0].rank:
            raise CompileError(f"Concat of {', '.join(map(str, xs))}: all must have one rank")
    return b.concat(list(xs), at)


@op("Split")
def split_1(
    b: Builder, x: Tensor, split: Tensor | Sequence[int] | None = None, *, axis: int = 0
) -> tuple[Tensor, ...]:
    """Return the parts of x. Before opset 13 their sizes are an attribute. In opset 1 they may also be an
    input."""
    at = axis_of(axis, x.rank)
    if isinstance(split, Tensor):
        return split_into(b, x, at, b.require_sizes(split, "Split's sizes"))
    if split is not None:
        return split_into(b, x, at, [const(n) for n in split])
    return parts_of(b, x, at, equal_sizes(b, x, at, b.results))


@op("Split", since=13)
def split_13(
    b: Builder, x: Tensor, split: Tensor | None = None, *, axis: int = 0, num_outputs: int | None = None
) -> tuple[Tensor, ...]:
    at = axis_of(axis, x.rank)
    if split is not None:
        return split_into(b, x, at, b.require_sizes(split, "Split's sizes"))
    if num_outputs not in (None, b.results):
        raise CompileError(f"num_outputs is {num_outputs}, but the node has {b.results} outputs")
    return parts_of(b, x, at, equal_sizes(b, x, at, b.results))


@op("Expand")
def expand(b: Builder, x: Tensor, shape: Tensor) -> Tensor:
    want = tuple(b.require_sizes(shape, "Expand's shape"))
    dims = broadcast(want, x.shape)  # `want` is the result's size if two symbols meet
    fits: Expr = const(True, BOOL)
    for wanted, dim in zip(want, dims[len(dims) - len(want) :], strict=True):
        fits = land(fits, lor(eq(wanted, dim), eq(wanted, 1)))
    return b.expand(x if prove(fits, b.symbols) else b.requiring(x, fits), dims)


@op("Tile")
def tile_1(b: Builder, x: Tensor, tiles: Tensor, axis: Tensor) -> Tensor:
    (at,), (count,) = integers(b, axis, "Tile's axis"), b.require_sizes(tiles, "Tile's count")
    return repeat(b, x, [count if i == axis_of(at, x.rank) else const(1) for i in range(x.rank)])


@op("Tile", since=6)
def tile(b: Builder, x: Tensor, repeats: Tensor) -> Tensor:
    return repeat(b, x, b.require_sizes(repeats, "Tile's repeats"))


@op("Constant")
def constant(
    b: Builder,
    *,
    value: Array | None = None,
    sparse_value: Array | None = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
    **other: Any,
) -> Item:
    values = (
        value,
        sparse_value,
        value_float,
        value_floats,
        value_int,
        value_ints,
        value_string,
        value_strings,
    )
    if sum(v is not None for v in values) + len(other) > 1:
        raise CompileError("it has several attributes with a value, and may have one")
    value = sparse_value if value is None else value
    if value is not None:
        return nontensor.constant(b, np.asarray(value))
    texts = value_strings if value_string is None else value_string
    if texts is not None:
        return nontensor.constant(b, np.asarray(texts, object))
    floats = value_floats if value_float is None else value_float
    if floats is not None:
        return b.const(np.asarray(floats, np.float32))
    ints = value_ints if value_int is None else value_int
    if ints is not None:
        return b.const(np.asarray(ints, np.int64))
    raise CompileError(f"Constant of {', '.join(other) or 'nothing'} is not supported; numbers and texts are")


@op("ConstantOfShape")
def constant_of_shape(b: Builder, shape: Tensor, *, value: Array | None = None) -> Tensor:
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value)
    return b.expand(b.const(fill.reshape(())), b.require_sizes(shape, "ConstantOfShape's shape"))


@op("Range")
def range_(b: Builder, start: Tensor, limit: Tensor, delta: Tensor, *, stash_type: int = 1) -> Tensor:
    return arange(b, start, limit, delta)


@op("Trilu", since=14)
def trilu(b: Builder, x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    return triangle(b, x, k, bool(upper))


@op("EyeLike", since=9)
def eye_like(b: Builder, x: Tensor, *, dtype: int | DType | None = None, k: int = 0) -> Tensor:
    kind = x.dtype if dtype is None else element_type(dtype)
    return b.compute(kind, x.shape, [], lambda _, i, j: cast(kind, eq(j - i, k)))


def _depth_last(mode: str) -> bool:
    one_of("mode", mode, ("DCR", "CRD"))
    return mode == "DCR"


@op("DepthToSpace")
def depth_to_space_1(b: Builder, x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    return depth_to_space(b, x, blocksize, depth_last=_depth_last(mode))


@op("SpaceToDepth")
def space_to_depth_1(b: Builder, x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    return space_to_depth(b, x, blocksize, depth_last=_depth_last(mode))
