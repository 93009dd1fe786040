"""Pickling and copying of executables, as the bytes of their file."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from jangin.mapped import InMemory
from jangin.runtime.compiled import Compiled, read_memory

A = TypeVar("A", bound=Compiled)
"""A kind of compiled model."""


class Loaded(Generic[A]):
    """An object that was loaded from an artefact, and can be saved and pickled.

    `_given` are the other arguments of its class. The pickle contains the whole file, and unpickling loads
    the file again. A caller's own functions and devices must be picklable too.
    """

    _artifact: A
    _given: tuple[Any, ...]

    @property
    def artifact(self) -> A:
        return self._artifact

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a `.jgn` file that `jangin.load` reads."""
        self._artifact.save(Path(path))

    def explain_shapes(self) -> str:
        """Describe the fixed sizes, the symbols and their conditions, and the memory as a formula. A program
        also has the sizes that depend on data, and a model of variants the sizes without a variant."""
        from jangin.runtime.explain import explain

        return explain(self._artifact)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        file = BytesIO()
        self.artifact.write(file)
        data = pickle.PickleBuffer(file.getbuffer()) if protocol >= 5 else file.getvalue()
        arguments = [_named(g) if isinstance(g, Mapping) else g for g in self._given]
        return _loaded, (type(self), data, arguments)


class _Decorated(NamedTuple):
    """A function whose name in its module refers to its operator (see `jangin.hosted`)."""

    module: str
    name: str

    def function(self) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(importlib.import_module(self.module), self.name).function
        return function


def _named(functions: Mapping[str, Any]) -> dict[str, Any]:
    """Return host functions by name, with `_Decorated` in place of those that pickle can't find by their
    name."""
    portable = {}
    for key, function in functions.items():
        operator = getattr(sys.modules.get(function.__module__), function.__name__, None)
        decorated = getattr(operator, "function", None) is function
        portable[key] = _Decorated(function.__module__, function.__name__) if decorated else function
    return portable


def _loaded(kind: Any, data: Any, given: list[Any]) -> Any:
    return kind(_artifact(data), *(_functions(g) if isinstance(g, Mapping) else g for g in given))


def _functions(named: Mapping[str, Any]) -> dict[str, Any]:
    return {key: f.function() if isinstance(f, _Decorated) else f for key, f in named.items()}


def _artifact(data: Any) -> Compiled:
    with memoryview(data) as source:
        memory = InMemory(source.nbytes)
        memory[: source.nbytes] = source.cast("B")
    return read_memory(memory, "a pickled model")
