"""Import the two parts of ONNX's library that reading a model needs: its messages and the standard's schemas.

They are imported without the rest of the package (checker, helpers, Protobuf's JSON), which takes four times
as long to import. A later import of the whole package uses these modules."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx as messages
    from onnx import defs as schemas

    __all__ = ["messages", "schemas"]
else:

    def _part(name: str) -> ModuleType:
        whole = f"onnx.{name}"
        if whole not in sys.modules:
            package = find_spec("onnx")
            if package is None:
                raise ModuleNotFoundError("reading ONNX models needs the package onnx", name="onnx")
            spec = PathFinder.find_spec(whole, package.submodule_search_locations)
            module = sys.modules[whole] = module_from_spec(spec)
            spec.loader.exec_module(module)
        return sys.modules[whole]

    messages = _part("onnx_ml_pb2")
    schemas = _part("onnx_cpp2py_export").defs
