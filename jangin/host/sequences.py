"""Host functions on sequences (lists), optionals (a value or None) and maps (dictionaries)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def identity(value: Any) -> Any:
    """Return a copy of a value."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return [identity(v) for v in value] if isinstance(value, list) else value


def fail(*, message: str) -> Any:
    """Raise the error of a branch that couldn't be compiled."""
    raise ValueError(message)


def optional(value: Any = None) -> Any:
    return value


def has_element(value: Any = None) -> Array:
    return np.array(value is not None)


def get_element(value: Any) -> Any:
    if value is None:
        raise ValueError("the optional has no element: test it by OptionalHasElement before")
    return value


def construct(*items: Any) -> list[Any]:
    return list(items)


def at(sequence: Sequence[Any], position: Array) -> Any:
    return sequence[_index(position, len(sequence), "read")]


def insert(sequence: Sequence[Any], item: Any, position: Array | None = None) -> list[Any]:
    n = len(sequence)
    where = n if position is None else int(position.item())
    if not -n <= where <= n:
        raise IndexError(f"position {where} is outside a sequence of {n}")
    where += n if where < 0 else 0
    return [*sequence[:where], item, *sequence[where:]]


def erase(sequence: Sequence[Any], position: Array | None = None) -> list[Any]:
    where = _index(np.array(-1) if position is None else position, len(sequence), "erase")
    return [v for i, v in enumerate(sequence) if i != where]


def length(sequence: Sequence[Any]) -> Array:
    return np.array(len(sequence), np.int64)


def concat(sequence: Sequence[Array], *, axis: int, new_axis: int = 0) -> Array:
    return np.stack(sequence, axis) if new_axis else np.concatenate(sequence, axis)


def split(x: Array, sizes: Array | None = None, *, axis: int = 0, keepdims: int = 1) -> list[Array]:
    """Split x into parts of given sizes, or of one entry. A single number is the size of all parts, of which
    the last may be smaller."""
    n = x.shape[axis]
    if sizes is None:
        parts = [1] * n
    elif sizes.ndim == 0:
        each = int(sizes.item())
        parts = [each] * (n // each) + ([n % each] if n % each else [])
    else:
        parts = [int(v) for v in sizes]
    if sum(parts) != n:
        raise ValueError(f"parts of {parts} entries don't fit an axis of {n}")
    pieces = np.split(x, np.cumsum(parts)[:-1], axis) if parts else []
    return [p if keepdims or sizes is not None else np.squeeze(p, axis) for p in pieces]


def vectorize(items: Mapping[Any, Any], *, keys: Sequence[Any], dtype: str) -> Array:
    """Return the values of `keys` in their order, with zero or "" for a missing key."""
    kind = np.dtype(dtype)
    return np.array([items.get(k, "" if kind.hasobject else 0) for k in keys], kind)


def cast_map(items: Mapping[int, Any], *, size: int | None, dtype: str) -> Array:
    """Return [1, n]: the values in the order of their keys, or each at its key if a size is given."""
    kind = np.dtype(dtype)
    convert: Callable[[Any], Any] = str if kind.hasobject else lambda v: kind.type(float(v))
    if size is None:
        return np.array([[convert(items[k]) for k in sorted(items)]], kind)
    out = np.full((1, size), "" if kind.hasobject else 0, kind)
    for key, value in items.items():
        if not 0 <= key < size:
            raise IndexError(f"key {key} is outside 0..{size - 1}")
        out[0, key] = convert(value)
    return out


def _index(position: Array, n: int, what: str) -> int:
    where = int(position.item())
    if not -n <= where < n:
        raise IndexError(f"can't {what} position {where} of a sequence of {n}")
    return where % n


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Identity": identity,
    "Raise": fail,
    "Optional": optional,
    "OptionalHasElement": has_element,
    "OptionalGetElement": get_element,
    "SequenceConstruct": construct,
    "SequenceAt": at,
    "SequenceInsert": insert,
    "SequenceErase": erase,
    "SequenceLength": length,
    "ConcatFromSequence": concat,
    "SplitToSequence": split,
    "DictVectorizer": vectorize,
    "CastMap": cast_map,
}
