"""Convert PyTorch's symbolic sizes, which are SymPy expressions, to Jangin's expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.printers import PythonPrinter

from jangin.frontends.torch.ratios import ROUNDINGS, Unsaid, ratio_of
from jangin.ir.expr import Expr, Var, const, maximum, minimum
from jangin.ir.graph import MAX_SIZE, CompileError
from jangin.ir.simplify import Range, simplify


def _product(*factors: Expr) -> Expr:
    return reduce(lambda x, y: x * y, factors)


def _total(*terms: Expr) -> Expr:
    return reduce(lambda x, y: x + y, terms)


def _power(base: Expr, exponent: Expr) -> Expr:
    count = getattr(exponent, "value", None)
    if not isinstance(count, int) or count < 0:
        raise Unsaid
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
"""Conversions of SymPy's expressions, by the names of SymPy's and PyTorch's classes
(torch/utils/_sympy/functions.py)."""


class Sizes:
    """The sizes of one program, and of the bodies of its branches and loops.

    `names` are the caller's names of symbols. `limits` are PyTorch's ranges of symbols. `env` is PyTorch's
    shape environment for a graph of `torch.compile`, else None.

    A graph of `torch.compile` is called with all its numbers. New symbols (`given`) therefore stand for sizes
    that Jangin can't express, and for symbols that are no input's size. Each run is given their values.
    `fractions` of sizes are values of the graph, by expression. `items` are values of the graph too, which
    are numbers that a run reads from its tensors. `passed` has the numbers that another part of the program
    read from its tensors, and that are inputs here."""

    def __init__(self, names: Mapping[Any, str], limits: Mapping[Any, Any], env: Any = None) -> None:
        self.names, self.env = names, env
        self.limits = limits if env is None else env.var_to_range
        self.symbols: dict[Any, Var] = {}
        self.given: dict[Any, Var] = {}
        self.fractions: dict[Any, str] = {}
        self.items: dict[Any, str] = {}
        self.passed: set[Any] = set()

    def __call__(self, size: Any) -> Expr:
        """Return a size of PyTorch (an int or a SymInt) as an expression. Raises CompileError if it has a
        function that Jangin's expressions don't have."""
        return const(int(size)) if isinstance(size, int) else self._integer(size.node.expr)

    def fraction(self, number: Any) -> str:
        """Return the name of the value for a SymFloat. Raises CompileError if the number isn't known before
        the run."""
        e = number.node.expr
        if e in self.items:
            return self.items[e]
        if self._is_unknown(e):
            raise CompileError(f"an argument is {e}, which is not known before the model runs")
        return self.fractions.setdefault(e, f"fraction_{len(self.fractions)}")

    def symbol(self, symbol: Any, name: str) -> Var:
        """Return Jangin's symbol for a symbol of PyTorch. It has the caller's name if there is one, else
        `name`."""
        if symbol not in self.symbols:
            self.symbols[symbol] = self._named(self.names.get(symbol, name), str(symbol))
        return self.symbols[symbol]

    def ranges(self) -> dict[Var, Range]:
        """Return the ranges of all symbols: PyTorch's, limited to those of sizes."""
        ranges = {v: _within(self.limits.get(s), 0, MAX_SIZE) for s, v in self.symbols.items()}
        return ranges | {v: _within(self.env.bound_sympy(e), -FAR, FAR) for e, v in self.given.items()}

    def of_names(self, names: Any) -> set[Any]:
        """Return the symbols of PyTorch from which Jangin's symbols with these names were made."""
        symbols = {s for s, v in self.symbols.items() if v.name in names}
        return symbols.union(*(e.free_symbols for e, v in self.given.items() if v.name in names))

    def _named(self, wanted: str, own: str) -> Var:
        taken = {v.name for v in (*self.symbols.values(), *self.given.values())}
        return Var(wanted if wanted not in taken else f"{wanted}_{own}")

    def _integer(self, e: Any) -> Expr:
        if e.is_Integer:
            return const(int(e))
        if e in self.symbols:
            return self.symbols[e]
        name = type(e).__name__
        try:
            if name in ROUNDINGS:
                ranges = self.ranges()
                return simplify(ROUNDINGS[name](ratio_of(e.args[0], self._integer, ranges)), ranges)
            if name in FUNCTIONS:
                return FUNCTIONS[name](*(self._integer(a) for a in e.args))
        except Unsaid:
            pass
        return self._other(e)

    def _other(self, e: Any) -> Expr:
        """Return the symbol for a size without an expression. Raises CompileError if a run can't be given its
        value."""
        if self._is_unknown(e) and e.is_Symbol:
            return self.symbol(e, str(e))
        if self._is_unknown(e):
            name = type(e).__name__
            raise CompileError(
                f"a size is {e}, whose {name} is not supported: export the model with fixed sizes"
            )
        if e not in self.given:
            known = not free_unbacked_symbols(e)  # a run looks at all others
            if known and not (self.env.evaluate_expr(e <= FAR) and self.env.evaluate_expr(e >= -FAR)):
                raise CompileError(f"a number is {e}, which is beyond {FAR}")
            self.given[e] = self._named(f"number_{len(self.given)}", str(len(self.given)))
        return self.given[e]

    def _is_unknown(self, e: Any) -> bool:
        """Tell if the arguments of a run don't determine an expression."""
        return self.env is None or bool(free_unbacked_symbols(e) - self.passed)


def _within(limits: Any, low: int, high: int) -> Range:
    """Return the range from `low` to `high`, narrowed by PyTorch's range `limits` if given."""
    if limits is not None:
        low = max(low, int(limits.lower)) if limits.lower.is_Integer else low
        high = min(high, int(limits.upper)) if limits.upper.is_Integer else high
    return const(low), const(high)


FAR = MAX_SIZE
"""The largest absolute value of the numbers that a run is given in addition to tensors."""


def numbers(expressions: Sequence[Any], placeholders: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function that computes expressions of SymPy, as Python does, from a graph's arguments.

    `placeholders` are the graph's nodes of its arguments. Raises CompileError if no argument determines a
    symbol."""
    places: dict[Any, str] = {}
    for i, node in enumerate(placeholders):
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            places.setdefault(value.node.expr, f"args[{i}]")
        elif isinstance(value, torch.Tensor):
            for axis, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    places.setdefault(size.node.expr, f"args[{i}].shape[{axis}]")
    symbols = sorted({s for e in expressions for s in e.free_symbols}, key=str)
    missing = [str(s) for s in symbols if s not in places]
    if missing:
        raise CompileError(f"no argument of the graph determines {', '.join(missing)}")
    texts = ", ".join(PythonPrinter().doprint(e) for e in expressions)
    taken, arguments = ", ".join(map(str, symbols)), ", ".join(places[s] for s in symbols)
    function: Callable[[Sequence[Any]], list[Any]] = eval(
        f"lambda args: (lambda {taken}: [{texts}])({arguments})", {"math": math, "torch": torch}
    )
    return function
