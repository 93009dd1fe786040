"""Recognize and load Core ML's models: .mlmodel files and .mlpackage folders. Their messages need the package
coremltools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jangin.frontends.format import Contents, Format
from jangin.ir.graph import CompileError

if TYPE_CHECKING:
    from jangin.frontends.assemble import ShapeBindings
    from jangin.frontends.dialect import Imported

MANIFEST = "Manifest.json"
TYPES = range(200, 3001)
"""The field numbers in Core ML's message Model that hold a model of some type. Files of ONNX have no fields
with these numbers, so that they tell the formats apart."""
FIELDS = 64
"""At most this many fields of a message are examined to recognize its format. The first fields tell the
format, and a large file of another format needn't be read."""


class CoreMLFormat(Format):
    name = "Core ML"

    def reads(self, contents: Contents) -> bool:
        if contents.message is not None:
            return type(contents.message).__module__.endswith("Model_pb2")
        if not contents.data:
            return contents.path is not None and (contents.path / MANIFEST).is_file()
        return contents.data[:1] == b"\x08" and any(n in TYPES for n in _numbers(contents.data))

    def beside(self, contents: Contents) -> Mapping[str, Path | None]:
        if contents.path is None or not contents.path.is_dir():
            return {}
        return {str(p.relative_to(contents.path)): p for p in sorted(contents.path.rglob("*")) if p.is_file()}

    def load(self, contents: Contents, shapes: ShapeBindings) -> Imported:
        from jangin.frontends.coreml import schema

        try:
            schema.module("Model_pb2")
        except ImportError:
            raise CompileError(
                f"{contents} is a Core ML model, whose messages the package coremltools has: "
                "pip install 'jangin[coreml]'"
            ) from None
        from jangin.frontends.coreml.dialect import COREML
        from jangin.frontends.coreml.importer import Importer
        from jangin.frontends.dialect import Imported
        from jangin.mapped import map_file

        folder, message = None, contents.message
        if message is None and not contents.data:
            assert contents.path is not None
            path = _model(contents.path)
            folder, message = path.parent, schema.parse(map_file(path), str(path))
        elif message is None:
            message = schema.parse(contents.data, str(contents))
        importer = Importer(message, folder)
        return Imported(importer.imported(shapes), COREML, importer.metadata())


def _numbers(data: Any) -> Iterator[int]:
    """Yield the numbers of a message's first fields, at most `FIELDS`. Stop at bytes that can't be a
    field."""
    at = 0
    for _ in range(FIELDS):
        tag, at = _varint(data, at)
        kind = tag & 7
        if at >= len(data) or kind not in (0, 1, 2, 5):
            return
        yield tag >> 3
        size, at = _varint(data, at) if kind in (0, 2) else ({1: 8, 5: 4}[kind], at)
        at += size if kind != 0 else 0


def _varint(data: Any, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            break
    return value, at


def _model(package: Path) -> Path:
    """Return the path of a package's model, which its manifest names. Raises CompileError if the path leads
    out of the package."""
    try:
        manifest = json.loads((package / MANIFEST).read_text())
        entry = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"]
        path = package / "Data" / str(entry)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CompileError(f"{package / MANIFEST} is damaged: {type(error).__name__}: {error}") from None
    if "\0" in str(path) or not path.is_file() or package.resolve() not in path.resolve().parents:
        raise CompileError(f"{package} has no model at Data/{entry}")
    return path
