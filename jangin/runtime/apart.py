"""Results that share no memory with a caller's arrays, with a model's constants, or with each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jangin.ir.graph import Array


def owners(values: Iterable[Any]) -> set[int]:
    """Return the identities (`id`) of the arrays that own the memory of all arrays in some values."""
    return {id(_owner(a)) for value in values for a in _arrays(value)}


def apart(values: Iterable[Any], taken: set[int]) -> list[Any]:
    """Return the values, with new lists and dictionaries. An array is copied if it is read-only. It is also
    copied if it shares memory with an array in `taken` or with an earlier one."""
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
    """Return the last array in a view's chain of bases. It owns the memory, or has it from an object that
    isn't an array."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
