"""How a dialect's operators are declared, a function each that lowers one, and found in their modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, TypeVar

Lowering = Callable[..., Any]
"""Lowers one operator to core operators; what it is called with is its dialect's business."""
F = TypeVar("F", bound=Lowering)


def lowers(*names: str) -> Callable[[F], F]:
    """Declare the decorated function as the lowering of operators, by the names that their dialect has."""

    def mark(fn: F) -> F:
        fn.__dict__["lowers"] = names
        return fn

    return mark


class Table(dict[str, Lowering]):
    """Lowerings of operators that differ by a detail, by name."""


def declared(modules: Iterable[ModuleType]) -> Mapping[str, Lowering]:
    """Every lowering that the modules declare, by its operator's name."""
    found: dict[str, Lowering] = {}
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, Table):
                found |= value
            else:
                found |= dict.fromkeys(getattr(value, "__dict__", {}).get("lowers", ()), value)
    return found
