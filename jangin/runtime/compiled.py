"""Compiled models of every kind: their common parts, and reading of `.jgn` files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, BinaryIO, cast

from jangin.ir.dtype import from_numpy
from jangin.ir.expr import Var, const
from jangin.ir.graph import Array
from jangin.ir.traversal import substitute
from jangin.mapped import InMemory, copied, owned
from jangin.runtime.artifact import ENCRYPTED_MAGIC, MAGIC, PREFIX, Artifact, ArtifactError, damaged
from jangin.runtime.program_artifact import PROGRAM_MAGIC, ProgramArtifact
from jangin.runtime.several_artifact import SEVERAL_MAGIC, SeveralArtifact
from jangin.runtime.signing import check_signature
from jangin.runtime.sizes import Signature, TensorSpec, spec_of
from jangin.runtime.variants_artifact import VARIANTS_MAGIC, VariantsArtifact, Whole, dims_of

COPIED = 128 << 20
"""By default a file of at most this many bytes is copied to memory, which takes a fraction of its loading
time. A larger file is mapped. (On a virtual machine, copying 435 MB took a second, mapping no time.)"""
Compiled = Artifact | ProgramArtifact | VariantsArtifact | SeveralArtifact
"""A compiled model of any kind."""


UNEVEN = "uneven_time"
"""The entry of metadata with the nodes whose time depends on data, as texts (see `passes.even_time`)."""
MOST_NAMED = 20
"""Most nodes that a warning names, so that it stays readable."""


def warn_of_time(metadata: Mapping[str, Any]) -> None:
    """Warn of the nodes whose time depends on data, if the model was compiled to tell them."""
    if texts := metadata.get(UNEVEN):
        more = f"; and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
        message = f"the time of a run depends on data: {'; '.join(texts[:MOST_NAMED])}{more}"
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def plans(made: Compiled) -> Iterator[Artifact]:
    """Yield every plan of a compiled model, with its code. Plans of placements are included."""
    if isinstance(made, Artifact):
        yield made
    else:
        for part in made.parts:
            yield from plans(part)
    for program in made.placed.values() if isinstance(made, SeveralArtifact) else ():
        yield from program.parts


def targets(made: Compiled) -> list[str]:
    """Return the names of the targets of a model's code, without repetition."""
    return list(dict.fromkeys(part.plan.target.split("/")[1] for part in plans(made)))


def weight_bytes(made: Compiled) -> int:
    """Return the total bytes of all constants. A constant that several parts share counts once."""
    held = {id(a): a.nbytes for part in plans(made) for a in part.plan.constants.values()}
    return sum(held.values())


def signature(made: Compiled) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the inputs and the outputs of a compiled model. A size of an output that differs between
    variants is "?"."""
    if isinstance(made, Artifact):
        bound = Signature(made.plan)
        return bound.inputs, bound.outputs
    if isinstance(made, ProgramArtifact):
        region = made.program.region
        inputs, outputs = (
            tuple(spec_of(region.values[n]) for n in ends) for ends in (region.inputs, region.outputs)
        )
        return inputs, outputs
    inputs, outputs = signature(made.parts[0])
    if isinstance(made, SeveralArtifact):
        return inputs, outputs
    return inputs, tuple(_common(made, i, spec) for i, spec in enumerate(outputs))


def _common(made: VariantsArtifact, n: int, spec: TensorSpec) -> TensorSpec:
    """Return output number `n` with its rank, and the sizes that are the same in all variants. Other sizes
    are "?"."""
    general, *others = (dims_of(p, "outputs")[n] for p in made.parts)
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
    """Read a `.jgn` file of any kind.

    - `trust` is the PEM file of a public key. The file must then be signed (see `jangin.runtime.signing`).
    - `key` is the file of a key. The file must then be encrypted by it (see `jangin.runtime.encryption`), and
      is decrypted to memory.
    - `mapped` tells whether the file is mapped or copied to memory. None maps a file of more than `COPIED`
      bytes."""
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


def read_memory(memory: InMemory, name: str) -> Compiled:
    """Read the contents of a `.jgn` file of any kind from memory. `name` stands for the file in errors."""
    return _read(cast(BinaryIO, memory), name, None)


def _read(file: BinaryIO, path: str | os.PathLike[str], trust: str | os.PathLike[str] | None) -> Compiled:
    kinds: Mapping[bytes, type[VariantsArtifact] | type[ProgramArtifact] | type[SeveralArtifact]]
    kinds = {
        VARIANTS_MAGIC: VariantsArtifact, PROGRAM_MAGIC: ProgramArtifact, SEVERAL_MAGIC: SeveralArtifact,
    }  # fmt: skip
    size = len(file) if isinstance(file, InMemory) else os.fstat(file.fileno()).st_size
    prefix = file.read(PREFIX.size)
    if prefix[: len(MAGIC)] == ENCRYPTED_MAGIC:
        raise ArtifactError(f"{path} is encrypted: give key=, the file of the key")
    if trust is not None:
        check_signature(path, prefix, trust)
    file.seek(0)
    kind = kinds.get(prefix[: len(MAGIC)], Artifact)
    compiled, digest = kind.read_from(file, path, size)
    if trust is not None and not prefix.endswith(digest):
        raise damaged(path, "it changed while it was read")
    return compiled


def detached(made: Compiled) -> Compiled:
    """Return the model with copies of its constants, which don't need the file or bytes that they were read
    from. Constants that parts share stay shared."""
    arrays = {id(a): a for part in plans(made) for a in part.plan.constants.values()}
    copies = {n: owned(a) for n, a in arrays.items()}
    if isinstance(made, SeveralArtifact):
        return made.with_wholes(lambda whole: _detached(whole, copies))
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
    """Wait until all constants of a model are checked, and return the model. Raises ArtifactError if one is
    damaged."""
    for part in plans(made):
        if part.check is not None:
            part.check()
    return made
