"""Computes each value of a shader once: before the loops in which it doesn't change, and before the branches
that share it.

Address arithmetic mostly depends on a work-item's number alone, and each element's guard repeats it. Not all
implementations of WebGPU move it, and all compile it faster if it is written once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from jangin.runtime.devices.wgsl_halves import PLAIN

_LET = re.compile(r"  let (\w+) = (.*);")
_DECLARED = re.compile(r"\b(let|var) (\w+)")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_GIVEN = re.compile(r"item|group|lo|hi|s\d+|u")
"""Names that a shader defines before a body. The uniform `u` has the numbers of a launch."""
_PURE = {"min", "max", "select", "clamp", "abs", "extractBits", "bitcast", "i32", "u32", "f32", *PLAIN}
"""WGSL's own functions and types that the expression of a moved value may contain, and those of 16-bit
floats."""
_EXPRESSION = re.compile(r"[\w\s.+\-*/%&|^~!<>=(),]+")
"""An expression that reads no memory."""


@dataclass(eq=False)
class _Block:
    """The statements of a body, loop or branch. It is item `at` of the block `outer`. The branches of one
    condition are at their first branch."""

    head: str = ""
    outer: _Block | None = None
    at: int = 0
    items: list[str | _Block] = field(default_factory=list)

    @property
    def loop(self) -> bool:
        return self.head.startswith("  for ")

    def within(self, other: _Block) -> bool:
        """Return whether this is the other block, or inside it."""
        return self is other or (self.outer is not None and self.outer.within(other))


@dataclass(eq=False)
class _Computed:
    """The value of an expression. It is defined in a block, before the item `at`."""

    name: str
    text: str
    block: _Block
    at: int

    def rise(self) -> None:
        assert self.block.outer is not None
        self.at, self.block = self.block.at, self.block.outer


def placed(lines: Sequence[str]) -> list[str]:
    """Return a body's statements, one a line, in which each pure value is computed once."""
    body = _parsed(lines)
    placing = _Placing()
    placing.read(body)
    placing.leave_loops()
    before: dict[tuple[_Block, int], list[str]] = {}
    for value in placing.values.values():
        before.setdefault((value.block, value.at), []).append(f"  let {value.name} = {value.text};")
    return [*placing.written(body, before)]


def _parsed(lines: Sequence[str]) -> _Block:
    now = body = _Block()
    for line in lines:
        at = len(now.items)
        if line.lstrip().startswith("}"):
            assert now.outer is not None
            at, now = now.at, now.outer
        if line.endswith("{"):
            inner = _Block(line, now, at)
            now.items.append(inner)
            now = inner
        elif not line.lstrip().startswith("}"):
            now.items.append(line)
    return body


class _Placing:
    """Numbers the values of a body.

    - `values` has what is computed, by expression.
    - `names` has the name of the first equal value, by the name of a later one.
    - `owners` has the block in which a name is defined, or the computed value."""

    def __init__(self) -> None:
        self.values: dict[str, _Computed] = {}
        self.names: dict[str, str] = {}
        self.owners: dict[str, _Block | _Computed] = {}
        self._changing: set[str] = set()

    def read(self, block: _Block) -> None:
        """Number the values of a block, and take their definitions out of it."""
        for at, item in enumerate(block.items):
            if isinstance(item, _Block):
                if item.loop:
                    self.owners[_DECLARED.findall(item.head)[0][1]] = item
                self.read(item)
                continue
            text = block.items[at] = self.renamed(item)
            match = _LET.fullmatch(text)
            if match is not None and self._pure(match[2]):
                block.items[at] = ""
                self._number(match[1], match[2], block, at)
                continue
            for kind, name in _DECLARED.findall(text):
                self.owners[name] = block
                if kind == "var":
                    self._changing.add(name)

    def _number(self, name: str, text: str, block: _Block, at: int) -> None:
        value = self.values.get(text)
        if value is None:
            value = self.values[text] = self.owners[name] = _Computed(name, text, block, at)
            return
        self.names[name] = value.name
        while not block.within(value.block):
            value.rise()

    def renamed(self, line: str) -> str:
        return _NAME.sub(lambda found: self.names.get(found[0], found[0]), line)

    def _pure(self, text: str) -> bool:
        names = _NAME.findall(text)
        known = all(n in _PURE or n in self.owners or _GIVEN.fullmatch(n) for n in names)
        return known and not self._changing & {*names} and _EXPRESSION.fullmatch(text) is not None

    def leave_loops(self) -> None:
        """Define values before the loops in which they are the same."""
        for value in self.values.values():
            owners = [self.owners[n] for n in _NAME.findall(value.text) if n in self.owners]
            blocks = [o.block if isinstance(o, _Computed) else o for o in owners]
            while value.block.loop and not any(b.within(value.block) for b in blocks):
                value.rise()

    def written(self, block: _Block, before: dict[tuple[_Block, int], list[str]]) -> Iterator[str]:
        for at, item in enumerate(block.items):
            yield from before.get((block, at), [])
            if isinstance(item, str):
                if item:
                    yield self.renamed(item)
                continue
            yield self.renamed(item.head)
            yield from self.written(item, before)
            follows = block.items[at + 1] if at + 1 < len(block.items) else ""
            if not (isinstance(follows, _Block) and follows.head.lstrip().startswith("}")):
                yield "  }"
