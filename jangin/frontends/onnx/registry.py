"""Declare ONNX operators by decorated functions, which lower an operator to core operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, TypeVar

from jangin.ir.graph import CompileError
from jangin.ir.records import dataclass

Lowering = Callable[..., Any]
F = TypeVar("F", bound=Lowering)


@dataclass(frozen=True)
class Operator:
    """A version of an ONNX operator, for all opsets from `since` to the next version's.

    The lowering is `lower(b, *inputs, **attributes)`. `b` is the `Builder`. Inputs are `Tensor`s, or None for
    an absent optional input. Attributes are keyword arguments with the standard's defaults. It returns a
    Tensor, or a tuple with one for each output. An output that it can't compute is None."""

    domain: str
    name: str
    since: int
    lower: Lowering


def op(name: str, since: int = 1, domain: str = "") -> Callable[[F], F]:
    """Declare the decorated function as the lowering of the ONNX operator `name`, from opset `since` on. A
    function may have several of these decorators."""

    def mark(fn: F) -> F:
        entries: list[Operator] = fn.__dict__.setdefault("operators", [])
        entries.append(Operator(domain, name, since, fn))
        return fn

    return mark


def one_of(attribute: str, value: Any, known: Iterable[Any]) -> None:
    """Raise CompileError if an attribute's value is none of the known ones."""
    names = [*known]
    if value not in names:
        raise CompileError(f"{attribute} {value!r} is none of {', '.join(map(str, names))}")


Table = Mapping[tuple[str, str], tuple[Operator, ...]]


def table(modules: Iterable[ModuleType]) -> Table:
    """Return the operators that are declared in modules, by domain and name. The versions of an operator are
    in ascending order."""
    operators: dict[tuple[str, str], dict[int, Operator]] = {}
    for module in modules:
        for value in vars(module).values():
            for entry in getattr(value, "operators", ()):
                operators.setdefault((entry.domain, entry.name), {})[entry.since] = entry
    return {key: tuple(v[s] for s in sorted(v)) for key, v in operators.items()}


def find(operators: Table, domain: str, name: str, opset: int) -> Operator | None:
    """Return the version of an operator for an opset, or None if it isn't supported."""
    versions = [o for o in operators.get((domain, name), ()) if o.since <= opset]
    return versions[-1] if versions else None
