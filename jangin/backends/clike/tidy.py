"""Removes unused definitions from a function body."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

_DEFINES = re.compile(r"  (?:const \w+ |let |var |[\w ]+ \*|\w+ (?=a\d))(\w+)(?: = |: |\[)")
_NAME = re.compile(r"\b[A-Za-z_]\w*")


def tidy(lines: Sequence[str], loaded: Collection[str], keep: Callable[[str], str]) -> list[str]:
    """Return the statements, one a line, without definitions that no later statement uses.

    A vector that was `loaded` from memory and is used more than once gets its `keep` statement, which may be
    empty.
    """
    uses: Counter[str] = Counter()
    kept: list[str] = []
    for line in reversed(lines):
        defined = _DEFINES.match(line)
        if defined is not None and not uses[defined[1]]:
            continue
        if defined is not None and defined[1] in loaded and uses[defined[1]] > 1 and keep(defined[1]):
            kept.append(f"  {keep(defined[1])};")
            line = line.replace("const ", "", 1)
        uses.update({*_NAME.findall(line)})
        kept.append(line)
    return kept[::-1]


def needed(definitions: Mapping[str, str], bodies: Sequence[str]) -> list[str]:
    """Return the definitions, by name, that a body or another definition uses. Each comes after those it
    uses."""
    kept: list[str] = []
    for name, text in reversed([*definitions.items()]):
        mention = re.compile(rf"\b{name}\b")
        if any(map(mention.search, (*kept, *bodies))):
            kept.append(text)
    return kept[::-1]


def unused(names: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return the parameters of a function that its body doesn't use."""
    used = {name for line in lines for name in _NAME.findall(line)}
    return [n for n in names if n not in used]
