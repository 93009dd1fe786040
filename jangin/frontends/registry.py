"""Declare a dialect's operators. Each is a decorated function that lowers an operator, and is found in its
module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, TypeVar

Lowering = Callable[..., Any]
"""A function that lowers one operator to core operators. Its dialect decides the arguments."""
F = TypeVar("F", bound=Lowering)


def lowers(*names: str) -> Callable[[F], F]:
    """Return a decorator that declares a function as the lowering of operators. `names` are the operators'
    names in the dialect."""

    def mark(fn: F) -> F:
        fn.__dict__["lowers"] = names
        return fn

    return mark


class Table(dict[str, Lowering]):
    """Lowerings, by name, of operators that differ only in a detail."""


def declared(modules: Iterable[ModuleType]) -> Mapping[str, Lowering]:
    """Return all lowerings that the modules declare, by the operators' names."""
    lowerings: dict[str, Lowering] = {}
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, Table):
                lowerings |= value
            else:
                lowerings |= dict.fromkeys(getattr(value, "__dict__", {}).get("lowers", ()), value)
    return lowerings
