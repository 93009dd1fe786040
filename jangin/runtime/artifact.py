"""A compiled model: its plan and machine code, saved as one `.jgn` file.

The file, little-endian, consists of these parts:

- 8 bytes of magic, u32 version, u32 length of the header, and the SHA-256 of the header and the objects.
- The header: JSON with the plan's text and the place of each object and constant.
- The objects.
- The constants, at multiples of 128 bytes. They are mapped, not read. The header has the digest of each
  (`mapped.digest`).

Equal artefacts give equal files.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from itertools import accumulate, pairwise
from typing import Any, BinaryIO

import numpy as np

from jangin.files import write_whole
from jangin.ir.dtype import DTYPES, from_numpy
from jangin.ir.graph import Array, CompileError
from jangin.ir.plan import Plan
from jangin.ir.records import dataclass
from jangin.mapped import Digests, InMemory, release

MAGIC = b"\x8aJGN\r\n\x1a\n"
ENCRYPTED_MAGIC = b"\x8aJGE\r\n\x1a\n"
"""The magic of files that `runtime.encryption` writes."""
VERSION = 7
"""The version of files written now. Since version 7 the sources of launches are records; older files have
texts."""
OLDEST = 5
"""The oldest version that can be read. Its files don't tell what made the code."""
PLACE = 128
"""Alignment of constants, in bytes. Drivers of OpenCL use aligned memory in place, and copy any other."""
_WIDE = "+avx512f"
"""A feature of targets for which older versions made code with LLVM 22 that writes beyond rows."""
AT_ONCE = 1 << 20
"""Constants of at most this many bytes are checked while the file is read. More are checked in the
background."""
PREFIX = struct.Struct("<8sII32s")


class ArtifactError(Exception):
    """A `.jgn` file can't be used. The message says why."""


class Saved:
    """A compiled model of any kind, which its method `write` writes to an open file."""

    write: Callable[..., Any]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the artefact as a file. A reader of the path sees the old file or the whole new one."""
        write_whole(path, self.write)


@dataclass(frozen=True)
class Artifact(Saved):
    """A compiled model.

    - `objects`: the code for `plan.target`, as its back end's `finish` put it together. For a processor these
      are relocatable object files, which together define the kernels, the entry and the thread pool.
    - `metadata`: the description in the model's file, as JSON.
    - `device`: the name of the device that runs it.
    - `made_by`: Jangin and its code generator, with their versions.
    - `check`: waits until the constants are checked, and raises ArtifactError if one is damaged. It must be
      called before any result is given. None if all are checked.
    """

    plan: Plan
    objects: tuple[bytes, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    made_by: str = ""
    check: Callable[[], None] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        plan = self.plan
        size = sum(map(len, self.objects)) + sum(a.nbytes for a in plan.constants.values())
        ends = f"{', '.join(plan.inputs)} -> {', '.join(plan.outputs)}"
        return f"<Artifact {plan.name!r}: {ends}; {plan.target}; {size / 1e6:.2f} MB of code and weights>"

    def write(self, file: BinaryIO, pool: Pool | None = None) -> bytes:
        """Write the artefact to an open file, whose position is a multiple of PLACE. Return the digest of
        header and objects, which covers the constants' digests. With a `pool`, constants are added to it, not
        written."""
        from hashlib import sha256  # which loads OpenSSL

        from jangin.ir.text import print_plan

        if self.check is not None:
            self.check()
        constants = {n: np.asarray(a, order="C") for n, a in sorted(self.plan.constants.items())}
        raw = [a.reshape(-1).view(np.uint8).data for a in constants.values()]
        digests = Digests(raw)
        places, end = _places([a.nbytes for a in constants.values()])
        if pool is not None:
            places, end = [pool.place(r, d) for r, d in zip(raw, digests.wait(), strict=True)], 0
        code, text = b"".join(self.objects), print_plan(self.plan)

        def head(digests: list[bytes]) -> bytes:
            table = [
                [name, str(from_numpy(a.dtype)), list(a.shape), at, digest.hex()]
                for (name, a), at, digest in zip(constants.items(), places, digests, strict=True)
            ]
            content = {
                "plan": text,
                "metadata": self.metadata,
                "device": self.device,
                "made_by": self.made_by,
                "objects": [len(o) for o in self.objects],
                "constants": table,
                "constant_bytes": end,
            }
            return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()

        first = file.tell()
        start = placed(first + PREFIX.size + len(head([bytes(32)] * len(raw))) + len(code))
        file.seek(start)
        for data, at in zip(raw, places, strict=True) if pool is None else ():
            file.write(bytes(start + at - file.tell()))
            file.write(data)
            if len(data) >= AT_ONCE:
                release(constants.values())
        file.write(bytes(start + end - file.tell()))
        header = head(digests.wait())
        whole = sha256(header + code).digest()
        file.seek(first)
        file.write(PREFIX.pack(MAGIC, VERSION, len(header), whole) + header + code)
        file.write(bytes(start - file.tell()))
        file.seek(start + end)
        return whole

    @classmethod
    def read_from(
        cls, file: BinaryIO, path: str | os.PathLike[str], end: int, pool: Constants | None = None
    ) -> tuple[Artifact, bytes]:
        """Read the artefact that lies in a file from its position up to the byte `end`. Return it with its
        digest. With a `pool`, constants are taken from the pool.

        Raises ArtifactError if the bytes aren't an artefact, have another version, are cut short or damaged,
        or have parts that don't agree."""
        from hashlib import sha256  # which loads OpenSSL

        from jangin.ir.parse import parse_plan
        from jangin.ir.verify_plan import verify_plan

        text, digest = read_header(file, path, MAGIC, "a compiled model (a .jgn file)", end)
        with refusing(path):
            header = fields(text)
            lengths = header["objects"]
            require(isinstance(lengths, list) and all(map(is_size, lengths)), "the lengths of its objects")
            require(sum(lengths) <= end - file.tell(), "the lengths of its objects")
            code = file.read(sum(lengths))
        if sha256(text + code).digest() != digest:
            raise damaged(path, "its checksum is wrong")
        with refusing(path):
            start, size = placed(file.tell()), header["constant_bytes"]
            require(is_size(size), "the bytes of its constants")
            if end != start + size:
                raise damaged(path, f"it has {end} bytes, and should have {start + size}")
            held = pool or Constants(path, mapped(file, start, end))
            constants = {name: held.take(name, *where) for name, *where in header["constants"]}
            require(isinstance(header["metadata"], dict), "its metadata")
            device, made_by = header["device"], header.get("made_by", "")
            require(isinstance(device, str) and isinstance(made_by, str), "its device and what made it")
            plan = parse_plan(header["plan"], constants=constants)
            verify_plan(plan)
            ends = [0, *accumulate(lengths)]
            objects = tuple(code[a:b] for a, b in pairwise(ends))
        if not made_by and _WIDE in plan.target:
            raise ArtifactError(
                f"{path} was made by a Jangin whose code for AVX-512 may write beyond rows: compile it again"
            )
        if pool is None and not held.start():
            return cls(plan, objects, header["metadata"], device, made_by), digest
        return cls(plan, objects, header["metadata"], device, made_by, held.check), digest


class Pool:
    """The constants of several artefacts, which are written to one file. Equal contents are stored once."""

    def __init__(self) -> None:
        self.bytes = 0
        self._places: dict[bytes, int] = {}
        self._data: list[memoryview] = []

    def place(self, data: memoryview, digest: bytes) -> int:
        """Return the position, within the pool's bytes, of the data with this digest. New data are added."""
        if digest not in self._places:
            self._places[digest] = placed(self.bytes)
            self._data.append(data)
            self.bytes = self._places[digest] + len(data)
        return self._places[digest]

    def write(self, file: BinaryIO) -> None:
        """Write the pool's data to an open file, whose position is a multiple of PLACE."""
        start = file.tell()
        for data, at in zip(self._data, self._places.values(), strict=True):
            file.write(bytes(start + at - file.tell()))
            file.write(data)


class Constants:
    """The constants of a file. It remembers which were taken and their expected digests, to check them
    later."""

    def __init__(self, path: str | os.PathLike[str], mapped: Array) -> None:
        self._path, self._mapped = path, mapped
        self._taken: dict[tuple[int, int, bytes], tuple[str, memoryview]] = {}
        self._digests: Digests | None = None

    def take(self, name: str, dtype: str, shape: list[int], at: int, digest: str) -> Array:
        """Return the array that a line in an artefact's table describes. Its contents aren't checked yet."""
        array = _constant(self._mapped, dtype, shape, at)
        data = array.reshape(-1).view(np.uint8).data
        self._taken.setdefault((at, array.nbytes, bytes.fromhex(digest)), (name, data))
        return array

    def start(self) -> bool:
        """Start to compute the digests of all constants taken. Return whether the caller must still call
        `check`. A file with few bytes of constants is checked at once. Raises ArtifactError if one is
        damaged."""
        self._digests = Digests([data for _, data in self._taken.values()])
        if self._taken and len(self._mapped) > AT_ONCE:
            return True
        self.check()
        return False

    def check(self) -> None:
        """Wait for the digests. Raises ArtifactError if a constant's digest differs from the expected one."""
        assert self._digests is not None
        digests = self._digests.wait()
        for (_, _, wanted), (name, _), digest in zip(self._taken, self._taken.values(), digests, strict=True):
            if digest != wanted:
                raise damaged(self._path, f"the checksum of constant {name!r} is wrong")


def placed(at: int) -> int:
    """Return the smallest multiple of PLACE that isn't less than `at`."""
    return -(-at // PLACE) * PLACE


def mapped(file: BinaryIO, start: int, end: int) -> Array:
    """Map the bytes from `start` to `end` of a file, and return them as a read-only array. The file's
    position doesn't change."""
    if isinstance(file, InMemory):
        content: Array = np.frombuffer(file, np.uint8)[start:end]
        content.flags.writeable = False
        return content
    at = file.tell()
    content = np.memmap(file, np.uint8, "r")[start:end] if end > start else np.empty(0, np.uint8)
    file.seek(at)
    return content


def damaged(path: str | os.PathLike[str], why: str) -> ArtifactError:
    return ArtifactError(
        f"{path} is cut short or damaged: {why}: copy the file again, or compile the model again"
    )


@contextmanager
def refusing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Inside this context, turn errors caused by a file's contents into ArtifactError. A MemoryError stays
    one, and gets the file's name."""
    try:
        yield
    except CompileError as error:
        raise damaged(path, str(error)) from None
    except MemoryError as error:
        raise MemoryError(f"{path}: there is no memory to read it") from error
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise damaged(path, f"its contents are impossible: {error}") from None


def require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} are wrong")


def is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def read_header(
    file: BinaryIO, path: str | os.PathLike[str], magic: bytes, kind: str, end: int
) -> tuple[bytes, bytes]:
    """Read a file's prefix and header. Return the header's text and the digest in the prefix, which isn't
    checked yet. `kind` describes the file in errors. Raises ArtifactError for another kind or version of
    file."""
    prefix = file.read(PREFIX.size)
    if prefix[:8] != magic:
        raise ArtifactError(f"{path} is not {kind}")
    if len(prefix) < PREFIX.size:
        raise damaged(path, "it ends within its first bytes")
    _, version, length, digest = PREFIX.unpack(prefix)
    if not OLDEST <= version <= VERSION:
        raise ArtifactError(
            f"{path} has format version {version}, and this program reads {OLDEST} to {VERSION}: compile it "
            "again"
        )
    if length > end - file.tell():
        raise damaged(path, "it ends within its header")
    return file.read(length), digest


def checked_header(
    file: BinaryIO, path: str | os.PathLike[str], magic: bytes, kind: str, end: int
) -> tuple[bytes, bytes]:
    """Return what `read_header` does, for a file whose digest is that of its header. Raises ArtifactError if
    the digest is wrong."""
    from hashlib import sha256  # which loads OpenSSL

    text, digest = read_header(file, path, magic, kind, end)
    if sha256(text).digest() != digest:
        raise damaged(path, "its checksum is wrong")
    return text, digest


def write_header(file: BinaryIO, magic: bytes, content: Mapping[str, Any]) -> bytes:
    """Write a file's prefix and header, and return the header's digest."""
    from hashlib import sha256  # which loads OpenSSL

    header = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    digest = sha256(header).digest()
    file.write(PREFIX.pack(magic, VERSION, len(header), digest) + header)
    return digest


def fields(text: bytes) -> dict[str, Any]:
    """Return the fields of a header, which is JSON. Raises ValueError if it isn't an object."""
    header = json.loads(text)
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    return header


def _constant(mapped: Array, dtype: str, shape: list[int], at: int) -> Array:
    kind = DTYPES[dtype].numpy
    require(all(map(is_size, (*shape, at))), "a constant's sizes")
    end = at + math.prod(shape) * kind.itemsize
    require(at % PLACE == 0 and end <= len(mapped), "a constant's place and size")
    return np.frombuffer(mapped[at:end], kind).reshape(shape)


def _places(sizes: list[int]) -> tuple[list[int], int]:
    places, at = [], 0
    for size in sizes:
        places.append(at)
        at = placed(at + size)
    return places, at
