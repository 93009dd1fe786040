"""Where a product and the sum around it may be one multiply-add, which rounds once.

A back end makes multiply-adds of what stands so in one expression. What a kernel computes for each element is
rounded after every operation, as the model says: products in its sums are marked as `rounded`, whichever of
the fused operators they are of, so that bits don't depend on how a model is cut into operators. Only a sum
over many terms that are products of its own operator (a convolution, a matrix product) is made of
multiply-adds, and its epilogue goes on with them: no model says in which order such terms are added, so that
the last bits of the sum, and of what is made of it, are nobody's.
"""

from __future__ import annotations

from collections.abc import Callable

from jangin.ir.expr import Binary, Call, Expr, Select, Var, call
from jangin.ir.traversal import free_vars, rewrite


def apart(e: Expr) -> Expr:
    """`e` with the products in sums marked."""
    return _in_sums(e, lambda n: True, lambda t: call("rounded", t) if is_product(t) else t)


def loosened(e: Expr, total: Var) -> Expr:
    """`e` without the marks in sums that the `total` goes into."""
    return _in_sums(e, lambda n: total in free_vars(n), bare)


def is_product(e: Expr) -> bool:
    """Whether a value is a product of floats, or may be one. Of those of 16 bits each operation rounds."""
    if isinstance(e, Select):
        return is_product(e.a) or is_product(e.b)
    return isinstance(e, Binary) and e.op == "mul" and e.dtype.is_float and e.dtype.wide is e.dtype


def bare(term: Expr) -> Expr:
    """A term without its mark."""
    return term.args[0] if isinstance(term, Call) and term.fn == "rounded" else term


def _in_sums(e: Expr, which: Callable[[Expr], bool], change: Callable[[Expr], Expr]) -> Expr:
    """`e` with the terms of such sums changed."""

    def changed(n: Expr) -> Expr | None:
        if not (isinstance(n, Binary) and n.op == "add" and n.dtype.is_float and which(n)):
            return None
        return Binary("add", change(n.a), change(n.b))

    return rewrite(e, changed)
