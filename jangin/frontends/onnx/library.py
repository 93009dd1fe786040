"""Import the two parts of ONNX's library that reading a model needs: its messages and the standard's schemas.

They are imported without the rest of the package (checker, helpers, Protobuf's JSON), which takes four times
as long to import. A later import of the whole package uses these modules."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any


def _part(name: str) -> ModuleType:
    whole = f"onnx.{name}"
    if whole not in sys.modules:
        package = find_spec("onnx")
        if package is None:
            raise ModuleNotFoundError("reading ONNX models needs the package onnx", name="onnx")
        spec = PathFinder.find_spec(whole, package.submodule_search_locations)
        assert spec is not None and spec.loader is not None
        module = sys.modules[whole] = module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[whole]


def schemas() -> Any:
    """Return the module with the standard's schemas. The first call loads all of them."""
    return _part("onnx_cpp2py_export").defs


if TYPE_CHECKING:
    import onnx as messages

    __all__ = ["messages", "schemas"]
else:

    class _Later(ModuleType):
        """A module whose code runs when something of it is first used. Python's own `LazyLoader` runs it at
        the next import."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            self.__class__ = ModuleType
            self.__spec__.loader.exec_module(self)
            return getattr(self, name)

    def _put_off(name: str) -> None:
        spec = None if name in sys.modules else find_spec(name)
        if spec is not None:
            module = sys.modules[name] = _Later(name)
            module.__spec__, module.__file__, module.__package__ = spec, spec.origin, spec.parent

    with suppress(ModuleNotFoundError):  # Protobuf's classes in Python, which its compiled part replaces
        _put_off("google.protobuf.internal.python_message")
    messages = _part("onnx_ml_pb2")
