"""Declare ONNX operators by decorated functions, which lower an operator to core operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
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


class Operators(Mapping[tuple[str, str], tuple[Operator, ...]]):
    """The operators that are declared in modules, by domain and name. The versions of an operator are in
    ascending order.

    `rare` names more modules of `frontends.onnx.operators`, each with its operators as a text: names, with
    "domain:" in front of those outside of the standard's domain. A module is imported when one of its
    operators, or the whole table, is asked for."""

    def __init__(self, modules: Iterable[ModuleType], rare: Mapping[str, str]) -> None:
        self._found: dict[tuple[str, str], tuple[Operator, ...]] = {}
        self.rare = {module: {_key(name) for name in names.split()} for module, names in rare.items()}
        self._waiting = [*rare]
        self._add(modules)

    def _add(self, modules: Iterable[ModuleType]) -> None:
        for module in modules:
            for value in vars(module).values():
                for entry in getattr(value, "operators", ()):
                    key = entry.domain, entry.name
                    versions = {o.since: o for o in (*self._found.get(key, ()), entry)}
                    self._found[key] = tuple(versions[s] for s in sorted(versions))

    def _import(self, names: Iterable[str]) -> None:
        for name in names:
            self._add([import_module(f"jangin.frontends.onnx.operators.{name}")])
            self._waiting = [other for other in self._waiting if other != name]

    def __getitem__(self, key: tuple[str, str]) -> tuple[Operator, ...]:
        self._import([name for name in self._waiting if key in self.rare[name]])
        return self._found[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        self._import([*self._waiting])
        return iter(self._found)

    def __len__(self) -> int:
        self._import([*self._waiting])
        return len(self._found)


def _key(name: str) -> tuple[str, str]:
    domain, _, operator = name.rpartition(":")
    return domain, operator


def find(operators: Operators, domain: str, name: str, opset: int) -> Operator | None:
    """Return the version of an operator for an opset, or None if it isn't supported."""
    versions = [o for o in operators.get((domain, name), ()) if o.since <= opset]
    return versions[-1] if versions else None
