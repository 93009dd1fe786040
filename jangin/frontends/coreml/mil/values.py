"""Convert MIL's constants to arrays. Their elements are in the program, or in its files of weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jangin.ir.graph import Array, CompileError
from jangin.mapped import map_file

TYPES: dict[int, Any] = {
    1: np.bool_, 10: np.float16, 11: np.float32, 12: np.float64, 13: ml_dtypes.bfloat16, 21: np.int8,
    22: np.int16, 23: np.int32, 24: np.int64, 31: np.uint8, 32: np.uint16, 33: np.uint32, 34: np.uint64,
}  # fmt: skip
"""NumPy's types by the numbers of MIL's DataType."""
BITS = {25: 4, 35: 4, 36: 2, 37: 1, 38: 6, 39: 3}
"""The number of bits of the element types smaller than a byte, by the numbers of MIL's DataType. Only the
type `SIGNED` is signed."""
SIGNED = 25
STRING = 2
"""MIL's numbers of the signed type of four bits, and of strings (DataType in MIL.proto)."""
SENTINEL = 0xDEADBEEF
"""The number at the start of each entry in a file of weights, as coremltools writes it (0xDEADBEEF)."""
Value = Array | str | list[str]


class Weights:
    """The files of weights in a model's folder. A model in a single file has none."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._files: dict[str, Any] = {}

    def entry(self, name: str, offset: int, size: int, what: str) -> Any:
        """Return `size` bytes of the entry at `offset` in a file. The entry begins with a header of 64 bytes,
        which has the position of its bytes. Raises CompileError if the entry is damaged or too small."""
        data = self._file(name, what)
        if offset + 64 > len(data):
            raise CompileError(
                f"{what} should lie at {offset} of {name}, which has {len(data)} bytes: it is cut short"
            )
        mark = int(np.frombuffer(data, "<u4", 1, offset)[0])
        length, start = (int(v) for v in np.frombuffer(data, "<u8", 2, offset + 8))
        if mark != SENTINEL or length < size or start + size > len(data):
            raise CompileError(
                f"{what} takes {size} bytes, and {name} has {length} for it at {offset}: "
                "one of them is damaged"
            )
        return memoryview(data)[start : start + size]

    def _file(self, name: str, what: str) -> Any:
        if name not in self._files:
            if self.folder is None:
                raise CompileError(
                    f"{what} lies in {name}: give the path of the package, not the model's alone"
                )
            path = self.folder / name.removeprefix("@model_path/")
            if "\0" in name or self.folder.resolve() not in path.resolve().parents or not path.is_file():
                raise CompileError(f"{what} should lie in {name}, which is no file of the package")
            self._files[name] = map_file(path)
        return self._files[name]


def value(message: Any, weights: Weights, what: str) -> Value:
    """Return a value of MIL: an array, a text or a list of texts. Raises CompileError for other types and if
    bytes are missing."""
    kind = message.type.WhichOneof("type")
    if kind != "tensorType":
        raise CompileError(f"{what} is a {kind}, which is not supported")
    tensor = message.type.tensorType
    if any(d.WhichOneof("dimension") != "constant" for d in tensor.dimensions):
        raise CompileError(f"{what} has a size that isn't known")
    shape = tuple(int(d.constant.size) for d in tensor.dimensions)
    if tensor.dataType == STRING:
        strings = list(message.immediateValue.tensor.strings.values)
        return strings if shape else "".join(strings)
    if tensor.dataType not in TYPES and tensor.dataType not in BITS:
        raise CompileError(f"{what} is of MIL's data type {tensor.dataType}, which is not supported")
    count = math.prod(shape)
    if message.WhichOneof("value") == "blobFileValue":
        blob = message.blobFileValue
        array = _stored(
            lambda size: weights.entry(blob.fileName, blob.offset, size, what), tensor.dataType, count
        )
    else:
        array = _immediate(message.immediateValue.tensor, tensor.dataType, count)
    if array.size != count:
        raise CompileError(f"{what} has shape {list(shape)}, and {array.size} elements")
    return array.reshape(shape)


def _immediate(tensor: Any, kind: int, count: int) -> Array:
    which = tensor.WhichOneof("value")
    held = getattr(tensor, which).values if which else []
    if isinstance(held, bytes):
        return _stored(lambda size: held, kind, count)
    return np.array(held, TYPES.get(kind, np.int8))


def _stored(read: Any, kind: int, count: int) -> Array:
    """Return the first `count` elements of stored bytes. `read` returns as many bytes as requested. Elements
    smaller than a byte are packed from each byte's lowest bit on."""
    if kind not in BITS:
        dtype = np.dtype(TYPES[kind])
        data = read(count * dtype.itemsize)
        return np.frombuffer(data, dtype, min(count, len(data) // max(dtype.itemsize, 1)))
    bits = BITS[kind]
    packed = np.frombuffer(read(-(-count * bits // 8)), np.uint8)
    flags = np.unpackbits(packed, bitorder="little")[: count * bits].reshape(-1, bits)
    elements: Array = (flags << np.arange(bits, dtype=np.uint8)).sum(1).astype(np.uint8)
    return ((elements ^ 8).astype(np.int8) - 8) if kind == SIGNED else elements
