"""Core ML's messages, by the protobuf modules that the package coremltools carries, without the rest of
it."""

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
"""The name that coremltools' folder of messages has here: its own package imports converters of
everything."""


@cache
def module(name: str) -> Any:
    """A module of messages ("Model_pb2"). ImportError where coremltools isn't installed."""
    loaded = sys.modules.get(f"coremltools.proto.{name}")
    if loaded is not None:
        return loaded
    if PACKAGE not in sys.modules:
        found = importlib.util.find_spec("coremltools")
        if found is None or not found.submodule_search_locations:
            raise ImportError("coremltools isn't installed")
        package = ModuleType(PACKAGE)
        package.__path__ = [str(Path(found.submodule_search_locations[0]) / "proto")]
        sys.modules[PACKAGE] = package
    return importlib.import_module(f"{PACKAGE}.{name}")


def parse(data: Any, where: str) -> Any:
    """A model's message. CompileError where the bytes are none."""
    try:
        return module("Model_pb2").Model.FromString(bytes(data))
    except DecodeError as error:
        raise CompileError(f"{where} is a damaged Core ML model: {error}") from None
