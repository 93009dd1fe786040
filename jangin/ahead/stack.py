"""The stack that a run takes, from the call graph that gcc writes (`-fcallgraph-info=su`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

EXTERNAL = 64
"""Bytes of stack of a function of libc or of the compiler's library. Newlib's copies, and gcc 12's floats for
cores without them, take at most 56."""
INDIRECT = "__indirect_call"
_NODE = re.compile(r'node: \{ title: "(?:[^":]*:)?([^"]+)" label: "[^"\\]*(?:\\n[^"\\]*\\n(\d+) bytes)?')
_EDGE = re.compile(r'edge: \{ sourcename: "(?:[^":]*:)?([^"]+)" targetname: "(?:[^":]*:)?([^"]+)"')


def stack_bytes(graph: str, entry: str, by_address: Mapping[str, Sequence[str]]) -> int | None:
    """Return the most bytes of stack that a function and those that it calls take at the same time.

    `graph` is the call graph. `by_address` has the functions that are called by their addresses, for callers
    whose names begin with a text. The first such text counts. Return None if the graph lacks the function, or
    has a cycle: no bound is then known."""
    own = {name: EXTERNAL if size == "" else int(size) for name, size in _NODE.findall(graph)}
    calls: dict[str, set[str]] = {name: set() for name in own}
    for source, to in _EDGE.findall(graph):
        if to == INDIRECT:
            starts = next(tuple(names) for begin, names in by_address.items() if source.startswith(begin))
            calls[source].update(n for n in own if n.startswith(starts))
        else:
            calls[source].add(to)
    if entry not in own:
        return None
    return _deepest(entry, own, calls, {}, ())


def _deepest(
    name: str, own: dict[str, int], calls: dict[str, set[str]], known: dict[str, int], above: tuple[str, ...]
) -> int | None:
    """Return the bytes of a function and the deepest of its calls, or None for a cycle."""
    if name in above:
        return None
    if name not in known:
        below = [_deepest(n, own, calls, known, (*above, name)) for n in calls[name]]
        if None in below:
            return None
        known[name] = own[name] + max((b for b in below if b is not None), default=0)
    return known[name]
