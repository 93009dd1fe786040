"""Lower ATen's reductions, running sums, softmax, norms and selections."""

from __future__ import annotations

from typing import Any

import numpy as np

from jangin.frontends.registry import Table, lowers
from jangin.frontends.torch.operators.common import Number, Result, axes_given
from jangin.frontends.torch.operators.elementwise import converted
from jangin.ir.dtype import BOOL, F64, I64
from jangin.ir.expr import call, cast, const, maximum, ne
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.simplify import simplify
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.elementwise import power, widen
from jangin.ops.index import gather, gather_elements
from jangin.ops.normalize import moments
from jangin.ops.operands import wide
from jangin.ops.reduce import arg_extreme, log_sum_exp, reduce_over
from jangin.ops.scan import cumulate
from jangin.ops.select import non_zero
from jangin.ops.values import Tensor


def _reduction(kind: str) -> Any:
    """Return a lowering of a reduction over some or all axes. It is computed in the result's type."""

    def lower(
        b: Builder, out: Result, self: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None
    ) -> Tensor:
        return reduce_over(b, kind, b.cast(self, out.dtype), axes_given(dim, self.rank), keepdim)

    return lower


def _truth(combiner: str) -> Any:
    def lower(b: Builder, out: Result, self: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        flags = converted(b, self, Result(((BOOL, self.shape),), (True,), None))
        return b.cast(b.reduce(combiner, flags, axes_given(dim, self.rank), keepdim), out.dtype)

    return lower


REDUCTIONS = Table({
    "sum": _reduction("sum"),
    "mean": _reduction("mean"),
    "prod": _reduction("prod"),
    "amax": _reduction("max"),
    "amin": _reduction("min"),
    "max.default": _reduction("max"),
    "min.default": _reduction("min"),
    "any": _truth("or"),
    "all": _truth("and"),
})  # fmt: skip


def _extreme(combiner: str) -> Any:
    """Return a lowering of the maximum or minimum along an axis, and of its first position."""

    def lower(
        b: Builder, out: Result, self: Tensor, dim: int, keepdim: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        if not self.rank:
            return self, b.scalar(0, I64)
        values = reduce_over(b, combiner, self, axes_given(dim, self.rank), keepdim, ties="first")
        at = arg_extreme(b, _ordered(b, self), dim, combiner, keepdims=keepdim) if out.wanted[1] else None
        return values, at

    return lower


def _arg(combiner: str) -> Any:
    def lower(b: Builder, out: Result, self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if not self.rank:
            return b.scalar(0, I64)
        if dim is None:
            flat = b.reshape(self, [simplify(product(self.shape), b.symbols)])
            return b.reshape(arg_extreme(b, _ordered(b, flat), 0, combiner), out.shape)
        return arg_extreme(b, _ordered(b, self), dim, combiner, keepdims=keepdim)

    return lower


def _ordered(b: Builder, x: Tensor) -> Tensor:
    """Convert booleans to i64, because reductions can't order booleans. Other tensors are unchanged."""
    return b.cast(x, I64) if x.dtype is BOOL else x


EXTREMES = Table({
    "max.dim": _extreme("max"), "min.dim": _extreme("min"), "argmax": _arg("max"), "argmin": _arg("min"),
})  # fmt: skip


@lowers("var", "var_mean")
def var(
    b: Builder, out: Result, self: Tensor, dim: Any = None, correction: Number | None = None,
    keepdim: bool = False, unbiased: bool = True,
) -> Any:  # fmt: skip
    """Return the variance: the sum of squared distances from the mean, divided by the number of elements
    minus `correction` (1 by default)."""
    less = correction if isinstance(correction, (int, float)) else float(unbiased)
    axes = axes_given(dim, self.rank)
    stats = moments(b, self, axes)
    total = b.reduce("sum", b.map(lambda v: v * v, stats.centred), axes, keepdim)
    count = simplify(product(self.shape[a] for a in axes), b.symbols)

    def mean(v: Any) -> Any:
        return cast(
            out.dtype, v / maximum(cast(v.dtype, count) - cast(v.dtype, const(float(less), F64)), 0.0)
        )

    spread = b.map(mean, total)
    if len(out.all) == 1:
        return spread
    return spread, b.cast(b.reshape(stats.mean, out.all[1][1]), out.dtype)


@lowers("std", "std_mean")
def std(b: Builder, out: Result, self: Tensor, **given: Any) -> Any:
    """Return the root of the variance. Its slope is 0 for equal elements."""
    found = var(b, out, self, **given)
    spread, *mean = found if isinstance(found, tuple) else (found,)
    root = b.map(lambda v: call("sqrt", v), spread, corner="flat")
    return (root, *mean) if mean else root


@lowers("cumsum")
def cumsum(b: Builder, out: Result, self: Tensor, dim: int, dtype: Any = None) -> Tensor:
    x = b.cast(self, out.dtype)
    return cumulate(b, x, "sum", axis=dim) if self.rank else x


@lowers("cumprod")
def cumprod(b: Builder, out: Result, self: Tensor, dim: int, dtype: Any = None) -> Tensor:
    x = b.cast(self, out.dtype)
    return cumulate(b, x, "prod", axis=dim) if self.rank else x


def _softmax(log: bool, blind: bool = False) -> Any:
    def lower(b: Builder, out: Result, self: Tensor, dim: int, **given: Any) -> Tensor:
        if not self.rank:
            return b.map(lambda v: v * 0 if log else v * 0 + 1, b.cast(self, out.dtype))
        x = b.cast(self, out.dtype)
        return b.cast(b.softmax(widen(b, x), dim, log, blind), out.dtype)

    return lower


SOFTMAX = Table({
    "_softmax": _softmax(False), "softmax": _softmax(False), "_log_softmax": _softmax(True),
    "log_softmax": _softmax(True), "_safe_softmax": _softmax(False, blind=True),
})  # fmt: skip


@lowers("logsumexp")
def logsumexp(b: Builder, out: Result, self: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    return log_sum_exp(b, b.cast(self, out.dtype), axes_given(dim, self.rank), keepdim)


@lowers("nonzero")
def nonzero(b: Builder, out: Result, self: Tensor) -> Tensor:
    """Return the positions of all elements but 0, in order, as [count, rank]."""
    return b.transpose(non_zero(b, self), [1, 0])


@lowers("gather")
def gather_along(
    b: Builder, out: Result, self: Tensor, dim: int, index: Tensor, sparse_grad: bool = False
) -> Tensor:
    if not self.rank:
        return b.expand(self, out.shape)
    if index.rank not in (0, self.rank):  # an empty index of another rank
        return b.expand(b.scalar(0, out.dtype), out.shape)
    if not index.rank:
        return b.reshape(gather_elements(b, self, b.reshape(index, [1]), axis=dim, from_end=False), ())
    return gather_elements(b, self, index, axis=dim, from_end=False)


@lowers("linalg_vector_norm")
def vector_norm(
    b: Builder, out: Result, self: Tensor, ord: Number = 2, dim: Any = None, keepdim: bool = False,
    dtype: Any = None,
) -> Tensor:  # fmt: skip
    """Return the p-norm over some axes, for p = `ord`. The norm 0 is the number of elements other than 0."""
    axes = axes_given(dim, self.rank)
    return _norm(b, b.cast(self, out.dtype), float(ord), axes, keepdim)  # type: ignore[arg-type]


def _norm(b: Builder, x: Tensor, p: float, axes: Any, keepdim: bool = False) -> Tensor:
    size_of = b.map(lambda v: call("abs", v), x)
    if p in (float("inf"), float("-inf")):
        return reduce_over(b, "max" if p > 0 else "min", size_of, axes, keepdim)
    if p in (1.0, 2.0):
        return reduce_over(b, "l1_norm" if p == 1 else "l2_norm", x, axes, keepdim)
    if p == 0:
        return reduce_over(
            b, "sum", b.map(lambda v: cast(v.dtype, ne(v, const(0, v.dtype))), x), axes, keepdim
        )
    total = reduce_over(b, "sum", b.map(lambda v: power(wide(v), p), size_of), axes, keepdim)
    return b.cast(b.map(lambda v: power(v, 1 / p), total, corner="flat"), x.dtype)


@lowers("_pdist_forward")
def pdist(b: Builder, out: Result, self: Tensor, p: float = 2) -> Tensor:
    """Return the p-norms of the differences of all pairs of rows of [N, M], as a vector of N (N - 1) / 2.
    Raises CompileError if a size isn't fixed."""
    n, _ = static_shape(self.shape) or (None, None)
    if n is None:
        raise CompileError(f"distances between the rows of {self}: fix its sizes with shapes=")
    first, second = (b.const(np.asarray(i, np.int64)) for i in np.triu_indices(n, 1))
    apart = b.map(lambda v, w: v - w, gather(b, self, first), gather(b, self, second))
    return _norm(b, apart, p, [1])


@lowers("_cdist_forward")
def cdist(b: Builder, out: Result, x1: Tensor, x2: Tensor, p: float, compute_mode: Any = None) -> Tensor:
    """Return the p-norms of the differences of all pairs of a row of x1 [..., P, M] and a row of x2 [..., R,
    M]. The result is [..., P, R]."""
    rows = b.reshape(x1, (*x1.shape[:-1], const(1), x1.shape[-1]))
    columns = b.reshape(x2, (*x2.shape[:-2], const(1), *x2.shape[-2:]))
    return _norm(b, b.map(lambda v, w: v - w, rows, columns), p, [len(out.shape)])
