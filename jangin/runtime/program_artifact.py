"""A compiled program: its text and one artefact a segment, saved as one `.jgn` file.

The file consists of these parts:

- 8 bytes of magic, u32 version, u32 length of the header, and the SHA-256 of the header.
- The header: JSON with the program's text, its constants, its own code, and each part's length and digest.
- The parts, at multiples of 128 bytes. Each is a whole artefact as in `runtime.artifact`.
"""

from __future__ import annotations

import binascii
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, BinaryIO, TypeVar

import numpy as np

from jangin.ir.dtype import DTYPES, from_numpy
from jangin.ir.graph import Array
from jangin.ir.program import Branch, HostCall, Loop, Program, Region
from jangin.ir.records import dataclass
from jangin.runtime.artifact import (
    Artifact,
    Constants,
    Pool,
    Saved,
    checked_header,
    damaged,
    fields,
    is_size,
    placed,
    refusing,
    require,
    write_header,
)

PROGRAM_MAGIC = b"\x8aJGP\r\n\x1a\n"
T = TypeVar("T")


@dataclass(frozen=True)
class ProgramArtifact(Saved):
    """A compiled program. `parts` has the plan and code of each segment, by number. `code` is the native code
    for branches and loops, or empty if Python runs them. For `metadata` and `device` see `Artifact`."""

    program: Program
    parts: tuple[Artifact, ...]
    code: bytes
    metadata: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"

    def __repr__(self) -> str:
        program = self.program
        ends = f"{', '.join(program.region.inputs)} -> {', '.join(program.region.outputs)}"
        return f"<ProgramArtifact {program.name!r}: {ends}; {program.target}; {len(self.parts)} plans>"

    def host_functions(self) -> set[str]:
        return {s.function for s in host_calls(self.program.region)}

    def write(self, file: BinaryIO, pool: Pool | None = None) -> bytes:
        """Write the artefact to an open file, and return its digest, as `Artifact.write` does."""
        from jangin.ir.program_text import print_program

        bodies, parts = bodies_of(self.parts, pool)
        content = {
            "program": print_program(self.program),
            "metadata": self.metadata,
            "device": self.device,
            "code": binascii.b2a_base64(self.code, newline=False).decode(),
            "constants": {n: _encoded(a) for n, a in sorted(self.program.constants.items())},
            "parts": parts,
        }
        digest = write_header(file, PROGRAM_MAGIC, content)
        write_bodies(file, bodies)
        return digest

    @classmethod
    def read_from(
        cls, file: BinaryIO, path: str | os.PathLike[str], end: int, pool: Constants | None = None
    ) -> tuple[ProgramArtifact, bytes]:
        """Read the artefact from an open file, and return it with its digest, as `Artifact.read_from`
        does."""
        from jangin.ir.program_text import parse_program
        from jangin.ir.verify_program import verify_program

        text, digest = checked_header(file, path, PROGRAM_MAGIC, "a compiled program", end)
        with refusing(path):
            header = fields(text)
            require(isinstance(header["metadata"], dict), "its metadata")
            require(isinstance(header["device"], str), "its device")
            parts = read_bodies(
                file, header["parts"], end, lambda at: Artifact.read_from(file, path, at, pool)
            )
            if file.tell() != end:
                raise damaged(path, f"it has {end} bytes, and should have {file.tell()}")
            constants = {n: _decoded(v) for n, v in header["constants"].items()}
            program = replace(parse_program(header["program"]), constants=constants)
            verify_program(program, [p.plan for p in parts])
            code = binascii.a2b_base64(header["code"])
        return cls(program, tuple(parts), code, header["metadata"], header["device"]), digest


def bodies_of(
    parts: Sequence[Artifact | ProgramArtifact], pool: Pool | None
) -> tuple[list[bytes], list[list[int | str]]]:
    """Return the bytes of each part, and each part's length and digest for the file's header."""
    bodies, lines = [], list[list[int | str]]()
    for part in parts:
        buffer = io.BytesIO()
        digest = part.write(buffer, pool)
        bodies.append(buffer.getvalue())
        lines.append([len(bodies[-1]), digest.hex()])
    return bodies, lines


def write_bodies(file: BinaryIO, bodies: Sequence[bytes]) -> None:
    """Write each part to the file, at the next multiple of 128 bytes."""
    for body in bodies:
        file.write(bytes(placed(file.tell()) - file.tell()))
        file.write(body)


def read_bodies(
    file: BinaryIO, lines: Sequence[Sequence[Any]], end: int, read: Callable[[int], tuple[T, bytes]]
) -> list[T]:
    """Read the parts of a file that ends at `end`. `read` reads a part, given the position of the part's end.
    Raises ValueError if a part's length or digest differs from the header's."""
    parts = []
    for length, wanted in lines:
        start = placed(file.tell())
        require(is_size(length) and start + length <= end, "the lengths of its parts")
        at = start + length
        file.seek(start)
        part, digest = read(at)
        require(digest.hex() == wanted, "the digests of its parts")
        parts.append(part)
        file.seek(at)
    return parts


def host_calls(region: Region) -> Iterator[HostCall]:
    """Yield the calls of host functions in a region and in its nested regions."""
    for step in region.steps:
        if isinstance(step, HostCall):
            yield step
        elif isinstance(step, Branch):
            yield from host_calls(step.then)
            yield from host_calls(step.orelse)
        elif isinstance(step, Loop):
            yield from host_calls(step.body)


def _encoded(array: Array) -> Mapping[str, Any]:
    shape = list(array.shape)
    if array.dtype == object:
        return {"shape": shape, "text": array.reshape(-1).tolist()}
    data = binascii.b2a_base64(np.ascontiguousarray(array).tobytes(), newline=False).decode()
    return {"shape": shape, "dtype": str(from_numpy(array.dtype)), "data": data}


def _decoded(entry: Mapping[str, Any]) -> Array:
    if "text" in entry:
        return np.array(entry["text"], object).reshape(entry["shape"])
    raw = binascii.a2b_base64(entry["data"])
    return np.frombuffer(raw, DTYPES[entry["dtype"]].numpy).reshape(entry["shape"])
