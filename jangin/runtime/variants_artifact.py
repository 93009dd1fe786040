"""Compiled models of every kind, and that of several variants, each for other sizes: one `.jgn` file.

The file of variants: 8 bytes of magic, u32 version, u32 length of the header, SHA-256 of the header, the
header (JSON: the sizes of each variant and of those that there are not, each variant's length and digest, the
constants' bytes), the variants, each a whole artefact without its constants, and all of their constants, each
content once, at multiples of 64 bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import numpy as np

from jangin.ir.dtype import from_numpy
from jangin.ir.expr import Expr, Var, const, eq, free_vars, substitute
from jangin.ir.graph import Array, Shape
from jangin.ir.records import dataclass
from jangin.mapped import Digests, InMemory, copied, owned
from jangin.runtime.artifact import (
    ENCRYPTED_MAGIC,
    MAGIC,
    PREFIX,
    VERSION,
    Artifact,
    ArtifactError,
    Constants,
    Pool,
    aligned,
    damaged,
    fields,
    is_size,
    mapped,
    read_header,
    refusing,
    require,
    write_whole,
)
from jangin.runtime.program_artifact import (
    PROGRAM_MAGIC,
    ProgramArtifact,
    bodies_of,
    read_bodies,
    write_bodies,
)
from jangin.runtime.signing import check_signature
from jangin.runtime.sizes import Signature, TensorSpec, spec_of

VARIANTS_MAGIC = b"\x8aJGV\r\n\x1a\n"
COPIED = 128 << 20
"""Files of up to so many bytes are copied to memory unless the caller says otherwise: that takes a fraction
of the time of loading them. (435 MB took a second, where mapping them took none, on a virtual machine.)"""
Whole = Artifact | ProgramArtifact
"""What runs a model by itself."""


def listed(sizes: Mapping[str, int]) -> str:
    """What a variant is for."""
    return ", ".join(f"{name} = {size}" for name, size in sizes.items()) or "sizes in general"


@dataclass(frozen=True)
class Absent:
    """Sizes that there is no variant for (none of them: any but those of the variants), and why."""

    sizes: Mapping[str, int]
    reason: str

    def __str__(self) -> str:
        return f"no variant for {listed(self.sizes) if self.sizes else 'other sizes'}: {self.reason}"


@dataclass(frozen=True)
class VariantsArtifact:
    """`parts`: the same model for different `sizes` of some symbols, by name; the first is that for all sizes
    in general (of no symbol). A run takes the first part whose `conditions` hold."""

    parts: tuple[Whole, ...]
    sizes: tuple[Mapping[str, int], ...]
    absent: tuple[Absent, ...] = ()

    @classmethod
    def of(
        cls, parts: Iterable[Whole], sizes: Sequence[Mapping[str, int]], absent: Sequence[Absent]
    ) -> VariantsArtifact:
        """Of parts as they are made: constants of equal content become one."""
        if len(sizes) == 1:
            return cls(tuple(parts), tuple(sizes), tuple(absent))
        known: dict[tuple[bytes, str, tuple[int, ...]], Array] = {}
        return cls(tuple(_sharing(part, known) for part in parts), tuple(sizes), tuple(absent))

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.parts[0].metadata

    @property
    def dims(self) -> tuple[Shape | None, ...]:
        """The shapes of the inputs in general, None for what is no tensor of known rank."""
        return _dims(self.parts[0])

    def limits(self, n: int) -> tuple[Expr, ...]:
        """The sizes that part number `n` is for, and the ranges of the inputs' symbols."""
        part = self.parts[n]
        whole = part.plan if isinstance(part, Artifact) else part.program
        rules = [eq(Var(name), size) for name, size in self.sizes[n].items()]
        for var, (low, high) in dict(whole.symbols).items():
            rules += [] if low is None else [var >= low]
            rules += [] if high is None else [var <= high]
        return self._of_inputs(rules)

    def conditions(self, n: int) -> tuple[Expr, ...]:
        """All that the symbols of the inputs must meet for part number `n`. A program may do without what
        is asked for in a branch that it doesn't take."""
        constraints = [c for p in plans(self.parts[n]) for c in p.plan.constraints]
        return (*self.limits(n), *self._of_inputs(constraints))

    def _of_inputs(self, rules: Iterable[Expr]) -> tuple[Expr, ...]:
        known = {v for shape in self.dims for d in shape or () for v in free_vars(d)}
        return tuple(dict.fromkeys(r for r in rules if free_vars(r) <= known))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; a reader never sees half of it."""
        write_whole(Path(path), self.write)

    def write(self, file: BinaryIO) -> None:
        """Write to an open file, from its start on."""
        pool = Pool()
        bodies, lines = bodies_of(self.parts, pool)
        content = {
            "sizes": self.sizes,
            "absent": [[a.sizes, a.reason] for a in self.absent],
            "parts": lines,
            "constant_bytes": pool.bytes,
        }
        header = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
        digest = hashlib.sha256(header).digest()
        file.write(PREFIX.pack(VARIANTS_MAGIC, VERSION, len(header), digest) + header)
        write_bodies(file, bodies)
        file.write(bytes(aligned(file.tell()) - file.tell()))
        pool.write(file)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> VariantsArtifact:
        """Read a file that `save` wrote. Raises FileNotFoundError or ArtifactError."""
        with open(path, "rb") as file:
            return cls.read_from(file, path, os.fstat(file.fileno()).st_size)[0]

    @classmethod
    def read_from(
        cls, file: BinaryIO, path: str | os.PathLike[str], end: int
    ) -> tuple[VariantsArtifact, bytes]:
        """As `Artifact.read_from`."""
        text, digest = read_header(file, path, VARIANTS_MAGIC, "a compiled model of variants", end)
        if hashlib.sha256(text).digest() != digest:
            raise damaged(path, "its checksum is wrong")
        with refusing(path):
            header = fields(text)
            size, lines = header["constant_bytes"], header["parts"]
            require(is_size(size) and size <= end, "the bytes of its constants")
            pool = Constants(path, mapped(file, end - size, end))
            parts = read_bodies(file, lines, end - size, lambda at: _read_part(file, path, at, pool))
            if aligned(file.tell()) + size != end:
                raise damaged(path, f"{end} bytes where {aligned(file.tell()) + size} belong")
            sizes = tuple(map(_sizes, header["sizes"]))
            require(0 < len(parts) == len(sizes) and not sizes[0], "the sizes of its variants")
            names = [_names(p) for p in parts]
            require(names.count(names[0]) == len(names), "the names of its inputs and outputs")
            absent = tuple(Absent(_sizes(s), str(reason)) for s, reason in header["absent"])
        pool.start()
        return cls(tuple(parts), sizes, absent), digest


def _read_part(
    file: BinaryIO, path: str | os.PathLike[str], end: int, pool: Constants
) -> tuple[Whole, bytes]:
    start = file.tell()
    magic = file.read(len(MAGIC))
    file.seek(start)
    if magic == PROGRAM_MAGIC:
        return ProgramArtifact.read_from(file, path, end, pool)
    return Artifact.read_from(file, path, end, pool)


def _sizes(given: Mapping[str, Any]) -> dict[str, int]:
    require(all(map(is_size, given.values())), "the sizes of its variants")
    return dict(given)


def _sharing(part: Whole, known: dict[tuple[bytes, str, tuple[int, ...]], Array]) -> Whole:
    """The part with those of its constants that are `known` by content, which gets the others."""
    if isinstance(part, ProgramArtifact):
        parts = (_sharing(p, known) for p in part.parts)
        return replace(part, parts=tuple(p for p in parts if isinstance(p, Artifact)))
    constants = {n: np.asarray(a, order="C") for n, a in part.plan.constants.items()}
    digests = Digests([a.reshape(-1).view(np.uint8).data for a in constants.values()]).wait()
    shared = {
        name: known.setdefault((digest, str(a.dtype), a.shape), a)
        for (name, a), digest in zip(constants.items(), digests, strict=True)
    }
    return replace(part, plan=replace(part.plan, constants=shared))


def _dims(part: Whole, ends: Literal["inputs", "outputs"] = "inputs") -> tuple[Shape | None, ...]:
    """The shapes of the inputs or outputs, None for what is no tensor of known rank."""
    if isinstance(part, Artifact):
        return tuple(part.plan.buffer(n).shape for n in getattr(part.plan, ends))
    values = (part.program.region.values[n] for n in getattr(part.program.region, ends))
    return tuple(v.type.shape if v.type is not None and v.type.kind == "tensor" else v.shape for v in values)


def _names(part: Whole) -> tuple[tuple[str, ...], tuple[str, ...]]:
    ends = part.plan if isinstance(part, Artifact) else part.program.region
    return ends.inputs, ends.outputs


Compiled = Artifact | ProgramArtifact | VariantsArtifact
"""A compiled model of any kind."""


def plans(made: Compiled) -> Iterator[Artifact]:
    """Everything in it that is one plan and its code."""
    if isinstance(made, Artifact):
        yield made
    else:
        for part in made.parts:
            yield from plans(part)


def signature(made: Compiled) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """The inputs and the outputs of a compiled model. Of outputs of variants, what is the same in all."""
    if isinstance(made, Artifact):
        found = Signature(made.plan)
        return found.inputs, found.outputs
    if isinstance(made, ProgramArtifact):
        region = made.program.region
        inputs, outputs = (
            tuple(spec_of(region.values[n]) for n in ends) for ends in (region.inputs, region.outputs)
        )
        return inputs, outputs
    inputs, outputs = signature(made.parts[0])
    return inputs, tuple(_common(made, i, spec) for i, spec in enumerate(outputs))


def _common(made: VariantsArtifact, n: int, spec: TensorSpec) -> TensorSpec:
    """What is the same of output number `n` in all variants: where its rank is, and each of its sizes."""
    general, *others = (_dims(p, "outputs")[n] for p in made.parts)
    if spec.type or general is None or any(dims is None or len(dims) != len(general) for dims in others):
        return spec if spec.type else replace(spec, shape=(), type=f"{from_numpy(spec.dtype)}[?]")
    shape = list(spec.shape)
    for dims, sizes in zip(others, made.sizes[1:], strict=True):
        known = {Var(name): const(size) for name, size in sizes.items()}
        for axis, (dim, other) in enumerate(zip(general, dims or (), strict=True)):
            if substitute(dim, known) != other:
                shape[axis] = "?"
    return replace(spec, shape=tuple(shape))


def read_artifact(
    path: str | os.PathLike[str],
    trust: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    mapped: bool | None = True,
) -> Compiled:
    """Read a `.jgn` file of any kind: with `trust`, the PEM file of a public key, only one that is signed
    (see `jangin.runtime.signing`), with `key`, the file of a key, one that is encrypted by it (see
    `jangin.runtime.encryption`), to memory; if not `mapped` (None: by its size), all of it is read now."""
    with open(path, "rb") as opened:
        if key is not None:
            from jangin.runtime.encryption import decrypted

            return _read(cast(BinaryIO, decrypted(path, opened, key)), path, trust)
        if mapped or (mapped is None and os.fstat(opened.fileno()).st_size > COPIED):
            return _read(opened, path, trust)
        try:
            memory = copied(opened)
        except OSError as error:
            raise damaged(path, str(error)) from None
    return _read(cast(BinaryIO, memory), path, trust)


def _read(file: BinaryIO, path: str | os.PathLike[str], trust: str | os.PathLike[str] | None) -> Compiled:
    kinds: Mapping[bytes, type[VariantsArtifact] | type[ProgramArtifact]]
    kinds = {VARIANTS_MAGIC: VariantsArtifact, PROGRAM_MAGIC: ProgramArtifact}
    size = len(file) if isinstance(file, InMemory) else os.fstat(file.fileno()).st_size
    prefix = file.read(PREFIX.size)
    if prefix[: len(MAGIC)] == ENCRYPTED_MAGIC:
        raise ArtifactError(f"{path}: is encrypted: give key=, the file of the key")
    if trust is not None:
        check_signature(path, prefix, trust)
    file.seek(0)
    kind = kinds.get(prefix[: len(MAGIC)], Artifact)
    made, digest = kind.read_from(file, path, size)
    if trust is not None and not prefix.endswith(digest):
        raise damaged(path, "it changed while it was read")
    return made


def detached(made: Compiled) -> Compiled:
    """With constants in memory of their own, which outlives the model's file or bytes that they may lie in.
    What parts share they go on sharing."""
    arrays = {id(a): a for part in plans(made) for a in part.plan.constants.values()}
    copies = {n: owned(a) for n, a in arrays.items()}
    if isinstance(made, VariantsArtifact):
        return replace(made, parts=tuple(_detached(part, copies) for part in made.parts))
    return _detached(made, copies)


def _detached(part: Whole, copies: Mapping[int, Array]) -> Whole:
    if isinstance(part, ProgramArtifact):
        parts = (_detached(p, copies) for p in part.parts)
        return replace(part, parts=tuple(p for p in parts if isinstance(p, Artifact)))
    constants = {name: copies[id(a)] for name, a in part.plan.constants.items()}
    return replace(part, plan=replace(part.plan, constants=constants))


def checked(made: Compiled) -> Compiled:
    """The same, once all its constants are known to be right. Raises ArtifactError where one isn't."""
    for part in plans(made):
        if part.check is not None:
            part.check()
    return made
