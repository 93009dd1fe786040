"""PyTorch's symbolic sizes, which are SymPy expressions, as Jangin's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from jangin.ir.expr import Expr, const, maximum, minimum
from jangin.ir.graph import CompileError


def _product(*factors: Expr) -> Expr:
    return reduce(lambda x, y: x * y, factors)


def _total(*terms: Expr) -> Expr:
    return reduce(lambda x, y: x + y, terms)


def _power(base: Expr, exponent: Expr) -> Expr:
    count = getattr(exponent, "value", None)
    if not isinstance(count, int) or count < 0:
        raise CompileError(f"a size is {base} to the power of {exponent}")
    return _product(const(1), *[base] * count)


FUNCTIONS: Mapping[str, Callable[..., Expr]] = {
    "Add": _total,
    "Mul": _product,
    "Pow": _power,
    "PowByNatural": _power,
    "Max": lambda *xs: reduce(maximum, xs),
    "Min": lambda *xs: reduce(minimum, xs),
    "FloorDiv": lambda x, y: x // y,
    "CleanDiv": lambda x, y: x // y,
    "CeilDiv": lambda x, y: (x + y - 1) // y,
    "Mod": lambda x, y: x % y,
    "PythonMod": lambda x, y: x % y,
    "ModularIndexing": lambda x, y, z: x // y % z,
    "Identity": lambda x: x,
}
"""By the names of SymPy's and PyTorch's classes (torch/utils/_sympy/functions.py)."""


def size_of(size: Any, named: Callable[[Any], Expr]) -> Expr:
    """A size, an int or a SymInt, as an expression; `named` gives that of a SymPy symbol. CompileError for
    a function that sizes of models don't have."""
    return const(int(size)) if isinstance(size, int) else _expression(size.node.expr, named)


def _expression(e: Any, named: Callable[[Any], Expr]) -> Expr:
    if e.is_Integer:
        return const(int(e))
    if e.is_Symbol:
        return named(e)
    name = type(e).__name__
    if name not in FUNCTIONS:
        raise CompileError(f"a size is {e}, whose {name} is not supported: export the model with fixed sizes")
    return FUNCTIONS[name](*(_expression(a, named) for a in e.args))
