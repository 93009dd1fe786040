"""Mutants of ONNX models: of the fields of their protocol buffers, and of their bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import Message

NUMBERS = (
    0, 1, -1, 2, 3, 5, -7, 100, 1 << 16, 1 << 31, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63),
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, float("inf"), float("-inf"), float("nan"))
WORDS = (
    "", "x", "y", "nowhere", "axis", "axes", "constant", "reflect", "linear", "SAME_UPPER", "ij,jk->ik",
    "a" * 999,    "../../etc/passwd", "com.microsoft", "ai.onnx.ml", "Gather", "Loop", "Reshape", "Conv",
)  # fmt: skip


def corpus() -> list[Path]:
    """ONNX's own node tests: a model of each operator in each of its uses."""
    folder = Path(onnx.__file__).parent / "backend/test/data/node"
    return sorted(folder.glob("*/model.onnx"))


def fields(data: bytes, rng: random.Random) -> bytes:
    """A model with some fields changed, taken away, doubled or exchanged, anywhere in it."""
    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        message = rng.choice(list(_messages(model)))
        with suppress(ValueError, TypeError, IndexError):  # a field that doesn't take this
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


def damage(data: bytes, rng: random.Random) -> bytes:
    """Bytes with bits and runs changed, left out, doubled or put in."""
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
