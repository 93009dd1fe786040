"""The printing and pickling of the expressions of `ir.expr`: as text and as lists, without recursion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from jangin.ir.expr import Expr

SMALL = 64
"""An expression of at most this many nodes is printed and pickled part by part, and the parts' texts are
kept. Larger expressions are walked in one loop."""
KEPT_TEXT = 4096
"""The text of a larger expression is kept if it has at most this many characters. Otherwise the texts of a
long chain's parts would fill the memory."""

Packed = Union["Expr", tuple["type[Expr]", list[object]]]
"""A leaf, or a node as its class and fields. In the fields, children are numbers of list items."""


def written(e: Expr) -> str:
    """Return an expression's text form (grammar in `ir.text`). `ir.parse.parse_expr` reads it back."""
    if e.size <= SMALL:
        return "".join(map(str, e._pieces()))
    pieces: list[str] = []
    waiting: list[str | Expr] = [e]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str) or part.size <= SMALL:
            pieces.append(str(part))
        else:
            waiting.extend(reversed(part._pieces()))
    return "".join(pieces)


def listed(opening: str, kids: Sequence[Expr], closing: str) -> list[str | Expr]:
    """Return pieces of text: the children between `opening` and `closing`, separated by commas."""
    parts = [part for k in kids for part in (", ", k)] or [""]
    return [opening, *parts[1:], closing]


def postorder(e: Expr) -> list[Expr]:
    """Return every node of `e` once, children first."""
    order: dict[Expr, None] = {}
    stack = [e]
    while stack:
        node = stack[-1]
        new = () if node in order else [k for k in reversed(node._kids) if k not in order]
        if new:
            stack.extend(new)
        else:
            order[stack.pop()] = None
    return list(order)


def packed(e: Expr) -> list[Packed]:
    """Return the nodes of an expression as a list to be pickled, children first."""
    nodes = postorder(e)
    number = {n: i for i, n in enumerate(nodes)}

    def field(value: object) -> object:
        if isinstance(value, tuple):
            return tuple([number[k] for k in value])
        return number.get(value, value)  # type: ignore[call-overload]

    return [(type(n), [field(getattr(n, f)) for f in n.__match_args__]) if n._kids else n for n in nodes]


def unpacked(parts: list[Packed]) -> Expr:
    """Return the expression whose list `packed` made."""
    exprs: list[Expr] = []
    for part in parts:
        if isinstance(part, tuple):
            cls, values = part
            part = cls(*[_field(v, exprs) for v in values])
        exprs.append(part)
    return exprs[-1]


def _field(value: object, made: Sequence[Expr]) -> object:
    if isinstance(value, tuple):
        return tuple([made[n] for n in value])
    return made[value] if isinstance(value, int) else value
