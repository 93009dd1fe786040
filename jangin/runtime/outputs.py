"""Memory that a run writes. Large outputs begin at a cache line, and of the largest ones later runs use it
again once no array reads it."""

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
"""What makes an output that isn't large, of its shape and type."""
LARGE = 32 << 20
"""Bytes from which C libraries take fresh pages for each array, which the system clears when they are first
touched, and give them back with the array (glibc: the most that M_MMAP_THRESHOLD grows to by itself)."""


MANY_LINES = 12 << 20
"""Bytes from which an output's memory begins at a cache line. C libraries' begin 16 bytes behind one: kernels
that write a line here and a line there then write two halves, and a transpose takes half as long again. Of
smaller ones that stay in a cache, what writes in order, as it reads, is quicker where both begin alike."""


def aligned(shape: Sequence[int], dtype: np.dtype[Any], to: int = ALIGN) -> Array:
    """An array at a multiple of so many bytes, by default a cache line; its elements may be anything."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + to, BYTE)
    start = -address(memory) % to
    found: Array = memory[start : start + size].view(dtype).reshape(shape)
    return found


class Outputs:
    """Makes arrays for the largest outputs; it keeps the memory that the last one of each name had."""

    def __init__(self) -> None:
        self._spare: dict[str, Array] = {}

    def array(self, name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """A fresh array, whose elements may be anything."""
        size = math.prod(shape) * dtype.itemsize
        memory = self._spare.pop(name, None)
        if memory is None or not size <= len(memory) <= 2 * size:
            memory = aligned((size,), BYTE)
        lent: Array = np.asarray(_Lent(memory, name, self._spare))
        return lent[:size].view(dtype).reshape(shape)


class _Lent:
    """What arrays over the memory are based on: it goes with the last of them."""

    def __init__(self, memory: Array, name: str, spare: dict[str, Array]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory, self._name, self._spare = memory, name, spare

    def __del__(self) -> None:
        self._spare[self._name] = self._memory
