"""A compiled program: its text and one artefact a segment; saved as one `.jgn` file.

The file: 8 bytes of magic, u32 version, u32 length of the header, SHA-256 of the header, the header
(JSON: the program's text, its constants, its own code, and where each part lies), and the parts, each a whole
artefact as `runtime.artifact` has it, at multiples of 64 bytes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from jangin.ir.dtype import DTYPES, from_numpy
from jangin.ir.graph import Array
from jangin.ir.program import Branch, HostCall, Loop, Program, Region
from jangin.runtime.artifact import MAGIC, VERSION, Artifact, ArtifactError, aligned, write_whole

PROGRAM_MAGIC = b"\x8aJGP\r\n\x1a\n"
_PREFIX = struct.Struct("<8sII32s")


@dataclass(frozen=True)
class ProgramArtifact:
    """`parts`: for each segment, by number, its plan and code; `code`: the object file of what runs branches
    and loops; `metadata` as an `Artifact` has it."""

    program: Program
    parts: tuple[Artifact, ...]
    code: bytes
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def host_functions(self) -> set[str]:
        return {s.function for s in host_calls(self.program.region)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; a reader never sees half of it."""
        write_whole(Path(path), self._write)

    def _write(self, file: BinaryIO) -> None:
        from jangin.ir.program_text import print_program

        bodies = []
        for part in self.parts:
            buffer = io.BytesIO()
            part.write(buffer)
            bodies.append(buffer.getvalue())
        content = {
            "program": print_program(self.program),
            "metadata": self.metadata,
            "code": base64.b64encode(self.code).decode(),
            "constants": {n: _encoded(a) for n, a in sorted(self.program.constants.items())},
            "parts": [len(b) for b in bodies],
        }
        header = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
        file.write(
            _PREFIX.pack(PROGRAM_MAGIC, VERSION, len(header), hashlib.sha256(header).digest()) + header
        )
        for body in bodies:
            file.write(bytes(aligned(file.tell()) - file.tell()))
            file.write(body)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> ProgramArtifact:
        """Read a file that `save` wrote. Raises FileNotFoundError or ArtifactError."""
        from jangin.ir.program_text import parse_program

        with open(path, "rb") as file:
            header = _header(file, path)
            parts = []
            end = file.tell()
            for length in header["parts"]:
                start = aligned(end)
                end = start + length
                file.seek(start)
                parts.append(Artifact.read_from(file, path, end))
            if os.fstat(file.fileno()).st_size != end:
                raise ArtifactError(f"{path}: is cut short or damaged: {end} bytes belong in it")
        constants = {n: _decoded(v) for n, v in header["constants"].items()}
        program = replace(parse_program(header["program"]), constants=constants)
        return cls(program, tuple(parts), base64.b64decode(header["code"]), header["metadata"])


def read_artifact(path: str | os.PathLike[str]) -> Artifact | ProgramArtifact:
    """Read a `.jgn` file of either kind."""
    with open(path, "rb") as file:
        magic = file.read(len(MAGIC))
    return ProgramArtifact.read(path) if magic == PROGRAM_MAGIC else Artifact.read(path)


def host_calls(region: Region) -> Iterator[HostCall]:
    """The calls of host functions in a region and those inside it."""
    for step in region.steps:
        if isinstance(step, HostCall):
            yield step
        elif isinstance(step, Branch):
            yield from host_calls(step.then)
            yield from host_calls(step.orelse)
        elif isinstance(step, Loop):
            yield from host_calls(step.body)


def _header(file: BinaryIO, path: str | os.PathLike[str]) -> dict[str, Any]:
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size or prefix[:8] != PROGRAM_MAGIC:
        raise ArtifactError(f"{path}: is not a compiled program")
    _, version, length, digest = _PREFIX.unpack(prefix)
    if version != VERSION:
        raise ArtifactError(
            f"{path}: has format version {version}, this program reads {VERSION}: compile it again"
        )
    text = file.read(length)
    if hashlib.sha256(text).digest() != digest:
        raise ArtifactError(f"{path}: is cut short or damaged: its checksum is wrong")
    header: dict[str, Any] = json.loads(text)
    return header


def _encoded(array: Array) -> Mapping[str, Any]:
    shape = list(array.shape)
    if array.dtype == object:
        return {"shape": shape, "text": array.reshape(-1).tolist()}
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"shape": shape, "dtype": str(from_numpy(array.dtype)), "data": data}


def _decoded(entry: Mapping[str, Any]) -> Array:
    if "text" in entry:
        return np.array(entry["text"], object).reshape(entry["shape"])
    raw = base64.b64decode(entry["data"])
    return np.frombuffer(raw, DTYPES[entry["dtype"]].numpy).reshape(entry["shape"])
