"""Text in TensorFlow Lite's files: string tensors, and tables between texts and numbers.

A table (HASHTABLE) is known to all sub-graphs by its number and filled once, by HASHTABLE_IMPORT; where what
fills it stands in the file, it is a constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jangin.ir.graph import Array, CompileError

Table = Mapping[Any, Any]


def texts(what: str, raw: Array, shape: list[int]) -> Array:
    """A string tensor's contents as Python's strings: how many there are, where each begins, and the end, all
    int32, and the bytes. Bytes that are no UTF-8 become surrogates, which encode to them again."""
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
    found = np.empty(count, object)
    for n in range(count):
        found[n] = data[ends[n] : ends[n + 1]].decode(errors="surrogateescape")
    return found.reshape(shape)


def table(what: str, keys: Array, values: Array) -> Table:
    """What belongs to each key: of equal ones the first counts."""
    if keys.size != values.size or (keys.dtype == object) == (values.dtype == object):
        raise CompileError(
            f"{what} is filled with {keys.size} keys and {values.size} values: it needs as many, and one of "
            "them text"
        )
    found: dict[Any, Any] = {}
    for key, value in zip(keys.reshape(-1).tolist(), values.reshape(-1).tolist(), strict=True):
        found.setdefault(key, value)
    return found
