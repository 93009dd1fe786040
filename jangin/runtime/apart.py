"""Results that share no memory with a caller's arrays, with a model's constants, or with each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jangin.ir.graph import Array


def owners(values: Iterable[Any]) -> set[int]:
    """The identities (`id`) of the arrays that own the memory of all arrays in some values."""
    return {id(_owner(a)) for value in values for a in _arrays(value)}


def apart(values: Iterable[Any], taken: set[int]) -> list[Any]:
    """The values, with lists and dictionaries made anew. An array is copied if it is read-only, or if an
    owner in `taken` or the owner of an earlier array has its memory."""
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
    """The array that owns a view's memory, or that took it from elsewhere."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
