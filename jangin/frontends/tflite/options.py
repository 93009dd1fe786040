"""Operators of a TFLite file: their names and options, by the schema's tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tflite

from jangin.frontends.tflite.tensors import numbers


def _names(table: type) -> Mapping[int, str]:
    return {v: k for k, v in vars(table).items() if not k.startswith("_")}


OPERATORS, OPTIONS, OPTIONS_2 = map(
    _names, (tflite.BuiltinOperator, tflite.BuiltinOptions, tflite.BuiltinOptions2)
)


def options_of(found: Any) -> dict[str, Any]:
    """Return an operator's options by their names in the schema. The schema has two unions for options, and
    an operator has them in one of the two."""
    table, name = found.BuiltinOptions(), OPTIONS.get(found.BuiltinOptionsType(), "NONE")
    if table is None:
        table, name = found.BuiltinOptions2(), OPTIONS_2.get(found.BuiltinOptions2Type(), "NONE")
    if table is None or name == "NONE":
        return {}
    options = getattr(tflite, name)()
    options.Init(table.Bytes, table.Pos)
    attrs: dict[str, Any] = {}
    for field in _fields(type(options)):
        if field.endswith("AsNumpy"):
            attrs[_snake(field.removesuffix("AsNumpy"))] = numbers(getattr(options, field)())
        elif not hasattr(options, f"{field}AsNumpy"):
            attrs[_snake(field)] = getattr(options, field)()
    return attrs


def _fields(options: type) -> Sequence[str]:
    names = [n for n in vars(options) if n[0].isupper() and n != "Init" and not n.startswith("GetRootAs")]
    return [n for n in names if not n.endswith(("Length", "IsNone", "HasIdentifier"))]


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
