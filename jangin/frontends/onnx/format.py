"""Recognize ONNX files, and find their external data. ONNX's library is imported only when a file is
loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jangin.frontends.format import Contents, Format, check_activations
from jangin.frontends.onnx.file import Folder, begins_model, locations
from jangin.frontends.onnx.nchwc import BLOCKS
from jangin.ir.records import dataclass

if TYPE_CHECKING:
    from jangin.frontends.assemble import ShapeBindings
    from jangin.frontends.dialect import Imported


ORT = b"ORTM"
"""The bytes 4 to 7 of a file in ONNX Runtime's own format."""


@dataclass(frozen=True)
class OnnxFormat(Format):
    """ONNX's format, with settings for quantized weights and for ONNX Runtime's optimized files.

    `activations` is the type to which a matrix product by blockwise quantized weights converts its input. The
    products are MatMulNBits, and MatMul of a blockwise DequantizeLinear. "float32" is right for all models.
    "int8" rounds the input block by block, unless the model's `accuracy_level` demands more accuracy (1 to
    3). Raises ValueError for other types.

    `block` is the number of channels (8 or 16) in a block, for files that ONNX Runtime optimized for one
    processor. It is used if the file doesn't tell the number."""

    activations: str = "float32"
    block: int = 0
    name = "ONNX"
    modules = ("jangin.frontends.onnx.dialect", "jangin.frontends.onnx.importer")

    def __post_init__(self) -> None:
        check_activations(self.activations)
        if self.block not in (0, *BLOCKS):
            raise ValueError(f"block={self.block} is unknown; known: 8 and 16 channels")

    def reads(self, contents: Contents) -> bool:
        if contents.message is None:
            return begins_model(contents.data)
        from onnx import ModelProto  # a caller that has a message has the library

        return isinstance(contents.message, ModelProto)

    def explains(self, contents: Contents) -> str:
        if contents.data[4:8] != ORT:
            return ""
        return (
            f"{contents} is in ONNX Runtime's own format (.ort), which fits one version of it alone: give "
            "the ONNX file that it was made of (convert_onnx_models_to_ort leaves that where it was)"
        )

    def beside(self, contents: Contents) -> Mapping[str, Path | None]:
        if contents.path is None:
            return {}
        folder = Folder(contents.path)
        return {name: _found(folder, name) for name in locations(memoryview(contents.data))}

    def load(self, contents: Contents, shapes: ShapeBindings) -> Imported:
        from jangin.frontends.dialect import Imported
        from jangin.frontends.onnx.dialect import Onnx
        from jangin.frontends.onnx.importer import imported_graph, metadata, quantization, sparse
        from jangin.frontends.onnx.proto import read_model

        read = read_model(contents)
        graph = imported_graph(read, shapes)
        hints = frozenset(
            (n, axis) for n in graph.inputs if not isinstance(shapes.get(n), (list, tuple))
            for axis in range(len(graph.values[n].shape or ()))
        )  # fmt: skip
        dialect = Onnx(self.activations, self.block)
        described = metadata(read.proto)
        if parameters := quantization(graph):
            described["quantization"] = parameters
        if names := sparse(read.proto):
            described["sparse"] = names
        return Imported(graph, dialect, described, hints=hints)


def _found(folder: Folder, location: str) -> Path | None:
    try:
        return folder.find(location)
    except ValueError:  # the location may belong to a tensor that no node reads
        return None
