"""Words joined from bytes, for which some processors have instructions."""

from __future__ import annotations

from jangin.ir.dtype import I32, U8
from jangin.ir.expr import Binary, Cast, Const, Expr

PLACES = 0, 8, 16, 24
"""The bit positions of a word's bytes."""


def joined(e: Binary) -> list[Expr | None] | None:
    """Return the four uint8 that are joined to a word, the first in its low bits, with None for 0. Return
    None for any other expression."""
    if e.op != "or" or e.dtype is not I32:
        return None
    parts: list[Expr | None] = [None] * 4
    waiting: list[Expr] = [e]
    while waiting:
        part, place = waiting.pop(), 0
        if isinstance(part, Binary) and part.op == "or":
            waiting += [part.a, part.b]
            continue
        if isinstance(part, Binary) and part.op == "shl" and isinstance(part.b, Const):
            place, part = int(part.b.value), part.a
        if not isinstance(part, Cast) or part.a.dtype is not U8 or place not in PLACES:
            return None
        at = PLACES.index(place)
        if parts[at] is not None:
            return None
        parts[at] = part.a
    return parts
