"""Decides which products may merge with the sum around them into a multiply-add, which rounds once.

A back end makes multiply-adds of products and sums in one expression. Elementwise computations are rounded
after every operation, as the model says. Products in their sums are therefore marked as `rounded`, so that
bits don't depend on how fusion cuts a model into kernels.

A sum over many terms that are its operator's own products (a convolution, a matrix product) is computed by
multiply-adds, and so is its epilogue. No model says in which order these terms are added, so their last bits
aren't specified."""

from __future__ import annotations

from collections.abc import Callable

from jangin.ir.expr import Binary, Call, Expr, Select, Var, call
from jangin.ir.traversal import free_vars, rewrite


def apart(e: Expr) -> Expr:
    """Return `e` with the products in its sums marked as `rounded`."""
    return _in_sums(e, lambda n: True, lambda t: call("rounded", t) if is_product(t) else t)


def loosened(e: Expr, total: Var) -> Expr:
    """Return `e` without the marks in sums that contain the variable `total`."""
    return _in_sums(e, lambda n: total in free_vars(n), bare)


def is_product(e: Expr) -> bool:
    """Return whether a value is, or may be, a product of floats. 16-bit floats are excluded, because each of
    their operations rounds."""
    if isinstance(e, Select):
        return is_product(e.a) or is_product(e.b)
    return isinstance(e, Binary) and e.op == "mul" and e.dtype.is_float and e.dtype.wide is e.dtype


def bare(term: Expr) -> Expr:
    """Return a term without its mark."""
    return term.args[0] if isinstance(term, Call) and term.fn == "rounded" else term


def _in_sums(e: Expr, which: Callable[[Expr], bool], change: Callable[[Expr], Expr]) -> Expr:
    """Return `e` with `change` applied to both terms of each sum that `which` selects."""

    def changed(n: Expr) -> Expr | None:
        if not (isinstance(n, Binary) and n.op == "add" and n.dtype.is_float and which(n)):
            return None
        return Binary("add", change(n.a), change(n.b))

    return rewrite(e, changed)
