"""Mutants of ONNX models: of the fields of their protocol buffers, and of their bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import onnx
from google.protobuf.message import Message

from jangin.protobuf import varint

NUMBERS = (
    0, 1, -1, 2, 3, 5, -7, 100, 1 << 16, 1 << 31, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63),
)  # fmt: skip
HUGE = (1000, 10**6, 10**9, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1)
"""Integers that ask for much time or memory when they are a size or a count."""
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, float("inf"), float("-inf"), float("nan"))
WORDS = (
    "", "x", "y", "nowhere", "axis", "axes", "constant", "reflect", "linear", "SAME_UPPER", "ij,jk->ik",
    "a" * 999,    "../../etc/passwd", "com.microsoft", "ai.onnx.ml", "Gather", "Loop", "Reshape", "Conv",
)  # fmt: skip


def fields(data: bytes, rng: random.Random) -> bytes:
    """Change, remove, double or exchange some fields anywhere in a model."""
    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        message = rng.choice(list(_messages(model)))
        with suppress(ValueError, TypeError, IndexError):  # the field doesn't take this value
            _change(message, rng)
    return model.SerializeToString()


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if _repeated(message, field) else [value]:
                yield from _messages(part)


def _repeated(message: Message, field: Any) -> bool:
    return hasattr(getattr(message, field.name), "append") or hasattr(getattr(message, field.name), "add")


def _change(message: Message, rng: random.Random) -> None:
    present = message.ListFields()
    absent = [f for f in message.DESCRIPTOR.fields if f.message_type is None]
    field = rng.choice([f for f, _ in present] or absent) if rng.random() < 0.85 else rng.choice(absent)
    if _repeated(message, field):
        _change_list(getattr(message, field.name), field, rng)
    elif field.message_type is not None or rng.random() < 0.1:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _value(field, getattr(message, field.name), rng))


def _change_list(items: Any, field: Any, rng: random.Random) -> None:
    how, at = rng.randrange(4), rng.randrange(max(1, len(items)))
    if how == 0 and len(items):
        del items[at]
    elif field.message_type is not None:
        other = items[rng.randrange(len(items))]
        items.add().CopyFrom(other) if how < 3 else items[at].CopyFrom(other)
    elif how == 1 or not len(items):
        items.append(_value(field, None, rng))
    else:
        items[at] = _value(field, items[at], rng)


def _value(field: Any, old: Any, rng: random.Random) -> Any:
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        if isinstance(old, bytes) or field.type == field.TYPE_BYTES:
            return damage(old, rng) if old else rng.randbytes(rng.choice((1, 4, 8)))
        return rng.choice(WORDS)
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice(FLOATS)
    if kind == field.CPPTYPE_ENUM:
        return rng.choice([v.number for v in field.enum_type.values])
    near = isinstance(old, int) and rng.random() < 0.4
    return old + rng.choice((-1, 1)) if near else rng.choice(NUMBERS if rng.random() < 0.5 else NUMBERS[:8])


def huge(data: bytes, rng: random.Random) -> bytes:
    """Make one or two of a model's integers huge: in attributes, shapes or constants."""
    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 2))):
        places = list(_integers(model))
        if places:
            rng.choice(places)(rng.choice(HUGE) * rng.choice((1, 1, 1, -1)))
    return model.SerializeToString()


def _integers(model: Message) -> Iterator[Callable[[int], None]]:
    """Yield a setter for each integer of a model."""
    for message in _messages(model):
        for field, value in message.ListFields():
            if field.cpp_type not in (field.CPPTYPE_INT32, field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
                continue
            if _repeated(message, field):
                yield from (partial(_set_item, value, n) for n in range(min(len(value), MANY)))
            else:
                yield partial(_set_field, message, field.name)
        if isinstance(message, onnx.TensorProto) and message.data_type == onnx.TensorProto.INT64:
            yield from (partial(_set_raw, message, n) for n in range(min(len(message.raw_data) // 8, MANY)))


MANY = 16
"""The most integers of a list that are tried."""


def _set_item(items: Any, n: int, value: int) -> None:
    with suppress(ValueError):  # the field has 32 bits
        items[n] = value


def _set_field(message: Message, name: str, value: int) -> None:
    with suppress(ValueError):
        setattr(message, name, value)


def _set_raw(tensor: onnx.TensorProto, n: int, value: int) -> None:
    raw = bytearray(tensor.raw_data)
    raw[8 * n : 8 * n + 8] = value.to_bytes(8, "little", signed=True)
    tensor.raw_data = bytes(raw)


def huge_varint(data: bytes, rng: random.Random) -> bytes:
    """Make one integer of any protocol buffer huge, and correct the lengths around it."""
    places: list[tuple[tuple[int, ...], int, int]] = []
    with suppress(ValueError, IndexError):
        places = list(_varints(data, ()))
    if not places:
        return data
    path, at, end = rng.choice(places)
    new = _varint(rng.choice(HUGE))
    changed = data[:at] + new + data[end:]
    grown = len(new) - (end - at)
    for start in reversed(path):
        length, after = varint(data, start)
        text = _varint(length + grown)
        changed = changed[:start] + text + changed[after:]
        grown += len(text) - (after - start)
    return changed


def _varints(
    data: bytes, path: tuple[int, ...], at: int = 0, end: int | None = None
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Return the places of the numbers in a message, each with the lengths of the messages around it. Raises
    ValueError if the bytes are no message."""
    stop = len(data) if end is None else end
    found: list[tuple[tuple[int, ...], int, int]] = []
    while at < stop:
        tag, begin = varint(data, at)
        kind = tag & 7
        if not tag >> 3 or kind not in (0, 1, 2, 5):
            raise ValueError("no message")
        at = begin
        if kind == 0:
            _, at = varint(data, begin)
            found.append((path, begin, at))
        elif kind == 2:
            size, content = varint(data, begin)
            at = content + size
            if at <= stop and len(path) < 12 and size < 1 << 14:
                with suppress(ValueError, IndexError):
                    found += _varints(data, (*path, begin), content, at)
        else:
            at += 8 if kind == 1 else 4
        if at > stop:
            raise ValueError("no message")
    yield from found


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def damage(data: bytes, rng: random.Random) -> bytes:
    """Change, remove, double or insert bits and runs of bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at, how = rng.randrange(max(1, len(changed))), rng.randrange(5)
        size = rng.choice((1, 2, 8, 64))
        if how == 0 and at < len(changed):
            changed[at] = rng.randrange(256)
        elif how == 1 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif how == 2:
            del changed[at : at + size]
        elif how == 3:
            changed[at:at] = rng.randbytes(size)
        else:
            changed[at:at] = changed[at : at + size]
    return bytes(changed)
