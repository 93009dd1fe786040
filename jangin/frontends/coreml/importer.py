"""Core ML's models of all types as imported graphs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jangin.frontends.assemble import ShapeBindings, Symbols, model_graph
from jangin.frontends.coreml.mil.program import Program
from jangin.frontends.coreml.mil.values import Weights
from jangin.ir.graph import CompileError, Graph, Value


class Importer:
    """One model. `folder`: where the files of weights lie that it names."""

    def __init__(self, model: Any, folder: Path | None) -> None:
        self.model = model
        self.folder = folder
        self.kind = model.WhichOneof("Type") or ""

    def imported(self, shapes: ShapeBindings) -> Graph:
        symbols = Symbols(shapes)
        if self.kind == "mlProgram":
            program = Program(self.model.mlProgram, Weights(self.folder))
            inputs = [Value(n, t, symbols.shape(n, sizes)) for n, (t, sizes) in program.types().items()]
            outputs = program.read()
            return model_graph("model", inputs, outputs, program.nodes, program.constants, symbols)
        raise CompileError(f"Core ML's {self.kind or 'empty'} models are not supported")

    def metadata(self) -> Mapping[str, Any]:
        """What the model says of itself."""
        said = self.model.description.metadata
        found = {
            "description": said.shortDescription, "version": said.versionString, "author": said.author,
            "license": said.license, "specification": str(self.model.specificationVersion),
            **dict(said.userDefined),
        }  # fmt: skip
        return {key: text for key, text in found.items() if text}
