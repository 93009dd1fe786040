"""Write and read TensorFlow's checkpoints of one file, in the format of its operators Save and Restore.

The file is a table of keys and values as LevelDB has them (table_format.md), without compression. The first
value describes all tensors, and each further value has one tensor (saved_tensor_slice.proto)."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from jangin.files import write_whole
from jangin.protobuf import contents, encoded, integer, message, varint

Array = NDArray[Any]
MAGIC = 0xDB4775248B80FB57
"""The last eight bytes of a table, as an unsigned integer."""
FOOTER = 48
"""Bytes at the end of a table: where its index lies, and `MAGIC`."""
TRAILER = 5
"""Bytes after each block: its compression, and a checksum."""
MASK = 0xA282EAD8
"""The number that LevelDB adds to a turned checksum, as a file may contain checksums of its parts."""
LARGEST = 1 << 31
"""Bytes of a message that Protocol Buffers refuse to read, and TensorFlow refuses to write."""
ROWS = 1 << 16
"""Integers that are encoded at one time. Each takes 190 bytes meanwhile."""
META, DATA = 1, 2
"""The fields of SavedTensorSlices: the description of all tensors, and one tensor."""

KINDS: Mapping[str, tuple[int, int]] = {
    "float32": (1, 5), "float64": (2, 6), "int32": (3, 7), "uint8": (4, 7), "int16": (5, 7), "int8": (6, 7),
    "int64": (9, 10), "bool": (10, 11), "uint16": (17, 7), "float16": (19, 13),
}  # fmt: skip
"""For each element type, its number in types.proto, and the field of TensorProto that has its elements."""


def save(path: Array, *arrays: Array, names: Sequence[str]) -> Array:
    """Write arrays as a checkpoint, and return the path. An older file stays whole until the new one is
    complete. Raises OSError if the file can't be written."""
    entries = _saved(dict(zip(names, arrays, strict=True)))

    def write(file: BinaryIO) -> None:
        file.writelines(_table(entries))
        file.flush()
        os.fsync(file.fileno())

    write_whole(path.reshape(-1)[0], write)
    return path


def _saved(tensors: Mapping[str, Array]) -> dict[bytes, bytes]:
    """Return the values of a checkpoint's table, by key."""
    described, entries = b"", dict[bytes, bytes]()
    for name, array in tensors.items():
        if array.dtype.name not in KINDS:
            raise ValueError(f"a checkpoint has no tensors of {array.dtype}, such as '{name}'")
        kind, place = KINDS[array.dtype.name]
        shape = b"".join(message(2, integer(1, n)) for n in array.shape)
        whole = message(1, b"") * array.ndim  # for each axis an extent without a start and a length
        described += message(
            1, message(1, name.encode()) + message(2, shape) + integer(3, kind) + message(4, whole)
        )
        tensor = message(place, _packed(array)) if array.size else b""
        value = message(DATA, message(1, name.encode()) + message(2, whole) + message(3, tensor))
        if len(value) >= LARGEST:
            raise ValueError(
                f"'{name}' takes {len(value)} bytes: a checkpoint's tensor takes less than 2 GiB"
            )
        entries[_key(name, array.ndim)] = value
    return {b"": message(META, described + message(2, integer(1, 1))), **entries}


def restore(path: Array, *, name: str, dtype: str, shape: Sequence[int] | None) -> Array:
    """Return a tensor of a checkpoint. Raises ValueError if the file is damaged, or if its tensor has another
    type or shape. `shape` is None if any shape is fine."""
    source = os.fspath(path.reshape(-1)[0])
    with open(source, "rb") as file:
        with _undamaged(source):
            table = _Table(file)
            described = dict(_described(table.value(b"")))
        if name not in described:
            raise ValueError(f"'{source}' has no tensor '{name}'. It has {', '.join(described) or 'none'}")
        kind, sizes = described[name]
        held = next((t for t, (k, _) in KINDS.items() if k == kind), f"type {kind}")
        if held != dtype or (shape is not None and sizes != tuple(shape)):
            wanted = f"{dtype}{'' if shape is None else list(shape)}"
            raise ValueError(f"'{name}' of '{source}' is {held}{list(sizes)}, but must be {wanted}")
        with _undamaged(source):
            array = _unpacked(table.value(_key(name, len(sizes))), dtype)
            if array.size == math.prod(sizes):
                return array.reshape(sizes)
    raise ValueError(f"'{name}' of '{source}' isn't stored whole, but in parts: save the model again")


@contextmanager
def _undamaged(source: str) -> Iterator[None]:
    """Turn what malformed bytes of a file cause into one error, which names the file."""
    try:
        yield
    except (LookupError, ValueError, struct.error) as error:
        raise ValueError(
            f"'{source}' is no checkpoint of TensorFlow's operator Save, or is damaged"
        ) from error


def _packed(array: Array) -> bytes:
    """Return the elements as their field has them: 32 and 64 bits of floats, and integers of variable length.
    Floats of 16 bits are such integers, by their bits."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype in (np.float32, np.float64):
        return flat.tobytes()
    whole = (flat.view(np.uint16) if flat.dtype == np.float16 else flat).astype(np.int64).view(np.uint64)
    return b"".join(_varints(whole[at : at + ROWS]) for at in range(0, whole.size, ROWS))


def _varints(numbers: Array) -> bytes:
    """Return the bytes of integers of variable length, as `encoded` does for each."""
    shifted = numbers[:, None] >> np.arange(0, 64, 7, dtype=np.uint64)
    written = shifted != 0
    written[:, 0] = True
    digits = (shifted & np.uint64(0x7F)).astype(np.uint8)
    digits[:, :-1] |= written[:, 1:].astype(np.uint8) << 7
    content: bytes = digits[written].tobytes()
    return content


def _numbers(data: bytes) -> Array:
    """Return integers of variable length, as `varint` does for each. Raises ValueError if one doesn't end."""
    flat = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(flat < 0x80)
    starts = np.concatenate(([0], ends + 1))
    lengths = np.diff(starts)
    if starts[-1] < flat.size or lengths.max(initial=0) > 10:
        raise ValueError("a number that doesn't end")
    numbers = np.zeros(ends.size, np.uint64)
    for place in range(lengths.max(initial=0)):
        longer = np.flatnonzero(lengths > place)
        digits = flat[starts[longer] + place].astype(np.uint64) & np.uint64(0x7F)
        numbers[longer] |= digits << np.uint64(7 * place)
    return numbers


def _unpacked(value: memoryview, dtype: str) -> Array:
    """Return the elements of a table's value with a tensor, or none if the value is empty."""
    saved = dict(contents(_message(dict(contents(value)).get(DATA, b""))))
    whole = bytearray()
    for place, content in contents(_message(saved.get(3, b""))):
        if place == KINDS[dtype][1]:
            whole += encoded(content) if isinstance(content, int) else content
    if dtype in ("float32", "float64"):
        return np.frombuffer(bytes(whole), dtype).copy()
    bits = _numbers(bytes(whole))
    return bits.astype(np.uint16).view(np.float16) if dtype == "float16" else bits.astype(dtype)


def _key(name: str, axes: int) -> bytes:
    """Return the key of a whole tensor: 0, the name, the number of axes, and each axis from 0 to the end.
    TensorFlow's code keeps the order of numbers and texts (ordered_code.cc)."""
    text = name.encode().replace(b"\x00", b"\x00\xff")  # no other byte of UTF-8 is escaped
    return b"\x00" + text + b"\x00\x01" + (bytes([1, axes]) if axes else b"\x00") + b"\x80\x7f" * axes


# -- the table -----------------------------------------------------------------------------------


def _checksum(block: bytes) -> bytes:
    """Return the masked CRC-32C of a block, as LevelDB stores it."""
    try:
        from crc32c import crc32c
    except ImportError:
        raise RuntimeError("checkpoints need the package crc32c: pip install crc32c") from None
    crc = crc32c(block)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF)


def _table(entries: Mapping[bytes, bytes]) -> Iterator[bytes]:
    """Yield the bytes of a table, with one entry a block."""
    at, index = 0, dict[bytes, bytes]()
    for key, value in sorted(entries.items()):
        block = _block({key: value})
        yield block
        index[key] = encoded(at) + encoded(len(block) - TRAILER)
        at += len(block)
    handles = b""
    for content in (_block({}), _block(index)):
        yield content
        handles += encoded(at) + encoded(len(content) - TRAILER)
        at += len(content)
    yield handles.ljust(FOOTER - 8, b"\x00") + struct.pack("<Q", MAGIC)


def _block(entries: Mapping[bytes, bytes]) -> bytes:
    """Return a block whose entries share no beginnings of keys, with its trailer."""
    starts, body = [], b""
    for key, value in entries.items():
        starts.append(len(body))
        body += encoded(0) + encoded(len(key)) + encoded(len(value)) + key + value
    starts = starts or [0]
    body += struct.pack(f"<{len(starts) + 1}I", *starts, len(starts)) + b"\x00"
    return body + _checksum(body)


class _Table:
    """A table in a file. Only those blocks are read that a key needs, because a model reads each tensor by
    itself."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._size = file, file.seek(0, os.SEEK_END)
        footer, at = self._part(self._size - FOOTER, FOOTER), 0
        if struct.unpack("<Q", footer[-8:])[0] != MAGIC:
            raise IndexError("no table")
        for _ in range(2):  # behind the handle of an unused block stands the index's
            _, at = varint(footer, at)
        self._index = self._block(footer, at)

    def value(self, key: bytes) -> memoryview:
        """Return a key's value, or no bytes if the table doesn't have the key."""
        for last, handle in _entries(self._index):
            if last >= key:
                values = (value for k, value in _entries(self._block(handle, 0)) if k == key)
                return next(values, memoryview(b""))
        return memoryview(b"")

    def _block(self, handle: memoryview, at: int) -> memoryview:
        """Return the block that the handle at a position tells. Raises IndexError if it is damaged."""
        start, at = varint(handle, at)
        size, _ = varint(handle, at)
        block = self._part(start, size + TRAILER)
        if block[size] or _checksum(bytes(block[:-4])) != bytes(block[-4:]):
            raise IndexError("a damaged or compressed block")
        return block[:size]

    def _part(self, start: int, size: int) -> memoryview:
        if start < 0 or start + size > self._size:
            raise IndexError("no such bytes in the file")
        self._file.seek(start)
        return memoryview(self._file.read(size))


def _described(value: memoryview) -> Iterator[tuple[str, tuple[int, tuple[int, ...]]]]:
    """Yield the name of each tensor that a table's first value describes, with its type and shape."""
    for place, content in contents(_message(dict(contents(value))[META])):
        if place == 1:
            parts = dict(contents(_message(content)))
            axes = [_message(c) for p, c in contents(_message(parts.get(2, b""))) if p == 2]
            shape = tuple(_size(dict(contents(axis)).get(1, 0)) for axis in axes)
            yield _text(parts.get(1, b"")), (_size(parts[3]), shape)


def _message(content: Any) -> memoryview:
    """Return a field's bytes. Raises IndexError if the field is an integer."""
    if isinstance(content, int):
        raise IndexError("an integer instead of a message")
    return memoryview(content)


def _text(content: Any) -> str:
    return bytes(_message(content)).decode()


def _size(content: Any) -> int:
    """Return a field's integer. Raises IndexError if it is negative, or no integer."""
    if not isinstance(content, int) or content >> 63:
        raise IndexError("no size")
    return content


def _entries(block: memoryview) -> Iterator[tuple[bytearray, memoryview]]:
    """Yield the keys and values of a block, in the order of the keys. Each key is changed into the next one,
    which may share its beginning: copies of all could take the square of the block's size."""
    (count,) = struct.unpack("<I", block[-4:])
    at, end, key = 0, len(block) - 4 * (count + 1), bytearray()
    while at < end:
        shared, at = varint(block, at)
        more, at = varint(block, at)
        size, at = varint(block, at)
        del key[shared:]
        key += block[at : at + more]
        yield key, block[at + more : at + more + size]
        at += more + size


FUNCTIONS: dict[str, Callable[..., Any]] = {"SaveTensors": save, "RestoreTensor": restore}
