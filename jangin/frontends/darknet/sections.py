"""Parse Darknet's files: a cfg of sections, each a layer, and the weights (github.com/pjreddie/darknet)."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from jangin.ir.graph import Array, CompileError
from jangin.ir.records import dataclass

Value = int | float | str


@dataclass(frozen=True)
class Section:
    """One "[kind]" of a cfg, which begins in line `line`, with its options. `asked` has the options that were
    read; any other is an error (`unread`)."""

    kind: str
    line: int
    options: dict[str, str] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)

    def text(self, name: str, default: str) -> str:
        self.asked.add(name)
        return self.options.get(name, default)

    def only(self, **defaults: float) -> None:
        """Raise CompileError if an option has another value than the given one, which is the only supported
        one."""
        for name, value in defaults.items():
            if self.number(name, value) != value:
                raise CompileError(
                    f"[{self.kind}] in line {self.line}: {name}={self.options[name]} is not supported"
                )

    def unread(self, idle: Collection[str]) -> list[str]:
        """Return the names of options that weren't read, except those in `idle`, which change no result."""
        return [name for name in self.options if name not in self.asked and name not in idle]

    def number(self, name: str, default: float | None = None) -> float:
        """Return an option as a number. Raises CompileError if it is no number, or if it is missing and has
        no default."""
        self.asked.add(name)
        text = self.options.get(name)
        if text is None:
            if default is None:
                raise CompileError(f"[{self.kind}] in line {self.line} has no {name}=")
            return default
        try:
            return float(text)
        except ValueError:
            raise CompileError(f"[{self.kind}] in line {self.line}: {name}={text} is no number") from None

    def whole(self, name: str, default: int | None = None, least: int = -(1 << 31)) -> int:
        value = self.number(name, default)
        if value != int(value) or not least <= value < 1 << 31:
            raise CompileError(
                f"[{self.kind}] in line {self.line}: {name}={value:g} should be whole, from {least} on"
            )
        return int(value)

    def numbers(self, name: str) -> list[float]:
        text = self.text(name, "")
        try:
            return [float(part) for part in re.split(r"[,\s]+", text.strip()) if part]
        except ValueError:
            raise CompileError(f"[{self.kind}] in line {self.line}: {name}={text} isn't a list") from None


def sections(text: str) -> list[Section]:
    """Return a cfg's sections, [net] first. Raises CompileError for a line that isn't understood."""
    sections: list[Section] = []
    for n, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line[0] == "[":
            if not line.endswith("]"):
                raise CompileError(f"line {n} of the cfg is {line!r}, not a section")
            sections.append(Section(line[1:-1].strip().lower(), n))
            continue
        name, equals, value = line.partition("=")
        if not equals or not sections:
            raise CompileError(f"line {n} of the cfg is {line!r}: neither a section nor an option")
        sections[-1].options[name.strip()] = value.split("#")[0].strip()
    if not sections or sections[0].kind not in ("net", "network"):
        raise CompileError("a Darknet cfg begins with [net]")
    return sections


class Weights:
    """The numbers of a weights file, which are taken in order."""

    def __init__(self, data: Any, where: str) -> None:
        self.where = where
        if len(data) < 16:
            raise CompileError(f"{where} is too short for Darknet's weights: give the weights of this cfg")
        major, minor, _ = np.frombuffer(data, "<i4", 3)
        header = 20 if int(major) * 10 + int(minor) >= 2 and major < 1000 and minor < 1000 else 16
        self.numbers = np.frombuffer(data, "<f4", (len(data) - header) // 4, header)
        self.at = 0

    def take(self, shape: Sequence[int], what: str) -> Array:
        count = math.prod(shape)
        if self.at + count > self.numbers.size:
            raise CompileError(
                f"{self.where} ends before {what}, which needs {count} numbers: it belongs to another cfg"
            )
        self.at += count
        return self.numbers[self.at - count : self.at].reshape(shape)

    def finish(self) -> None:
        left = self.numbers.size - self.at
        if left:
            raise CompileError(
                f"{self.where} has {left} numbers more than the cfg: it belongs to another one"
            )
