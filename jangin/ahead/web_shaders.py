"""Shaders that differ only in integers become one shader, which reads these integers from its launch.

Layers of a network often have equal loops over other sizes. A browser then compiles fewer shaders, and
compiling is most of the time to the first result. An integer stays a constant if all shaders of a kind agree
on it, so the loops within a tile still have constant bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from jangin.ir.records import dataclass

_MAIN = re.compile(r"^fn main\(.*\n", re.MULTILINE)
"""The line after which a shader's body begins."""
_INTEGER = re.compile(r"(?<![\w.\[])\d+(?![\w.\]>])")
"""An i32 in a body, apart from an array's constant index or size. Indices stay constants, so that arrays can
be registers."""
_NUMBERS = re.compile(r"^struct Numbers \{(.*) \}", re.MULTILINE)


@dataclass(frozen=True)
class Common:
    """The shader `name`, and the integers that a launch adds to its numbers."""

    name: str
    added: tuple[int, ...] = ()


def united(shaders: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Common]]:
    """Return fewer shaders that do the same, by name, and the one that takes each shader's place."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for name, text in shaders.items():
        head, body = _parts(text)
        kinds.setdefault((head, _INTEGER.sub("#", body)), []).append(name)
    texts, places = {}, {}
    for (head, _), names in kinds.items():
        bodies = [_parts(shaders[name])[1] for name in names]
        columns = list(zip(*([*map(int, _INTEGER.findall(b))] for b in bodies), strict=True))
        added = [*dict.fromkeys(c for c in columns if len(set(c)) > 1)]
        texts[names[0]] = _with_numbers(head, len(added)) + _replaced(bodies[0], columns, added)
        for n, name in enumerate(names):
            places[name] = Common(names[0], tuple(column[n] for column in added))
    return texts, places


def _parts(text: str) -> tuple[str, str]:
    """Return a shader's declarations, and its body."""
    main = _MAIN.search(text)
    assert main is not None, text
    return text[: main.end()], text[main.end() :]


def _with_numbers(head: str, count: int) -> str:
    """Return declarations in which a launch gives `count` more integers, k0 and so on."""
    more = "".join(f", k{n}: i32" for n in range(count))
    return _NUMBERS.sub(lambda found: f"struct Numbers {{{found[1]}{more} }}", head, count=1)


def _replaced(body: str, columns: Sequence[tuple[int, ...]], added: Sequence[tuple[int, ...]]) -> str:
    """Return a body that reads the integers `added`. `columns` has all shaders' values of each integer."""
    numbers = {column: f"u.k{n}" for n, column in enumerate(added)}
    following = iter(columns)
    return _INTEGER.sub(lambda found: numbers.get(next(following), found[0]), body)
