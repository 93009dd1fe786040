"""ONNX Runtime's adapters (LoRA): files of named tensors that replace a model's initializers for a run.

A file is a flatbuffer of two kinds of tables, Adapter and Parameter. Both have four fields of four bytes."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jangin.files import write_whole
from jangin.ir.graph import Array
from jangin.onnxruntime.errors import Fail, InvalidArgument
from jangin.onnxruntime.values import OrtValue, dtype_of

MARK = b"TORT"
"""The bytes 4 to 7 of an adapter's file."""
FORMAT = 1
"""The version of the format that is read and written."""
FIELDS = 4
"""The number of fields of both kinds of tables."""
VTABLE = struct.pack("<6H", 4 + 2 * FIELDS, 4 + 4 * FIELDS, *(4 + 4 * n for n in range(FIELDS)))
"""The description of a table: its own size, the table's size, and the field's positions in the table."""


class AdapterFormat:
    """An adapter's file: tensors by the names of the initializers that they replace, and two versions that
    its maker chooses."""

    format_version: int
    adapter_version: int
    model_version: int
    parameters: dict[str, OrtValue]

    def __init__(self, adapter: AdapterFormat | None = None) -> None:
        self.format_version = FORMAT if adapter is None else adapter.format_version
        self.adapter_version = 0 if adapter is None else adapter.adapter_version
        self.model_version = 0 if adapter is None else adapter.model_version
        self.parameters = {} if adapter is None else adapter.parameters

    @staticmethod
    def read_adapter(file_path: str | os.PathLike[str]) -> AdapterFormat:
        """Return a file's contents. Raises Fail if the file is no adapter."""
        adapter = AdapterFormat()
        versions, tensors = read(Path(file_path).read_bytes(), os.fspath(file_path))
        adapter.format_version, adapter.adapter_version, adapter.model_version = versions
        adapter.parameters = {name: OrtValue.holding(array) for name, array in tensors.items()}
        return adapter

    def export_adapter(self, file_path: str | os.PathLike[str]) -> None:
        tensors = {name: OrtValue.of(value).numpy() for name, value in self.parameters.items()}
        types = {name: OrtValue.of(value).element_type() for name, value in self.parameters.items()}
        data = packed(tensors, types, self.adapter_version, self.model_version)
        write_whole(file_path, lambda file: file.write(data))

    def get_format_version(self) -> int:
        return self.format_version

    def set_adapter_version(self, adapter_version: int) -> None:
        self.adapter_version = adapter_version

    def get_adapter_version(self) -> int:
        return self.adapter_version

    def set_model_version(self, model_version: int) -> None:
        self.model_version = model_version

    def get_model_version(self) -> int:
        return self.model_version

    def set_parameters(self, params: dict[str, OrtValue]) -> None:
        self.parameters = params

    def get_parameters(self) -> dict[str, OrtValue]:
        return self.parameters


class LoraAdapter:
    """An adapter that `RunOptions.add_active_adapter` applies to runs. A session compiles its model once
    more for them, with the adapter's tensors as inputs."""

    def __init__(self) -> None:
        self.tensors: dict[str, Array] = {}

    def Load(self, path: str | os.PathLike[str]) -> None:
        """Read an adapter's file. Raises Fail if the file is no adapter."""
        _, self.tensors = read(Path(path).read_bytes(), os.fspath(path))


def read(data: bytes, name: str) -> tuple[tuple[int, int, int], dict[str, Array]]:
    """Return the versions of format, adapter and model, and the tensors of an adapter's file. Raises Fail
    that names the file if the bytes aren't an adapter."""
    if data[4:8] != MARK:
        raise Fail.said(f"{name} is no adapter: its bytes 4 to 7 aren't {MARK.decode()}")
    try:
        root = int(struct.unpack_from("<I", data)[0])
        versions = tuple(_number(data, _field(data, root, n)) for n in range(3))
        if versions[0] != FORMAT:
            raise ValueError(f"its format has version {versions[0]}, and {FORMAT} is known")
        tensors = {}
        if listed := _field(data, root, 3):
            start, count = _vector(data, _follow(data, listed), 4)
            for n in range(count):
                key, array = _parameter(data, _follow(data, start + 4 * n))
                tensors[key] = array
        return (versions[0], versions[1], versions[2]), tensors
    except (struct.error, ValueError, RuntimeError) as error:
        raise Fail.said(f"{name} is no adapter: {error}") from None


def _parameter(data: bytes, table: int) -> tuple[str, Array]:
    places = [_field(data, table, n) for n in range(FIELDS)]
    start, length = _vector(data, _follow(data, places[0]), 1) if places[0] else (0, 0)
    name = data[start : start + length].decode()
    start, rank = _vector(data, _follow(data, places[1]), 8) if places[1] else (0, 0)
    dims = struct.unpack_from(f"<{rank}q", data, start)
    dtype = dtype_of(_number(data, places[2]))
    start, length = _vector(data, _follow(data, places[3]), 1) if places[3] else (0, 0)
    if min(dims, default=0) < 0 or dtype.hasobject or length != math.prod(dims) * dtype.itemsize:
        raise ValueError(f"tensor {name!r} of shape {[*dims]} has {length} bytes")
    return name, np.frombuffer(data, np.uint8, length, start).copy().view(dtype).reshape(dims)


def _follow(data: bytes, place: int) -> int:
    """Return the position to which the offset at `place` points."""
    return place + int(struct.unpack_from("<I", data, place)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Return a field's position, or 0 if the table lacks the field."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise ValueError("a table's description lies before the file")
    within = 4 + 2 * number
    if struct.unpack_from("<H", data, vtable)[0] < within + 2:
        return 0
    offset = struct.unpack_from("<H", data, vtable + within)[0]
    return table + offset if offset else 0


def _number(data: bytes, place: int) -> int:
    return int(struct.unpack_from("<i", data, place)[0]) if place else 0


def _vector(data: bytes, place: int, size: int) -> tuple[int, int]:
    """Return a vector's first position and its number of elements. Raises ValueError if it isn't inside of
    the file."""
    count = struct.unpack_from("<I", data, place)[0]
    if place + 4 + count * size > len(data):
        raise ValueError("it is cut off")
    return place + 4, count


def packed(tensors: Mapping[str, Array], types: Mapping[str, int], adapter: int, model: int) -> bytes:
    """Return an adapter's file. Raises InvalidArgument for a tensor of text."""
    out = bytearray(8)
    out[4:8] = MARK
    vtable = len(out)
    out += VTABLE
    struct.pack_into("<I", out, 0, len(out))
    root = _table(out, vtable, FORMAT, adapter, model, 0)
    _point(out, root + 16)
    listed = len(out) + 4
    out += struct.pack("<I", len(tensors)) + bytes(4 * len(tensors))
    for n, (name, array) in enumerate(tensors.items()):
        if array.dtype.hasobject:
            raise InvalidArgument.said(f"tensor {name!r} has text, which adapters can't contain")
        _align(out, 4)
        _point(out, listed + 4 * n)
        table = _table(out, vtable, 0, 0, types[name], 0)
        key = name.encode()
        _append(out, table + 4, len(key), key + b"\0", 1)
        _append(out, table + 8, array.ndim, struct.pack(f"<{array.ndim}q", *array.shape), 8)
        _append(out, table + 16, array.nbytes, np.ascontiguousarray(array).tobytes(), 8)
    return bytes(out)


def _table(out: bytearray, vtable: int, *fields: int) -> int:
    """Append a table, and return its position."""
    place = len(out)
    out += struct.pack(f"<{1 + len(fields)}i", place - vtable, *fields)
    return place


def _append(out: bytearray, pointer: int, count: int, contents: bytes, alignment: int) -> None:
    """Append a vector whose contents are aligned, and point to it."""
    _align(out, max(alignment, 4), 4)
    _point(out, pointer)
    out += struct.pack("<I", count) + contents


def _point(out: bytearray, pointer: int) -> None:
    """Make the offset at `pointer` point to the end."""
    struct.pack_into("<I", out, pointer, len(out) - pointer)


def _align(out: bytearray, alignment: int, ahead: int = 0) -> None:
    """Append zeros until the position after `ahead` more bytes is a multiple of the alignment."""
    out += bytes(-(len(out) + ahead) % alignment)
