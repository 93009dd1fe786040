"""Read and write the bytes of Protocol Buffers messages, field by field, without their schema."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
"""The kinds of fields that files have, by the numbers of Protocol Buffers' wire format."""


def fields(data: memoryview) -> Iterator[tuple[int, memoryview, memoryview | None]]:
    """Yield a message's fields: the number, the bytes of the whole field, and its content. The content is
    None unless its length precedes it. Raises IndexError or ValueError if the bytes are malformed."""
    at = 0
    while at < len(data):
        tag, end = varint(data, at)
        content = None
        if tag & 7 == DELIMITED:
            size, start = varint(data, end)
            end = start + size
            content = data[start:end]
        elif tag & 7 == VARINT:
            _, end = varint(data, end)
        elif tag & 7 in (FIXED32, FIXED64):
            end += 4 if tag & 7 == FIXED32 else 8
        else:
            raise ValueError("a field of a kind that isn't read")
        if end > len(data):
            raise ValueError("cut short")
        yield tag >> 3, data[at:end], content
        at = end


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the number at a position, of at most 64 bits, and the position after it. Raises ValueError if
    the number has over ten bytes. Those bits are dropped that 64 don't hold."""
    value = 0
    for shift in range(0, 64, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
    raise ValueError("a number that doesn't end")


def contents(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield a message's fields as `fields` does: the number, and an integer or the bytes. Fields of fixed
    size are left out."""
    for number, whole, content in fields(data):
        if content is not None:
            yield number, content
        elif whole[0] & 7 == VARINT:
            yield number, varint(whole, varint(whole, 0)[1])[0]


# -- writing -------------------------------------------------------------------------------------


def encoded(value: int) -> bytes:
    """Return an integer's bytes of variable length. A negative one has ten, as those of 64 bits."""
    value %= 1 << 64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def integer(number: int, value: int) -> bytes:
    """Return a field with an integer."""
    return encoded(number << 3 | VARINT) + encoded(value)


def message(number: int, content: bytes) -> bytes:
    """Return a field with a message, a text or packed numbers."""
    return encoded(number << 3 | DELIMITED) + encoded(len(content)) + content
