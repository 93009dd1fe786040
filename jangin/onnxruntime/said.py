"""These functions report options: a misspelt one is an error, and a warning names each idle one once."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

_SAID: set[str] = set()
"""The options that a warning has named in this process."""


def say_idle(names: Iterable[str], stacklevel: int = 3) -> None:
    """Warn of options that have no effect, once for each in a process."""
    new = [n for n in dict.fromkeys(names) if n not in _SAID]
    if new:
        _SAID.update(new)
        what = ", ".join(new)
        warnings.warn(f"these options change nothing in Jangin: {what}", UserWarning, stacklevel=stacklevel)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message: a question whether the nearest known name is meant. If none is near, it
    lists all known names."""
    known = sorted(known)
    import difflib  # for errors alone

    near = difflib.get_close_matches(name, known, 1)
    return f": did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
