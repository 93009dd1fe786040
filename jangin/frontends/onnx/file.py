"""An ONNX file without the contents of its large constants, which stay where they lie.

Protobuf copies all that it parses, so that a model would take its weights' memory twice. Here the few
length-delimited fields around them (ModelProto.graph, GraphProto.initializer, TensorProto.raw_data) are
walked, and all else is left to protobuf. Source: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

LARGE = 1 << 16
"""Bytes of a constant from which on its contents stay outside the message."""

GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


@dataclass
class Split:
    """`message`: a ModelProto's bytes in which the graph's initializers of a number in `contents` have no
    `raw_data`; it is kept there."""

    message: bytes
    contents: dict[int, memoryview] = field(default_factory=dict)


def split(data: memoryview) -> Split:
    """Take the large constants out of a model's bytes. What isn't well formed, and what has a field twice
    that should come once, stays as it is, for protobuf to judge."""
    found = Split(b"")
    try:
        found.message = b"".join(_model(data, found))
    except (IndexError, ValueError):
        return Split(bytes(data))
    return found


def _model(data: memoryview, found: Split) -> Iterator[bytes | memoryview]:
    count = 0
    for number, whole, content in _fields(data):
        if number != GRAPH or content is None:
            yield whole
            continue
        pieces: list[bytes | memoryview] = []
        for inner, piece, tensor in _fields(content):
            if inner == INITIALIZER and tensor is not None:
                pieces.append(_without_contents(piece, tensor, count, found))
                count += 1
            else:
                pieces.append(piece)
        yield from _delimited(GRAPH, pieces)


def _without_contents(piece: memoryview, tensor: memoryview, number: int, found: Split) -> bytes | memoryview:
    fields = list(_fields(tensor)) if len(tensor) >= LARGE else []
    raw = [content for n, _, content in fields if n == RAW_DATA and content is not None]
    if len(raw) != 1 or len(raw[0]) < LARGE:
        return piece
    found.contents[number] = raw[0]
    return b"".join(_delimited(INITIALIZER, [whole for n, whole, _ in fields if n != RAW_DATA]))


def _delimited(number: int, pieces: list[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    yield _encoded(number << 3 | _DELIMITED)
    yield _encoded(sum(map(len, pieces)))
    yield from pieces


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview, memoryview | None]]:
    """(number, the whole field, its content where it is length-delimited) of each field. Raises IndexError
    or ValueError where they aren't well formed."""
    at = 0
    while at < len(data):
        tag, end = _varint(data, at)
        content = None
        if tag & 7 == _DELIMITED:
            size, start = _varint(data, end)
            end = start + size
            content = data[start:end]
        elif tag & 7 == _VARINT:
            _, end = _varint(data, end)
        elif tag & 7 in (_FIXED32, _FIXED64):
            end += 4 if tag & 7 == _FIXED32 else 8
        else:
            raise ValueError("a field of a kind that ONNX doesn't use")
        if end > len(data):
            raise ValueError("cut short")
        yield tag >> 3, data[at:end], content
        at = end


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number of at most 64 bits, and where it ends."""
    value = 0
    for shift in range(0, 64, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number that doesn't end")


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
