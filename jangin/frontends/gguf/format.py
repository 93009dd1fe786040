"""GGUF files (.gguf) of LLaMA-like models. The package `gguf` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jangin.frontends.format import Contents, Format, check_activations
from jangin.frontends.gguf.parts import parts
from jangin.ir.graph import CompileError
from jangin.ir.records import dataclass

if TYPE_CHECKING:
    from jangin.frontends.assemble import ShapeBindings
    from jangin.frontends.dialect import Imported

MAGIC = b"GGUF"
CACHES = {"float32": "f32", "float16": "f16", "int8": "i8"}
"""Types of the cache's keys and values, with their names in the IR."""


@dataclass(frozen=True)
class GgufFormat(Format):
    """GGUF files, with a choice of the cache's type and of activations.

    `cache` is the type of stored keys and values, as in `jangin.compile(gguf,
    formats=[GgufFormat(cache="float16")])`: float32, float16, or int8. The type int8 has a scale for each row
    and head.

    `activations` is the type of the operands of blockwise quantized weights: float32, or int8 as in
    llama.cpp. The type int8 rounds blocks of 32 or 256 numbers, whose products are then sums of integers.
    Raises ValueError for other types."""

    cache: str = "float32"
    activations: str = "float32"
    name = "GGUF"

    def __post_init__(self) -> None:
        if self.cache not in CACHES:
            raise ValueError(f"cache={self.cache!r} is unknown; known: {', '.join(CACHES)}")
        check_activations(self.activations)

    def reads(self, contents: Contents) -> bool:
        return contents.data[:4] == MAGIC

    def beside(self, contents: Contents) -> Mapping[str, Path | None]:
        others = [] if contents.path is None else parts(contents.path)
        return {path.name: path if path.is_file() else None for path in others}

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
        from jangin.ir.dtype import dtype_of

        if contents.path is None:
            raise CompileError("a GGUF file is read from a path, not from bytes")
        file = File(contents.path)
        network = Llama(file, dtype_of(CACHES[self.cache]), rounded=self.activations == "int8")
        return Imported(network.imported(shapes), GGML, file.metadata())
