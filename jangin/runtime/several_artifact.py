"""A model compiled for several devices at once: one `.jgn` file.

The file is like that of variants (`runtime.variants_artifact`), but its header has no sizes. Instead it has
the devices' names, and the number of parts and the variants of each device. It also has the symbol by which
inputs are cut, and the placements among the last parts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, BinaryIO

from jangin.ir.graph import Array
from jangin.ir.records import dataclass
from jangin.runtime.artifact import Saved, refusing, require
from jangin.runtime.program_artifact import ProgramArtifact
from jangin.runtime.variants_artifact import (
    VariantsArtifact,
    Whole,
    read_pooled,
    require_same_ends,
    sharing,
    variants_of,
    write_pooled,
)

SEVERAL_MAGIC = b"\x8aJGS\r\n\x1a\n"
PLACEMENTS = ("branches", "stages")
"""The ways to place a model's nodes on devices. With "branches", independent branches run side by side, for
one run. With "stages", parts run one after another, each on its device, for a stream of inputs."""


@dataclass(frozen=True)
class SeveralArtifact(Saved):
    """A model for several devices.

    - `parts` has the whole model for each device, and `names` the devices' names.
    - `rows` is the symbol of the batch, the first size of inputs and outputs, which is divided among devices.
      It is "" if a batch can't be divided, for the given `reason`.
    - `placed` has the model as a program, by the names in `PLACEMENTS`. Each segment is for one of the
      devices. Only placements that measured times favour are included."""

    parts: tuple[Whole | VariantsArtifact, ...]
    names: tuple[str, ...]
    rows: str = ""
    reason: str = ""
    placed: Mapping[str, ProgramArtifact] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<SeveralArtifact on {', '.join(self.names)}: {self.parts[0]!r}>"

    @classmethod
    def of(
        cls,
        parts: Sequence[Whole | VariantsArtifact],
        names: Sequence[str],
        rows: str,
        reason: str,
        placed: Mapping[str, ProgramArtifact],
    ) -> SeveralArtifact:
        """Make an artefact of these parts. Constants of equal content become one."""
        known: dict[tuple[bytes, str, tuple[int, ...]], Array] = {}
        artifact = cls(tuple(parts), tuple(names), rows, reason, dict(placed))
        return artifact.with_wholes(lambda whole: sharing(whole, known))

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.parts[0].metadata

    def with_wholes(self, change: Callable[[Whole], Whole]) -> SeveralArtifact:
        """Return the artefact with each whole model replaced by the result of `change`."""
        wholes = [change(whole) for whole in self._wholes]
        return replace(self, **_nested(self._layout, wholes))

    @property
    def _wholes(self) -> list[Whole]:
        flat: list[Whole] = []
        for part in self.parts:
            flat += part.parts if isinstance(part, VariantsArtifact) else [part]
        return [*flat, *self.placed.values()]

    @property
    def _layout(self) -> dict[str, Any]:
        """The structure of `_wholes`, in the form of a header."""
        variants = [
            [p.sizes, [[a.sizes, a.reason] for a in p.absent]] if isinstance(p, VariantsArtifact) else None
            for p in self.parts
        ]
        return {"variants": variants, "placed": list(self.placed)}

    def write(self, file: BinaryIO) -> None:
        """Write the artefact to an open file, from the file's start on."""
        content = {"names": self.names, "rows": self.rows, "reason": self.reason, **self._layout}
        write_pooled(file, SEVERAL_MAGIC, content, self._wholes)

    @classmethod
    def read_from(
        cls, file: BinaryIO, path: str | os.PathLike[str], end: int
    ) -> tuple[SeveralArtifact, bytes]:
        """Read the artefact from an open file, and return it with its digest, as `Artifact.read_from`
        does."""
        kind = "a model compiled for several devices"
        header, wholes, digest = read_pooled(file, path, end, SEVERAL_MAGIC, kind)
        with refusing(path):
            names, rows, reason = tuple(header["names"]), header["rows"], header["reason"]
            require(all(isinstance(t, str) for t in (*names, rows, reason)), "the names of its devices")
            require(set(header["placed"]) <= {*PLACEMENTS}, "the names of its placements")
            require(len(names) == len(header["variants"]) > 0, "its devices")
            require_same_ends(wholes)
            return cls(names=names, rows=rows, reason=reason, **_nested(header, wholes)), digest


def _nested(layout: Mapping[str, Any], wholes: Iterable[Whole]) -> dict[str, Any]:
    """Return the fields `parts` and `placed`, made from a list of whole models. Raises ValueError if the list
    doesn't fit the layout."""
    rest = iter(wholes)
    parts: list[Whole | VariantsArtifact] = []
    try:
        for variants in layout["variants"]:
            if variants is None:
                parts.append(next(rest))
            else:
                own = tuple(next(rest) for _ in variants[0])
                sizes, absent = variants
                parts.append(VariantsArtifact(own, *variants_of(sizes, absent, own)))
        placed = {name: next(rest) for name in layout["placed"]}
    except StopIteration:
        raise ValueError("parts of it are missing") from None
    require(all(isinstance(p, ProgramArtifact) for p in placed.values()), "its placements")
    require(next(rest, None) is None, "the number of its parts")
    return {"parts": tuple(parts), "placed": placed}
