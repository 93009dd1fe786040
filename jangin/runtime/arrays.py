"""The fields of Python's and NumPy's objects that native code reads.

NumPy's C interface fixes the fields of an array's object behind the fields of all objects
(`PyArrayObject_fields`). Python fixes the beginning of an object, and the offset of a tuple's items. Both are
tested once, when this module is imported. If the test fails, addresses are read through NumPy's interface,
and no other field is read."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from jangin.ir.graph import Array

HEAD = object.__basicsize__
"""Bytes at the beginning of each object; the last word is its type's address."""
ITEMS = tuple.__basicsize__
"""The offset of a tuple's items. Their number is the word at HEAD."""
DATA, RANK, DIMS, DTYPE, FLAGS = (HEAD + 8 * n for n in (0, 1, 2, 5, 6))
"""Offsets in an array: its memory's address, its rank (i32), its dimensions' address, its dtype's address,
and its flags (i32). The lowest flag says that it is contiguous in C's order."""

_word = ctypes.c_size_t.from_address


def _general(array: Array) -> int:
    at: int = array.__array_interface__["data"][0]
    return at


def _first_field(array: Array) -> int:
    return _word(id(array) + DATA).value


def _as_described() -> bool:
    """Return whether this Python and this NumPy lay out objects as this module assumes."""
    array = np.empty((3, 2), np.int16)[1:]
    if ctypes.sizeof(ctypes.c_size_t) != 8 or _first_field(array) != _general(array):
        return False
    items = (array,)
    at = id(array)
    dims = (ctypes.c_size_t * 2).from_address(_word(at + DIMS).value)
    rank, flags = (ctypes.c_int32.from_address(at + n).value for n in (RANK, FLAGS))
    types = _word(at + HEAD - 8).value, _word(at + DTYPE).value
    return (
        (*dims, rank) == (*array.shape, array.ndim)
        and flags == array.flags.num
        and types == (id(np.ndarray), id(array.dtype))
        and (_word(id(items) + HEAD).value, _word(id(items) + ITEMS).value) == (1, at)
    )


DESCRIBED = _as_described()
address = _first_field if DESCRIBED else _general
"""The address of an array's memory."""


def wanted(arrays: Sequence[tuple[tuple[int, ...], np.dtype[Any], Sequence[int]]]) -> Any:
    """Return the table by which `functions.TAKE` checks a tuple of arrays and takes their addresses.

    It contains each array's shape and dtype. The dtype must outlive the table. The indices that follow tell
    where the array's address is stored in the table of pointers."""
    words = [0, HEAD, ITEMS, id(np.ndarray), len(arrays)]
    for shape, dtype, places in arrays:
        words += [id(dtype), len(shape), *shape, len(places), *places]
    return (ctypes.c_int64 * len(words))(*words)
