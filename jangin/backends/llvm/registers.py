"""Keeps local arrays' elements in registers while one block is written.

A load of an element that the block stored returns the stored value. If an element is stored several times,
only the last value is written, at the end of the block. LLVM would find the same result, but each
multiply-add of a tile would first be a load, the operation and a store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jangin.backends.walk.writer import Pointer, Value
from jangin.ir.dtype import DType


@dataclass
class _Array:
    """A local array. `held` has, by element, the address and the value of each store that isn't written yet.
    All held values have the same `shape`, a type and a number of lanes, and lie side by side."""

    shape: tuple[DType, int] | None = None
    held: dict[int, tuple[Pointer, Value]] = field(default_factory=dict)


class Registers:
    """The local arrays of one function, whose elements stay in registers within a block. `write` writes a
    store to memory."""

    def __init__(self, write: Callable[[Pointer, Value], None]) -> None:
        self._write = write
        self._places: dict[Pointer, tuple[_Array, int | None]] = {}
        self._waiting: list[_Array] = []

    def __contains__(self, at: Pointer) -> bool:
        return at in self._places

    def add(self, array: Pointer) -> None:
        self._places[array] = _Array(), 0

    def stepped(self, pointer: Pointer, start: Pointer, by: int | None) -> None:
        """Record that a pointer lies `by` elements behind another pointer into an array (None: an unknown
        number)."""
        array, place = self._places[start]
        self._places[pointer] = array, None if place is None or by is None else place + by

    def load(self, at: Pointer, dtype: DType, lanes: int) -> list[Value]:
        """Return the values that lie side by side from an address on. The list is empty if they must be
        loaded; memory is then up to date."""
        if at not in self._places:
            return []
        array, place = self._places[at]
        own, each = array.shape or (dtype, 1)
        if place is None or own is not dtype or lanes % each or place % each:
            self._settle(array)
            return []
        entries = [array.held.get(n) for n in range(place, place + lanes, each)]
        if None in entries and len(entries) > 1:
            self._settle(array)
        return [] if None in entries else [held[1] for held in entries if held]

    def store(self, at: Pointer, v: Value) -> bool:
        """Keep a store until the block's end, or until it is needed. Return whether it is kept."""
        if at not in self._places:
            return False
        array, place = self._places[at]
        shape = v.dtype, v.lanes
        if place is None or array.shape != shape or place % v.lanes:
            self._settle(array)
            if place is None or place % v.lanes:
                return False
            array.shape = shape
        if not array.held:
            self._waiting.append(array)
        array.held[place] = at, Value(v.ref, *shape)
        return True

    def settle(self, at: Pointer) -> None:
        """Write the kept stores to the array of an address."""
        if at in self._places:
            self._settle(self._places[at][0])

    def end_block(self) -> None:
        """Write all kept stores."""
        waiting, self._waiting = self._waiting, []
        for array in waiting:
            self._settle(array)

    def _settle(self, array: _Array) -> None:
        held, array.held = array.held, {}
        for at, value in held.values():
            self._write(at, value)
