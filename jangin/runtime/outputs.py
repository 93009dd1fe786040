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
"""Outputs of at least this many bytes reuse their memory. C libraries take new pages for such an array and
return them with it, and the system clears new pages at their first use. (In glibc it is the largest value
that M_MMAP_THRESHOLD reaches by itself.)"""


MANY_LINES = 12 << 20
"""Outputs of at least this many bytes are aligned to a cache line. C libraries' memory begins 16 bytes behind
one, so that each scattered line that a kernel writes is two halves. A transpose then takes half as long
again.

Smaller outputs stay in a cache. Sequential reads and writes of them are quicker if both have the same
alignment."""


def aligned(shape: Sequence[int], dtype: np.dtype[Any], to: int = ALIGN) -> Array:
    """Return an uninitialized array whose address is a multiple of `to`, by default a cache line."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + to, BYTE)
    start = -address(memory) % to
    array: Array = memory[start : start + size].view(dtype).reshape(shape)
    return array


class Outputs:
    """Makes arrays for the largest outputs. When no array uses an output's memory any more, it is kept for
    the next array of the same name."""

    def __init__(self) -> None:
        self._spare: dict[str, Array] = {}

    def array(self, name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """Return an uninitialized array for an output. It uses the memory kept for `name` if that has from
        one to two times its bytes."""
        size = math.prod(shape) * dtype.itemsize
        memory = self._spare.pop(name, None)
        if memory is None or not size <= len(memory) <= 2 * size:
            memory = aligned((size,), BYTE)
        lent: Array = np.asarray(_Lent(memory, name, self._spare))
        return lent[:size].view(dtype).reshape(shape)


class _Lent:
    """The base of the arrays that share some memory. When the last of them is released, the memory is kept
    for reuse."""

    def __init__(self, memory: Array, name: str, spare: dict[str, Array]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory, self._name, self._spare = memory, name, spare

    def __del__(self) -> None:
        self._spare[self._name] = self._memory
