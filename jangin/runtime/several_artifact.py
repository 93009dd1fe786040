"""A model compiled for several devices at once: one `.jgn` file.

The file: as that of variants (`runtime.variants_artifact`); its header says instead of sizes what the devices
are called, how many of the parts belong to each and which variants they are, by which symbol inputs are cut,
and which parts at the end are placements.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, BinaryIO

from jangin.files import write_whole
from jangin.ir.graph import Array
from jangin.ir.records import dataclass
from jangin.runtime.artifact import refusing, require
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
"""How the nodes of one model can be placed: independent branches side by side, for the sake of one run, or
one part after another, each on a device, for the sake of a stream of inputs."""


@dataclass(frozen=True)
class SeveralArtifact:
    """`parts`: the whole model for each device, which `names` names. `rows`: the symbol that is the first
    size of inputs and outputs, by which a batch is shared out; "" where that can't be done, for a `reason`.
    `placed`: by the names in `PLACEMENTS`, the model as a program whose segments are for one of the devices
    each; only those that measured times speak for."""

    parts: tuple[Whole | VariantsArtifact, ...]
    names: tuple[str, ...]
    rows: str = ""
    reason: str = ""
    placed: Mapping[str, ProgramArtifact] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        parts: Sequence[Whole | VariantsArtifact],
        names: Sequence[str],
        rows: str,
        reason: str,
        placed: Mapping[str, ProgramArtifact],
    ) -> SeveralArtifact:
        """Constants of equal content become one."""
        known: dict[tuple[bytes, str, tuple[int, ...]], Array] = {}
        made = cls(tuple(parts), tuple(names), rows, reason, dict(placed))
        return made.with_wholes(lambda whole: sharing(whole, known))

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.parts[0].metadata

    def with_wholes(self, change: Callable[[Whole], Whole]) -> SeveralArtifact:
        """With each of its artefacts changed."""
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
        """Which of `_wholes` belong together, as a header says it."""
        variants = [
            [p.sizes, [[a.sizes, a.reason] for a in p.absent]] if isinstance(p, VariantsArtifact) else None
            for p in self.parts
        ]
        return {"variants": variants, "placed": list(self.placed)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; a reader never sees half of it."""
        write_whole(path, self.write)

    def write(self, file: BinaryIO) -> None:
        """Write to an open file, from its start on."""
        content = {"names": self.names, "rows": self.rows, "reason": self.reason, **self._layout}
        write_pooled(file, SEVERAL_MAGIC, content, self._wholes)

    @classmethod
    def read_from(
        cls, file: BinaryIO, path: str | os.PathLike[str], end: int
    ) -> tuple[SeveralArtifact, bytes]:
        """As `Artifact.read_from`."""
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
    """What `_wholes` gave, by field. Raises ValueError where that isn't what the layout says."""
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
