"""Helpers of lowerings: axes and attributes in normal form, and exact arithmetic of sizes."""

from __future__ import annotations

from collections.abc import Iterable

from jangin.ir.expr import Const, Expr, ExprLike, const, floordiv, is_const, maximum, minimum, select, wrap
from jangin.ir.graph import CompileError
from jangin.ir.simplify import Monomial, Poly, Ranges, from_poly, simplify, terms
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor


def axis_of(axis: int, rank: int) -> int:
    """Return `axis` counted from the front. Raises CompileError if it is out of range."""
    if not -rank <= axis < rank:
        raise CompileError(f"axis {axis} is out of range for a tensor of rank {rank}")
    return axis % rank


def axes_of(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Return several axes counted from the front, in the order given. Raises CompileError if one is
    repeated."""
    out = tuple(axis_of(int(a), rank) for a in axes)
    if len(set(out)) != len(out):
        raise CompileError(f"axes {list(axes)} name one axis twice")
    return out


def integers(b: Builder, t: Tensor | None, what: str) -> list[int]:
    """Return the constant contents of an integer tensor, flattened. Messages call the tensor `what`."""
    return [int(v) for v in b.require_constant(t, what).reshape(-1)]


def per_channel(b: Builder, t: Tensor, rank: int) -> Tensor:
    """Return a vector over channels, reshaped so that it broadcasts against a tensor [N, C, ...] of rank
    `rank`. A tensor of another rank than 1 is returned unchanged."""
    return b.reshape(t, (*t.shape, *[1] * (rank - 2))) if t.rank == 1 else t


def channels_first(b: Builder, x: Tensor) -> Tensor:
    """Transpose [N, ..., C] to [N, C, ...]."""
    return b.transpose(x, (0, x.rank - 1, *range(1, x.rank - 1)))


def channels_last(b: Builder, x: Tensor) -> Tensor:
    """Transpose [N, C, ...] to [N, ..., C]."""
    return b.transpose(x, (0, *range(2, x.rank), 1))


def product(dims: Iterable[ExprLike]) -> Expr:
    """Return the product of sizes. Raises CompileError if known sizes multiply to more than 64 bits hold."""
    total: Expr = const(1)
    for d in map(wrap, dims):
        if isinstance(total, Const) and isinstance(d, Const) and abs(total.value * d.value) >= 1 << 63:
            raise CompileError(f"the sizes {total} and {d} multiply to more than any tensor has")
        total = total * d
    return total


def ceil_div(a: ExprLike, d: ExprLike) -> Expr:
    """Return a / d rounded up, for d > 0."""
    return floordiv(const(0) + a + d - 1, d)


def wrapped(i: Expr, size: Expr) -> Expr:
    """Return a run-time index; a negative one is counted from the end of the axis."""
    return select(i < 0, i + size, i)


def clamped(i: Expr, size: Expr) -> Expr:
    """Return the index moved into [0, size), so that no input can reach outside its buffer."""
    return minimum(maximum(i, 0), size - 1)


def divide(a: Expr, d: Expr, symbols: Ranges) -> Expr:
    """Return a // d for sizes, as an exact polynomial quotient if there is one."""
    a, d = simplify(a, symbols), simplify(d, symbols)
    if is_const(d, 0):
        return const(0)
    exact = _quotient({m: c for c, m in terms(a)}, {m: c for c, m in terms(d)})
    return simplify(floordiv(a, d), symbols) if exact is None else from_poly(exact)


def _quotient(a: Poly, d: Poly) -> Poly | None:
    """Divide a polynomial by another of several variables, by long division in graded lexicographic order.
    Return None if a remainder is left."""
    lead = max(d, key=_degree)
    quotient: Poly = {}
    while a:
        top = max(a, key=_degree)
        rest = _without(top, lead)
        if rest is None or a[top] % d[lead]:
            return None
        factor = a[top] // d[lead]
        quotient[rest] = quotient.get(rest, 0) + factor
        for mono, c in d.items():
            key = tuple(sorted(rest + mono, key=str))
            left = a.get(key, 0) - factor * c
            a = {**a, key: left} if left else {m: v for m, v in a.items() if m != key}
    return quotient


def _degree(mono: Monomial) -> tuple[int, list[str]]:
    return len(mono), sorted(map(str, mono), reverse=True)


def _without(mono: Monomial, part: Monomial) -> Monomial | None:
    left = list(mono)
    for atom in part:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)
