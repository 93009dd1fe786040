"""Read a GGUF file: settings by key, and tensors whose weights stay in the file's own blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader
from gguf.quants import dequantize

from jangin.frontends.gguf.parts import parts
from jangin.ir.graph import Array, CompileError
from jangin.once import once

PLAIN = {Kind.F32: np.float32, Kind.F16: np.float16}
BLOCKS = (Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K)
"""Types whose blocks are compiled as they are. Weights of all other types become f32 when they are read."""
LONG = 32
"""A list with more entries than this, such as a vocabulary, doesn't count as metadata."""


class File:
    """A GGUF file, mapped into memory.

    If a model is split, this is its first file, and it has the tensors of all files. Raises CompileError if
    the file is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = self._read(path)
        self._tensors = {t.name: t for t in self._reader.tensors}
        count = self.whole("split.count", 1)
        if count > 1:
            self._join(count)

    def _read(self, path: Path) -> GGUFReader:
        try:
            return GGUFReader(path)
        except (ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError) as error:
            raise CompileError(f"{path} is a damaged GGUF file: {error}") from None

    def _join(self, count: int) -> None:
        """Add the tensors of the model's other files. Raises CompileError if this isn't the first of `count`
        files, or if one is missing."""
        number = self.whole("split.no", 0)
        if number:
            raise CompileError(f"{self.path} is file {number + 1} of {count}; the first is the one to give")
        others = parts(self.path)
        if len(others) != count - 1:
            raise CompileError(
                f"{self.path} is the first of {count} files; its name must end in -00001-of-{count:05}.gguf"
            )
        for path in others:
            if not path.is_file():
                raise CompileError(f"{self.path} is the first of {count} files, but there is no {path}")
            self._tensors |= {t.name: t for t in self._read(path).tensors}
        held, said = len(self._tensors), self.whole("split.tensors.count", len(self._tensors))
        if held != said:
            raise CompileError(f"{self.path}: its {count} files have {held} tensors, and should have {said}")

    # -- settings -------------------------------------------------------------------------------

    @once
    def settings(self) -> Mapping[str, Any]:
        """All settings by key."""
        try:
            return {key: field.contents() for key, field in self._reader.fields.items()}
        except (ValueError, IndexError, TypeError, UnicodeDecodeError) as error:
            raise CompileError(f"{self.path} is a damaged GGUF file: {error}") from None

    def setting(self, key: str, default: Any = None) -> Any:
        """Return the setting `key`, or the default. Raises CompileError if the setting is missing and there
        is no default."""
        setting = self.settings.get(key, default)
        if setting is None:
            raise CompileError(
                f"{self.path} lacks the setting {key}, which its kind of model needs: convert it again"
            )
        return setting

    def number(self, key: str, default: float | None = None) -> float:
        value = self.setting(key, default)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise CompileError(f"{self.path}: the setting {key} is {value!r:.80}, and should be a number")
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        return self.in_range(key, self.number(key, default))

    def in_range(self, key: str, value: float) -> int:
        """Return a setting's value as an integer. Raises CompileError if the value is no integer or is out of
        range."""
        if not 0 <= value < 1 << 31 or value != int(value):  # NaN fails both comparisons
            raise CompileError(
                f"{self.path}: the setting {key} is {value:.12g}, and should be a whole number below 2^31"
            )
        return int(value)

    def metadata(self) -> Mapping[str, Any]:
        """Return all settings except long lists such as the vocabulary."""
        return {k: v for k, v in self.settings.items() if not (isinstance(v, list) and len(v) > LONG)}

    # -- tensors --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape in NumPy's order, the outermost axis first. Raises CompileError if there is
        no such tensor."""
        if name not in self._tensors:
            raise CompileError(
                f"{self.path} lacks the tensor {name}, which its kind of model needs: convert it again"
            )
        return tuple(int(n) for n in reversed(self._tensors[name].shape.tolist()))

    def blocks(self, name: str) -> tuple[str, Array]:
        """Return a tensor's type and its contents in the file. They are floats, or blocks as bytes [...,
        bytes of a row].

        A type whose blocks aren't compiled is dequantized, and returned as F32."""
        self.shape(name)
        tensor = self._tensors[name]
        kind = tensor.tensor_type
        if kind in PLAIN:
            return kind.name, tensor.data
        if kind in BLOCKS:
            return kind.name, tensor.data.view(np.uint8)
        try:
            return "F32", np.asarray(dequantize(tensor.data, kind), np.float32)
        except NotImplementedError:
            raise CompileError(f"{self.path}: tensor {name} is of type {kind.name}, not supported") from None
