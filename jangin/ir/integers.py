"""Binary operations on integers and truth values, in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _trunc_div(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a >= 0) == (b >= 0) else -q


INTEGER_OPS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _trunc_div,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "rem": lambda a, b: a - _trunc_div(a, b) * b,
    "min": min,
    "max": max,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
}
"""The function that computes each binary operation on integers and truth values, by the operation's name."""
