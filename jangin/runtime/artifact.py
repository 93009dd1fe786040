"""A compiled model: its plan and machine code; saved as one `.jgn` file.

The file: 8 bytes of magic, u32 version, u32 length of the header, SHA-256 of the header and
objects, the header (JSON: the plan's text, and where each object and constant lies), objects,
and constants at multiples of 64 bytes. Constants are mapped, not read; each has the sum of its
64-bit words (mod 2^64) in the header. Little-endian. Equal artefacts give equal files.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from jangin.ir.dtype import DTYPES, from_numpy
from jangin.ir.graph import Array
from jangin.ir.plan import ALIGN, Plan

MAGIC = b"\x8aJGN\r\n\x1a\n"
VERSION = 2
_PREFIX = struct.Struct("<8sII32s")


class ArtifactError(Exception):
    """A `.jgn` file that can't be used, and why."""


@dataclass(frozen=True)
class Artifact:
    """`objects`: relocatable object files for `plan.target`, which together define the kernels,
    the entry and the thread pool. `metadata`: what the model's file says of itself, as JSON has it."""

    plan: Plan
    objects: tuple[bytes, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; a reader never sees half of it."""
        write_whole(Path(path), self.write)

    def write(self, file: BinaryIO) -> None:
        """Write to an open file, from a multiple of 64 bytes on."""
        from jangin.ir.text import print_plan

        constants = {n: np.ascontiguousarray(a) for n, a in sorted(self.plan.constants.items())}
        places, end = _places([a.nbytes for a in constants.values()])
        table = [
            [name, str(from_numpy(a.dtype)), list(a.shape), at, _checksum(_bytes(a))]
            for (name, a), at in zip(constants.items(), places, strict=True)
        ]
        content = {
            "plan": print_plan(self.plan),
            "metadata": self.metadata,
            "objects": [len(o) for o in self.objects],
            "constants": table,
            "constant_bytes": end,
        }
        header = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
        code = b"".join(self.objects)
        digest = hashlib.sha256(header + code).digest()
        file.write(_PREFIX.pack(MAGIC, VERSION, len(header), digest) + header + code)
        start = aligned(file.tell())
        for array, at in zip(constants.values(), places, strict=True):
            file.write(bytes(start + at - file.tell()))
            file.write(_bytes(array).data)
        file.write(bytes(start + end - file.tell()))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Artifact:
        """Read a file that `save` wrote. Raises FileNotFoundError, or ArtifactError for a file
        that is no artefact, of another version, cut short or damaged."""
        with open(path, "rb") as file:
            return cls.read_from(file, path, os.fstat(file.fileno()).st_size)

    @classmethod
    def read_from(cls, file: BinaryIO, path: str | os.PathLike[str], end: int) -> Artifact:
        """Read what `write` wrote where the file stands, up to `end`."""
        from jangin.ir.parse import parse_plan

        header, code, start = _head(file, path)
        expected = start + header["constant_bytes"]
        if end != expected:
            raise ArtifactError(f"{path}: is cut short or damaged: {end} bytes where {expected} belong")
        mapped = np.memmap(file, np.uint8, "r") if header["constant_bytes"] else np.empty(0, np.uint8)
        constants = {
            name: _constant(mapped, start + at, dtype, shape, checksum, f"{path}: constant {name!r}")
            for name, dtype, shape, at, checksum in header["constants"]
        }
        objects = []
        for length in header["objects"]:
            objects.append(code[:length])
            code = code[length:]
        plan = parse_plan(header["plan"], constants=constants)
        return cls(plan, tuple(objects), header["metadata"])


def write_whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write a file aside, then give it its name."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident():x}")
    try:
        with open(temporary, "xb") as file:
            write(file)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _head(file: BinaryIO, path: str | os.PathLike[str]) -> tuple[dict[str, Any], bytes, int]:
    """The header, the objects' bytes and where constants start, checked."""
    prefix = file.read(_PREFIX.size)
    if prefix[:8] != MAGIC:
        raise ArtifactError(f"{path}: is not a compiled model (a .jgn file)")
    if len(prefix) < _PREFIX.size:
        raise ArtifactError(f"{path}: is cut short")
    _, version, length, digest = _PREFIX.unpack(prefix)
    if version != VERSION:
        raise ArtifactError(
            f"{path}: has format version {version}, this program reads {VERSION}: compile it again"
        )
    text = file.read(length)
    try:
        header: dict[str, Any] = json.loads(text)
        code = file.read(sum(header["objects"]))
    except (ValueError, KeyError, TypeError):
        raise ArtifactError(f"{path}: is cut short or damaged: its header can't be read") from None
    if hashlib.sha256(text + code).digest() != digest:
        raise ArtifactError(f"{path}: is cut short or damaged: its checksum is wrong")
    return header, code, aligned(file.tell())


def _constant(mapped: Array, at: int, dtype: str, shape: list[int], checksum: int, what: str) -> Array:
    kind = DTYPES[dtype].numpy
    count = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    raw = mapped[at : at + count]
    if _checksum(raw) != checksum:
        raise ArtifactError(f"{what} is damaged: its checksum is wrong")
    return np.frombuffer(raw, kind).reshape(shape)


def _places(sizes: list[int]) -> tuple[list[int], int]:
    places, at = [], 0
    for size in sizes:
        places.append(at)
        at = aligned(at + size)
    return places, at


def aligned(at: int) -> int:
    return -(-at // ALIGN) * ALIGN


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _checksum(raw: Array) -> int:
    """The sum of the 64-bit words, and of what is left over, mod 2^64: as fast as memory is."""
    words = len(raw) // 8 * 8
    total = int(np.add.reduce(np.frombuffer(raw[:words], np.uint64), dtype=np.uint64))
    return (total + int.from_bytes(bytes(raw[words:]), "little")) % 2**64
