"""GGUF files (.gguf) of LLaMA's family, the package `gguf` reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jangin.frontends.format import Contents, Format
from jangin.ir.graph import CompileError

if TYPE_CHECKING:
    from jangin.frontends.assemble import ShapeBindings
    from jangin.frontends.dialect import Imported

MAGIC = b"GGUF"


class GgufFormat(Format):
    name = "GGUF"

    def reads(self, contents: Contents) -> bool:
        return contents.data[:4] == MAGIC

    def load(self, contents: Contents, shapes: ShapeBindings) -> Imported:
        try:
            from jangin.frontends.gguf.file import File
        except ImportError:
            raise CompileError(
                f"{contents} is a GGUF file, which the package gguf reads: pip install 'jangin[gguf]'"
            ) from None
        from jangin.frontends.dialect import Imported
        from jangin.frontends.gguf.dialect import GGML
        from jangin.frontends.gguf.importer import Llama

        if contents.path is None:
            raise CompileError("a GGUF file is read from a path, not from bytes")
        file = File(contents.path)
        return Imported(Llama(file).imported(shapes), GGML, file.metadata())
