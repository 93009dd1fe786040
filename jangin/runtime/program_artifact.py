"""A compiled program: its text and one artefact a segment; saved as one `.jgn` file.

The file: 8 bytes of magic, u32 version, u32 length of the header, SHA-256 of the header, the header
(JSON: the program's text, its constants, its own code, and each part's length and digest), and the parts,
each a whole artefact as `runtime.artifact` has it, at multiples of 64 bytes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from jangin.ir.dtype import DTYPES, from_numpy
from jangin.ir.graph import Array
from jangin.ir.program import Branch, HostCall, Loop, Program, Region
from jangin.runtime.artifact import (
    MAGIC,
    PREFIX,
    VERSION,
    Artifact,
    aligned,
    damaged,
    fields,
    is_size,
    read_header,
    refusing,
    require,
    write_whole,
)
from jangin.runtime.sizes import Signature, TensorSpec, spec_of

PROGRAM_MAGIC = b"\x8aJGP\r\n\x1a\n"


@dataclass(frozen=True)
class ProgramArtifact:
    """`parts`: for each segment, by number, its plan and code; `code`: what runs branches and
    loops, empty where Python does; `metadata` and `device` as an `Artifact` has them."""

    program: Program
    parts: tuple[Artifact, ...]
    code: bytes
    metadata: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"

    def host_functions(self) -> set[str]:
        return {s.function for s in host_calls(self.program.region)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; a reader never sees half of it."""
        write_whole(Path(path), self.write)

    def write(self, file: BinaryIO) -> None:
        from jangin.ir.program_text import print_program

        bodies, parts = [], []
        for part in self.parts:
            buffer = io.BytesIO()
            digest = part.write(buffer)
            bodies.append(buffer.getvalue())
            parts.append([len(bodies[-1]), digest.hex()])
        content = {
            "program": print_program(self.program),
            "metadata": self.metadata,
            "device": self.device,
            "code": base64.b64encode(self.code).decode(),
            "constants": {n: _encoded(a) for n, a in sorted(self.program.constants.items())},
            "parts": parts,
        }
        header = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
        file.write(PREFIX.pack(PROGRAM_MAGIC, VERSION, len(header), hashlib.sha256(header).digest()) + header)
        for body in bodies:
            file.write(bytes(aligned(file.tell()) - file.tell()))
            file.write(body)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> ProgramArtifact:
        """Read a file that `save` wrote. Raises FileNotFoundError or ArtifactError."""
        from jangin.ir.program_text import parse_program
        from jangin.ir.verify_program import verify_program

        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            text, digest = read_header(file, path, PROGRAM_MAGIC, "a compiled program", size)
            if hashlib.sha256(text).digest() != digest:
                raise damaged(path, "its checksum is wrong")
            with refusing(path):
                header = fields(text)
                require(isinstance(header["metadata"], dict), "its metadata")
                require(isinstance(header["device"], str), "its device")
                parts = []
                end = file.tell()
                for length, wanted in header["parts"]:
                    start = aligned(end)
                    require(is_size(length) and start + length <= size, "the lengths of its parts")
                    end = start + length
                    file.seek(start)
                    part, found = Artifact.read_from(file, path, end)
                    require(found.hex() == wanted, "the digests of its parts")
                    parts.append(part)
                if size != end:
                    raise damaged(path, f"{size} bytes where {end} belong")
                constants = {n: _decoded(v) for n, v in header["constants"].items()}
                program = replace(parse_program(header["program"]), constants=constants)
                verify_program(program, [p.plan for p in parts])
                code = base64.b64decode(header["code"])
        return cls(program, tuple(parts), code, header["metadata"], header["device"])


def signature(made: Artifact | ProgramArtifact) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """The inputs and the outputs of a compiled model."""
    if isinstance(made, Artifact):
        found = Signature(made.plan)
        return found.inputs, found.outputs
    region = made.program.region
    inputs, outputs = (
        tuple(spec_of(region.values[n]) for n in ends) for ends in (region.inputs, region.outputs)
    )
    return inputs, outputs


def read_artifact(path: str | os.PathLike[str]) -> Artifact | ProgramArtifact:
    """Read a `.jgn` file of either kind."""
    with open(path, "rb") as file:
        magic = file.read(len(MAGIC))
    return ProgramArtifact.read(path) if magic == PROGRAM_MAGIC else Artifact.read(path)


def checked(made: Artifact | ProgramArtifact) -> Artifact | ProgramArtifact:
    """The same, once all its constants are known to be right. Raises ArtifactError where one isn't."""
    for part in made.parts if isinstance(made, ProgramArtifact) else (made,):
        if part.check is not None:
            part.check()
    return made


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
