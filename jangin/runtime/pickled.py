"""Pickling and copying of executables, as the bytes of their file."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, NamedTuple

from jangin.mapped import InMemory
from jangin.runtime.compiled import Compiled, read_memory


class Loaded:
    """An object that was loaded from an artefact, and can be pickled.

    `_given` are the other arguments of its class. The pickle contains the whole file, and unpickling loads
    the file again. A caller's own functions and devices must be picklable too.
    """

    _given: tuple[Any, ...]

    @property
    def artifact(self) -> Any:
        raise NotImplementedError

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
