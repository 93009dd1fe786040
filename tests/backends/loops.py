"""Find the innermost loops in LLVM's assembly for Arm and RISC-V, by the order of its blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_COMMENT = re.compile(r"//|@|#(?=\s|$|APP|NO_APP)")
_JUMP = re.compile(r"(?:j|b|b\.?[a-z]{2,4}|[ct]bn?z)\s(?:.*[\s,])?(\.L\w+)$")
_LAST = re.compile(r"(?:j|b|ret|br|bx|jr|tail)\b(?!\.)|pop\b.*pc|ldm\S*\s.*pc")
_CALL = re.compile(r"(?:call|blx?)\s")


@dataclass
class _Block:
    lines: list[str] = field(default_factory=list)
    following: list[str] = field(default_factory=list)
    falls: bool = True


def innermost(text: str) -> list[list[str]]:
    """Return the instructions of each loop, in their order in the text. The loops contain no other loops and
    no calls."""
    found = []
    for blocks in _functions(text):
        loops = _loops(blocks)
        inner = [b for head, b in loops.items() if not any(h in b for h in loops if h != head)]
        found += [[line for name in blocks if name in b for line in blocks[name].lines] for b in inner]
    return [loop for loop in found if not any(map(_CALL.match, loop))]


def _functions(text: str) -> list[dict[str, _Block]]:
    """Return blocks by their labels. Blocks without a label have numbers."""
    found: list[dict[str, _Block]] = []
    block = _Block()
    for written in text.splitlines():
        line = _COMMENT.split(written)[0].strip()
        label = re.match(r"(\.LBB\w+|[\w.$]+):$", line)
        if label and not label[1].startswith("."):
            found.append({})
        if not found or not line or (line[0] == "." and not (label and label[1].startswith(".LBB"))):
            continue
        if label or (block.lines[-1:] and _JUMP.match(block.lines[-1])):
            name = label[1] if label else f"{len(found[-1])}"
            if block.falls:
                block.following.append(name)
            block = found[-1][name] = _Block()
        if label:
            continue
        block.lines.append(line)
        if jump := _JUMP.match(line):
            block.following.append(jump[1])
        block.falls = not _LAST.match(line)
    return found


def _loops(blocks: Mapping[str, _Block]) -> dict[str, set[str]]:
    """Return the blocks of each loop by its first block: those that reach a jump back to it without passing
    it."""
    before: dict[str, list[str]] = {name: [] for name in blocks}
    for name, block in blocks.items():
        for n in block.following:
            before.setdefault(n, []).append(name)
    found: dict[str, set[str]] = {}
    for head in blocks:
        for latch in before[head]:
            if latch == head or not _reaches(blocks, latch, without=head):
                found.setdefault(head, {head}).update(_back(before, latch, head))
    return found


def _reaches(blocks: Mapping[str, _Block], goal: str, without: str) -> bool:
    """Tell if some path from the function's beginning reaches a block without passing another."""
    first = next(iter(blocks))
    seen, waiting = {without}, [] if first == without else [first]
    while waiting:
        name = waiting.pop()
        if name not in seen and name in blocks:
            seen.add(name)
            waiting += blocks[name].following
    return goal in seen - {without}


def _back(before: Mapping[str, list[str]], latch: str, head: str) -> Iterator[str]:
    seen, waiting = {head}, [latch]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            yield name
            waiting += before[name]
