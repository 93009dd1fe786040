"""Results that share no memory with what a caller gave, with a model's constants, or with each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jangin.ir.graph import Array


def owners(values: Iterable[Any]) -> set[int]:
    """The numbers (`id`) of the arrays that have the memory of all arrays in some values."""
    return {id(_owner(a)) for value in values for a in _arrays(value)}


def apart(values: Iterable[Any], taken: set[int]) -> list[Any]:
    """The values, with lists and dictionaries made anew. Arrays are copied where an owner in `taken`, or that
    of an earlier one, has their memory, or where they can't be written to."""
    taken = {*taken}

    def fresh(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [fresh(v) for v in value]
        if isinstance(value, dict):
            return {k: fresh(v) for k, v in value.items()}
        if isinstance(value, np.ndarray):
            if id(_owner(value)) in taken or not value.flags.writeable:
                value = value.copy()
            taken.add(id(_owner(value)))
        return value

    return [fresh(v) for v in values]


def _arrays(value: Any) -> Iterator[Array]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _arrays(v)
    elif isinstance(value, dict):
        yield from _arrays(list(value.values()))


def _owner(array: Array) -> Array:
    """The array that a view is of, which has the memory or took it from elsewhere."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
