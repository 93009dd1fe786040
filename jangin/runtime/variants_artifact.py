"""A compiled model of several variants, each for other sizes: one `.jgn` file.

The file consists of these parts:

- 8 bytes of magic, u32 version, u32 length of the header, and the SHA-256 of the header.
- The header: JSON with the sizes of each variant, the sizes without a variant, each variant's length and
  digest, and the constants' bytes.
- The variants, each a whole artefact without its constants.
- All constants, each content once, at multiples of 128 bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, Literal

import numpy as np

from jangin.ir.expr import Expr, Var, eq
from jangin.ir.graph import Array, Shape
from jangin.ir.records import dataclass
from jangin.ir.sources import NO_SOURCE, Sources
from jangin.ir.traversal import free_vars
from jangin.mapped import Digests
from jangin.runtime.artifact import (
    MAGIC,
    Artifact,
    Constants,
    Pool,
    Saved,
    checked_header,
    damaged,
    fields,
    is_size,
    mapped,
    placed,
    refusing,
    require,
    write_header,
)
from jangin.runtime.program_artifact import (
    PROGRAM_MAGIC,
    ProgramArtifact,
    bodies_of,
    read_bodies,
    write_bodies,
)

VARIANTS_MAGIC = b"\x8aJGV\r\n\x1a\n"
Whole = Artifact | ProgramArtifact
"""A model that runs by itself."""


def listed(sizes: Mapping[str, int]) -> str:
    """Return the sizes of a variant as text."""
    return ", ".join(f"{name} = {size}" for name, size in sizes.items()) or "sizes in general"


@dataclass(frozen=True)
class Absent:
    """Sizes without a variant, and the reason. Empty `sizes` stand for all sizes except those of the
    variants."""

    sizes: Mapping[str, int]
    reason: str

    def __str__(self) -> str:
        return f"no variant for {listed(self.sizes) if self.sizes else 'other sizes'}: {self.reason}"


@dataclass(frozen=True)
class VariantsArtifact(Saved):
    """A model in several variants. `parts` are the same model, each for its `sizes` of some symbols, by name.
    The first part is for all sizes: it fixes no symbol. A run takes the last part whose `conditions` hold."""

    parts: tuple[Whole, ...]
    sizes: tuple[Mapping[str, int], ...]
    absent: tuple[Absent, ...] = ()

    def __repr__(self) -> str:
        return f"<VariantsArtifact for {'; '.join(map(listed, self.sizes))}: {self.parts[0]!r}>"

    @classmethod
    def of(
        cls, parts: Iterable[Whole], sizes: Sequence[Mapping[str, int]], absent: Sequence[Absent]
    ) -> VariantsArtifact:
        """Make an artefact of parts, which are taken from the iterable one by one. Constants of equal content
        become one."""
        if len(sizes) == 1:
            return cls(tuple(parts), tuple(sizes), tuple(absent))
        known: dict[tuple[bytes, str, tuple[int, ...]], Array] = {}
        return cls(tuple(sharing(part, known) for part in parts), tuple(sizes), tuple(absent))

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.parts[0].metadata

    @property
    def dims(self) -> tuple[Shape | None, ...]:
        """The shapes of the inputs in general; None for a value that isn't a tensor of known rank."""
        return dims_of(self.parts[0])

    def limits(self, n: int) -> tuple[Expr, ...]:
        """Return the conditions that an input's symbol has the size that part number `n` is for, and is in
        its range."""
        part = self.parts[n]
        whole = part.plan if isinstance(part, Artifact) else part.program
        rules = [eq(Var(name), size) for name, size in self.sizes[n].items()]
        for var, (low, high) in dict(whole.symbols).items():
            rules += [] if low is None else [var >= low]
            rules += [] if high is None else [var <= high]
        return self._of_inputs(rules)

    def conditions(self, n: int) -> Mapping[Expr, Sources]:
        """Return all conditions on the symbols of the inputs for part number `n`, with the nodes that need
        them.

        A program's conditions include those of branches. A run that doesn't take the branch doesn't need
        them."""
        part = self.parts[n]
        plans = [part] if isinstance(part, Artifact) else part.parts
        needed = {c: source for p in reversed(plans) for c, source in p.plan.constraints.items()}
        return dict.fromkeys(self.limits(n), NO_SOURCE) | {c: needed[c] for c in self._of_inputs(needed)}

    def _of_inputs(self, rules: Iterable[Expr]) -> tuple[Expr, ...]:
        known = {v for shape in self.dims for d in shape or () for v in free_vars(d)}
        return tuple(dict.fromkeys(r for r in rules if free_vars(r) <= known))

    def write(self, file: BinaryIO) -> None:
        """Write the artefact to an open file, from the file's start on."""
        absent = [[a.sizes, a.reason] for a in self.absent]
        write_pooled(file, VARIANTS_MAGIC, {"sizes": self.sizes, "absent": absent}, self.parts)

    @classmethod
    def read_from(
        cls, file: BinaryIO, path: str | os.PathLike[str], end: int
    ) -> tuple[VariantsArtifact, bytes]:
        """Read the artefact from an open file, and return it with its digest, as `Artifact.read_from`
        does."""
        header, parts, digest = read_pooled(file, path, end, VARIANTS_MAGIC, "a compiled model of variants")
        with refusing(path):
            return cls(parts, *variants_of(header["sizes"], header["absent"], parts)), digest


def variants_of(
    sizes: Sequence[Any], absent: Sequence[Any], parts: Sequence[Whole]
) -> tuple[tuple[Mapping[str, int], ...], tuple[Absent, ...]]:
    """Return the sizes and the absent variants that a header describes. Raises ValueError if they are
    invalid."""
    sizes_of_parts = tuple(map(_sizes, sizes))
    require(0 < len(parts) == len(sizes_of_parts) and not sizes_of_parts[0], "the sizes of its variants")
    require_same_ends(parts)
    return sizes_of_parts, tuple(Absent(_sizes(s), str(reason)) for s, reason in absent)


def require_same_ends(parts: Sequence[Whole]) -> None:
    """Raise ValueError if the parts differ in the names of inputs or outputs."""
    names = [_names(p) for p in parts]
    require(names.count(names[0]) == len(names), "the names of its inputs and outputs")


def write_pooled(file: BinaryIO, magic: bytes, content: Mapping[str, Any], parts: Sequence[Whole]) -> None:
    """Write several artefacts to a file, then the constants of all of them, each content once."""
    pool = Pool()
    bodies, lines = bodies_of(parts, pool)
    write_header(file, magic, {**content, "parts": lines, "constant_bytes": pool.bytes})
    write_bodies(file, bodies)
    file.write(bytes(placed(file.tell()) - file.tell()))
    pool.write(file)


def read_pooled(
    file: BinaryIO, path: str | os.PathLike[str], end: int, magic: bytes, kind: str
) -> tuple[dict[str, Any], tuple[Whole, ...], bytes]:
    """Read a file that `write_pooled` wrote. Return its header, artefacts and digest. Raises
    ArtifactError."""
    text, digest = checked_header(file, path, magic, kind, end)
    with refusing(path):
        header = fields(text)
        size, lines = header["constant_bytes"], header["parts"]
        require(is_size(size) and size <= end, "the bytes of its constants")
        pool = Constants(path, mapped(file, end - size, end))
        parts = read_bodies(file, lines, end - size, lambda at: _read_part(file, path, at, pool))
        if placed(file.tell()) + size != end:
            raise damaged(path, f"it has {end} bytes, and should have {placed(file.tell()) + size}")
        pool.start()
        return header, tuple(parts), digest


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


def sharing(part: Whole, known: dict[tuple[bytes, str, tuple[int, ...]], Array]) -> Whole:
    """Return the part with its constants replaced by equal ones in `known`. Its other constants are added to
    `known`."""
    if isinstance(part, ProgramArtifact):
        parts = (sharing(p, known) for p in part.parts)
        return replace(part, parts=tuple(p for p in parts if isinstance(p, Artifact)))
    constants = {n: np.asarray(a, order="C") for n, a in part.plan.constants.items()}
    digests = Digests([a.reshape(-1).view(np.uint8).data for a in constants.values()]).wait()
    shared = {
        name: known.setdefault((digest, str(a.dtype), a.shape), a)
        for (name, a), digest in zip(constants.items(), digests, strict=True)
    }
    return replace(part, plan=replace(part.plan, constants=shared))


def dims_of(part: Whole, ends: Literal["inputs", "outputs"] = "inputs") -> tuple[Shape | None, ...]:
    """Return the shapes of the inputs or outputs. A value that isn't a tensor of known rank has None."""
    if isinstance(part, Artifact):
        return tuple(part.plan.buffer(n).shape for n in getattr(part.plan, ends))
    values = (part.program.region.values[n] for n in getattr(part.program.region, ends))
    return tuple(v.type.shape if v.type is not None and v.type.kind == "tensor" else v.shape for v in values)


def _names(part: Whole) -> tuple[tuple[str, ...], tuple[str, ...]]:
    ends = part.plan if isinstance(part, Artifact) else part.program.region
    return ends.inputs, ends.outputs
