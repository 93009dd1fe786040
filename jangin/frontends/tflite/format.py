"""Recognize TensorFlow Lite files (.tflite) and load them. Loading needs the package `tflite`, which has the
schema."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from jangin.frontends.format import Contents, Format
from jangin.ir.graph import CompileError, Graph
from jangin.ir.records import dataclass

if TYPE_CHECKING:
    from jangin.frontends.assemble import ShapeBindings
    from jangin.frontends.dialect import Imported

IDENTIFIER = b"TFL3"
WRITES = "a TFLite file is written by the package tflite: pip install 'jangin[tflite]'"


def written(graph: Graph, description: str = "") -> bytes:
    """Write a file as `writer.written` does. Raises CompileError if the writer's packages aren't
    installed."""
    try:
        from jangin.frontends.tflite.writer import written as write
    except ImportError:
        raise CompileError(WRITES) from None
    return write(graph, description)


def check(graph: Graph) -> None:
    """Check a graph as `writer.check` does. Raises CompileError if the writer's packages aren't installed."""
    try:
        from jangin.frontends.tflite.writer import check as look
    except ImportError:
        raise CompileError(WRITES) from None
    look(graph)


@dataclass(frozen=True)
class TfliteFormat(Format):
    """TensorFlow Lite files. `signature` names the signature to read, as in `jangin.compile(file,
    formats=[TfliteFormat(signature="train")])`. Inputs and outputs then have the signature's names. By
    default the first sub-graph is read."""

    signature: str = ""
    name = "TFLite"

    def reads(self, contents: Contents) -> bool:
        return contents.data[4:8] == IDENTIFIER

    def load(self, contents: Contents, shapes: ShapeBindings) -> Imported:
        try:
            from jangin.frontends.tflite.importer import Reader
            from jangin.frontends.tflite.signatures import signature_of
        except ImportError:
            raise CompileError(
                f"{contents} is a TFLite model, which the package tflite reads: pip install 'jangin[tflite]'"
            ) from None
        from jangin.frontends.dialect import Imported
        from jangin.frontends.tflite.dialect import TFLITE

        try:
            signature = signature_of(contents.data, self.signature) if self.signature else None
            number, names = (0, {}) if signature is None else (signature.graph, signature.names)
            reader = Reader(contents.data, number, named=names)
            return Imported(reader.imported(shapes), TFLITE, reader.metadata(), frozenset(reader.ones))
        except KeyError as error:
            raise CompileError(f"{contents} is a damaged TFLite model: no option {error}") from error
        except (struct.error, IndexError, ValueError, TypeError, AttributeError) as error:
            raise CompileError(f"{contents} is a damaged TFLite model: {error}") from error
