"""Parse an ONNX file without copying the contents of its large constants.

Protobuf copies everything that it parses, so that a model would take its weights' memory twice. This module
walks the few length-delimited fields around the contents: ModelProto.graph, GraphProto.initializer and
TensorProto.raw_data. Protobuf parses everything else. Source:
https://protobuf.dev/programming-guides/encoding."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import field
from mmap import mmap
from pathlib import Path

from jangin.ir.records import dataclass
from jangin.protobuf import DELIMITED, VARINT, fields, varint

LARGE = 1 << 16
"""Constants of at least this many bytes are kept outside of the message. Parsing would copy them, and copies
of smaller ones cost little."""

GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
"""The numbers of fields in onnx.proto: ModelProto's graph, GraphProto's initializers, and TensorProto's raw
data."""
_PARTS = {
    "model": {GRAPH: "graph", 25: "function"},
    "graph": {1: "node", INITIALIZER: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
"""For each message, the fields that lead to the places of external data, by their numbers."""
_NUMBERS = (1, 5)
"""The numbers of ModelProto's integer fields: ir_version and model_version."""
_TEXTS = (2, 3, 4, 6, GRAPH, 8, 14, 20, 25, 26)
"""The numbers of ModelProto's other fields, whose contents are all preceded by their length."""


def begins_model(data: mmap | bytes) -> bool:
    """Tell if bytes begin with a field of ModelProto. The rest of the bytes isn't examined."""
    try:
        tag, _ = varint(memoryview(data), 0)
    except (IndexError, ValueError):
        return False
    return tag & 7 == (VARINT if tag >> 3 in _NUMBERS else DELIMITED) and tag >> 3 in (*_NUMBERS, *_TEXTS)


@dataclass
class Split:
    """A model's bytes without the contents of large constants.

    `message` is a ModelProto in which some initializers have no `raw_data`. `contents` has the data of these
    by the initializer's number."""

    message: bytes
    contents: dict[int, memoryview] = field(default_factory=dict)


def split(data: memoryview) -> Split:
    """Separate the contents of large constants from a model's bytes.

    A malformed model is left unchanged, so that Protobuf reports the error. A model is also left unchanged if
    it repeats a field that must occur once."""
    pieces = Split(b"")
    try:
        pieces.message = b"".join(_model(data, pieces))
    except (IndexError, ValueError):
        return Split(bytes(data))
    return pieces


@dataclass(frozen=True)
class Folder:
    """The folder that may hold a model's external data. The model is at `path`.

    If the model is a symbolic link, the data may also be beside the file to which it leads. Hugging Face's
    cache has such links."""

    path: Path

    def find(self, location: str) -> Path:
        """Return the path of the file with a tensor's data. Raises ValueError with the reason if the file is
        missing or mustn't be read."""
        if "\0" in location:
            raise ValueError("which is no file's name")
        try:
            file = (self.path.parent / location).resolve()
            inside = Path(os.path.normpath(location)).parts[:1] not in ((), ("/",), ("..",))
            beside = (self.path.parent.resolve(), self.path.resolve().parent)
            if not inside or not any(file.is_relative_to(folder) for folder in beside):
                raise ValueError("outside the model's folder")
            if not file.is_file():
                raise ValueError("which is missing beside the model")
        except (OSError, RuntimeError) as error:  # a name that is too long; links that lead to each other
            raise ValueError(f"which can't be read: {getattr(error, 'strerror', error)}") from None
        return file


_LOCATION = re.compile(b"location")
MANY = 100
"""If a message has more fields than this, its rest is first searched for the name of a file. Trees have
attributes of millions of numbers, and each number is a field."""


def locations(data: memoryview) -> list[str]:
    """Return the names of the files that a model's tensors give as the places of their data.

    Raises ValueError if the bytes are malformed or have fields that ONNX doesn't use."""
    names: set[bytes] = set()
    try:
        _locations("model", data, names)
    except (IndexError, RecursionError):
        raise ValueError("the model is cut short, or nested too deep") from None
    return sorted(map(os.fsdecode, names))


def _locations(kind: str, data: memoryview, found: set[bytes]) -> None:
    if kind == "entry":
        entry = {number: bytes(content) for number, _, content in fields(data) if content is not None}
        if entry.get(1) == b"location":
            found.add(entry.get(2, b""))
        return
    at = 0
    for n, (number, whole, content) in enumerate(fields(data)):
        if n == MANY and not _LOCATION.search(data, at):
            return
        at += len(whole)
        part = _PARTS[kind].get(number)
        if part is not None and content is not None and (len(content) > LARGE or _LOCATION.search(content)):
            _locations(part, content, found)


def _model(data: memoryview, found: Split) -> Iterator[bytes | memoryview]:
    count = 0
    for number, whole, content in fields(data):
        if number != GRAPH or content is None:
            yield whole
            continue
        pieces: list[bytes | memoryview] = []
        for inner, piece, tensor in fields(content):
            if inner == INITIALIZER and tensor is not None:
                pieces.append(_without_contents(piece, tensor, count, found))
                count += 1
            else:
                pieces.append(piece)
        yield from _delimited(GRAPH, pieces)


def _without_contents(piece: memoryview, tensor: memoryview, number: int, found: Split) -> bytes | memoryview:
    pieces = list(fields(tensor)) if len(tensor) >= LARGE else []
    raw = [content for n, _, content in pieces if n == RAW_DATA and content is not None]
    if len(raw) != 1 or len(raw[0]) < LARGE:
        return piece
    found.contents[number] = raw[0]
    return b"".join(_delimited(INITIALIZER, [whole for n, whole, _ in pieces if n != RAW_DATA]))


def _delimited(number: int, pieces: list[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    yield _encoded(number << 3 | DELIMITED)
    yield _encoded(sum(map(len, pieces)))
    yield from pieces


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
