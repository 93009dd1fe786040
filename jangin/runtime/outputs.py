"""Memory of a run's outputs. Large outputs are aligned to a cache line. The largest ones' memory is reused by
later runs once no array refers to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jangin.ir.graph import Array
from jangin.ir.plan import ALIGN
from jangin.runtime.arrays import address

BYTE = np.dtype(np.uint8)
fresh = np.empty
"""Makes an output that isn't large, from its shape and type."""
LARGE = 32 << 20
"""Bytes from which C libraries take fresh pages for each array and return them with it. The system clears
such pages at their first use. (In glibc it is the largest value that M_MMAP_THRESHOLD reaches by itself.)"""


MANY_LINES = 12 << 20
"""Bytes from which an output is aligned to a cache line. C libraries' memory begins 16 bytes behind one.
Kernels that write scattered lines then write two halves, and a transpose takes half as long again. For
smaller outputs, which stay in a cache, sequential reads and writes are quicker if both have the same
alignment."""


def aligned(shape: Sequence[int], dtype: np.dtype[Any], to: int = ALIGN) -> Array:
    """An uninitialized array at a multiple of `to` bytes, by default a cache line."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + to, BYTE)
    start = -address(memory) % to
    found: Array = memory[start : start + size].view(dtype).reshape(shape)
    return found


class Outputs:
    """Makes arrays for the largest outputs, and keeps the memory of the last array of each name."""

    def __init__(self) -> None:
        self._spare: dict[str, Array] = {}

    def array(self, name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """A fresh, uninitialized array."""
        size = math.prod(shape) * dtype.itemsize
        memory = self._spare.pop(name, None)
        if memory is None or not size <= len(memory) <= 2 * size:
            memory = aligned((size,), BYTE)
        lent: Array = np.asarray(_Lent(memory, name, self._spare))
        return lent[:size].view(dtype).reshape(shape)


class _Lent:
    """The base of arrays over the memory. It is released with the last of them, which returns the memory."""

    def __init__(self, memory: Array, name: str, spare: dict[str, Array]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory, self._name, self._spare = memory, name, spare

    def __del__(self) -> None:
        self._spare[self._name] = self._memory
