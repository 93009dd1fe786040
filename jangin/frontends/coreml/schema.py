"""Load Core ML's messages from the protobuf modules of the package coremltools, without the rest of the
package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf.message import DecodeError

from jangin.ir.graph import CompileError

PACKAGE = "_jangin_coreml"
"""The name under which coremltools' folder of messages is imported. An import of coremltools itself would
also import its converters."""


@cache
def module(name: str) -> Any:
    """Return a module of messages such as "Model_pb2". Raises ImportError if coremltools isn't installed."""
    loaded = sys.modules.get(f"coremltools.proto.{name}")
    if loaded is not None:
        return loaded
    if PACKAGE not in sys.modules:
        spec = importlib.util.find_spec("coremltools")
        if spec is None or not spec.submodule_search_locations:
            raise ImportError("coremltools isn't installed")
        package = ModuleType(PACKAGE)
        package.__path__ = [str(Path(spec.submodule_search_locations[0]) / "proto")]
        sys.modules[PACKAGE] = package
    return importlib.import_module(f"{PACKAGE}.{name}")


def parse(data: Any, where: str) -> Any:
    """Parse a model's message. Raises CompileError if the bytes are damaged."""
    try:
        return module("Model_pb2").Model.FromString(bytes(data))
    except DecodeError as error:
        raise CompileError(f"{where} is a damaged Core ML model: {error}") from None
