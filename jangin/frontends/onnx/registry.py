"""How an operator is declared: one decorated function that lowers it to core operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, TypeVar

from jangin.ir.records import dataclass

Lowering = Callable[..., Any]
F = TypeVar("F", bound=Lowering)


@dataclass(frozen=True)
class Operator:
    """One operator of a source format, from opset `since` on, until the next entry's `since`.

    `lower(b, *inputs, **attributes)`: `b` is the `Builder`, inputs are `Tensor`s (None where an
    optional one is absent), attributes are keyword arguments with the standard's defaults; gives
    a Tensor, or a tuple of them for several outputs (None for one that it can't give).
    """

    domain: str
    name: str
    since: int
    lower: Lowering


def op(name: str, since: int = 1, domain: str = "") -> Callable[[F], F]:
    """Declare the decorated lowering as ONNX operator `name` from opset `since`. Stackable."""

    def mark(fn: F) -> F:
        entries: list[Operator] = fn.__dict__.setdefault("operators", [])
        entries.append(Operator(domain, name, since, fn))
        return fn

    return mark


Table = Mapping[tuple[str, str], tuple[Operator, ...]]


def table(modules: Iterable[ModuleType]) -> Table:
    """Every operator declared in the modules, by (domain, name), versions ascending."""
    found: dict[tuple[str, str], dict[int, Operator]] = {}
    for module in modules:
        for value in vars(module).values():
            for entry in getattr(value, "operators", ()):
                found.setdefault((entry.domain, entry.name), {})[entry.since] = entry
    return {key: tuple(v[s] for s in sorted(v)) for key, v in found.items()}


def find(operators: Table, domain: str, name: str, opset: int) -> Operator | None:
    """The operator's version in force at `opset`; None where it isn't supported."""
    versions = [o for o in operators.get((domain, name), ()) if o.since <= opset]
    return versions[-1] if versions else None
