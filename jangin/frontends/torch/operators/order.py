"""Lower ATen's operators that order elements: sorting, largest elements, medians, running extremes."""

from __future__ import annotations

from typing import Any

from jangin.frontends.registry import Table, lowers
from jangin.frontends.torch.operators.common import Number, Result, size
from jangin.ir.dtype import BOOL, I64
from jangin.ir.expr import Expr, binary, call, cast, const, eq, lor, select
from jangin.ir.graph import CompileError
from jangin.ir.simplify import simplify
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.index import take_along
from jangin.ops.order import keys
from jangin.ops.scan import cumulate
from jangin.ops.select import top_indices
from jangin.ops.values import Tensor


def _best(b: Builder, x: Tensor, k: Expr, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Return the first k elements, in order, along an axis, and their positions. The largest are first if
    `largest` is set, else the smallest. Equal elements keep their order."""
    at = top_indices(b, b.cast(x, I64) if x.dtype is BOOL else x, k, axis, largest)
    return take_along(b, x, at, axis), at


@lowers("topk")
def topk(
    b: Builder, out: Result, self: Tensor, k: Number, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the k largest or smallest elements along an axis, and their positions. The first of equal
    elements is chosen. PyTorch leaves this choice open."""
    if not self.rank:
        return self, b.scalar(0, I64)
    return _best(b, self, size(k), dim % self.rank, largest)


@lowers("sort")
def sort(
    b: Builder, out: Result, self: Tensor, dim: int = -1, descending: bool = False, stable: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the elements sorted along an axis, and their positions. Equal elements keep their order."""
    if not self.rank:
        return self, b.scalar(0, I64)
    axis = dim % self.rank
    return _best(b, self, self.shape[axis], axis, descending)


@lowers("kthvalue")
def kthvalue(
    b: Builder, out: Result, self: Tensor, k: Number, dim: int = -1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the k-th smallest element along an axis, counted from 1, and its position."""
    if not self.rank:
        return self, b.scalar(0, I64)
    axis, count = dim % self.rank, size(k)
    values, at = _best(b, self, count, axis, False)
    entries = (_entry(b, t, axis, count - 1) for t in (values, at))
    value, place = (b.reshape(t, s) for t, (_, s) in zip(entries, out.all, strict=True))
    return value, place


def _entry(b: Builder, x: Tensor, axis: int, at: Expr) -> Tensor:
    starts = [at if i == axis else const(0) for i in range(x.rank)]
    sizes = [const(1) if i == axis else d for i, d in enumerate(x.shape)]
    return b.slice(x, starts, sizes, [1] * x.rank)


@lowers("median.dim")
def median(
    b: Builder, out: Result, self: Tensor, dim: int = -1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the middle element along an axis, and its position. The lower one of two middle elements is
    returned, and NaN if any element is NaN."""
    if not self.rank:
        return self, b.scalar(0, I64)
    axis = dim % self.rank
    values, at = _best(b, self, self.shape[axis], axis, False)
    middle = (self.shape[axis] - 1) // 2
    value, place = (_entry(b, t, axis, middle) for t in (values, at))
    if self.dtype.is_float:
        # NaN are last in order; the position of the first NaN is the number of other elements
        absent = b.map(lambda v: cast(I64, eq(v, v)), self)
        count = b.reduce("sum", absent, [axis], True)
        size_here = self.shape[axis]
        wanted = b.map(lambda n: select(n < size_here, n, cast(I64, middle)), count)
        value, place = (take_along(b, t, wanted, axis) for t in (values, at))
    return b.reshape(value, out.shape), b.reshape(place, out.shape)


@lowers("median.default")
def median_of_all(b: Builder, out: Result, self: Tensor) -> Tensor:
    count = simplify(product(self.shape), b.symbols)
    if count == const(0):
        raise CompileError("the median of no elements is not defined")
    whole = Result(((self.dtype, ()), (I64, ())), (True, False), None)
    return median(b, whole, b.reshape(self, [count]), 0)[0]


def _running(combiner: str) -> Any:
    """Return a lowering of the running maximum or minimum, and of its position. The last of equal elements
    counts. After a NaN, all results are NaN."""

    def lower(b: Builder, out: Result, self: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        if not self.rank:
            return self, b.scalar(0, I64)
        x = keys(b, b.cast(self, I64) if self.dtype is BOOL else self)
        axis = dim % self.rank
        if combiner == "min" and self.dtype.is_float:  # NaN must be the least, too
            least, top = (const(limit, x.dtype) for limit in x.dtype.limits)
            x = b.map(lambda v: select(eq(v, top), least, v), x)
        best = cumulate(b, x, combiner, axis=axis)

        def place(bufs: Any, *index: Expr) -> Expr:
            return select(eq(bufs[0][index], bufs[1][index]), index[axis], const(0))

        at = cumulate(b, b.compute(I64, x.shape, [x, best], place), "max", axis=axis)
        return take_along(b, self, at, axis), at

    return lower


RUNNING = Table({"cummax": _running("max"), "cummin": _running("min")})


def _one_of(combiner: str) -> Any:
    """Return a lowering of the maximum or minimum of two operands. If one operand is NaN, the result is the
    other one."""

    def lower(b: Builder, out: Result, self: Tensor, other: Tensor) -> Tensor:
        def body(x: Expr, y: Expr) -> Expr:
            if x.dtype is BOOL:
                return lor(x, y) if combiner == "max" else binary("and", x, y)
            better = x >= y if combiner == "max" else x <= y
            if not x.dtype.is_float:
                return select(better, x, y)
            return select(lor(better, call("isnan", y)), x, y)

        return b.map(body, b.cast(self, out.operands), b.cast(other, out.operands))

    return lower


ONE_OF = Table({"fmax": _one_of("max"), "fmin": _one_of("min")})
