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
and its flags (i32)."""

_word = ctypes.c_size_t.from_address


def _general(array: Array) -> int:
    at: int = array.__array_interface__["data"][0]
    return at


def _first_field(array: Array) -> int:
    return _word(id(array) + DATA).value


_REAL, _PAIR = 0.3, 0.3 + 0.7j


def _as_described() -> bool:
    """Return whether this Python and this NumPy lay out objects as this module assumes."""
    array = np.empty((3, 2), np.int16)[1:]
    if ctypes.sizeof(ctypes.c_size_t) != 8 or _first_field(array) != _general(array):
        return False
    items = (array,)
    at = id(array)
    numbers = [ctypes.c_double.from_address(id(n) + HEAD + 8 * k).value for n, k in ((_REAL, 0), (_PAIR, 1))]
    dims = (ctypes.c_size_t * 2).from_address(_word(at + DIMS).value)
    rank, flags = (ctypes.c_int32.from_address(at + n).value for n in (RANK, FLAGS))
    types = _word(at + HEAD - 8).value, _word(at + DTYPE).value
    return (
        (*dims, rank) == (*array.shape, array.ndim)
        and flags == array.flags.num
        and types == (id(np.ndarray), id(array.dtype))
        and numbers == [_REAL, _PAIR.imag]
        and (_word(id(items) + HEAD).value, _word(id(items) + ITEMS).value) == (1, at)
    )


DESCRIBED = _as_described()
address = _first_field if DESCRIBED else _general
"""The address of an array's memory."""


C_ORDER, F_ORDER, ALIGNED, WRITEABLE = 0x1, 0x2, 0x100, 0x400
"""NumPy's flags of arrays (NPY_ARRAY_C_CONTIGUOUS and others in its header ndarraytypes.h)."""


def array_wanted(
    shape: tuple[int, ...], dtype: np.dtype[Any], places: Sequence[int], flags: int = C_ORDER
) -> list[int]:
    """Return what `functions.TAKE` wants of an array: its shape, its dtype, and the flags that it must have.
    The dtype must outlive the table. The array's address is stored at `places` in the table of pointers."""
    return [0, id(np.ndarray), id(dtype), flags, len(shape), *shape, len(places), *places]


def number_wanted(number: float | complex, to: Array) -> list[int]:
    """Return what `functions.TAKE` wants of a number of the type of `number`, which it writes to the memory
    of an array."""
    single = to.real.itemsize == 4
    return [2 if single else 1, id(type(number)), 2 if isinstance(number, complex) else 1, address(to)]


def object_wanted(one: object) -> list[int]:
    """Return what `functions.TAKE` wants of an object that must be this one."""
    return [3, id(one)]


def wanted(objects: Sequence[Sequence[int]]) -> Any:
    """Return the table by which `functions.TAKE` checks a tuple of objects and takes their addresses and
    numbers. `objects` has what `array_wanted`, `number_wanted` or `object_wanted` returns for each."""
    words = [0, HEAD, ITEMS, len(objects), *(word for one in objects for word in one)]
    return (ctypes.c_int64 * len(words))(*words)
