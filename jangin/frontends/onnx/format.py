"""ONNX's files: which they are, and where external data lie. The library of ONNX is imported to load one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jangin.frontends.format import Contents, Format
from jangin.frontends.onnx.file import Folder, begins_model, locations

if TYPE_CHECKING:
    from jangin.frontends.assemble import ShapeBindings
    from jangin.frontends.dialect import Imported


class OnnxFormat(Format):
    name = "ONNX"
    modules = ("jangin.frontends.onnx.dialect", "jangin.frontends.onnx.importer")

    def reads(self, contents: Contents) -> bool:
        if contents.message is None:
            return begins_model(contents.data)
        from onnx import ModelProto  # whoever has a message has the library

        return isinstance(contents.message, ModelProto)

    def beside(self, contents: Contents) -> Mapping[str, Path | None]:
        if contents.path is None:
            return {}
        folder = Folder(contents.path)
        return {name: _found(folder, name) for name in locations(memoryview(contents.data))}

    def load(self, contents: Contents, shapes: ShapeBindings) -> Imported:
        from jangin.frontends.dialect import Imported
        from jangin.frontends.onnx.dialect import ONNX
        from jangin.frontends.onnx.importer import imported_graph, metadata
        from jangin.frontends.onnx.proto import read_model

        read = read_model(contents)
        return Imported(imported_graph(read, shapes), ONNX, metadata(read.proto))


def _found(folder: Folder, location: str) -> Path | None:
    try:
        return folder.find(location)
    except ValueError:  # it may be of a tensor that nothing needs
        return None
