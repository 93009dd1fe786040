"""Targets of several devices at once, each of which gets the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from jangin.ir.records import dataclass
from jangin.targets.target import Target

SEPARATOR = "+"
"""The text between the names of targets: "cpu+opencl:0"."""


@dataclass(frozen=True)
class SeveralTarget(Target):
    """A target of several devices. Its figures are those of the first of `parts`."""

    parts: tuple[Target, ...] = ()

    @property
    def each(self) -> Sequence[Target]:
        return self.parts

    def __str__(self) -> str:
        return SEPARATOR.join(map(str, self.parts))


def several(name: str, parts: Sequence[Target]) -> SeveralTarget:
    """Return the target of a list of devices. Raises ValueError if one is in it twice. Two GPUs of one kind
    have the same code, and names of their own."""
    every = [(str(p), p.device_name) for p in parts]
    twice = next((p for n, p in enumerate(parts) if every[n] in every[:n]), None)
    if twice is not None:
        raise ValueError(f"target {name!r} has {twice.name} twice: name each device once")
    first = {f.name: getattr(parts[0], f.name) for f in fields(Target)}
    browser = [p.backend for p in parts] == ["wgsl", "llvm"] and parts[1].triple.startswith("wasm")
    outputs = ("web",) if browser else ("jgn",)
    return SeveralTarget(**{**first, "name": name, "outputs": outputs, "parts": tuple(parts)})
