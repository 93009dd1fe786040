"""Read text in TensorFlow Lite's files: tensors of strings, and tables from texts to numbers or from numbers
to texts.

All sub-graphs refer to a table (HASHTABLE) by its number. HASHTABLE_IMPORT fills it once. If the file has its
contents, the table is a constant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jangin.ir.graph import Array, CompileError

Table = Mapping[Any, Any]


def texts(what: str, raw: Array, shape: list[int]) -> Array:
    """Return the contents of a string tensor as Python strings. Raises CompileError if the buffer is damaged.

    The buffer has the number of strings, the start of each string and the end, all int32. The bytes follow.
    Bytes that aren't valid UTF-8 become surrogates, from which the same bytes can be encoded."""
    data = raw.tobytes()
    count = int(np.prod(shape, dtype=np.int64))
    head = np.frombuffer(data[: len(data) // 4 * 4], "<i4")[: count + 2]
    ends = head[1:].astype(np.int64)
    if (
        len(head) != count + 2
        or head[0] != count
        or (np.diff(ends) < 0).any()
        or not 4 * len(head) <= ends[0] <= ends[-1] <= len(data)
    ):
        raise CompileError(f"{what} should hold {count} texts, which its {len(data)} bytes are not")
    texts = np.empty(count, object)
    for n in range(count):
        texts[n] = data[ends[n] : ends[n + 1]].decode(errors="surrogateescape")
    return texts.reshape(shape)


def table(what: str, keys: Array, values: Array) -> Table:
    """Return a table as a dictionary. The first value of a key counts. Raises CompileError unless keys or
    values are text, but not both, and there are as many of each."""
    if keys.size != values.size or (keys.dtype == object) == (values.dtype == object):
        raise CompileError(
            f"{what} is filled with {keys.size} keys and {values.size} values: there must be as many keys as "
            "values, and either the keys or the values must be text"
        )
    entries: dict[Any, Any] = {}
    for key, value in zip(keys.reshape(-1).tolist(), values.reshape(-1).tolist(), strict=True):
        entries.setdefault(key, value)
    return entries
