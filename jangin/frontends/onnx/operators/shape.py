"""ONNX operators that make tensors or change only their shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jangin.frontends.onnx.registry import op
from jangin.frontends.onnx.types import element_type
from jangin.ir.dtype import F64, I64, DType
from jangin.ir.expr import Buffer, Expr, Var, call, cast, const, eq, is_const, maximum, ne, select
from jangin.ir.graph import Array, CompileError, static_shape
from jangin.ir.simplify import prove, simplify
from jangin.ops import nontensor
from jangin.ops.axes import axes_of, axis_of, ceil_div, divide, integers, product
from jangin.ops.builder import DATA_LIMIT, Builder, Tensor
from jangin.ops.nontensor import Item
from jangin.ops.operands import broadcast


@op("Shape")
def shape(b: Builder, x: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    return b.sizes(list(x.shape[start:end]))


@op("Size")
def size(b: Builder, x: Tensor) -> Tensor:
    return b.reshape(b.sizes([simplify(product(x.shape), b.symbols)]), ())


def reshape_to(b: Builder, x: Tensor, dims: Sequence[Expr], allowzero: bool) -> Tensor:
    """Reshape with ONNX's 0 (copy the input's dimension) and -1 (what is left)."""
    out: list[Expr] = []
    unknown = [i for i, d in enumerate(dims) if is_const(d, -1)]
    for i, d in enumerate(dims):
        if is_const(d, 0) and not allowzero:
            if i >= x.rank:
                raise CompileError(f"Reshape of {x}: entry {i} of the shape is 0, but there is no axis {i}")
            d = x.shape[i]
        out.append(d)
    if len(unknown) > 1:
        raise CompileError(f"Reshape of {x} to [{', '.join(map(str, dims))}]: only one -1 is allowed")
    if unknown:
        rest = product(d for i, d in enumerate(out) if i != unknown[0])
        out[unknown[0]] = divide(product(x.shape), rest, b.symbols)
    return b.reshape(x, out)


@op("Reshape")
def reshape_1(b: Builder, x: Tensor, *, shape: Sequence[int] = ()) -> Tensor:
    return reshape_to(b, x, [const(d) for d in shape], False)


@op("Reshape", since=5)
def reshape(b: Builder, x: Tensor, shape: Tensor, *, allowzero: int = 0) -> Tensor:
    if shape.data is None and b.constant_value(shape) is None and not b.joined(shape):
        return b.reshape(x, _resolved(b, x, shape, bool(allowzero)))
    return reshape_to(b, x, b.require_sizes(shape, "Reshape's shape"), bool(allowzero))


def _resolved(b: Builder, x: Tensor, shape: Tensor, allowzero: bool) -> list[Expr]:
    """A shape that is computed at run time, its 0 and -1 worked out there."""
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
    """Take a symbol to be 2 or more: were it 1, the result would be of another rank."""
    if isinstance(size, Var) and size in b.symbols and not prove(ne(size, 1), b.symbols):
        b.symbols[size] = (const(2), b.symbols[size][1])


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
            raise CompileError(f"Concat of {', '.join(map(str, xs))}: the ranks differ")
    return b.concat(list(xs), at)


def _split(b: Builder, x: Tensor, axis: int, sizes: Sequence[Expr]) -> tuple[Tensor, ...]:
    total = simplify(sum(sizes, const(0)) - x.shape[axis], b.symbols)
    if static_shape((total,)) not in (None, (0,)):
        raise CompileError(f"Split of {x} along axis {axis}: the parts {list(map(str, sizes))} don't add up")
    x = b.reshape(x, [sum(sizes, const(0)) if i == axis else d for i, d in enumerate(x.shape)])
    return _parts(b, x, axis, sizes)


def _parts(b: Builder, x: Tensor, axis: int, sizes: Sequence[Expr]) -> tuple[Tensor, ...]:
    parts: list[Tensor] = []
    start: Expr = const(0)
    for n in sizes:
        starts = [start if i == axis else const(0) for i in range(x.rank)]
        dims = [n if i == axis else d for i, d in enumerate(x.shape)]
        parts.append(b.slice(x, starts, dims, [1] * x.rank))
        start = start + n
    return tuple(parts)


def _equal_parts(b: Builder, x: Tensor, axis: int, count: int) -> list[Expr]:
    """`count` parts; the last is smaller where the axis doesn't divide evenly."""
    dim = x.shape[axis]
    each = divide(dim + count - 1, const(count), b.symbols)
    if simplify(each * count - dim, b.symbols) == const(0):
        return [each] * count
    last = simplify(maximum(dim - each * (count - 1), 0), b.symbols)
    return [each] * (count - 1) + [last]


@op("Split")
def split_1(
    b: Builder, x: Tensor, split: Tensor | Sequence[int] | None = None, *, axis: int = 0
) -> tuple[Tensor, ...]:
    """Before opset 13 the sizes are an attribute (in opset 1 they may be an input)."""
    at = axis_of(axis, x.rank)
    if isinstance(split, Tensor):
        return _split(b, x, at, b.require_sizes(split, "Split's sizes"))
    if split is not None:
        return _split(b, x, at, [const(n) for n in split])
    return _parts(b, x, at, _equal_parts(b, x, at, b.results))


@op("Split", since=13)
def split(
    b: Builder, x: Tensor, split: Tensor | None = None, *, axis: int = 0, num_outputs: int | None = None
) -> tuple[Tensor, ...]:
    at = axis_of(axis, x.rank)
    if split is not None:
        return _split(b, x, at, b.require_sizes(split, "Split's sizes"))
    return _parts(b, x, at, _equal_parts(b, x, at, num_outputs or b.results))


@op("Expand")
def expand(b: Builder, x: Tensor, shape: Tensor) -> Tensor:
    want = tuple(b.require_sizes(shape, "Expand's shape"))
    return b.expand(x, broadcast(x.shape, want))


def repeat(b: Builder, x: Tensor, counts: Sequence[Expr]) -> Tensor:
    """`x` repeated `counts` times along every axis. A longer axis than 1 is expanded through a new
    axis before it, so that inner loops stay contiguous."""
    if len(counts) != x.rank:
        raise CompileError(f"Tile of {x}: there must be {x.rank} repeats, one an axis, not {len(counts)}")
    inner: list[Expr] = []
    outer: list[Expr] = []
    for d, n in zip(x.shape, counts, strict=True):
        split_axis = not is_const(n, 1) and not is_const(d, 1)
        inner += [const(1), d] if split_axis else [d]
        outer += [n, d] if split_axis else [n if is_const(d, 1) else d]
    wide = b.expand(b.reshape(x, inner), outer)
    return b.reshape(wide, [d * n for d, n in zip(x.shape, counts, strict=True)])


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
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
    **other: Any,
) -> Item:
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
    raise CompileError(
        f"Constant of {', '.join(other) or 'nothing'} is not supported; only dense numbers are"
    )


@op("ConstantOfShape")
def constant_of_shape(b: Builder, shape: Tensor, *, value: Array | None = None) -> Tensor:
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value)
    return b.expand(b.const(fill.reshape(())), b.require_sizes(shape, "ConstantOfShape's shape"))


@op("Range")
def range_(b: Builder, start: Tensor, limit: Tensor, delta: Tensor, *, stash_type: int = 1) -> Tensor:
    """start + i * delta. Where the bounds are neither constants nor expressions of sizes, the count is
    bound when it is computed."""
    values = [b.constant_value(t) for t in (start, limit, delta)]
    if all(v is not None for v in values):
        exact = np.int64 if start.dtype.is_int else np.float64
        first, last, step = (v.reshape(()).astype(exact) for v in values if v is not None)
        count = max(int(np.ceil((last - first) / step)), 0)
        return b.const((first + np.arange(count) * step).astype(start.dtype.numpy))
    if start.data is None or limit.data is None or delta.data is None:
        return _computed_range(b, *(b.reshape(t, []) for t in (start, limit, delta)))
    (step_by,) = integers(b, delta, "Range's delta")
    low, high = start.data.item(), limit.data.item()
    span = ceil_div(high - low, step_by) if step_by > 0 else ceil_div(low - high, -step_by)
    n = simplify(maximum(span, 0), b.symbols)
    count_known = static_shape((n,))
    if count_known is not None and count_known[0] <= DATA_LIMIT and start.dtype is I64:
        return b.sizes([simplify(low + i * step_by, b.symbols) for i in range(count_known[0])])
    return b.compute(start.dtype, [n], [], lambda _, i: cast(start.dtype, low + i * step_by))


def _computed_range(b: Builder, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    def length(first: Expr, last: Expr, step: Expr) -> Expr:
        return cast(I64, maximum(call("ceil", (cast(F64, last) - cast(F64, first)) / cast(F64, step)), 0))

    (n,) = b.bind(b.map(length, start, limit, delta))
    return b.compute(
        start.dtype, [n], [start, delta], lambda bufs, i: bufs[0][()] + cast(start.dtype, i) * bufs[1][()]
    )


def triangle(b: Builder, x: Tensor, k: Tensor | None, upper: bool) -> Tensor:
    """The upper or lower triangle of the last two axes, from diagonal `k`; zero elsewhere."""
    if x.rank < 2:
        raise CompileError(f"Trilu of {x}: the rank must be 2 or more")
    diagonal = b.sizes([0]) if k is None else b.reshape(k, [1])
    fixed = None if diagonal.data is None else diagonal.data.item()
    inputs = [x] if fixed is not None else [x, diagonal]

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        offset = index[-1] - index[-2]
        shift = cast(I64, bufs[1][0]) if fixed is None else fixed
        return select(offset >= shift if upper else offset <= shift, bufs[0][index], const(0, x.dtype))

    return b.compute(x.dtype, x.shape, inputs, at)


@op("Trilu", since=14)
def trilu(b: Builder, x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    return triangle(b, x, k, bool(upper))


@op("EyeLike", since=9)
def eye_like(b: Builder, x: Tensor, *, dtype: int | DType | None = None, k: int = 0) -> Tensor:
    kind = x.dtype if dtype is None else element_type(dtype)
    return b.compute(kind, x.shape, [], lambda _, i, j: cast(kind, eq(j - i, k)))


def _blocks(x: Tensor, blocksize: int) -> tuple[Expr, Expr, Expr, Expr]:
    if x.rank != 4:
        raise CompileError(f"{x} must have rank 4 (N, C, H, W) to move depth and space")
    n, c, h, w = x.shape
    return n, c, h, w


@op("DepthToSpace")
def depth_to_space(b: Builder, x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = _blocks(x, blocksize)
    depth, s = divide(c, const(blocksize * blocksize), b.symbols), blocksize
    if mode == "DCR":
        y = b.transpose(b.reshape(x, [n, s, s, depth, h, w]), [0, 3, 4, 1, 5, 2])
    else:
        y = b.transpose(b.reshape(x, [n, depth, s, s, h, w]), [0, 1, 4, 2, 5, 3])
    return b.reshape(y, [n, depth, h * s, w * s])


@op("SpaceToDepth")
def space_to_depth(b: Builder, x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = _blocks(x, blocksize)
    s = blocksize
    rows, cols = divide(h, const(s), b.symbols), divide(w, const(s), b.symbols)
    y = b.reshape(x, [n, c, rows, s, cols, s])
    y = b.transpose(y, [0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4])
    return b.reshape(y, [n, c * (s * s), rows, cols])
