"""Computes tensor expressions by NumPy's operations on whole arrays.

`ir.interpret` is the reference, and computes each term on its own. Here a load is a view of its array where
that is possible, and a sum of products is a matrix product. Results differ by rounding alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from jangin.ir.arithmetic import apply, convert, reduce
from jangin.ir.dtype import F32, F64, I8, I32, U8
from jangin.ir.expr import Binary, Call, Cast, Const, Expr, Load, Select, Var
from jangin.ir.graph import Array
from jangin.ir.interpret import Arrays, evaluate_stage, size
from jangin.ir.te import Axis, Stage, identity
from jangin.ir.traversal import children

Ranges = Sequence[tuple[int, int]]
"""The first and the last index, exclusive, of each axis of a grid."""
MOST = 1 << 23
"""The most elements of an array that is made on the way, 64 MiB of f64. Larger stages are computed in parts,
so that the interpreter needs little memory beside the values."""
EXACT = 1 << 53
"""Integers below this number are exact in double precision."""
EXACT_F32 = 1 << 24
"""Integers below this number are exact in single precision."""
PIECE = 32
"""The fewest terms of a sum in single precision. Shorter ones take longer than double precision."""
WINDOW = 64
"""The most elements of a window whose extremum is found by comparing whole arrays, one for each place. For
windows of 8 x 8 this took 1.1 ms of processor time, and NumPy's reduction over axes 30 ms. Windows as large
as an image lie in one piece, which NumPy reduces quickly itself."""
IN_F32: Mapping[str, Any] = {
    "sqrt": np.sqrt, "exp": np.exp, "tanh": np.tanh, "log": np.log,
    "sigmoid": lambda x: np.reciprocal(1 + np.exp(-x)),
}  # fmt: skip
"""Functions that NumPy computes in single precision about as exactly as in double precision."""


class TooLarge(Exception):
    """An array would have more than `MOST` elements."""


def quick_stage(stage: Stage, arrays: Arrays, symbols: Mapping[str, int]) -> Array:
    """Return the stage's output, as `interpret.evaluate_stage` does, except for rounding. Raises TooLarge if
    a single element of the output takes an array of more than `MOST` elements."""
    extents = [size(a.extent, symbols) for a in (*stage.axes, *stage.reduce_axes)]
    if not math.prod(extents):
        return evaluate_stage(stage, arrays, symbols)
    with np.errstate(all="ignore"):
        return _in_parts(stage, arrays, symbols, [(0, n) for n in extents])


def _in_parts(stage: Stage, arrays: Arrays, symbols: Mapping[str, int], ranges: Ranges) -> Array:
    """Return the part of the output that `ranges` covers. The longest output axis is halved while an array
    would be too large."""
    try:
        return _computed(stage, arrays, symbols, ranges)
    except TooLarge:
        spans = [hi - lo for lo, hi in ranges[: len(stage.axes)]]
        longest = max(range(len(spans)), key=lambda d: spans[d], default=-1)
        if longest < 0 or spans[longest] < 2:
            raise
    lo, hi = ranges[longest]
    parts = [
        _in_parts(stage, arrays, symbols, [*ranges[:longest], part, *ranges[longest + 1 :]])
        for part in ((lo, (lo + hi) // 2), ((lo + hi) // 2, hi))
    ]
    return np.concatenate(parts, axis=longest)


def _computed(stage: Stage, arrays: Arrays, symbols: Mapping[str, int], ranges: Ranges) -> Array:
    outer = len(stage.axes)
    grid = _Grid((*stage.axes, *stage.reduce_axes), ranges, arrays, symbols)
    if stage.reduce_axes:
        total = _reduced(stage, grid, outer)
        grid = _Grid(stage.axes, ranges[:outer], arrays, symbols)
        grid.env[stage.acc.name] = total
    array = convert(grid.value(stage.result), stage.out.dtype)
    shape = (*grid.extents[:outer],)
    return array if array.shape == shape else np.broadcast_to(array, shape)


def _reduced(stage: Stage, grid: _Grid, outer: int) -> Any:
    """Return the reduced value for each point of the outer axes."""
    dtype = stage.body.dtype
    if stage.combiner == "sum":
        products = None if stage.rounded else _products(stage.body, grid, outer)
        if products is not None:
            total: Any = _contracted(*next(products), outer)
            for product in products:
                total = total.astype(np.float64) + _contracted(*product, outer)
            return convert(total.astype(np.int64) if dtype is I32 else total, dtype)
    value = _of_rank(np.asarray(grid.value(stage.body)), len(grid.extents))
    if stage.combiner in ("max", "min") and math.prod(value.shape[outer:]) <= WINDOW:
        extremum = np.maximum if stage.combiner == "max" else np.minimum
        places = (value[(..., *place)] for place in np.ndindex(value.shape[outer:]))
        first: Any = np.asarray(identity(stage.combiner, dtype).value, dtype.numpy)
        return functools.reduce(extremum, places, first)
    if stage.combiner in ("sum", "prod"):  # equal terms count as often as they are
        _room(math.prod(grid.extents))
        value = np.broadcast_to(value, grid.extents)
    kept = tuple(range(outer, len(grid.extents)))
    if dtype is F32 and stage.combiner in ("max", "min"):
        return (np.maximum if stage.combiner == "max" else np.minimum).reduce(value, axis=kept)
    if dtype is F32:  # summed in double precision, without a copy of the array in it
        ufunc = np.add if stage.combiner == "sum" else np.multiply
        return convert(ufunc.reduce(value, axis=kept, dtype=np.float64), dtype)
    return reduce(stage.combiner, value, kept, identity(stage.combiner, dtype).value, dtype)


class _Product(NamedTuple):
    """Two float arrays `x` and `y` whose product is summed. Both have one axis for each of the grid's
    `extents`."""

    x: Array
    y: Array
    extents: Sequence[int]


def _products(body: Expr, grid: _Grid, outer: int) -> Iterator[_Product] | None:
    """Return the products whose results add up to the sum of a body that is a product. Integers become floats
    in which all sums are exact, a part at a time. Return None for any other body."""
    if not (isinstance(body, Binary) and body.op == "mul" and body.dtype in (F32, F64, I32)):
        return None
    rank = len(grid.extents)
    if body.dtype is not I32:
        x, y = (_of_rank(np.asarray(grid.value(e)), rank) for e in (body.a, body.b))
        return iter([_Product(x, y, grid.extents)])
    x, y = (_of_rank(np.asarray(grid.value(_before_cast(e))), rank) for e in (body.a, body.b))
    most, terms = largest(x) * largest(y), math.prod(grid.extents[outer:])
    axis = max(range(outer, rank), key=lambda d: grid.extents[d])
    length = EXACT_F32 // max(1, most * (terms // grid.extents[axis]))
    if length >= PIECE:
        whole = _Product(x, y, grid.extents)
        return (_piece(whole, axis, at, length) for at in range(0, grid.extents[axis], length))
    if terms * most >= EXACT:
        return None
    _room(max(x.size, y.size))
    return iter([_Product(x.astype(np.float64), y.astype(np.float64), grid.extents)])


def _before_cast(e: Expr) -> Expr:
    """Return the 8-bit operand if the expression widens one, else the expression itself. The largest number
    is found more quickly in 8-bit integers."""
    return e.a if isinstance(e, Cast) and e.a.dtype in (U8, I8) else e


def _piece(whole: _Product, axis: int, at: int, length: int) -> _Product:
    """Return a part of a product of integers in single precision, along one axis of the sum."""
    part = (*(slice(None),) * axis, slice(at, at + length))
    x, y = (v[part] if v.shape[axis] > 1 else v for v in whole[:2])
    extents = [*whole.extents]
    extents[axis] = min(length, extents[axis] - at)
    _room(max(x.size, y.size))
    return _Product(x.astype(np.float32), y.astype(np.float32), extents)


def largest(v: Array) -> int:
    """Return the largest absolute value of an array of integers."""
    return max(abs(int(v.min())), abs(int(v.max())))


def _of_rank(v: Array, rank: int) -> Array:
    return v.reshape((1,) * (rank - v.ndim) + v.shape)


def _contracted(x: Array, y: Array, extents: Sequence[int], outer: int) -> Array:
    """Return the sum of x * y over all axes from `outer` on. Axes of size 1 broadcast."""
    inner, kept = range(outer, len(extents)), range(outer)
    for d in inner:  # terms that don't depend on an axis are equal
        if x.shape[d] == y.shape[d] == 1 < extents[d]:
            x = x * extents[d]
    only = [tuple(d for d in inner if v.shape[d] > 1 == o.shape[d]) for v, o in ((x, y), (y, x))]
    x, y = (v.sum(axis=axes, keepdims=True) if axes else v for v, axes in zip((x, y), only, strict=True))
    summed = [d for d in inner if x.shape[d] > 1 < y.shape[d]]
    both = [d for d in kept if x.shape[d] > 1 < y.shape[d]]
    rows = [d for d in kept if x.shape[d] > 1 == y.shape[d]]
    columns = [d for d in kept if y.shape[d] > 1 == x.shape[d]]
    if not (rows and columns) and math.prod(x.shape[outer:]) <= WINDOW:
        return _by_places(x, y, outer)
    _room(max(x.size, y.size))
    if rows and (not columns or rows[-1] > columns[-1]):  # columns are copied, and results left, as they lie
        x, y, rows, columns = y, x, columns, rows
    product = np.matmul(_matrices(x, both, rows, summed), _matrices(y, both, summed, columns))
    order = [*both, *rows, *columns]
    turned = product.reshape([extents[d] for d in order]).transpose([order.index(d) for d in sorted(order)])
    result: Array = turned.reshape([extents[d] if d in order else 1 for d in kept])
    return result


def _by_places(x: Array, y: Array, outer: int) -> Array:
    """Return the sum of x * y over the axes from `outer` on, which are the places of a small window. Each
    channel has its own, so that there is no matrix product."""
    first, *places = np.ndindex(x.shape[outer:])
    total: Array = x[(..., *first)] * y[(..., *first)]
    term = np.empty_like(total)
    for place in places:
        total += np.multiply(x[(..., *place)], y[(..., *place)], out=term)
    return total


def _matrices(v: Array, both: Sequence[int], rows: Sequence[int], columns: Sequence[int]) -> Array:
    """Return the array as matrices: one for each index of the axes `both`."""
    groups = (both, rows, columns)
    rest = [d for d in range(v.ndim) if not any(d in g for g in groups)]
    moved = v.transpose([*both, *rows, *columns, *rest])
    return moved.reshape([math.prod(v.shape[d] for d in g) for g in groups])


def _room(elements: int) -> None:
    """Raise TooLarge for too many elements. A padded array may be twice as large as its source."""
    if elements > MOST:
        raise TooLarge


class _Grid:
    """The points for which a stage is computed. Values have one axis for each of the grid's, of size 1 where
    they don't depend on it."""

    def __init__(
        self, axes: Sequence[Axis], ranges: Ranges, arrays: Arrays, symbols: Mapping[str, int]
    ) -> None:
        self.extents, self.arrays = [hi - lo for lo, hi in ranges], arrays
        self.env: dict[str, Any] = {k: np.int64(v) for k, v in symbols.items()}
        self.axes = {
            a.var.name: (d, lo, hi) for d, (a, (lo, hi)) in enumerate(zip(axes, ranges, strict=True))
        }
        self.memo: dict[Expr, Any] = {}

    def value(self, e: Expr) -> Any:
        if e not in self.memo:
            self.memo[e] = self._step(e)
        return self.memo[e]

    def _step(self, e: Expr) -> Any:
        if isinstance(e, Const):
            return convert(e.value, e.dtype)
        if isinstance(e, Var):
            if e.name in self.axes:
                d, lo, hi = self.axes[e.name]
                return _along(np.arange(lo, hi), d, len(self.axes))
            return self.env[e.name]
        if isinstance(e, Load):
            return self._loaded(e)
        if isinstance(e, Select) and (padded := self._padded(e)) is not None:
            return padded
        kids = tuple(self.value(k) for k in children(e))
        _room(math.prod(np.broadcast_shapes(*map(np.shape, kids))))
        if isinstance(e, Select):
            return np.where(*kids)
        if isinstance(e, Cast):
            return convert(kids[0], e.dtype)
        assert isinstance(e, (Binary, Call))
        fn = e.op if isinstance(e, Binary) else e.fn
        if e.dtype is F32 and fn in IN_F32:
            return IN_F32[fn](kids[0])
        return apply(fn, kids, e.dtype)

    def _loaded(self, e: Load) -> Any:
        array = self.arrays[e.buffer.name]
        if not e.index:
            return array
        if (plain := self._plain(e, array)) is not None:
            return plain
        if not array.size:
            return np.zeros(np.broadcast_shapes(*(np.shape(self.value(i)) for i in e.index)), array.dtype)
        spans = self._spans(e.index)
        if spans is None:
            index = [self.value(i) for i in e.index]
            _room(math.prod(np.broadcast_shapes(*map(np.shape, index))))
            return array[tuple(np.clip(i, 0, n - 1) for i, n in zip(index, array.shape, strict=True))]
        pads = [s.beyond(n) for s, n in zip(spans, array.shape, strict=True)]
        if any(map(any, pads)):  # an index out of range is the nearest in range
            _room(math.prod(n + sum(p) for n, p in zip(array.shape, pads, strict=True)) - 2 * array.size)
            array = np.pad(array, pads, mode="edge")
        return self._view(array, spans, [p[0] for p in pads])

    def _plain(self, e: Load, array: Array) -> Array | None:
        """Return the whole array, with axes of size 1 where the grid has further ones. Return None for a load
        that needs more than this."""
        shape, last = [1] * len(self.extents), -1
        for index, extent in zip(e.index, array.shape, strict=True):
            d, lo, hi = self.axes.get(index.name, (-1, 0, 0)) if isinstance(index, Var) else (-1, 0, 0)
            if d > last and (lo, hi) == (0, extent):
                shape[d], last = extent, d
            elif extent != 1 or not (isinstance(index, Const) and index.value == 0):
                return None
        return array.reshape(shape)

    def _view(self, array: Array, spans: Sequence[_Span], begins: Sequence[int]) -> Array:
        start = tuple(s.first + b for s, b in zip(spans, begins, strict=True))
        strides = [0] * len(self.extents)
        shape = [1] * len(self.extents)
        for s, stride in zip(spans, array.strides, strict=True):
            for d, step in s.steps.items():
                strides[d] += step * stride
                shape[d] = self.extents[d]
        at = array[tuple(slice(i, None) for i in start)]
        return as_strided(at, shape, strides, writeable=False)

    def _padded(self, e: Select) -> Array | None:
        """Return a load whose indices out of range give a constant, as a view of a padded array. Return None
        for any other choice."""
        if not (isinstance(e.a, Load) and isinstance(e.b, Const) and e.a.index):
            return None
        array = self.arrays[e.a.buffer.name]
        spans = self._spans(e.a.index)
        if not array.size or spans is None:
            return None
        pads = [s.beyond(n) for s, n in zip(spans, array.shape, strict=True)]
        inside: Any = True
        for i, n, p in zip(e.a.index, array.shape, pads, strict=True):
            if any(p):
                at = self.value(i)
                inside = inside & (at >= 0) & (at < n)
        wanted = self.value(e.cond)
        shape = np.broadcast_shapes(np.shape(wanted), np.shape(inside))
        _room(math.prod(shape))
        if not np.array_equal(np.broadcast_to(wanted, shape), np.broadcast_to(inside, shape)):
            return None
        if any(map(any, pads)):
            _room(math.prod(n + sum(p) for n, p in zip(array.shape, pads, strict=True)) - 2 * array.size)
            array = np.pad(array, pads, constant_values=convert(e.b.value, e.dtype)[()])
        return self._view(array, spans, [p[0] for p in pads])

    def _spans(self, index: Sequence[Expr]) -> list[_Span] | None:
        """Return the indices of a load as linear functions of the grid's axes, or None if one isn't."""
        linear = [self._span(i) for i in index]
        spans = [s for s in linear if s is not None]
        return spans if len(spans) == len(linear) else None

    def _span(self, index: Expr) -> _Span | None:
        if isinstance(index, Var) and index.name in self.axes:
            d, lo, hi = self.axes[index.name]
            return _Span({d: 1} if hi - lo > 1 else {}, lo, hi - 1)
        return _linear(np.asarray(self.value(index)))


def _along(line: Array, axis: int, rank: int) -> Array:
    """Return a line of values as an array of this rank that varies along one axis."""
    return line.reshape([-1 if d == axis else 1 for d in range(rank)])


class _Span(NamedTuple):
    """An index that is `first` at the grid's beginning, grows by `steps` along its axes, and ends at
    `last`."""

    steps: Mapping[int, int]
    first: int
    last: int

    def beyond(self, extent: int) -> tuple[int, int]:
        """Return by how much the index leaves an axis of this size at its beginning and at its end."""
        return max(0, -self.first), max(0, self.last - extent + 1)


def _linear(values: Array) -> _Span | None:
    """Return indices as a linear function, or None if they aren't one or shrink along an axis."""
    first, last = int(values.reshape(-1)[0]), int(values.reshape(-1)[-1])
    steps: dict[int, int] = {}
    fitted: Any = first
    for d in (d for d, n in enumerate(values.shape) if n > 1):
        second = values[tuple(int(k == d) for k in range(values.ndim))]
        steps[d] = int(second) - first
        fitted = fitted + _along(steps[d] * np.arange(values.shape[d]), d, values.ndim)
    if any(step < 0 for step in steps.values()) or not np.all(fitted == values):
        return None
    return _Span(steps, first, last)


def value_of(e: Expr, values: Mapping[str, Array]) -> Array:
    """Return the value of an expression of variables, given their arrays by name."""
    grid = _Grid((), (), {}, {})
    grid.env.update(values)
    with np.errstate(all="ignore"):
        array: Array = grid.value(e)
    return array
