"""The bytes that x86's store instructions write, read from LLVM's assembly. So every host checks code that it
can't run."""

from __future__ import annotations

import re
from collections.abc import Iterator

from accesses import Case

_REGISTERS = {"x": 16, "y": 32, "z": 64}
_NARROWED = {"wb": 2, "dw": 2, "qd": 2, "db": 4, "qw": 4, "qb": 8}
"""The factor by which a vpmov with these letters narrows its elements."""
_WIDTHS = {
    r"vpextrb|set\w+": 1, r"vpextrw": 2, r"v(movss|movd|extractps|pextrd)": 4,
    r"v(movsd|movq|mov[lh]p[sd]|pextrq)": 8, r"vextract[fi](128|32x4|64x2)": 16,
    r"vextract[fi](64x4|32x8)": 32,
}  # fmt: skip
_OF_INTEGERS = {"b": 1, "w": 2, "l": 4, "q": 8}
_SCATTERED = {"d": 4, "q": 8, "ps": 4, "pd": 8}
_TO_MEMORY = re.compile(r"(\w+)\s+(?:(.*), )?(-?\d*)\((%\w+)(?:,(%\w+),?\d?)?\)(?: \{(%k\d)\})?$")
_READS = re.compile(r"cmp|test|vp?test|v?p?cmp|vu?comi|lea|prefetch|push|call|jmp")


def beyond(case: Case, text: str) -> list[str]:
    """Return the instructions of a one-row kernel that store more than its row. The row's address is the
    third parameter, in %rdx."""
    (size,), found = case.sizes(), False
    wrong = list[str]()
    body = text.partition(f"\n{case.name}.body:\n")[2].partition("\n.Lfunc_end")[0]
    for line, match in _stores(body):
        word, sources, offset, base, index, mask = match.groups()
        found, at = True, int(offset or 0)
        if scattered := re.fullmatch(r"vp?scatter[dq](\w+)", word):
            fits = mask is not None and _SCATTERED[scattered[1]] == case.memory.bytes
        elif case.way == "scatter":
            fits = mask is None and _width(word, sources or "") == case.memory.bytes
        else:
            end = at + (0 if mask else _width(word, sources or ""))
            fits = (
                base == "%rdx"
                and index is None
                and (mask is not None or 0 <= at < end <= size * case.memory.bytes)
            )
        if not fits:
            wrong.append(line)
    assert found, f"no store is found in {body}"
    return wrong


def _stores(body: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield the lines of a function that store, except for stores to its stack."""
    for written in body.splitlines():
        line = written.partition("#")[0].strip().replace("\t", " ")
        match = _TO_MEMORY.match(line)
        if match and match[4] != "%rsp" and not _READS.match(line):
            yield line, match


def _width(word: str, sources: str) -> int:
    """Return the bytes that an instruction stores."""
    vectors = [_REGISTERS[r] for r in re.findall(r"%([xyz])mm", sources)]
    if narrowed := re.fullmatch(r"vpmovu?s?([bwdq]{2})", word):
        return vectors[-1] // _NARROWED[narrowed[1]]
    if word == "vcvtps2ph":
        return vectors[-1] // 2
    for pattern, width in _WIDTHS.items():
        if re.fullmatch(pattern, word):
            return width
    if vectors and re.match(r"vmov", word):
        return vectors[-1]
    integers = re.fullmatch(r"(?:mov|and|or|xor|add|sub|inc|dec|neg|not)([bwlq])", word)
    assert integers, f"it isn't known how much is stored by {word} {sources}"
    return _OF_INTEGERS[integers[1]]
